/* Threads are cancelled while they wait inside Nacre for a lock that others hold: they end behind the call, and leave no lock. */
#include "check.h"
#include <sched.h>

enum { VICTIMS = 8, HOGS = 3, ROUNDS = 25 };

static volatile int stop;

static void *make_and_remove(void *number) {
    char name[40];
    sprintf(name, "d-%ld", (long)number);
    for (;;) {
        mkdir(name, 0700), rmdir(name);
        pthread_testcancel();
    }
}

/* Takes turns away from who holds a lock, so that others wait for it long. */
static void *turn(void *none) {
    while (!stop) {}
    return none;
}

int main(void) {
    pthread_t hogs[HOGS], victims[VICTIMS];
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    for (int i = 0; i < HOGS; i++) CHECK(!pthread_create(&hogs[i], 0, turn, 0));
    for (int round = 0; round < ROUNDS; round++) {
        for (long i = 0; i < VICTIMS; i++) CHECK(!pthread_create(&victims[i], 0, make_and_remove, (void *)i));
        usleep(30000);
        void *ended;
        for (int i = 0; i < VICTIMS; i++) CHECK(!pthread_cancel(victims[i]));
        for (int i = 0; i < VICTIMS; i++) CHECK(!pthread_join(victims[i], &ended) && ended == PTHREAD_CANCELED);
    }
    stop = 1;
    for (int i = 0; i < HOGS; i++) CHECK(!pthread_join(hogs[i], 0));
    for (int i = 0; i < VICTIMS; i++) {
        char name[40];
        sprintf(name, "d-%d", i);
        CHECK((!rmdir(name) || errno == ENOENT) && !mkdir(name, 0700) && !rmdir(name));
    }
    return failures;
}
