// What the lives of pools have under `nacre run` (lives.py): a program that changes files as a script says, and
// one that shows all that is there.
//
//   lives play FOLDER SCRIPT LOG COUNT ME    does SCRIPT in FOLDER, line by line, as number ME of COUNT, and stays if told
//   lives dump FOLDER OUT                    writes all that is below FOLDER to OUT
//
// LOG is outside of the pool. It tells of each program how many lines were begun, how many have returned, and how many
// of each were durable when a sync of this one returned: those that had returned before it was called.
// Exit status: 4 a line failed, as the log says; 5 something else did.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PLAYERS = 4, WORDS = 8, RECORD = 16 };

struct row { // of one program
    uint64_t begun, returned, error, stay, durable[PLAYERS];
};

static volatile struct row *rows;
static int me, count;

#define must(condition) do { if (!(condition)) give_up(#condition); } while (0)

static void give_up(const char *what) {
    fprintf(stderr, "lives: %s: %s\n", what, strerror(errno));
    exit(5);
}

// Bytes that tell whose they are: records of 16, each of which says the tag and its number in the file.
static void fill(char *bytes, size_t size, off_t at, unsigned tag) {
    char record[RECORD + 1];
    for (size_t k = 0; k < size; k++, at++) {
        if (k == 0 || at % RECORD == 0) snprintf(record, sizeof record, "%08x%08x", tag, (unsigned)(at / RECORD));
        bytes[k] = record[at % RECORD];
    }
}

static char *bytes_of(size_t size, off_t at, unsigned tag) {
    char *bytes = malloc(size + 1);
    must(bytes);
    fill(bytes, size, at, tag);
    return bytes;
}

static int put_mapped(int fd, char *bytes, size_t size, off_t at, int flush) {
    off_t start = at & ~4095;
    size_t skip = at - start;
    char *map = mmap(0, size + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start);
    if (map == MAP_FAILED) return -1;
    memcpy(map + skip, bytes, size);
    int result = flush ? msync(map, size + skip, MS_SYNC) : 0;
    return munmap(map, size + skip) ? -1 : result;
}

static int put(char **w) { // write PATH OFFSET SIZE TAG HOW
    off_t at = atoll(w[2]);
    size_t size = atoll(w[3]);
    const char *how = w[5];
    int flags = !strcmp(how, "dsync") ? O_DSYNC : !strcmp(how, "osync") ? O_SYNC : !strcmp(how, "append") ? O_APPEND : 0;
    int fd = open(w[1], O_RDWR | flags), result;
    if (fd < 0) return -1;
    char *bytes = bytes_of(size, at, strtoul(w[4], 0, 10));
    struct iovec one = {bytes, size};
    if (!strcmp(how, "msync") || !strcmp(how, "mapped")) result = put_mapped(fd, bytes, size, at, *(how + 1) == 's');
    else {
        ssize_t done = !strcmp(how, "append") ? write(fd, bytes, size)
            : !strcmp(how, "rwf") ? pwritev2(fd, &one, 1, at, RWF_DSYNC) : pwrite(fd, bytes, size, at);
        if (done >= 0 && done != (ssize_t)size) errno = ENOSPC;
        result = done == (ssize_t)size ? 0 : -1;
    }
    free(bytes);
    return close(fd) ? -1 : result;
}

static int on_fd(const char *path, int (*act)(int)) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    int result = act(fd);
    return close(fd) ? -1 : result;
}

static int sync_all(int fd) { // which returns no failure: the second one does
    sync();
    return syncfs(fd);
}

static int make_durable(char **w) { // sync PATH HOW
    const char *how = w[2];
    return on_fd(w[1], !strcmp(how, "fsync") ? fsync : !strcmp(how, "fdatasync") ? fdatasync
        : !strcmp(how, "syncfs") ? syncfs : sync_all);
}

static int make(char **w) {
    int fd = open(w[1], O_CREAT | O_EXCL | O_WRONLY, strtoul(w[2], 0, 8));
    return fd < 0 ? -1 : close(fd);
}

static int punch(char **w) {
    int fd = open(w[1], O_RDWR);
    if (fd < 0) return -1;
    int result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, atoll(w[2]), atoll(w[3]));
    return close(fd) ? -1 : result;
}

static int set_time(char **w) {
    struct timespec times[2] = {{atoll(w[2]), 0}, {atoll(w[2]), atoll(w[3])}};
    return utimensat(AT_FDCWD, w[1], times, 0);
}

static int perform(char **w) {
    const char *what = w[0];
    if (!strcmp(what, "create")) return make(w);
    if (!strcmp(what, "write")) return put(w);
    if (!strcmp(what, "truncate")) return truncate(w[1], atoll(w[2]));
    if (!strcmp(what, "punch")) return punch(w);
    if (!strcmp(what, "rename")) return rename(w[1], w[2]);
    if (!strcmp(what, "exchange")) return renameat2(AT_FDCWD, w[1], AT_FDCWD, w[2], RENAME_EXCHANGE);
    if (!strcmp(what, "link")) return link(w[1], w[2]);
    if (!strcmp(what, "symlink")) return symlink(w[2], w[1]);
    if (!strcmp(what, "unlink")) return unlink(w[1]);
    if (!strcmp(what, "mkdir")) return mkdir(w[1], strtoul(w[2], 0, 8));
    if (!strcmp(what, "rmdir")) return rmdir(w[1]);
    if (!strcmp(what, "chmod")) return chmod(w[1], strtoul(w[2], 0, 8));
    if (!strcmp(what, "time")) return set_time(w);
    if (!strcmp(what, "set")) return setxattr(w[1], w[2], w[3], strlen(w[3]), 0);
    if (!strcmp(what, "unset")) return removexattr(w[1], w[2]);
    if (!strcmp(what, "sync")) return make_durable(w);
    return errno = ENOSYS, -1;
}

static int syncs(char **w) {
    static const char *const ways[] = {"dsync", "osync", "rwf", "msync"};
    if (!strcmp(w[0], "sync")) return 1;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        if (!strcmp(w[0], "write") && !strcmp(w[5], ways[k])) return 1;
    return 0;
}

static void line(char **w) {
    uint64_t returned[PLAYERS];
    rows[me].begun++;
    for (int k = 0; k < count; k++) returned[k] = rows[k].returned;
    errno = 0;
    if (perform(w)) {
        rows[me].error = errno;
        exit(4);
    }
    returned[me] = ++rows[me].returned;
    for (int k = 0; syncs(w) && k < count; k++)
        if (rows[me].durable[k] < returned[k]) rows[me].durable[k] = returned[k];
}

static void play(char **arguments) {
    char text[4096], *words[WORDS + 1], *rest;
    int log = open(arguments[4], O_RDWR);
    FILE *script = fopen(arguments[3], "r");
    must(log >= 0 && script);
    count = atoi(arguments[5]), me = atoi(arguments[6]);
    rows = mmap(0, PLAYERS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, log, 0);
    must(rows != MAP_FAILED && !chdir(arguments[2]));
    umask(0);
    while (fgets(text, sizeof text, script)) {
        int n = 0;
        for (char *word = strtok_r(text, " \n", &rest); word && n < WORDS; word = strtok_r(0, " \n", &rest)) words[n++] = word;
        words[n] = 0;
        line(words);
    }
    // Until it is let go others meet it.
    while (rows[me].stay) usleep(1000);
}

static void attributes(FILE *out, const char *path) {
    char names[4096], value[4096];
    ssize_t size = llistxattr(path, names, sizeof names);
    for (char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
        ssize_t length = lgetxattr(path, name, value, sizeof value - 1);
        must(length >= 0);
        value[length] = 0;
        fprintf(out, " %s=%s", name, value);
    }
}

static void contents(FILE *out, const char *path, struct stat *found) {
    char *bytes = calloc(1, found->st_size + 1);
    int fd = open(path, O_RDONLY);
    must(bytes && fd >= 0);
    ssize_t got = 0, n;
    while ((n = pread(fd, bytes + got, found->st_size - got, got)) > 0) got += n;
    must(n == 0 && got == found->st_size);
    must(fwrite(bytes, 1, got, out) == (size_t)got);
    must(!close(fd));
    free(bytes);
}

// A line for each name; behind it the bytes of a file, or the target of a link.
static void show(FILE *out, const char *path) {
    struct stat found;
    char target[4096];
    must(!lstat(path, &found));
    size_t size = S_ISREG(found.st_mode) ? found.st_size : 0;
    if (S_ISLNK(found.st_mode)) must((ssize_t)(size = readlink(path, target, sizeof target)) >= 0);
    fprintf(out, "%s %o %lu %lu %ld%09ld %zu", path, found.st_mode, found.st_ino, found.st_nlink, found.st_mtim.tv_sec,
        found.st_mtim.tv_nsec, size);
    if (!S_ISLNK(found.st_mode)) attributes(out, path);
    fputc('\n', out);
    if (S_ISREG(found.st_mode)) contents(out, path, &found);
    else if (size) must(fwrite(target, 1, size, out) == size);
    if (!S_ISDIR(found.st_mode)) return;
    DIR *folder = opendir(path);
    must(folder);
    for (struct dirent *e; errno = 0, (e = readdir(folder));) {
        char below[4096];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        show(out, below);
    }
    must(!errno && !closedir(folder));
}

static void dump(char **arguments) {
    FILE *out = fopen(arguments[3], "w");
    must(out && !chdir(arguments[2]));
    show(out, ".");
    must(!fclose(out));
}

int main(int count, char **arguments) {
    if (count == 7 && !strcmp(arguments[1], "play")) return play(arguments), 0;
    if (count == 4 && !strcmp(arguments[1], "dump")) return dump(arguments), 0;
    return 2;
}
