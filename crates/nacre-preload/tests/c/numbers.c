/* Threads ask about numbers that another one opens and closes meanwhile, as closefrom and searches for leaks do. */
#include "check.h"

enum { ROUNDS = 3000000, DUPLICATES = 500000, NUMBERS = 5 };

static volatile int stop;

static void *ask(void *none) {
    while (!stop)
        for (int fd = 3; fd < NUMBERS; fd++) fcntl(fd, F_GETFD);
    return none;
}

static volatile int closing;

/* About one number alone, in the moment of its close. */
static void *ask_one(void *none) {
    struct stat found;
    while (!stop) fstat(closing, &found);
    return none;
}

/* A number of a file that has others is closed and given to a file of the host. */
static void others_follow(void) {
    pthread_t asker;
    struct stat host, found;
    int file = open("file", O_RDWR | O_CREAT, 0600);
    CHECK(!stat("/etc/passwd", &host));
    stop = 0, closing = dup(file);
    CHECK(!close(closing) && !pthread_create(&asker, 0, ask_one, 0));
    for (int round = 0; round < DUPLICATES && !failures; round++) {
        CHECK(dup(file) == closing && !close(closing));
        CHECK(open("/etc/passwd", O_RDONLY) == closing && !fstat(closing, &found) && !close(closing));
        CHECK(found.st_dev == host.st_dev && found.st_ino == host.st_ino);
    }
    stop = 1;
    CHECK(!pthread_join(asker, 0) && !close(file));
}

int main(void) {
    pthread_t askers[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&askers[i], 0, ask, 0));
    for (int round = 0; round < ROUNDS && !failures; round++) {
        struct stat found;
        char text[8];
        int fd = open("file", O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 3 && !fstat(fd, &found) && S_ISREG(found.st_mode));
        CHECK(pwrite(fd, "12345678", 8, 0) == 8 && pread(fd, text, 8, 0) == 8 && !ftruncate(fd, 8) && !close(fd));
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(askers[i], 0));
    others_follow();
    return failures;
}
