/* A process in strict seccomp mode may only read, write and exit: its files of the pool, and others. */
#include "check.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>

int main(void) {
    char found[8] = {0};
    int pool = file_with("f", "text"), ends[2];
    CHECK(!pipe(ends) && lseek(pool, 0, SEEK_SET) == 0);
    pid_t child = fork();
    if (!child) {
        int good = !prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        good = good && read(pool, found, 2) == 2 && write(pool, "st", 2) == 2;
        good = good && write(ends[1], found, 2) == 2 && read(ends[0], found + 2, 2) == 2;
        syscall(SYS_exit, !good);
    }
    CHECK(status_of(child) == 0 && holds(pool, 0, "test"));
    return failures;
}
