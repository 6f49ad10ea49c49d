/* A sandbox whose root is the folder that a process had in /proc before it ended, as browsers have it: nothing is found there, neither
 * the pool nor who uses it. What is forked there runs, and has nothing of the pool. */
#include "check.h"

static char stack[16 * PAGE];

static int takes_an_empty_root(void *unused) {
    _exit(chroot("/proc/self/fdinfo/") || chdir("/"));
}

static void leave_everything(void) {
    const int flags = CLONE_VM | CLONE_VFORK | CLONE_FS | SIGCHLD;
    CHECK(status_of(clone(takes_an_empty_root, stack + sizeof stack, flags, 0)) == 0);
}

static void without_the_pool(int fd) {
    struct stat found;
    char byte;
    CHECK(write(fd, "x", 1) == -1 && (errno == EBADF || errno == EPERM));
    CHECK(pread(fd, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(stat("/nacre/d/kept", &found) == -1);
    CHECK(!close(fd));
    _exit(failures);
}

static void forks(int fd, int flags) {
    pid_t child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) without_the_pool(fd);
    CHECK(status_of(child) == 0);
}

int main(void) {
    int fd = file_with("kept", "kept");
    pid_t child = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    if (child < 0) return 0;
    if (child == 0) {
        leave_everything();
        forks(fd, 0);
        forks(fd, CLONE_NEWPID);
        CHECK(holds(fd, 0, "kept") && write(fd, "!", 1) == 1);
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(holds(fd, 0, "kept!"));
    return failures;
}
