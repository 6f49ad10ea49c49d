// Synced calls of one or many processes, for disk-speed.py.
//
//   disk-speed overwrite FOLDER COUNT PROCESSES   write 4 KiB at random, fsync
//   disk-speed create    FOLDER COUNT PROCESSES   create, write 4 KiB, fsync, close
//   disk-speed busy      FOLDER COUNT MIBS        write 4 KiB, fsync, wait 5 ms, while another process writes so much
//   disk-speed large     FOLDER COUNT CUT         overwrite 1 MiB by calls of 64 KiB, fsync; CUT 1: of a file that is cut first
//   disk-speed raw       FILE   COUNT BYTES       the same disk without anything: O_DIRECT | O_DSYNC, in turn
//
// Prints microseconds for each call of one process, by the clock of all, and bytes that the device of $STAT (a file of
// /sys) wrote meanwhile.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096 };

static void must(int good, const char *what) {
    if (!good) perror(what), exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// What the device has written so far, in bytes.
static long device(void) {
    long sectors = 0;
    FILE *stat = fopen(getenv("STAT"), "r");
    must(stat && fscanf(stat, "%*s %*s %*s %*s %*s %*s %ld", &sectors) == 1, "STAT");
    fclose(stat);
    return sectors * 512;
}

static void overwrite(const char *folder, int process, int count, int ready, int go) {
    static char bytes[PAGE];
    char path[4096], one = 1;
    snprintf(path, sizeof path, "%s/overwritten-%d", folder, process);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    must(fd >= 0, path);
    for (int page = 0; page < PAGES; page++) must(pwrite(fd, bytes, PAGE, page * (off_t)PAGE) == PAGE, "write");
    must(!fsync(fd), "fsync");
    must(write(ready, &one, 1) == 1 && read(go, &one, 1) == 1, "pipe");
    srand(process + 1);
    for (int i = 0; i < count; i++) {
        memset(bytes, i, PAGE);
        must(pwrite(fd, bytes, PAGE, rand() % PAGES * (off_t)PAGE) == PAGE, "write");
        must(!fsync(fd), "fsync");
    }
}

static void create(const char *folder, int process, int count, int ready, int go) {
    static char bytes[PAGE];
    char path[4096], one = 1;
    must(write(ready, &one, 1) == 1 && read(go, &one, 1) == 1, "pipe");
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/created-%d-%d", folder, process, i);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        must(fd >= 0, path);
        must(write(fd, bytes, PAGE) == PAGE, "write");
        must(!fsync(fd) && !close(fd), "fsync");
    }
}

static long before;

static double together(const char *what, const char *folder, int count, int processes) {
    int ready[2], go[2];
    char one = 1;
    must(!pipe(ready) && !pipe(go), "pipe");
    for (int process = 0; process < processes; process++) {
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child) continue;
        (*what == 'o' ? overwrite : create)(folder, process, count, ready[1], go[0]);
        _exit(0);
    }
    for (int process = 0; process < processes; process++) must(read(ready[0], &one, 1) == 1, "pipe");
    before = device();
    double begin = now();
    for (int process = 0; process < processes; process++) must(write(go[1], &one, 1) == 1, "pipe");
    for (int process = 0; process < processes; process++) {
        int status;
        must(wait(&status) > 0 && status == 0, "a process failed");
    }
    return (now() - begin) / count;
}

static int later(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void write_large(const char *path, int mibs) {
    static char bytes[1 << 20];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0, path);
    for (int i = 0; i < mibs; i++) must(write(fd, bytes, sizeof bytes) == sizeof bytes, "write");
}

// The median of the calls that were made while the other process wrote; COUNT of them at most.
static double busy(const char *folder, int count, int mibs) {
    static char bytes[PAGE];
    char small[4096], large[4096];
    snprintf(small, sizeof small, "%s/small", folder);
    snprintf(large, sizeof large, "%s/large", folder);
    int fd = open(small, O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && write(fd, bytes, PAGE) == PAGE && !fsync(fd), small);
    before = device();
    double *each = calloc(count, sizeof *each);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (!child) write_large(large, mibs), _exit(0);
    int calls = 0, status;
    for (pid_t done = 0; !done; done = waitpid(child, &status, WNOHANG)) {
        double begin = now();
        must(pwrite(fd, bytes, PAGE, 0) == PAGE && !fsync(fd), "fsync");
        if (calls < count) each[calls++] = now() - begin;
        usleep(5000);
    }
    must(status == 0, "the writer failed");
    qsort(each, calls, sizeof *each, later);
    return each[calls / 2];
}

static double large(const char *folder, int count, int cut) {
    enum { CALL = 64 << 10, LEN = 1 << 20 };
    static char bytes[CALL];
    char path[4096];
    snprintf(path, sizeof path, "%s/large", folder);
    double begin = 0;
    // The first one makes the file.
    for (int i = -1; i < count; i++) {
        if (i == 0) before = device(), begin = now();
        int fd = open(path, O_RDWR | O_CREAT | (cut ? O_TRUNC : 0), 0600);
        must(fd >= 0, path);
        memset(bytes, i, CALL);
        for (int at = 0; at < LEN; at += CALL) must(pwrite(fd, bytes, CALL, at) == CALL, "write");
        must(!fsync(fd) && !close(fd), "fsync");
    }
    return (now() - begin) / count;
}

static double raw(const char *path, int count, int size) {
    enum { LEN = 4 << 20 };
    char *bytes = aligned_alloc(PAGE, LEN);
    memset(bytes, 1, LEN);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && write(fd, bytes, LEN) == LEN && !fsync(fd) && !close(fd), path);
    fd = open(path, O_RDWR | O_DIRECT | O_DSYNC);
    must(fd >= 0, path);
    before = device();
    double begin = now();
    for (int i = 0; i < count; i++) must(pwrite(fd, bytes, size, i % (LEN / size) * (off_t)size) == size, "write");
    return (now() - begin) / count;
}

int main(int argc, char **arguments) {
    if (argc != 5) return 2;
    const char *what = arguments[1];
    int count = atoi(arguments[3]), number = atoi(arguments[4]);
    double each = *what == 'r'   ? raw(arguments[2], count, number)
                  : *what == 'b' ? busy(arguments[2], count, number)
                  : *what == 'l' ? large(arguments[2], count, number)
                                 : together(what, arguments[2], count, number);
    printf("%.1f %ld\n", each, device() - before);
    return 0;
}
