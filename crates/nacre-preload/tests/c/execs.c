/* A program whose threads do I/O executes itself, by its first thread or by another one, COUNT times:
   execs COUNT. What it held stays, and nobody waits for threads that are gone. */
#include "check.h"

enum { THREADS = 4 };
static const char *self;
static int left;
static volatile int busy;

static void *works(void *number) {
    char name[40], to[40];
    static char bytes[9000];
    snprintf(name, sizeof name, "w%ld", (long)number);
    snprintf(to, sizeof to, "x%ld", (long)number);
    for (;;) {
        int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600), copy = dup(fd);
        struct flock lock = {.l_type = F_WRLCK, .l_len = 5};
        CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes && !fcntl(fd, F_SETLK, &lock));
        CHECK(!close(fd) && lseek(copy, 0, SEEK_CUR) == sizeof bytes);
        CHECK(!rename(name, to) && !close(copy) && !unlink(to));
        busy++;
    }
}

static void *executes(void *unused) {
    char count[20];
    snprintf(count, sizeof count, "%d", left - 1);
    execl(self, self, count, NULL);
    CHECK(!"execl");
    exit(1);
}

int main(int argc, char **argv) {
    pthread_t thread;
    self = argv[0];
    left = atoi(argv[1]);
    alarm(30);
    /* What the programs before have left open, but for the first one's file. */
    for (int fd = 4; fd < 60; fd++) close(fd);
    if (lseek(3, 0, SEEK_CUR) < 0) CHECK(file_with("kept", "") == 3);
    CHECK(write(3, "x", 1) == 1);
    if (left == 0) {
        struct stat st;
        CHECK(!stat("kept", &st) && st.st_size == lseek(3, 0, SEEK_CUR));
        return failures;
    }
    for (long i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread, 0, works, (void *)i));
    for (int before = busy; busy < before + 3;) sched_yield();
    /* execve fails, and the threads go on. */
    CHECK(execl("/nowhere", "/nowhere", NULL) == -1 && errno == ENOENT);
    for (int before = busy; busy < before + 3;) sched_yield();
    if (left % 2) executes(NULL);
    CHECK(!pthread_create(&thread, 0, executes, NULL));
    for (;;) pause();
}
