/* Children in their parent's memory try to execute what cannot be executed. They and their parent
   go on as if they had not. */
#include "check.h"
#include <spawn.h>

/* The kernel alone finds out. */
static const char *const FORBIDDEN = "/etc/passwd";

static int fails(void) {
    execl(FORBIDDEN, FORBIDDEN, NULL);
    return errno == EACCES;
}

static int uses_the_pool(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    return fd >= 0 && write(fd, "x", 1) == 1 && !close(fd);
}

static void fails_once(void) { _exit(fails() ? 7 : 1); }
static void fails_twice(void) { _exit(fails() && fails() ? 7 : 1); }
static void fails_and_executes(void) {
    if (fails()) execl("/bin/sh", "sh", "-c", "exit 7", NULL);
    _exit(1);
}
static void fails_beside_uses(void) {
    int good = uses_the_pool("/nacre/used-a") && fails() && uses_the_pool("/nacre/used-b") && fails();
    _exit(good && uses_the_pool("/nacre/used-c") ? 7 : 1);
}

static void (*const CHILDREN[])(void) = {fails_once, fails_twice, fails_and_executes,
                                         fails_beside_uses};

static void spawned(void) {
    char *arguments[] = {"x", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, FORBIDDEN, NULL, NULL, arguments, environ) == EACCES);
}

int main(void) {
    /* Nothing of the pool is open: whoever executes a program leaves it. */
    CHECK(!chdir("/"));
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof CHILDREN / sizeof *CHILDREN; i++) {
            pid_t child = vfork();
            if (!child) CHILDREN[i]();
            CHECK(status_of(child) == 7);
        }
        spawned();
        CHECK(uses_the_pool("/nacre/used-d"));
    }
    return failures > 255 ? 255 : failures;
}
