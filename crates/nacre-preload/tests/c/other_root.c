/* Servers that lock themselves in (rsyncd, vsftpd, sshd): below a root directory without /proc they fork, and what they fork has the pool. */
#include "check.h"

static int fd;
static char root[] = "/tmp/root-XXXXXX";

static pid_t forked(void (*act)(void)) {
    pid_t child = fork();
    if (child == 0) {
        act();
        _exit(failures);
    }
    return child;
}

static void writes(void) {
    CHECK(write(fd, "deep,", 5) == 5);
    CHECK(holds(open("/nacre/d/f", O_RDONLY), 0, "text"));
}

static void forks_again(void) {
    writes();
    CHECK(status_of(forked(writes)) == 0);
}

static void dies_with_a_lock(void) {
    struct flock whole = {.l_type = F_WRLCK};
    CHECK(!fcntl(fd, F_SETLK, &whole));
    kill(getpid(), SIGKILL);
}

static void is_locked_in(void) {
    struct flock whole = {.l_type = F_WRLCK};
    CHECK(!chroot(root) && !chdir("/"));
    CHECK(access("/proc", F_OK) == -1 && errno == ENOENT);
    CHECK(status_of(forked(forks_again)) == 0);
    int status;
    pid_t child = forked(dies_with_a_lock);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(!fcntl(fd, F_SETLK, &whole));
}

int main(void) {
    if (geteuid()) return 0;
    CHECK(!close(file_with("f", "text")));
    fd = file_with("log", "");
    CHECK(mkdtemp(root));
    CHECK(status_of(forked(is_locked_in)) == 0);
    CHECK(!rmdir(root));
    CHECK(holds(fd, 0, "deep,deep,"));
    return failures;
}
