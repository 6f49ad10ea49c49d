/* What the test programs share. A program reports each failed check and exits with their number. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static int failures;

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            dprintf(2, "%s:%d: %s (errno: %s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
            failures++;                                                                   \
        }                                                                                 \
    } while (0)

#define PAGE 4096

/* A new file with some bytes in it. */
static inline int file_with(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

/* Whether the file holds this text at an offset. */
static inline int holds(int fd, off_t at, const char *text) {
    char found[256] = {0};
    size_t len = strlen(text);
    return pread(fd, found, len, at) == (ssize_t)len && memcmp(found, text, len) == 0;
}

/* Waits for a child; its exit status, or 1000 + the signal that ended it. */
static inline int status_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}
