// One of many processes that change a pool on a disk and sync it, until the power goes.
//
//   synced work   POOL LOGS WORKERS ID SEED [lie]   changes and syncs for ever
//   synced verify POOL LOGS WORKERS lost|kept       afterwards: all that was synced is there, nothing else
//
// LOGS is a folder outside of the pool with one file for each worker. What a worker does depends on its seed and on
// nothing else, so the file says how many of its changes were begun, how many have returned, and how many of each worker
// were durable when a sync of this one returned. A sync makes all durable that had returned before it was called, of all
// workers. What is found must be the state behind some change between the last that was durable (lost: memory is gone)
// or had returned (kept) and the last that was begun, which may be half done.
// Exit status: 3 something synced is lost, or something is there that nobody wrote; 4 the disk is gone; 5 a call fails.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "torture.h"

enum { NAMES = 12, FOLDERS = 2, BLOCKS = 24, BLOCK = 1500, WORKERS = 32, HANG = 120, NOBODY = -1 };
enum kind { NOTHING, MAKE, WRITE, RESIZE, REMOVE, MOVE, REPLACE, MODE, SYNC };
enum how { PLAIN, APPEND, DSYNC, OSYNC, RWF, MSYNC, MAPPED, HOWS };
enum sync { FSYNC, FDATASYNC, FSYNC_FOLDER, SYNCFS, SYNC_ALL, SYNCS };

struct name { // one file, or none
    uint8_t there, folder;
    uint16_t mode;
    uint32_t blocks, tag[BLOCKS]; // contents of each block; 0 for zeros
};
struct change {
    int kind, how, i, j, from, to, ranged; // ranged: bytes and size may be in part as before
    struct name after[2];
};
struct log {
    uint64_t begun, returned, seed;
    uint64_t durable[WORKERS];
    uint32_t unsure; // names whose state is not known
    uint32_t pad;
    struct name base[NAMES]; // before the first change
};
struct seen { // what the pool has of one name
    struct stat stat[FOLDERS];
    int there[FOLDERS];
    char *bytes;
};

static const char *pool, *logs;
static int workers, lies, log_fd = NOBODY, other_fd[WORKERS];
static struct log l;
static struct name names[NAMES];

static unsigned long number(void) { return l.begun; }
#define must(condition) do { if (!(condition)) stop(errno == EIO ? 4 : 5, "fails: %s", #condition); } while (0)

static void begin_seed(uint64_t seed) {
    state = seed * 0x9E3779B97F4A7C15u + me * 7919 + 1;
    for (int k = 0; k < 20; k++) pick(2);
}

// ---- the log

static int open_log(int worker) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", logs, worker);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) stop(5, "cannot open %s", path);
    return fd;
}
static void load(int worker) {
    if (log_fd >= 0) close(log_fd);
    me = worker, log_fd = open_log(worker);
    memset(&l, 0, sizeof l);
    if (pread(log_fd, &l, sizeof l, 0) < 0) stop(5, "cannot read the log");
}
static void save(void *part, size_t size) {
    if (pwrite(log_fd, part, size, (char *)part - (char *)&l) != (ssize_t)size) stop(5, "cannot write the log");
}
static uint64_t returned_of(int worker) {
    uint64_t value = 0;
    if (other_fd[worker] == NOBODY) other_fd[worker] = open_log(worker);
    if (pread(other_fd[worker], &value, 8, offsetof(struct log, returned)) < 0) stop(5, "cannot read a log");
    return value;
}

// ---- what is planned: a function of the seed and of the names as they are

static void plan_write(struct change *c, struct name *n) {
    c->how = pick(3) ? pick(2) : pick(HOWS);
    c->from = c->how == APPEND ? n->blocks : pick(BLOCKS), c->to = c->from + 1 + pick(6);
    if (c->to > BLOCKS) c->to = BLOCKS;
    if ((c->how == MSYNC || c->how == MAPPED) && c->to > (int)n->blocks) c->to = n->blocks;
    if (c->from >= c->to) return;
    c->kind = WRITE, c->ranged = 1;
    for (int block = n->blocks; block < c->from; block++) n->tag[block] = 0;
    int again = pick(2); // some of it is there already, or was there before the file was cut
    for (int block = c->from; block < c->to; block++) if (!again || pick(2)) n->tag[block] = 1 + pick(1 << 30);
    if (c->to > (int)n->blocks) n->blocks = c->to;
}

static struct change plan(void) {
    struct change c = {.i = pick(NAMES), .j = NOBODY};
    struct name *n = &c.after[0];
    int what = pick(100);
    *n = names[c.i];
    if (what < 12) return c.kind = SYNC, c.how = pick(SYNCS), c;
    if (!n->there) {
        memset(n, 0, sizeof *n);
        n->there = 1, n->folder = pick(FOLDERS), n->mode = 0600 + pick(0100);
        return c.kind = MAKE, c;
    }
    if (what < 20) return memset(n, 0, sizeof *n), c.kind = REMOVE, c;
    if (what < 28) return n->folder = pick(FOLDERS), c.kind = MOVE, c;
    if (what < 36) {
        int j = pick(NAMES), folder = pick(FOLDERS);
        if (j == c.i) return c;
        if (names[j].there) folder = names[j].folder;
        c.j = j, c.after[1] = *n, c.after[1].folder = folder, c.kind = REPLACE;
        return memset(n, 0, sizeof *n), c;
    }
    if (what < 42) return n->mode = 0600 + pick(0100), c.kind = MODE, c;
    if (what < 50) {
        uint32_t blocks = pick(BLOCKS);
        for (uint32_t block = n->blocks; block < blocks; block++) n->tag[block] = 0;
        return n->blocks = blocks, c.kind = RESIZE, c;
    }
    return plan_write(&c, n), c;
}

static void take_over(struct change *c) {
    if (c->kind == NOTHING || c->kind == SYNC) return;
    names[c->i] = c->after[0];
    if (c->j >= 0) names[c->j] = c->after[1];
}

// ---- doing it

static char *path_of(int i, int folder) {
    static char paths[2][4096];
    static int turn;
    char *path = paths[turn ^= 1];
    snprintf(path, 4096, "%s/%d/w%02d-%02d", pool, folder, me, i);
    return path;
}

static void fill(char *bytes, uint32_t tag, int block) {
    for (int k = 0; k < BLOCK; k++) bytes[k] = tag ? (char)(tag * 2654435761u >> 13) + block + k * 7 : 0;
}

static int open_it(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    must(fd >= 0);
    return fd;
}

static void put_mapped(int fd, struct change *c, char *bytes, size_t size) {
    off_t start = c->from * BLOCK & ~4095, skip = c->from * BLOCK - start;
    char *map = mmap(0, size + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start);
    must(map != MAP_FAILED);
    memcpy(map + skip, bytes, size);
    if (c->how == MSYNC) must(!msync(map, size + skip, MS_SYNC));
    must(!munmap(map, size + skip));
}

static void put(struct change *c) {
    static char bytes[BLOCKS * BLOCK];
    for (int block = c->from; block < c->to; block++) fill(bytes + (block - c->from) * BLOCK, c->after[0].tag[block], block);
    size_t size = (c->to - c->from) * (size_t)BLOCK;
    int flags = c->how == APPEND ? O_APPEND : c->how == DSYNC ? O_DSYNC : c->how == OSYNC ? O_SYNC : 0;
    int fd = open_it(path_of(c->i, names[c->i].folder), O_RDWR | flags);
    struct iovec one = {bytes, size};
    if (c->how == MSYNC || c->how == MAPPED) put_mapped(fd, c, bytes, size);
    else if (c->how == APPEND) must(write(fd, bytes, size) == (ssize_t)size);
    else if (c->how == RWF) must(pwritev2(fd, &one, 1, c->from * (off_t)BLOCK, RWF_DSYNC) == (ssize_t)size);
    else must(pwrite(fd, bytes, size, c->from * (off_t)BLOCK) == (ssize_t)size);
    must(!close(fd));
}

static void make_durable(struct change *c) {
    const char *file = names[c->i].there ? path_of(c->i, names[c->i].folder) : pool;
    if (c->how == SYNC_ALL) return sync();
    int fd = open_it(c->how == FSYNC_FOLDER ? pool : file, O_RDONLY);
    must(!(c->how == FDATASYNC ? fdatasync(fd) : c->how == SYNCFS ? syncfs(fd) : fsync(fd)));
    must(!close(fd));
}

static void perform(struct change *c) {
    struct name *n = &names[c->i];
    switch (c->kind) {
    case MAKE:
        doing = "create";
        int fd = open_it(path_of(c->i, c->after[0].folder), O_CREAT | O_EXCL | O_WRONLY);
        must(!fchmod(fd, c->after[0].mode));
        must(!close(fd));
        break;
    case WRITE: doing = "write"; put(c); break;
    case RESIZE: doing = "truncate"; must(!truncate(path_of(c->i, n->folder), c->after[0].blocks * (off_t)BLOCK)); break;
    case REMOVE: doing = "unlink"; must(!unlink(path_of(c->i, n->folder))); break;
    case MOVE: doing = "rename"; must(!rename(path_of(c->i, n->folder), path_of(c->i, c->after[0].folder))); break;
    case REPLACE: doing = "rename over"; must(!rename(path_of(c->i, n->folder), path_of(c->j, c->after[1].folder))); break;
    case MODE: doing = "chmod"; must(!chmod(path_of(c->i, n->folder), c->after[0].mode)); break;
    case SYNC: doing = "sync"; if (!lies) make_durable(c); break;
    }
}

// Whether all that had returned is durable behind it. `sync` returns no failure, so it proves nothing when the disk
// fails meanwhile; a `syncfs` behind it does.
static int syncs(struct change *c) {
    return c->kind == SYNC || (c->kind == WRITE && c->how >= DSYNC && c->how <= MSYNC);
}

static void confirm(struct change *c) {
    if (c->kind != SYNC || c->how != SYNC_ALL || lies) return;
    int fd = open_it(pool, O_RDONLY);
    must(!syncfs(fd));
    close(fd);
}

static void work(void) {
    while (!is_orphan(l.begun)) {
        struct change c = plan();
        uint64_t returned[WORKERS];
        if (c.kind == NOTHING) { l.begun++, l.returned++; continue; }
        l.begun++;
        save(&l.begun, 8);
        for (int w = 0; syncs(&c) && w < workers; w++) returned[w] = returned_of(w);
        alarm(HANG);
        perform(&c);
        take_over(&c);
        l.returned = l.begun;
        save(&l.returned, 8);
        if (!syncs(&c)) continue;
        confirm(&c);
        returned[me] = l.begun;
        memcpy(l.durable, returned, sizeof l.durable);
        save(l.durable, sizeof l.durable);
    }
}

// ---- what is there afterwards

static void look(struct seen *seen, int i) {
    for (int folder = 0; folder < FOLDERS; folder++) {
        char *path = path_of(i, folder);
        seen->there[folder] = !lstat(path, &seen->stat[folder]);
        if (!seen->there[folder] && errno != ENOENT) stop(5, "cannot look at %s", path);
        if (!seen->there[folder]) continue;
        size_t size = seen->stat[folder].st_size;
        free(seen->bytes);
        seen->bytes = malloc(size + 1);
        int fd = open_it(path, O_RDONLY);
        must(read(fd, seen->bytes, size) == (ssize_t)size);
        close(fd);
    }
}

static int bytes_match(struct seen *seen, size_t size, struct name *a, struct name *b) {
    static char one[BLOCK], two[BLOCK];
    for (size_t block = 0; block * BLOCK < size; block++) {
        size_t n = size - block * BLOCK < BLOCK ? size - block * BLOCK : BLOCK;
        char *got = seen->bytes + block * BLOCK;
        fill(one, block < a->blocks ? a->tag[block] : 0, block);
        fill(two, block < b->blocks ? b->tag[block] : 0, block);
        for (size_t k = 0; k < n; k++) if (got[k] != one[k] && got[k] != two[k]) return 0;
    }
    return 1;
}

// Whether a name is as `n` says; bytes and size may also be as in `other`.
static int is(struct seen *seen, struct name *n, struct name *other) {
    for (int folder = 0; folder < FOLDERS; folder++)
        if (seen->there[folder] != (n->there && n->folder == folder)) return 0;
    if (!n->there) return 1;
    struct stat *s = &seen->stat[n->folder];
    if (!S_ISREG(s->st_mode) || (s->st_mode & 0777) != n->mode) return 0;
    size_t size = n->blocks * (size_t)BLOCK, far = other->blocks * (size_t)BLOCK;
    size_t low = size < far ? size : far, high = size < far ? far : size;
    return (size_t)s->st_size >= low && (size_t)s->st_size <= high && bytes_match(seen, s->st_size, n, other);
}

// The first name that is not as it is now planned to be; those of `c` may be on their way.
static int differs(struct seen *seen, struct change *c) {
    for (int i = 0; i < NAMES; i++) {
        if (l.unsure & 1u << i || (c && (i == c->i || i == c->j))) continue;
        if (!is(&seen[i], &names[i], &names[i])) return i;
    }
    if (!c || c->kind == SYNC || c->kind == NOTHING) return c && !is(&seen[c->i], &names[c->i], &names[c->i]) ? c->i : NOBODY;
    int before = is(&seen[c->i], &names[c->i], c->ranged ? &c->after[0] : &names[c->i]);
    int after = is(&seen[c->i], &c->after[0], c->ranged ? &names[c->i] : &c->after[0]);
    if (c->kind == MAKE && !before && !after) { // its mode comes in a second step
        struct name made = c->after[0];
        made.mode = 0600, after = is(&seen[c->i], &made, &made);
    }
    if (c->j >= 0) {
        before = before && is(&seen[c->j], &names[c->j], &names[c->j]);
        after = after && is(&seen[c->j], &c->after[1], &c->after[1]);
    }
    return before || after ? NOBODY : c->i;
}

static void show(struct seen *seen, int i) {
    struct name *n = &names[i];
    fprintf(stderr, "name %d: expected %s in %d, mode %o, %u blocks; ", i, n->there ? "there" : "gone", n->folder, n->mode, n->blocks);
    for (int folder = 0; folder < FOLDERS; folder++)
        if (seen[i].there[folder])
            fprintf(stderr, "found in %d, mode %o, %ld bytes", folder, seen[i].stat[folder].st_mode & 0777, seen[i].stat[folder].st_size);
    fprintf(stderr, "\n");
}

// How many changes of this worker are there. What is half done is left in `unsure`.
static uint64_t find_state(struct seen *seen, uint64_t least) {
    int first = NOBODY;
    for (uint64_t n = 0;; n++) {
        if (n >= least && differs(seen, NULL) == NOBODY) return n;
        if (n == least) first = differs(seen, NULL);
        if (n == l.begun) break;
        struct change c = plan();
        if (n >= least && differs(seen, &c) == NOBODY) {
            l.unsure |= 1u << c.i | (c.j >= 0 ? 1u << c.j : 0);
            return n;
        }
        take_over(&c);
    }
    if (first != NOBODY) show(seen, first);
    stop(3, "no state from %lu to %lu is there; the last one lacks name %d", least, l.begun, differs(seen, NULL));
    return 0;
}

static void forget_unsure(void) {
    for (int i = 0; i < NAMES; i++) {
        if (!(l.unsure & 1u << i)) continue;
        for (int folder = 0; folder < FOLDERS; folder++) must(!unlink(path_of(i, folder)) || errno == ENOENT);
        memset(&names[i], 0, sizeof names[i]);
    }
    int fd = open_it(pool, O_RDONLY);
    must(!fsync(fd));
    close(fd);
}

static void verify(int worker, uint64_t durable, int kept) {
    static struct seen seen[NAMES];
    load(worker);
    doing = "verify";
    memcpy(names, l.base, sizeof names);
    for (int i = 0; i < NAMES; i++) look(&seen[i], i);
    uint64_t least = kept ? l.returned : durable, begun = l.begun;
    begin_seed(l.seed);
    uint64_t found = find_state(seen, least);
    printf("worker %d: %lu begun, %lu surely there, %lu found\n", worker, begun, least, found);
    // A second look, after a cut from here on, must find the same.
    l.begun = l.returned = found;
    memset(l.durable, 0, sizeof l.durable), l.durable[worker] = found;
    save(&l, sizeof l);
    forget_unsure();
    memcpy(l.base, names, sizeof names);
    l.begun = l.returned = l.unsure = 0, l.durable[worker] = 0;
    save(&l, sizeof l);
}

// Nothing is there but the workers' names.
static void look_for_strangers(void) {
    char path[4096];
    for (int folder = 0; folder < FOLDERS; folder++) {
        snprintf(path, sizeof path, "%s/%d", pool, folder);
        DIR *d = opendir(path);
        must(d);
        struct dirent *e;
        while ((e = readdir(d))) {
            int worker, i, end = 0;
            if (e->d_name[0] == '.') continue;
            sscanf(e->d_name, "w%2d-%2d%n", &worker, &i, &end);
            if (end != 6 || e->d_name[6] || worker >= workers || i >= NAMES) stop(3, "a name that nobody made: %s", e->d_name);
        }
        closedir(d);
    }
}

static void verify_all(int kept) {
    uint64_t durable[WORKERS] = {0};
    for (int w = 0; w < workers; w++) {
        load(w);
        for (int of = 0; of < workers; of++) if (l.durable[of] > durable[of]) durable[of] = l.durable[of];
    }
    look_for_strangers();
    for (int w = 0; w < workers; w++) verify(w, durable[w], kept);
}

int main(int count, char **arguments) {
    if (count < 6) return 2;
    pool = arguments[2], logs = arguments[3], workers = atoi(arguments[4]);
    if (workers > WORKERS) return 2;
    for (int w = 0; w < WORKERS; w++) other_fd[w] = NOBODY;
    if (!strcmp(arguments[1], "verify")) return verify_all(!strcmp(arguments[5], "kept")), 0;
    if (count < 7) return 2;
    load(atoi(arguments[5]));
    l.seed = strtoull(arguments[6], 0, 10);
    l.begun = l.returned = 0;
    memset(l.durable, 0, sizeof l.durable);
    save(&l, sizeof l);
    lies = count > 7 && !strcmp(arguments[7], "lie");
    memcpy(names, l.base, sizeof names);
    begin_seed(l.seed);
    work();
}
