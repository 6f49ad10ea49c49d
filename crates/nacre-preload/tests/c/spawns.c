/* Threads open and close files of the host and of the pool while others spawn programs:
   spawns COUNT. Nobody's position moves, and every program starts with what it is to have. */
#include "check.h"
#include <spawn.h>

enum { SPAWNERS = 2, OPENERS = 3 };
static int count;
static volatile int left = SPAWNERS;
static char host[64];

static void *opens(void *number) {
    static char bytes[4096];
    char name[32];
    snprintf(name, sizeof name, "o%ld", (long)number);
    close(file_with(name, "pool"));
    while (left) {
        int a = open(name, O_RDWR | O_CLOEXEC), b = open(host, O_RDWR | O_CLOEXEC), c = open(name, O_RDONLY);
        CHECK(a >= 0 && b >= 0 && c >= 0);
        close(a);
        int d = open(host, O_RDWR);
        CHECK(lseek(b, 0, SEEK_CUR) == 0 && lseek(d, 0, SEEK_CUR) == 0);
        CHECK(read(b, bytes, 100) == 100 && read(d, bytes, 7) == 7);
        close(c);
        int e = open(host, O_RDWR);
        sched_yield();
        CHECK(lseek(e, 0, SEEK_CUR) == 0 && lseek(b, 0, SEEK_CUR) == 100 && lseek(d, 0, SEEK_CUR) == 7);
        close(e);
        close(d);
        close(b);
    }
    return NULL;
}

static void *spawns(void *number) {
    char name[32], text[32];
    snprintf(name, sizeof name, "s%ld", (long)number);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    for (int i = 0; i < count; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        char *arguments[] = {"echo", "x", 0};
        pid_t child;
        int error = posix_spawn(&child, "/bin/echo", &actions, 0, arguments, environ);
        CHECK(!error && status_of(child) == 0);
        child = vfork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        CHECK(status_of(child) == 0);
    }
    struct stat st;
    CHECK(!fstat(fd, &st) && st.st_size == 2 * count);
    __sync_fetch_and_sub(&left, 1);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t all[SPAWNERS + OPENERS];
    char zeros[4096] = {0};
    count = atoi(argv[1]);
    snprintf(host, sizeof host, "/tmp/nacre-spawns-%d", getpid());
    int fd = open(host, O_RDWR | O_CREAT, 0600);
    CHECK(write(fd, zeros, sizeof zeros) == sizeof zeros);
    for (long i = 0; i < SPAWNERS + OPENERS; i++)
        CHECK(!pthread_create(&all[i], 0, i < SPAWNERS ? spawns : opens, (void *)i));
    for (int i = 0; i < SPAWNERS + OPENERS; i++) CHECK(!pthread_join(all[i], 0));
    unlink(host);
    return failures > 255 ? 255 : failures;
}
