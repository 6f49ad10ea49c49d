/* Calls that enter by symbols of the C library's names behave as the library's own. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <sys/time.h>

static void are_bound(void) {
    Dl_info info;
    void *ours[] = {(void *)read, (void *)write, (void *)pread, (void *)pwrite, (void *)fsync, (void *)fdatasync};
    for (int i = 0; i < 6; i++)
        CHECK(dladdr(ours[i], &info) && strstr(info.dli_fname, "libnacre_preload"));
}

static void errors(int fd) {
    char byte = 0, *nowhere = (char *)16;
    int reader = open("file", O_RDONLY), folder = open(".", O_RDONLY | O_DIRECTORY), path = open("file", O_PATH);
    errno = 0;
    CHECK(pread(fd, &byte, 1, 0) == 1 && errno == 0);
    CHECK(pread(-1, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(read(99999, &byte, 1) == -1 && errno == EBADF);
    CHECK(pread(fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    CHECK(pwrite(fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, &byte, 1, -1) == -1 && errno == EINVAL);
    CHECK(pwrite(reader, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(read(folder, &byte, 1) == -1 && errno == EISDIR);
    CHECK(pread(path, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(fsync(path) == -1 && errno == EBADF);
    CHECK(pread(fd, &byte, 1, 1 << 20) == 0 && !fsync(fd) && !fdatasync(fd));
    CHECK(!close(reader) && !close(folder) && !close(path));
    CHECK(pread(reader, &byte, 1, 0) == -1 && errno == EBADF);
}

/* The position moves with each call, also one that is shared with a child. */
static void positions(int fd) {
    char bytes[8];
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, bytes, 8) == 8 && write(fd, "12345678", 8) == 8);
    pid_t child = fork();
    if (child == 0) _exit(read(fd, bytes, 8) != 8);
    CHECK(status_of(child) == 0 && lseek(fd, 0, SEEK_CUR) == 24);
    CHECK(read(fd, bytes, 8) == 8 && lseek(fd, 0, SEEK_CUR) == 32);
    CHECK(pread(fd, bytes, 8, 8) == 8 && !memcmp(bytes, "12345678", 8));
}

static volatile int hits;
static int file;

static void handler(int signal) {
    char bytes[64];
    CHECK(pread(file, bytes, 64, 128) == 64 && bytes[5] == 'x');
    hits++;
}

/* Signals at every point of a call; their handlers make the same calls. */
static void signals(int fd) {
    char bytes[64];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 211}, {0, 211}}, never = {{0, 0}, {0, 0}};
    file = fd;
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &often, 0));
    for (int i = 0; i < 400000 && hits < 300; i++) {
        CHECK(pread(fd, bytes, 64, 64) == 64 && bytes[0] == 'x' && bytes[63] == 'x');
        CHECK(pwrite(fd, bytes, 64, 64) == 64);
    }
    CHECK(!setitimer(ITIMER_REAL, &never, 0) && hits > 3);
}

static void *reads_a_pipe(void *fd) {
    char byte;
    read(*(int *)fd, &byte, 1);
    return 0;
}

/* They are points of cancellation, of other threads and of the only one. */
static void cancellation(int fd) {
    char byte;
    pid_t child = fork();
    if (child == 0) {
        pthread_cancel(pthread_self());
        pread(fd, &byte, 1, 0);
        _exit(1);
    }
    CHECK(status_of(child) == 0);
    int pipes[2];
    pthread_t thread;
    void *result;
    CHECK(!pipe(pipes) && !pthread_create(&thread, 0, reads_a_pipe, pipes));
    usleep(20000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    CHECK(pread(fd, &byte, 1, 64) == 1 && byte == 'x');
}

int main(void) {
    char bytes[4096];
    memset(bytes, 'x', sizeof bytes);
    int fd = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && write(fd, bytes, sizeof bytes) == sizeof bytes && pread(fd, bytes, 1, 0) == 1);
    are_bound();
    errors(fd);
    positions(fd);
    signals(fd);
    cancellation(fd);
    return failures;
}
