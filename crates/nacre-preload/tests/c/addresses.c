/* Bad addresses are errors, whatever the program blocks. */
#include "check.h"

static void all_calls(int fd) {
    void *bad = (void *)16;
    struct stat st;
    CHECK(write(fd, bad, 5) == -1 && errno == EFAULT);
    CHECK(pread(fd, bad, 5, 0) == -1 && errno == EFAULT);
    CHECK(open(bad, O_RDONLY) == -1 && errno == EFAULT);
    CHECK(stat("file", bad) == -1 && errno == EFAULT);
    CHECK(stat(bad, &st) == -1 && errno == EFAULT);
    CHECK(mkdir((char *)-8L, 0700) == -1 && errno == EFAULT);
    CHECK(rename("file", bad) == -1 && errno == EFAULT);
}

int main(void) {
    int fd = file_with("file", "hello");
    all_calls(fd);
    sigset_t all, old, now;
    sigfillset(&all);
    CHECK(!sigprocmask(SIG_SETMASK, &all, &old));
    all_calls(fd);
    CHECK(!sigprocmask(SIG_SETMASK, NULL, &now));
    CHECK(sigismember(&now, SIGSEGV) == 1 && sigismember(&now, SIGTERM) == 1);
    CHECK(!sigprocmask(SIG_SETMASK, &old, &now));
    CHECK(sigismember(&now, SIGSEGV) == 1);
    CHECK(!sigprocmask(SIG_SETMASK, NULL, &now));
    CHECK(sigismember(&now, SIGSEGV) == 0);
    CHECK(holds(fd, 0, "hello"));
    return failures;
}
