// One of many processes that change a pool and may be killed, or lose power, at any time.
//
//   worker work   MODELS ID SEED [lie] [OPERATIONS]   checks what an earlier worker ID left, then works for ever
//   worker verify MODELS                              after all have ended: everything acknowledged, nothing else
//
// MODELS is a folder of the host with one file for each worker: what the pool must hold of it, and the operation in
// flight with the states before and after. It is written before and after each operation. All workers share the folders
// /nacre/t/0 to 3 and a counter that they raise under a lock; each name belongs to one worker.
// Exit status: 3 something acknowledged is lost or torn, 5 an operation fails; SIGALRM ends it if an operation hangs.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "torture.h"

enum { NAMES = 24, FOLDERS = 4, BLOCKS = 28, BLOCK = 3000, HANG = 120, WORKERS = 64 };
enum kind { NONE, PLAIN, FOLDER, SYMLINK };
// Of model.active. What is cleared away was verified; a death meanwhile leaves any part of it.
enum { IN_FLIGHT = 1, CLEARING };

struct entry { // one name; 128 bytes
    uint8_t kind, folder, linked, linked_in;
    uint16_t mode, blocks;
    uint32_t attribute;      // value of user.a, 0 for none
    uint32_t tag[BLOCKS + 1]; // contents of each block, 0 for zeros; of a symbolic link: tag[0]
};
struct model {
    uint32_t active, i, j, ranged;    // whether an operation on names i and j is in flight; ranged: blocks may be old or new
    struct entry before[2], after[2];
    uint64_t operations, increments;
    uint32_t pid;
    char pad[4096 - 16 - 4 * 128 - 20 - 4];
    struct entry names[NAMES];
};
_Static_assert(sizeof(struct entry) == 128, "entry");
_Static_assert(sizeof(struct model) == 4096 + NAMES * 128, "model");

static struct model m;
static int model_fd = -1, lies, durable;

static unsigned long number(void) { return m.operations; }
#define must(condition) do { if (!(condition)) stop(5, "fails: %s", #condition); } while (0)
#define sound(condition, ...) do { if (!(condition)) stop(3, __VA_ARGS__); } while (0)

static void save(void *part, size_t size) {
    off_t at = (char *)part - (char *)&m;
    if (pwrite(model_fd, part, size, at) != (ssize_t)size) stop(5, "cannot write the model");
    if (durable && fsync(model_fd)) stop(5, "cannot sync the model");
}

static void path_of(char *path, int worker, int i, int folder, int linked) {
    sprintf(path, "/nacre/t/%d/w%02d-%02d%s", folder, worker, i, linked ? "+" : "");
}

// ---- what is there

static void fill(char *bytes, uint32_t tag, int block) {
    for (int k = 0; k < BLOCK; k++) bytes[k] = tag ? (char)(tag * 2654435761u >> 13) + block + k * 7 : 0;
}

// Why what is there is not as it should be.
static char why[200];
#define differs(...) (snprintf(why, sizeof why, __VA_ARGS__), 0)

// Every byte as one of two entries says; `size` bytes are there.
static int contents_match(int fd, size_t size, struct entry *a, struct entry *b) {
    static char got[BLOCK], one[BLOCK], two[BLOCK];
    for (size_t block = 0; block * BLOCK < size; block++) {
        size_t n = size - block * BLOCK < BLOCK ? size - block * BLOCK : BLOCK;
        ssize_t done = pread(fd, got, n, block * BLOCK);
        if (done != (ssize_t)n) return differs("%zd of %zu bytes of block %zu are read: %m", done, n, block);
        fill(one, block < a->blocks ? a->tag[block] : 0, block);
        fill(two, block < b->blocks ? b->tag[block] : 0, block);
        for (size_t k = 0; k < n; k++)
            if (got[k] != one[k] && got[k] != two[k])
                return differs("byte %zu of block %zu is %#x, not %#x or %#x", k, block, got[k] & 255, one[k] & 255, two[k] & 255);
    }
    return 1;
}

// Whether name i of a worker is as the entry says. `other`: blocks and size may also be as there.
static int is(int worker, int i, struct entry *e, struct entry *other) {
    char path[64], to[64], expected[64];
    struct stat s, t;
    for (int folder = 0; folder < FOLDERS; folder++)
        for (int linked = 0; linked < 2; linked++) {
            path_of(path, worker, i, folder, linked);
            int is_there = !lstat(path, &s), at = linked ? e->linked_in : e->folder;
            if (is_there != (at == folder && (linked ? e->kind == PLAIN && e->linked : e->kind != NONE)))
                return differs("%s: %s", path, is_there ? "it is there" : strerror(errno));
        }
    if (e->kind == NONE) return 1;
    path_of(path, worker, i, e->folder, 0);
    if (lstat(path, &s)) return differs("%s: %m", path);
    if (e->kind == FOLDER) return S_ISDIR(s.st_mode) || differs("%s: mode %o", path, s.st_mode);
    if (e->kind == SYMLINK) {
        ssize_t n = readlink(path, to, sizeof to);
        return (n == sprintf(expected, "to-%u", e->tag[0]) && !memcmp(to, expected, n)) || differs("%s leads elsewhere: %zd", path, n);
    }
    size_t size = e->blocks * (size_t)BLOCK, largest = other->blocks * (size_t)BLOCK;
    if (!S_ISREG(s.st_mode) || (s.st_mode & 0777) != e->mode || s.st_nlink != 1u + e->linked)
        return differs("%s: mode %o, %ju links", path, s.st_mode, (uintmax_t)s.st_nlink);
    size_t low = size < largest ? size : largest, high = size < largest ? largest : size;
    if ((size_t)s.st_size < low || (size_t)s.st_size > high) return differs("%s: %jd bytes, not %zu to %zu", path, (intmax_t)s.st_size, low, high);
    path_of(to, worker, i, e->linked_in, 1);
    if (e->linked && (lstat(to, &t) || t.st_ino != s.st_ino)) return differs("%s is another inode", to);
    uint32_t attribute = 0;
    ssize_t got = getxattr(path, "user.a", &attribute, sizeof attribute);
    if (got != (e->attribute ? 4 : -1) || attribute != e->attribute) return differs("%s: an attribute of %zd bytes, %u", path, got, attribute);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return differs("%s: cannot be opened: %m", path);
    int good = contents_match(fd, s.st_size, e, other);
    close(fd);
    return good;
}

static const char *shown(struct entry *e) {
    static char text[300];
    sprintf(text, "kind %d folder %d linked %d in %d mode %o blocks %d attribute %u", e->kind, e->folder, e->linked, e->linked_in,
            e->mode, e->blocks, e->attribute);
    return text;
}

static void remove_name(int i) {
    char path[64];
    for (int folder = 0; folder < FOLDERS; folder++)
        for (int linked = 0; linked < 2; linked++) {
            path_of(path, me, i, folder, linked);
            if (unlink(path) && errno != ENOENT) must(!rmdir(path));
        }
    memset(&m.names[i], 0, sizeof m.names[i]);
    save(&m.names[i], sizeof m.names[i]);
}

static void set_active(uint32_t active) {
    m.active = active;
    save(&m.active, sizeof m.active);
}

// Everything acknowledged is there; the operation in flight happened or not.
static void verify(int worker) {
    for (uint32_t i = 0; i < NAMES; i++) {
        if (m.active && (i == m.i || i == m.j)) continue;
        sound(is(worker, i, &m.names[i], &m.names[i]), "name %u of worker %d is not as acknowledged (%s): %s", i, worker, shown(&m.names[i]), why);
    }
    if (m.active != IN_FLIGHT) return;
    struct entry *before = m.before, *after = m.after;
    int old = is(worker, m.i, &before[0], m.ranged ? &after[0] : &before[0]);
    if (m.j != m.i) old = old && is(worker, m.j, &before[1], &before[1]);
    if (old) return;
    char why_not_old[sizeof why];
    strcpy(why_not_old, why);
    int new = is(worker, m.i, &after[0], m.ranged ? &before[0] : &after[0]);
    if (m.j != m.i) new = new && is(worker, m.j, &after[1], &after[1]);
    sound(new, "name %u (and %u) is neither as before (%s): %s; nor as after: %s", m.i, m.j, shown(&before[0]), why_not_old, why);
}

// ---- operations

static void begin(int i, int j, int ranged) {
    m.i = i, m.j = j, m.ranged = ranged;
    m.before[0] = m.names[i], m.before[1] = m.names[j];
    m.after[0] = m.names[i], m.after[1] = m.names[j];
}
static void intend(const char *what) {
    doing = what;
    m.active = IN_FLIGHT;
    save(&m, 16 + 4 * sizeof(struct entry));
}
static void acknowledge(void) {
    alarm(HANG);
    m.names[m.i] = m.after[0];
    save(&m.names[m.i], sizeof(struct entry));
    if (m.j != m.i) {
        m.names[m.j] = m.after[1];
        save(&m.names[m.j], sizeof(struct entry));
    }
    m.operations++;
    save(&m.operations, 8);
    set_active(0);
}
#define perform(condition) do { if (!(lies && pick(10) == 0)) must(condition); } while (0)

static int opened(const char *path, int flags) {
    int fd = open(path, flags);
    must(fd >= 0);
    return fd;
}

static int put_blocks(const char *path, struct entry *e, int from, int to, int how) {
    static char bytes[BLOCKS * BLOCK];
    for (int block = from; block < to; block++) fill(bytes + (block - from) * BLOCK, e->tag[block], block);
    size_t size = (to - from) * (size_t)BLOCK;
    int fd = opened(path, O_RDWR | (how == 1 ? O_APPEND : how == 2 ? O_SYNC : 0)), good;
    if (how == 3) {
        off_t start = from * BLOCK & ~4095, skip = from * BLOCK - start;
        char *map = mmap(0, size + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start);
        must(map != MAP_FAILED);
        memcpy(map + skip, bytes, size);
        good = !msync(map, size + skip, MS_SYNC) && !munmap(map, size + skip);
    } else if (how == 1) {
        good = write(fd, bytes, size) == (ssize_t)size;
    } else {
        good = pwrite(fd, bytes, size, from * (off_t)BLOCK) == (ssize_t)size;
    }
    return good && !close(fd);
}

static void change_blocks(int i, const char *path) {
    struct entry *e = &m.after[0];
    int how = pick(4), from = how == 1 ? e->blocks : pick(BLOCKS), to = from + 1 + pick(6);
    if (to > BLOCKS) to = BLOCKS;
    if (how == 3 && to > e->blocks) to = e->blocks;
    if (from >= to) return;
    begin(i, i, 1);
    for (int block = e->blocks; block < from; block++) e->tag[block] = 0;
    for (int block = from; block < to; block++) e->tag[block] = 1 + pick(1 << 30);
    if (to > e->blocks) e->blocks = to;
    intend(how == 1 ? "append" : how == 3 ? "mapped write" : "write");
    perform(put_blocks(path, e, from, to, how));
    acknowledge();
}

static void change_size(int i, const char *path) {
    int blocks = pick(BLOCKS);
    begin(i, i, 0);
    for (int block = m.after[0].blocks; block < blocks; block++) m.after[0].tag[block] = 0;
    m.after[0].blocks = blocks;
    intend("truncate");
    perform(!truncate(path, blocks * (off_t)BLOCK));
    acknowledge();
}

static void punch(int i, const char *path) {
    int from = pick(BLOCKS), to = from + 1 + pick(4);
    begin(i, i, 1);
    if (to > m.after[0].blocks) return;
    for (int block = from; block < to; block++) m.after[0].tag[block] = 0;
    int fd = opened(path, O_RDWR);
    intend("punch");
    perform(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from * BLOCK, (to - from) * BLOCK));
    acknowledge();
    close(fd);
}

static void move(int i, const char *path) {
    char to[64];
    int folder = pick(FOLDERS);
    begin(i, i, 0);
    m.after[0].folder = folder;
    path_of(to, me, i, folder, 0);
    intend("rename");
    perform(!rename(path, to));
    acknowledge();
}

// Over another name of this worker, which may be there.
static void replace(int i, const char *path) {
    char to[64];
    int j = pick(NAMES), folder = pick(FOLDERS);
    if (j == i || m.names[i].linked || m.names[j].linked || m.names[j].kind == FOLDER) return;
    if (m.names[i].kind == FOLDER && m.names[j].kind != NONE) return;
    if (m.names[j].kind != NONE) folder = m.names[j].folder;
    begin(i, j, 0);
    m.after[1] = m.before[0];
    m.after[1].folder = folder;
    memset(&m.after[0], 0, sizeof m.after[0]);
    path_of(to, me, j, folder, 0);
    intend("rename over another");
    perform(!rename(path, to));
    acknowledge();
}

static void drop(int i, const char *path) {
    char other[64];
    begin(i, i, 0);
    path_of(other, me, i, m.names[i].linked_in, 1);
    if (m.names[i].linked) m.after[0].linked = 0;
    else memset(&m.after[0], 0, sizeof m.after[0]);
    intend("unlink");
    perform(!(m.names[i].kind == FOLDER ? rmdir(path) : unlink(m.names[i].linked ? other : path)));
    acknowledge();
}

static void make_link(int i, const char *path) {
    char to[64];
    if (m.names[i].linked) return;
    begin(i, i, 0);
    m.after[0].linked = 1, m.after[0].linked_in = pick(FOLDERS);
    path_of(to, me, i, m.after[0].linked_in, 1);
    intend("link");
    perform(!link(path, to));
    acknowledge();
}

static void change_attributes(int i, const char *path) {
    begin(i, i, 0);
    if (pick(2)) {
        m.after[0].mode = 0600 + pick(0100);
        intend("chmod");
        perform(!chmod(path, m.after[0].mode));
    } else {
        m.after[0].attribute = 1 + pick(1 << 30);
        intend("setxattr");
        perform(!setxattr(path, "user.a", &m.after[0].attribute, 4, 0));
    }
    acknowledge();
}

static void make(int i) {
    char path[64], target[64];
    begin(i, i, 0);
    struct entry *e = &m.after[0];
    memset(e, 0, sizeof *e);
    e->kind = pick(8) == 0 ? FOLDER : pick(8) == 0 ? SYMLINK : PLAIN;
    e->folder = pick(FOLDERS), e->mode = 0644;
    path_of(path, me, i, e->folder, 0);
    if (e->kind == SYMLINK) e->tag[0] = pick(1 << 30), sprintf(target, "to-%u", e->tag[0]);
    intend("create");
    if (e->kind == FOLDER) perform(!mkdir(path, 0755));
    else if (e->kind == SYMLINK) perform(!symlink(target, path));
    else perform(!close(open(path, O_CREAT | O_EXCL | O_WRONLY, 0644)));
    acknowledge();
}

// All workers raise one counter; the lock keeps them apart.
static void count_up(void) {
    uint64_t value = 0;
    int fd = opened("/nacre/t/counter", O_RDWR), whole = pick(2);
    struct flock lock = {.l_type = F_WRLCK, .l_len = 8};
    doing = "lock";
    must(!fcntl(fd, F_SETLKW, &lock));
    doing = "counter";
    must(pread(fd, &value, 8, 0) >= 0);
    value++;
    must(pwrite(fd, &value, 8, 0) == 8);
    m.increments++;
    save(&m.increments, 8);
    lock.l_type = F_UNLCK;
    if (whole) must(!fcntl(fd, F_SETLK, &lock));
    must(!close(fd));
}

static void look_around(void) {
    char path[300];
    struct stat s;
    sprintf(path, "/nacre/t/%d", pick(FOLDERS));
    doing = "list";
    DIR *d = opendir(path);
    must(d);
    struct dirent *e;
    while ((e = readdir(d)))
        if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW)) must(errno == ENOENT);
    closedir(d);
}

static void start_program(void) {
    doing = "fork";
    pid_t child = fork();
    must(child >= 0);
    if (!child) {
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    int status;
    must(waitpid(child, &status, 0) == child);
}

static void step(void) {
    char path[64];
    int i = pick(NAMES), what = pick(100);
    struct entry *e = &m.names[i];
    if (what < 4) return count_up();
    if (what < 5) return look_around();
    if (what == 5) { if (pick(8) == 0) start_program(); return; }
    if (e->kind == NONE) return make(i);
    path_of(path, me, i, e->folder, 0);
    if (what < 15) return drop(i, path);
    if (what < 25) return move(i, path);
    if (what < 32) return replace(i, path);
    if (e->kind != PLAIN) return;
    if (what < 40) return make_link(i, path);
    if (what < 50) return change_attributes(i, path);
    if (what < 60) return change_size(i, path);
    if (what < 65) return punch(i, path);
    begin(i, i, 0);
    change_blocks(i, path);
}

static void load(const char *models, int worker) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", models, worker);
    model_fd = open(path, O_RDWR | O_CREAT, 0666);
    if (model_fd < 0) stop(5, "cannot open %s", path);
    memset(&m, 0, sizeof m);
    ssize_t got = pread(model_fd, &m, sizeof m, 0);
    if (got < (ssize_t)sizeof m && ftruncate(model_fd, sizeof m)) stop(5, "cannot extend %s", path);
}

static void make_place(void) {
    char path[64];
    must(!mkdir("/nacre/t", 0777) || errno == EEXIST);
    for (int folder = 0; folder < FOLDERS; folder++) {
        sprintf(path, "/nacre/t/%d", folder);
        must(!mkdir(path, 0777) || errno == EEXIST);
    }
    must(!close(open("/nacre/t/counter", O_CREAT | O_RDWR, 0666)));
}

static void work(const char *models, long operations) {
    load(models, me);
    m.pid = getpid();
    save(&m.pid, 4);
    alarm(HANG);
    make_place();
    doing = "verify";
    verify(me);
    if (m.active) {
        set_active(CLEARING);
        remove_name(m.i), remove_name(m.j);
        set_active(0);
    }
    for (long n = 0; n < operations && !is_orphan(n); n++) step();
}

// No name is there that nobody acknowledged, and the counter is what all together counted.
static void verify_all(const char *models) {
    uint64_t operations = 0, increments = 0, value = 0, names = 0, found = 0;
    char path[4096];
    int workers = 0;
    for (; workers < WORKERS; workers++) {
        snprintf(path, sizeof path, "%s/%d", models, workers);
        if (access(path, F_OK)) break;
        load(models, workers);
        close(model_fd);
        me = workers;
        verify(workers);
        operations += m.operations, increments += m.increments;
        for (uint32_t i = 0; i < NAMES; i++)
            if (!m.active || (i != m.i && i != m.j)) names += (m.names[i].kind != NONE) + m.names[i].linked;
        if (m.active) names += 1000000;
    }
    for (int folder = 0; folder < FOLDERS; folder++) {
        sprintf(path, "/nacre/t/%d", folder);
        DIR *d = opendir(path);
        must(d);
        struct dirent *e;
        while ((e = readdir(d))) found += e->d_name[0] != '.';
        closedir(d);
    }
    uint64_t unsure = names / 1000000 * 4, sure = names % 1000000;
    sound(found >= sure && found <= sure + unsure, "%lu names where %lu are known, %lu unsure", found, sure, unsure);
    int fd = opened("/nacre/t/counter", O_RDONLY);
    must(pread(fd, &value, 8, 0) >= 0);
    printf("workers %d operations %lu names %lu counter %lu counted %lu\n", workers, operations, found, value, increments);
    sound(value >= increments, "the counter lost %lu of %lu", increments - value, increments);
}

int main(int count, char **arguments) {
    durable = !!getenv("DURABLE_MODEL");
    if (count == 3 && !strcmp(arguments[1], "verify")) return verify_all(arguments[2]), 0;
    if (count < 5 || strcmp(arguments[1], "work")) return 2;
    me = atoi(arguments[3]);
    state = strtoull(arguments[4], 0, 10) * 0x9E3779B97F4A7C15u + me * 7919 + 1;
    for (int k = 0; k < 20; k++) pick(2);
    lies = count > 5 && !strcmp(arguments[5], "lie");
    work(arguments[2], count > 6 ? atol(arguments[6]) : 1L << 62);
    return 0;
}
