// Tables that are full, a device that fails, a clock that goes backwards: errors, and life goes on afterwards.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define must(condition) do { if (!(condition)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", what, __LINE__, #condition, errno); exit(1); } } while (0)

static const char *what;

static int open_until_refused(int *fds, int most) {
    int count = 0;
    while (count < most && (fds[count] = open("many", O_CREAT | O_RDWR, 0600)) >= 0) count++;
    return count;
}

// What cannot be opened for want of a number is neither made nor cut.
static void refused_opens_change_nothing(void) {
    struct stat s;
    must(open("new", O_CREAT | O_RDWR, 0600) == -1 && errno == EMFILE);
    must(open("new", O_CREAT | O_EXCL | O_WRONLY, 0600) == -1 && errno == EMFILE);
    must(openat(AT_FDCWD, "new", O_CREAT | O_TRUNC | O_WRONLY, 0600) == -1 && errno == EMFILE);
    must(open(".", O_TMPFILE | O_RDWR, 0600) == -1 && errno == EMFILE);
    must(stat("new", &s) == -1 && errno == ENOENT);
    must(open("many", O_TRUNC | O_WRONLY) == -1 && errno == EMFILE);
    must(open("many", O_CREAT | O_TRUNC | O_RDWR, 0600) == -1 && errno == EMFILE);
    must(stat("many", &s) == 0 && s.st_size == 1);
}

// What is refused for another reason has given its number back.
static void refused_opens_keep_no_number(void) {
    int first = open("many", O_RDWR);
    must(first >= 0 && !close(first) && !mkdir("removed", 0700));
    int removed = open("removed", O_PATH);
    must(removed == first && !rmdir("removed"));
    for (int i = 0; i < 200; i++) {
        must(openat(removed, "new", O_CREAT | O_RDWR, 0600) == -1 && errno == ENOENT);
        must(openat(removed, ".", O_TMPFILE | O_RDWR, 0600) == -1);
        must(open("many", O_CREAT | O_EXCL | O_RDWR, 0600) == -1 && errno == EEXIST);
    }
    int next = open("many", O_RDWR);
    must(next == first + 1 && !close(next) && !close(removed));
}

static void descriptors(void) {
    static int fds[200];
    struct rlimit l;
    what = "descriptors";
    must(!getrlimit(RLIMIT_NOFILE, &l));
    l.rlim_cur = 100;
    must(!setrlimit(RLIMIT_NOFILE, &l));
    int count = open_until_refused(fds, 200);
    must(errno == EMFILE && count > 20 && count < 100);
    must(dup(0) == -1 && errno == EMFILE);
    char byte = 'x';
    must(write(fds[count - 1], &byte, 1) == 1 && pread(fds[0], &byte, 1, 0) == 1 && byte == 'x');
    refused_opens_change_nothing();
    int last = fds[--count];
    must(!close(last) && (fds[count++] = open("new", O_CREAT | O_RDWR, 0600)) == last && !unlink("new"));
    refused_opens_change_nothing();
    must(mkdir("still", 0700) == 0 && rmdir("still") == 0 && unlink("many") == 0);
    // A child needs a descriptor to find out who it is; it goes on without.
    for (int i = 0; i < 4; i++) {
        int status;
        pid_t child = i % 2 ? vfork() : fork();
        must(child >= 0);
        if (!child) {
            int good = pwrite(fds[1], "child", 5, 0) == 5 && pread(fds[0], &byte, 1, 4) == 1 && byte == 'd';
            good = good && !close(fds[2]) && (fds[2] = open("own", O_CREAT | O_RDWR, 0600)) >= 0 && write(fds[2], "c", 1) == 1;
            if (good && i == 2) {
                pid_t grandchild = (close(fds[2]), fork());
                if (!grandchild) _exit(pwrite(fds[1], "c", 1, 0) != 1);
                good = waitpid(grandchild, &status, 0) == grandchild && !status;
            }
            _exit(!good);
        }
        must(waitpid(child, &status, 0) == child && !status && !unlink("own"));
    }
    for (int i = 0; i < count; i++) must(!close(fds[i]));
    int again = open("many", O_CREAT | O_RDWR, 0600);
    must(again >= 0 && !close(again));
    refused_opens_keep_no_number();
    must(!unlink("many"));
}

// Every number below the limit is the program's, and none above it is there for it.
static void numbers(void) {
    static int fds[2000];
    struct rlimit l;
    what = "numbers";
    must(!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 1024 && l.rlim_max > 1100);
    for (int i = 3; i < 1024; i++) close(i);
    must(open_until_refused(fds, 2000) == 1021 && errno == EMFILE);
    for (int i = 0; i < 1021; i++) must(fds[i] == i + 3);
    must(!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 1024);
    for (int i = 1024; i < 1100; i++) {
        struct stat s;
        must(fcntl(i, F_GETFD) == -1 && errno == EBADF && fstat(i, &s) == -1 && errno == EBADF);
        must(close(i) == -1 && errno == EBADF);
    }
    must(!close(fds[7]) && open("/dev/null", O_RDONLY) == fds[7]);
    pid_t child = fork();
    must(child >= 0);
    if (!child) _exit(pwrite(fds[1], "child", 5, 0) != 5);
    int status;
    must(waitpid(child, &status, 0) == child && !status);
}

// Several processes fill the table that all share, and are killed.
static void descriptions(void) {
    static int fds[70000];
    int pipes[2], refused = 0;
    pid_t children[8];
    struct rlimit l;
    what = "descriptions";
    must(!pipe(pipes) && !getrlimit(RLIMIT_NOFILE, &l));
    l.rlim_cur = l.rlim_max;
    must(!setrlimit(RLIMIT_NOFILE, &l));
    for (int i = 0; i < 8; i++) {
        must((children[i] = fork()) >= 0);
        if (!children[i]) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            open_until_refused(fds, 70000);
            int error = errno;
            must(write(pipes[1], &error, sizeof error) == sizeof error);
            for (;;) pause();
        }
    }
    for (int i = 0; i < 8; i++) {
        int error;
        must(read(pipes[0], &error, sizeof error) == sizeof error && (error == ENFILE || error == EMFILE));
        refused += error == ENFILE;
    }
    must(refused > 0 && open("one-more", O_CREAT | O_RDWR, 0600) == -1 && errno == ENFILE);
    must(access("one-more", F_OK) == -1 && errno == ENOENT);
    must(open(".", O_TMPFILE | O_RDWR, 0600) == -1 && errno == ENFILE);
    must(open("many", O_TRUNC | O_WRONLY) == -1 && errno == ENFILE);
    must(mkdir("still", 0700) == 0 && rmdir("still") == 0);
    for (int i = 0; i < 8; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < 8; i++) must(waitpid(children[i], NULL, 0) == children[i]);
    int again = open("one-more", O_CREAT | O_RDWR, 0600);
    must(again >= 0 && !close(again) && !unlink("one-more") && !unlink("many"));
}

// Locks that do not touch, in turn on many files, until the table is full.
static void locks(void) {
    enum { FILES = 200 };
    static int fds[FILES];
    char name[20];
    long taken = 0;
    struct flock one = {.l_type = F_WRLCK, .l_len = 1}, all = {.l_type = F_UNLCK};
    what = "locks";
    for (int i = 0; i < FILES; i++) {
        sprintf(name, "locked-%d", i);
        must((fds[i] = open(name, O_CREAT | O_RDWR, 0600)) >= 0);
    }
    for (; taken < 1 << 20; taken++) {
        one.l_start = taken / FILES * 2;
        if (fcntl(fds[taken % FILES], F_SETLK, &one)) break;
    }
    must(errno == ENOLCK && taken > 1000);
    must(flock(fds[0], LOCK_EX) == -1 && errno == ENOLCK);
    must(mkdir("still", 0700) == 0 && rmdir("still") == 0);
    must(!fcntl(fds[0], F_SETLK, &all) && !fcntl(fds[1], F_SETLK, &one) && !flock(fds[0], LOCK_EX));
    for (int i = 0; i < FILES; i++) must(!close(fds[i]));
}

// The file behind the pool is cut under us.
static void device(const char *pool) {
    static char bytes[1 << 20];
    int fd = open("data", O_CREAT | O_RDWR, 0600);
    what = "device";
    must(fd >= 0);
    for (int i = 0; i < 30; i++) must(write(fd, bytes, sizeof bytes) == sizeof bytes);
    must(!truncate(pool, 24 << 20));
    int read_errors = 0, write_errors = 0;
    for (int i = 0; i < 30; i++) {
        read_errors += pread(fd, bytes, sizeof bytes, (off_t)i << 20) < 0 && errno == EIO;
        write_errors += pwrite(fd, bytes, sizeof bytes, (off_t)i << 20) < 0 && errno == EIO;
    }
    must(read_errors > 0 && write_errors > 0);
    // Whatever else is asked is answered somehow; nobody dies.
    for (int i = 0; i < 100; i++) {
        char name[20];
        sprintf(name, "n%d", i);
        int other = open(name, O_CREAT | O_RDWR, 0600);
        if (other >= 0) close(other);
        rename(name, "to"), mkdir("folder", 0700), fsync(fd), unlink("to"), rmdir("folder");
    }
    close(fd);
}

static void clock_goes_backwards(void) {
    struct timespec future[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    struct stat s;
    char byte = 'b';
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    what = "clock";
    must(fd >= 0 && write(fd, &byte, 1) == 1 && !futimens(fd, future));
    must(!fstat(fd, &s) && s.st_mtime == 4000000000);
    // Now is before that.
    must(pread(fd, &byte, 1, 0) == 1 && !fstat(fd, &s) && s.st_mtime == 4000000000);
    must(pwrite(fd, &byte, 1, 0) == 1 && !fsync(fd) && !fstat(fd, &s) && s.st_mtime < 4000000000 && s.st_ctime < 4000000000);
    must(!close(fd) && !stat("f", &s) && s.st_mtime < 4000000000);
}

// All memory is locked but the pool, of which 128 MB are mapped.
static void memory(void) {
    char line[200];
    long locked = -1;
    what = "memory";
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
        must(errno == ENOMEM || errno == EPERM);
        return;
    }
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmLck: %ld kB", &locked);
    must(locked > 1000 && locked < 80 << 10);
    must(mlockall(0) == -1 && errno == EINVAL);
    must(!mlockall(MCL_CURRENT | MCL_ONFAULT) && !munlockall());
    rewind(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmLck: %ld kB", &locked);
    must(locked == 0 && !fclose(status));
}

int main(int count, char **arguments) {
    if (!strcmp(arguments[1], "descriptors")) descriptors();
    if (!strcmp(arguments[1], "numbers")) numbers();
    if (!strcmp(arguments[1], "descriptions")) descriptions();
    if (!strcmp(arguments[1], "locks")) locks();
    if (!strcmp(arguments[1], "device")) device(arguments[2]);
    if (!strcmp(arguments[1], "clock")) clock_goes_backwards();
    if (!strcmp(arguments[1], "memory")) memory();
    return 0;
}
