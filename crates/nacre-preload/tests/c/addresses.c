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

/* A directory read into buffers that end in the middle of a record, or where nothing is mapped: every name comes once. */
static void directory(void) {
    enum { NAMES = 100 };
    char name[32], seen[NAMES] = {0}, *pages = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !mprotect(pages + PAGE, PAGE, PROT_NONE) && !mkdir("directory", 0700));
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "directory/name-%d", i);
        CHECK(mknod(name, S_IFREG | 0600, 0) == 0);
    }
    int fd = open("directory", O_RDONLY | O_DIRECTORY), names = 0, rounds = 0;
    for (long len; (len = syscall(SYS_getdents64, fd, pages + PAGE - 3000, rounds++ % 2 ? 700 : PAGE)) > 0;) {
        for (char *record = pages + PAGE - 3000, *end = record + len; record < end; record += *(unsigned short *)(record + 16)) {
            int number = -1;
            CHECK(end <= pages + PAGE);
            if (sscanf(record + 19, "name-%d", &number) != 1) continue;
            CHECK(number >= 0 && number < NAMES && !seen[number]++);
            names++;
        }
    }
    CHECK(names == NAMES && rounds > 3);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && syscall(SYS_getdents64, fd, pages + PAGE, PAGE) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_getdents64, fd, pages, 20) == -1 && errno == EINVAL && !close(fd) && !munmap(pages, 2 * PAGE));
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
    directory();
    CHECK(holds(fd, 0, "hello"));
    return failures;
}
