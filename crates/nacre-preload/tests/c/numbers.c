/* Threads ask about numbers that another one opens and closes meanwhile, as closefrom and searches for leaks do. */
#include "check.h"

enum { ROUNDS = 3000000, NUMBERS = 5 };

static volatile int stop;

static void *ask(void *none) {
    while (!stop)
        for (int fd = 3; fd < NUMBERS; fd++) fcntl(fd, F_GETFD);
    return none;
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
    return failures;
}
