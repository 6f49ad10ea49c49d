/* Signals: actions are reported as set, arrive in the middle of calls, interrupt and restart. */
#include "check.h"

static volatile int hits;

static void count(int signal) {
    hits++;
}

static void actions(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART}, found;
    CHECK(!sigaction(SIGUSR1, &action, &found) && found.sa_handler == SIG_DFL);
    CHECK(!sigaction(SIGUSR1, NULL, &found));
    CHECK(found.sa_handler == count && (found.sa_flags & ~0x04000000) == SA_RESTART);
    CHECK(!sigaction(SIGSEGV, NULL, &found) && found.sa_handler == SIG_DFL);
    raise(SIGUSR1);
    CHECK(hits == 1);
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGUSR2, &action, 0);
    raise(SIGUSR2);
    CHECK(hits == 2 && !sigaction(SIGUSR2, NULL, &found) && found.sa_handler == SIG_DFL);
}

static void default_actions(void) {
    pid_t child = fork();
    if (child == 0) *(volatile int *)8 = 1;
    CHECK(status_of(child) == 1000 + SIGSEGV);
    child = fork();
    if (child == 0) {
        kill(getpid(), SIGBUS);
        for (;;) pause();
    }
    CHECK(status_of(child) == 1000 + SIGBUS);
}

static void lock_waits(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct sigaction action = {.sa_handler = count};
    int ready[2];
    char byte;
    CHECK(!pipe(ready));
    pid_t owner = fork();
    if (owner == 0) {
        CHECK(!fcntl(fd, F_SETLK, &lock) && write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    hits = 0;
    sigaction(SIGALRM, &action, 0);
    alarm(1);
    CHECK(fcntl(fd, F_SETLKW, &lock) == -1 && errno == EINTR && hits == 1);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    alarm(1);
    pid_t killer = fork();
    if (killer == 0) {
        sleep(2);
        kill(owner, SIGKILL);
        _exit(0);
    }
    CHECK(fcntl(fd, F_SETLKW, &lock) == 0 && hits == 2);
    CHECK(status_of(owner) == 1000 + SIGKILL && status_of(killer) == 0);
}

/* A timer fires all the time while calls of all kinds go on. */
static void storm(int fd) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM};
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    timer_t timer;
    char name[32];
    hits = 0;
    sigaction(SIGVTALRM, &action, 0);
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    CHECK(!timer_settime(timer, 0, &often, 0));
    for (int i = 0; i < 50000; i++) {
        CHECK(pwrite(fd, "0123456789", 10, i % 1000) == 10);
        if (i % 500 == 0) {
            snprintf(name, sizeof name, "storm%d", i);
            CHECK(!close(open(name, O_CREAT | O_RDWR, 0600)) && !unlink(name));
        }
    }
    timer_delete(timer);
    CHECK(hits > 10);
}

static void *reads(void *pipe_end) {
    char byte;
    while (read(*(int *)pipe_end, &byte, 1) >= 0) {}
    return NULL;
}

static void cancellation(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    CHECK(!pipe(ends) && !pthread_create(&thread, 0, reads, &ends[0]));
    usleep(50000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
}

static volatile sig_atomic_t came[2], seconds, forgotten = -1;

static void arrive(int signal) {
    if (signal == SIGUSR2 && seconds++ == forgotten) return;
    came[signal == SIGUSR2] = 1;
}

/* Two timers end at the same instant, nearly always while the thread is inside a long write: both signals arrive at
   once. The second shot of a timer is never armed before both have come. */
static void pairs(int fd) {
    static char bytes[1 << 17];
    struct sigaction action = {.sa_handler = arrive, .sa_flags = SA_RESTART};
    int signals[2] = {SIGUSR1, SIGUSR2};
    timer_t timers[2];
    for (int i = 0; i < 2; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signals[i]};
        CHECK(!sigaction(signals[i], &action, 0));
        CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timers[i]));
    }
    for (int round = 0; round < 2000; round++) {
        struct itimerspec shot = {0};
        struct timespec now;
        long waited = 0;
        came[0] = came[1] = 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
        shot.it_value = now;
        shot.it_value.tv_nsec += 60000 + round % 16 * 1000;
        if (shot.it_value.tv_nsec >= 1000000000) {
            shot.it_value.tv_nsec -= 1000000000;
            shot.it_value.tv_sec++;
        }
        for (int i = 0; i < 2; i++) CHECK(!timer_settime(timers[i], TIMER_ABSTIME, &shot, 0));
        while (!came[0] || !came[1]) {
            CHECK(pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
            if (++waited > 20000) {
                fprintf(stderr, "round %d: a signal was lost\n", round);
                exit(1);
            }
        }
    }
    for (int i = 0; i < 2; i++) timer_delete(timers[i]);
}

int main(int count, char **arguments) {
    int fd = file_with("file", "hello");
    if (count > 1) {
        if (!strcmp(arguments[1], "canary")) forgotten = 100;
        pairs(fd);
        return failures;
    }
    actions();
    default_actions();
    lock_waits(fd);
    storm(fd);
    cancellation();
    return failures;
}
