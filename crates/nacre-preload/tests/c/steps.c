// Ends (or stops, then ends) a process at its n-th step inside Nacre, for every n of an operation, while this
// process goes on working on the same folder and file.
//
//   steps kill|stop|lie|hang STRIDE FIRST SCENARIO...     (no scenario: all)
//
// Talks with whoever started it: prints "check" and waits for a line, "ok" or the problems of the pool; prints
// "done NAME POINTS LONGEST_US" for each scenario. Exit status 0, or a complaint on stderr and 1, or death by SIGALRM if
// a survivor hangs.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { BEFORE = 1, AFTER = 2, HANG = 30, DIED = 77, HOLD = 60 };

static void (*arm)(unsigned long), (*arm_stop)(unsigned long), (*arm_hold)(unsigned long);
static char (*is_held)(void);
static unsigned long (*passed)(void);
static const char *scenario = "start", *self;
static unsigned long point;
static volatile struct { int done, stopped; } *acknowledged;
static double longest;
extern char **environ;

static void complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s, step %lu: ", scenario, point);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));
    exit(1);
}
#define must(condition, ...) do { if (!(condition)) complain(__VA_ARGS__); } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// ---- files with known contents

static void put(const char *name, size_t size, char byte) {
    static char bytes[1 << 16];
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    must(fd >= 0, "cannot make %s", name);
    memset(bytes, byte, size);
    must(write(fd, bytes, size) == (ssize_t)size, "cannot fill %s", name);
    close(fd);
}

static long size_of(const char *name) {
    struct stat s;
    return lstat(name, &s) ? -1 : (long)s.st_size;
}

// Whether [from, to) of a file holds nothing but these bytes.
static int holds(const char *name, size_t from, size_t to, const char *allowed, size_t count) {
    static char bytes[1 << 16];
    int fd = open(name, O_RDONLY), good = 1;
    must(fd >= 0, "cannot open %s", name);
    ssize_t got = pread(fd, bytes, to - from, from);
    close(fd);
    for (ssize_t i = 0; i < got; i++) good &= !!memchr(allowed, bytes[i], count);
    return good && got == (ssize_t)(to - from);
}

static int there(const char *name) {
    struct stat s;
    if (!lstat(name, &s)) return 1;
    must(errno == ENOENT, "stat %s", name);
    return 0;
}

static int unlink_any(const char *name) {
    return unlink(name) && rmdir(name) ? -1 : 0;
}

static void fresh(void) {
    DIR *d = opendir(".");
    must(d, "opendir");
    struct dirent *e;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.' && strcmp(e->d_name, "sub") && strcmp(e->d_name, "many")) unlink_any(e->d_name);
    closedir(d);
    if (there("sub")) {
        unlink_any("sub/g");
        unlink_any("sub/d");
    } else {
        must(!mkdir("sub", 0755), "mkdir sub");
    }
    put("f", 20000, 'o');
}

#define act(condition) do { if (!(condition)) { dprintf(2, "%s, step %lu: the call fails: " #condition " errno %d\n", scenario, point, errno); _exit(1); } } while (0)

// ---- what a survivor does

static void look(void) {
    DIR *d = opendir(".");
    must(d, "opendir");
    struct dirent *e;
    struct stat s;
    errno = 0;
    while ((e = readdir(d))) {
        must(!lstat(e->d_name, &s), "stat %s", e->d_name);
        errno = 0;
    }
    must(!errno, "readdir");
    closedir(d);
}

// Works in the same folder and on the same file.
static void work(void) {
    int fd = open("s", O_CREAT | O_RDWR, 0644);
    must(fd >= 0 && write(fd, "survivor", 8) == 8, "create or write");
    must(!fsync(fd) && !close(fd), "fsync");
    must(!rename("s", "t") && !unlink("t"), "rename or unlink");
    must(!mkdir("sd", 0755) && !rename("sd", "sub/d2") && !rmdir("sub/d2"), "folders");
    fd = open("f", O_RDWR | O_CREAT | O_APPEND, 0644);
    must(fd >= 0 && write(fd, "x", 1) == 1, "append");
    must(pwrite(fd, "y", 1, 4000) == 1 && !ftruncate(fd, 100) && !fchmod(fd, 0640), "the file");
    must(!close(fd), "close");
}

static void dies_with_parent(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// ---- scenarios: what the process that dies does, and what is seen of it

static void a_create(void) { int fd = open("n", O_CREAT | O_EXCL | O_RDWR, 0600); act(fd >= 0); act(!close(fd)); }
static int s_create(void) { return there("n") ? size_of("n") == 0 ? AFTER : 0 : BEFORE; }

static void write_at(int flags, off_t at, size_t count) {
    static char bytes[1 << 16];
    memset(bytes, 'n', count);
    int fd = open("f", O_WRONLY | flags);
    act(fd >= 0);
    act(flags & O_APPEND ? write(fd, bytes, count) == (ssize_t)count : pwrite(fd, bytes, count, at) == (ssize_t)count);
    act(!close(fd));
}
static int s_write(size_t from, size_t to) {
    if (size_of("f") != 20000 || !holds("f", 0, from, "o", 1) || !holds("f", to, 20000, "o", 1)) return 0;
    if (!holds("f", from, to, "on", 2)) return 0;
    return holds("f", from, to, "n", 1) ? AFTER : BEFORE;
}
static void a_write(void) { write_at(0, 100, 10000); }
static int s_write_large(void) { return s_write(100, 10100); }
static void a_write_small(void) { write_at(O_SYNC, 8190, 6); }
static int s_write_small(void) { return s_write(8190, 8196); }
static void a_write_units(void) { write_at(O_DSYNC, 4096, 8192); }
static int s_write_units(void) { return s_write(4096, 12288); }

static void a_append(void) { write_at(O_APPEND, 0, 9000); }
static int s_grown(long more) {
    long size = size_of("f");
    if (!holds("f", 0, 20000, "o", 1)) return 0;
    if (size == 20000) return BEFORE;
    // A write that was cut short may have come to its first units.
    return size > 20000 && size <= 20000 + more && holds("f", 20000, size, "n", 1) ? size == 20000 + more ? AFTER : BEFORE : 0;
}
static int s_append(void) { return s_grown(9000); }
static void a_append_small(void) { write_at(O_APPEND, 0, 10); }
static int s_append_small(void) { return s_grown(10); }
static void a_write_gap(void) { write_at(0, 30000, 100); }
static int s_write_gap(void) {
    long size = size_of("f");
    if (!holds("f", 0, 20000, "o", 1)) return 0;
    if (size == 20000) return BEFORE;
    if (size != 30100 || !holds("f", 20000, 30000, "", 1)) return 0;
    return holds("f", 30000, 30100, "n", 1) ? AFTER : 0;
}

static void a_rename(void) { act(!rename("f", "to")); }
static int s_rename(void) { return there("f") + there("to") != 1 ? 0 : there("f") ? BEFORE : AFTER; }
static void b_replace(void) { put("to", 3000, 't'); }
static int s_replace(void) {
    if (there("f")) return size_of("f") == 20000 && size_of("to") == 3000 && holds("to", 0, 3000, "t", 1) ? BEFORE : 0;
    return size_of("to") == 20000 && holds("to", 0, 20000, "o", 1) ? AFTER : 0;
}
static void a_replace(void) { act(!rename("f", "to")); }
static void a_move(void) { act(!rename("f", "sub/g")); }
static int s_move(void) { return there("f") + there("sub/g") != 1 ? 0 : there("f") ? BEFORE : AFTER; }
static void b_move_folder(void) { must(!mkdir("d", 0755), "mkdir"); }
static void a_move_folder(void) { act(!rename("d", "sub/d")); }
static int s_move_folder(void) { return there("d") + there("sub/d") != 1 ? 0 : there("d") ? BEFORE : AFTER; }
static void a_exchange(void) { act(!renameat2(AT_FDCWD, "f", AT_FDCWD, "to", RENAME_EXCHANGE)); }
static int s_exchange(void) {
    if (size_of("f") == 20000) return size_of("to") == 3000 ? BEFORE : 0;
    return size_of("f") == 3000 && size_of("to") == 20000 ? AFTER : 0;
}

static void a_unlink(void) { act(!unlink("f")); }
static int s_gone(void) { return there("f") ? size_of("f") == 20000 ? BEFORE : 0 : AFTER; }
static int held = -1;
static void b_unlink_open(void) { held = open("f", O_RDWR); must(held >= 0, "open"); }
static int s_unlink_open(void) {
    char byte = 0;
    int seen = s_gone();
    must(pread(held, &byte, 1, 19999) == 1 && byte == 'o', "an open file lost its contents");
    close(held);
    return seen;
}

static void a_shrink(void) { act(!truncate("f", 5000)); }
static int s_shrink(void) { return size_of("f") == 20000 ? BEFORE : size_of("f") == 5000 && holds("f", 0, 5000, "o", 1) ? AFTER : 0; }
static void a_grow(void) { act(!truncate("f", 50000)); }
static int s_grow(void) {
    if (size_of("f") == 20000) return BEFORE;
    return size_of("f") == 50000 && holds("f", 20000, 50000, "", 1) && holds("f", 0, 20000, "o", 1) ? AFTER : 0;
}
static void a_recreate(void) { int fd = open("f", O_TRUNC | O_WRONLY); act(fd >= 0); act(!close(fd)); }
static int s_recreate(void) { return size_of("f") == 20000 ? BEFORE : size_of("f") == 0 ? AFTER : 0; }

static void a_mkdir(void) { act(!mkdir("d", 0700)); }
static int s_mkdir(void) { return there("d") ? AFTER : BEFORE; }
static void a_rmdir(void) { act(!rmdir("d")); }
static int s_rmdir(void) { return there("d") ? BEFORE : AFTER; }
static void a_link(void) { act(!link("f", "sub/g")); }
static int s_link(void) {
    struct stat s;
    must(!stat("f", &s), "stat");
    return s.st_nlink == 1 && !there("sub/g") ? BEFORE : s.st_nlink == 2 && there("sub/g") ? AFTER : 0;
}
static void a_symlink(void) { act(!symlink("short", "n")); }
static char far[900];
static void a_symlink_long(void) { memset(far, 'x', sizeof far - 1); act(!symlink(far, "n")); }
static int s_symlink(long length) {
    char to[1000];
    if (!there("n")) return BEFORE;
    return readlink("n", to, sizeof to) == length ? AFTER : 0;
}
static int s_symlink_short(void) { return s_symlink(5); }
static int s_symlink_long(void) { return s_symlink(sizeof far - 1); }

static void a_lock(void) {
    struct flock all = {.l_type = F_WRLCK}, part = {.l_type = F_UNLCK, .l_start = 10, .l_len = 10};
    int fd = open("f", O_RDWR), other = open("f", O_RDWR);
    act(fd >= 0 && other >= 0);
    act(!fcntl(fd, F_SETLKW, &all));
    act(!fcntl(fd, F_SETLK, &part));
    act(!flock(other, LOCK_EX));
    act(!flock(other, LOCK_UN));
    all.l_type = F_UNLCK;
    act(!fcntl(fd, F_SETLK, &all));
    act(!close(fd) && !close(other));
}
static int s_lock(void) {
    struct flock all = {.l_type = F_WRLCK};
    int fd = open("f", O_RDWR);
    must(fd >= 0 && !fcntl(fd, F_SETLKW, &all) && !flock(fd, LOCK_EX), "the locks of the dead are not free");
    close(fd);
    return BEFORE | AFTER;
}
static void a_open(void) {
    int fd = open("f", O_RDONLY), copy;
    char byte;
    act(fd >= 0 && (copy = dup(fd)) >= 0);
    act(read(fd, &byte, 1) == 1 && lseek(copy, 0, SEEK_CUR) == 1);
    act(!close(fd) && !close(copy));
}
static int s_any(void) { return BEFORE | AFTER; }
static void a_list(void) {
    DIR *d = opendir(".");
    act(d);
    int n = 0;
    while (readdir(d)) n++;
    act(n >= 3);
    closedir(d);
}
static void a_xattr(void) { act(!setxattr("f", "user.one", far, 400, 0)); }
static int s_xattr(void) {
    char value[500];
    ssize_t got = getxattr("f", "user.one", value, sizeof value);
    return got == 400 ? AFTER : got < 0 && errno == ENODATA ? BEFORE : 0;
}
static void a_chmod(void) { act(!chmod("f", 0600)); act(!chown("f", 0, 0)); }
static int s_chmod(void) {
    struct stat s;
    must(!stat("f", &s), "stat");
    return (s.st_mode & 0777) == 0644 ? BEFORE : (s.st_mode & 0777) == 0600 ? AFTER : 0;
}
static void a_map(void) {
    int fd = open("f", O_RDWR);
    char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
    act(fd >= 0 && m != MAP_FAILED);
    memset(m, 'n', 8192);
    act(!msync(m, 8192, MS_SYNC) && !munmap(m, 8192) && !close(fd));
}
static void a_allocate(void) { int fd = open("f", O_RDWR); act(fd >= 0 && !fallocate(fd, 0, 20000, 30000) && !close(fd)); }
static void a_punch(void) {
    int fd = open("f", O_RDWR);
    act(fd >= 0 && !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 12000) && !close(fd));
}
static int s_punch(void) {
    if (size_of("f") != 20000 || !holds("f", 0, 1000, "o", 1) || !holds("f", 13000, 20000, "o", 1)) return 0;
    return holds("f", 1000, 13000, "", 1) ? AFTER : holds("f", 1000, 13000, "o", 2) ? BEFORE : 0;
}
static void b_clone(void) { put("to", 20000, 't'); }
static void a_clone(void) {
    int from = open("to", O_RDONLY), to = open("f", O_RDWR);
    act(from >= 0 && to >= 0 && !ioctl(to, FICLONE, from));
    act(!close(from) && !close(to));
}
static int s_clone(void) {
    if (size_of("f") != 20000 || !holds("to", 0, 20000, "t", 1) || !holds("f", 0, 20000, "ot", 3)) return 0;
    return holds("f", 0, 20000, "t", 1) ? AFTER : BEFORE;
}
static void a_copy(void) {
    int from = open("to", O_RDONLY), to = open("f", O_RDWR);
    act(from >= 0 && to >= 0 && copy_file_range(from, 0, to, 0, 20000, 0) == 20000);
    act(!close(from) && !close(to));
}

// Names that split the folder's tree while they come, and empty it while they go.
static void many_name(char *name, int i) { sprintf(name, "many/%0200d", i); }
static void b_many(void) {
    char name[300];
    mkdir("many", 0755);
    for (int i = 0; i < 60; i++) {
        many_name(name, i);
        unlink(name);
    }
    rmdir("many");
    must(!mkdir("many", 0755), "mkdir many");
}
static void a_many(void) {
    char name[300];
    for (int i = 0; i < 60; i++) {
        many_name(name, i);
        act(!mknod(name, S_IFREG | 0600, 0));
        acknowledged->done = -1 - i;
    }
    for (int i = 0; i < 60; i++) {
        many_name(name, i);
        act(!unlink(name));
        acknowledged->done = 1000 + i;
    }
}
static int s_many(void) {
    char name[300];
    int state = acknowledged->done, made = state < 0 ? -state : state >= 1000 || state == 1 ? 60 : 0;
    int gone = state == 1 ? 60 : state >= 1000 ? state - 999 : 0;
    for (int i = 0; i < 60; i++) {
        many_name(name, i);
        int expected = i < made && i >= gone, unsure = i == (gone || made == 60 ? gone : made);
        must(unsure || there(name) == expected, "name %d of %d made, %d removed: there %d", i, made, gone, there(name));
    }
    return BEFORE | AFTER;
}

// A child of the process that dies: both count their steps.
static int ended_well(pid_t child) {
    int status;
    act(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) _exit(DIED);
    return status == 0;
}
static void a_fork(void) {
    int fd = open("f", O_RDWR | O_APPEND);
    act(fd >= 0);
    pid_t child = fork();
    if (!child) {
        act(write(fd, "nnnn", 4) == 4);
        _exit(0);
    }
    act(ended_well(child));
    act(!close(fd));
}
static int s_fork(void) { return s_grown(4); }

static void as_program(const char *what) {
    char number[40];
    snprintf(number, sizeof number, "%lu", passed() >= point ? 0 : point - passed());
    setenv("NACRE_KILL_STEP", number, 1);
    execl(self, self, what, NULL);
    _exit(1);
}
static void a_exec(void) {
    act(open("f", O_RDWR | O_APPEND) >= 0);
    as_program("inherited");
}
static void a_spawn(void) {
    char number[60];
    snprintf(number, sizeof number, "%lu", point);
    setenv("NACRE_KILL_STEP", number, 1);
    char *arguments[] = {(char *)self, "fresh", NULL};
    pid_t child;
    act(!posix_spawn(&child, self, NULL, NULL, arguments, environ));
    act(ended_well(child));
}

// A thread that is inside an operation when another one executes a program.
static volatile int over;
static void *operates(void *unused) {
    struct flock part = {.l_type = F_WRLCK, .l_start = 7, .l_len = 1};
    int fd = open("f", O_RDWR), copy = dup(fd), new = open("n", O_CREAT | O_RDWR, 0600);
    act(fd >= 0 && new >= 0 && !fcntl(fd, F_SETLK, &part));
    act(pwrite(fd, "oooo", 4, 4094) == 4 && lseek(copy, 4, SEEK_SET) == 4 && write(copy, "o", 1) == 1);
    act(write(new, far, sizeof far) == sizeof far && !ftruncate(new, 10) && !close(new));
    act(!rename("n", "sub/g") && !unlink("sub/g") && !mkdir("d", 0700) && !rename("d", "sub/d") && !rmdir("sub/d"));
    act(!close(copy) && !close(fd));
    over = 1;
    return NULL;
}
// Whether the operations had so many steps. What the new program is to have: "f" to append to, and a record lock.
static int hold_thread(unsigned long step) {
    pthread_t thread;
    struct flock one = {.l_type = F_WRLCK, .l_start = 1, .l_len = 1};
    act(open("f", O_RDWR | O_APPEND) >= 0);
    act(!fcntl(open("locked", O_CREAT | O_RDWR, 0600), F_SETLK, &one));
    // Also of the program that is executed: it may hang before its main.
    alarm(HANG);
    arm_hold(step);
    act(!pthread_create(&thread, NULL, operates, NULL));
    while (!over && !is_held()) usleep(20);
    arm(~0ul);
    return is_held();
}
static void a_exec_threads(void) {
    int held = hold_thread(point);
    execl(self, self, held ? "locked-held" : "locked", NULL);
    _exit(1);
}
static void a_exec_dies(void) {
    act(hold_thread(HOLD));
    arm(point);
    as_program("locked");
}
// By another thread than the first, and the library is not in the new program: nobody is to wait for its end.
static void *executes(void *unused) {
    char path[4096];
    snprintf(path, sizeof path, "%s-unserved", self);
    act(!chdir("/"));
    execl(path, path, NULL);
    _exit(1);
}
static void a_exec_unserved(void) {
    int started[2];
    char held;
    arm(~0ul);
    act(!pipe2(started, O_CLOEXEC));
    pid_t child = fork();
    if (!child) {
        pthread_t thread;
        dies_with_parent();
        act(write(started[1], hold_thread(point) ? "h" : "-", 1) == 1);
        act(!pthread_create(&thread, NULL, executes, NULL));
        while (pause()) {}
    }
    close(started[1]);
    act(read(started[0], &held, 1) == 1 && read(started[0], &held, 1) == 0);
    alarm(HANG);
    look();
    work();
    struct flock one = {.l_type = F_WRLCK, .l_start = 1, .l_len = 1};
    int fd = open("locked", O_RDWR);
    act(!fcntl(fd, F_GETLK, &one) && one.l_type == F_WRLCK && one.l_pid == child);
    act(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    act(!fcntl(fd, F_SETLKW, &one));
    alarm(0);
    if (held == 'h') _exit(DIED);
}

static int appends(void *unused) {
    int fd = open("f", O_WRONLY | O_APPEND);
    _exit(fd < 0 || write(fd, "nnnn", 4) != 4 || close(fd));
}

// A child that shares our memory has died inside a call, or not; we go on in the pool.
static void outlive(pid_t child) {
    int status, byte = 0;
    act(child > 0 && waitpid(child, &status, 0) == child);
    act(WIFSIGNALED(status) || !status);
    int fd = open("/nacre/parent", O_CREAT | O_RDWR, 0600);
    act(fd >= 0 && write(fd, "p", 1) == 1 && pread(fd, &byte, 1, 0) == 1 && byte == 'p');
    act(!close(fd) && !unlink("/nacre/parent"));
    if (WIFSIGNALED(status)) _exit(DIED);
}

static void a_vfork(void) {
    pid_t child = vfork();
    if (!child) appends(NULL);
    outlive(child);
}

// As a_vfork; the child runs beside us.
static void a_beside(void) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    outlive(clone(appends, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
}

static struct scenario {
    const char *name;
    void (*before)(void), (*does)(void);
    int (*seen)(void);
} scenarios[] = {
    {"create", NULL, a_create, s_create},
    {"write", NULL, a_write, s_write_large},
    {"write-small", NULL, a_write_small, s_write_small},
    {"write-units", NULL, a_write_units, s_write_units},
    {"write-gap", NULL, a_write_gap, s_write_gap},
    {"append", NULL, a_append, s_append},
    {"append-small", NULL, a_append_small, s_append_small},
    {"rename", NULL, a_rename, s_rename},
    {"rename-replacing", b_replace, a_replace, s_replace},
    {"rename-elsewhere", NULL, a_move, s_move},
    {"rename-folder", b_move_folder, a_move_folder, s_move_folder},
    {"rename-exchange", b_replace, a_exchange, s_exchange},
    {"unlink", NULL, a_unlink, s_gone},
    {"unlink-open", b_unlink_open, a_unlink, s_unlink_open},
    {"truncate-down", NULL, a_shrink, s_shrink},
    {"truncate-up", NULL, a_grow, s_grow},
    {"truncate-open", NULL, a_recreate, s_recreate},
    {"mkdir", NULL, a_mkdir, s_mkdir},
    {"rmdir", b_move_folder, a_rmdir, s_rmdir},
    {"link", NULL, a_link, s_link},
    {"symlink", NULL, a_symlink, s_symlink_short},
    {"symlink-long", NULL, a_symlink_long, s_symlink_long},
    {"lock", NULL, a_lock, s_lock},
    {"open", NULL, a_open, s_any},
    {"list", NULL, a_list, s_any},
    {"xattr", NULL, a_xattr, s_xattr},
    {"chmod", NULL, a_chmod, s_chmod},
    {"map", NULL, a_map, s_write_units},
    {"allocate", NULL, a_allocate, s_any},
    {"punch", NULL, a_punch, s_punch},
    {"clone", b_clone, a_clone, s_clone},
    {"copy", b_clone, a_copy, s_clone},
    {"many-names", b_many, a_many, s_many},
    {"fork", NULL, a_fork, s_fork},
    {"exec", NULL, a_exec, s_fork},
    {"exec-threads", NULL, a_exec_threads, s_fork},
    {"exec-dies", NULL, a_exec_dies, s_fork},
    {"exec-unserved", NULL, a_exec_unserved, s_any},
    {"spawn", NULL, a_spawn, s_any},
    {"vfork", NULL, a_vfork, s_fork},
    {"beside", NULL, a_beside, s_fork},
};

// ---- the survivor

static void ask_check(void) {
    char line[4096];
    puts("check");
    fflush(stdout);
    must(fgets(line, sizeof line, stdin) && !strncmp(line, "ok", 2), "check says: %s", line);
}

static int timed(int (*seen)(void)) {
    double start = now();
    alarm(HANG);
    look();
    int state = seen();
    work();
    alarm(0);
    if (now() - start > longest) longest = now() - start;
    return state;
}

static pid_t start(struct scenario *s, int stops) {
    fresh();
    if (s->before) s->before();
    acknowledged->done = 0;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (!child) {
        dies_with_parent();
        (stops ? arm_stop : arm)(point);
        s->does();
        acknowledged->done = 1;
        arm(~0ul);
        _exit(0);
    }
    return child;
}

// Somebody who runs into what the stopped process holds. Forked before, as a fork may have to wait for that, too.
static pid_t start_waiter(void) {
    acknowledged->stopped = 0;
    pid_t waiter = fork();
    must(waiter >= 0, "fork");
    if (!waiter) {
        dies_with_parent();
        struct stat s;
        while (!acknowledged->stopped) usleep(100);
        alarm(HANG);
        int fd = open("w", O_CREAT | O_RDWR, 0644), both = open("f", O_RDWR);
        act(fd >= 0 && !close(fd));
        act(both < 0 || (!fstat(both, &s) && !fchmod(both, s.st_mode & 07777)));
        act(!unlink("w"));
        _exit(0);
    }
    return waiter;
}

// Whether the process died; else it had no such step. One that was stopped is killed while `waiter` waits for it.
static int finish(pid_t child, pid_t waiter, int leave_stopped) {
    int status, ended = 0;
    must(waitpid(child, &status, WUNTRACED) == child, "wait");
    if (waiter) {
        acknowledged->stopped = 1;
        usleep(3000);
        if (leave_stopped) alarm(3);
        else kill(child, SIGKILL);
        must(waitpid(waiter, &ended, 0) == waiter && ended == 0, "who waited for it ended with %#x", ended);
        alarm(0);
    }
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        must(waitpid(child, &status, 0) == child, "wait");
    }
    must(!WIFSIGNALED(status) || WTERMSIG(status) == SIGKILL, "it hung or crashed: %#x", status);
    if (WIFEXITED(status)) must(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED, "it ended with %#x", status);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void run(struct scenario *s, int stops, int lies, int leave_stopped, unsigned long stride, unsigned long first) {
    unsigned long points = 0;
    scenario = s->name;
    longest = 0;
    for (point = first;; point += stride) {
        pid_t waiter = stops ? start_waiter() : 0;
        int died = finish(start(s, stops), waiter, leave_stopped);
        if (lies) acknowledged->done = 1;
        int done = acknowledged->done == 1, state = timed(s->seen);
        must(state & (done ? AFTER : BEFORE | AFTER), "%s, state %d", done ? "acknowledged" : "not acknowledged", state);
        if (!died) break;
        points++;
        ask_check();
    }
    printf("done %s %lu %.0f\n", s->name, points, longest);
    fflush(stdout);
}

// The record lock of the program before is ours still.
static int has_lock(void) {
    struct flock one = {.l_type = F_WRLCK, .l_start = 1, .l_len = 1};
    pid_t child = fork();
    if (!child) _exit(fcntl(open("locked", O_RDWR), F_GETLK, &one) || one.l_type != F_WRLCK || one.l_pid != getppid());
    return ended_well(child);
}

static int program(const char *what) {
    int locked = !strncmp(what, "locked", 6), fd = locked || !strcmp(what, "inherited") ? 3 : open("f", O_RDWR | O_APPEND);
    while (lseek(fd, 0, SEEK_CUR) < 0 && fd < 100) fd++;
    alarm(HANG);
    if (locked) {
        look();
        put("q", 5000, 'q');
        must(has_lock() && !unlink("q"), "the record lock is lost");
    }
    if (write(fd, "nnnn", 4) != 4) return 1;
    return strcmp(what, "locked-held") ? 0 : DIED;
}

int main(int count, char **arguments) {
    static const char where[] = "/nacre/steps";
    self = arguments[0];
    if (count == 2) return program(arguments[1]);
    arm = dlsym(RTLD_DEFAULT, "nacre_step_arm");
    arm_stop = dlsym(RTLD_DEFAULT, "nacre_step_arm_stop");
    arm_hold = dlsym(RTLD_DEFAULT, "nacre_step_arm_hold");
    is_held = dlsym(RTLD_DEFAULT, "nacre_step_held");
    passed = dlsym(RTLD_DEFAULT, "nacre_step_passed");
    must(arm && arm_stop && arm_hold && is_held && passed && count >= 4, "no steps to count");
    acknowledged = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must((!mkdir(where, 0755) || errno == EEXIST) && !chdir(where), "%s", where);
    int stops = !strcmp(arguments[1], "stop"), hangs = !strcmp(arguments[1], "hang");
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        int chosen = count == 4;
        for (int j = 4; j < count; j++) chosen |= !strcmp(arguments[j], scenarios[i].name);
        // The child of a child may be the one that stops, and only its parent would see that.
        void (*does)(void) = scenarios[i].does;
        if (chosen && !(stops && (does == a_fork || does == a_spawn || does == a_vfork || does == a_beside || does == a_exec_threads ||
                       does == a_exec_dies || does == a_exec_unserved)))
            run(scenarios + i, stops || hangs, !strcmp(arguments[1], "lie"), hangs, strtoul(arguments[2], 0, 10),
                strtoul(arguments[3], 0, 10));
    }
    return 0;
}
