/* Children that run in their parent's memory beside it (clone with CLONE_VM, no thread, no vfork): each is served as itself. */
#include "check.h"
#include <sched.h>
#include <spawn.h>
#include <sys/time.h>

#define CHILDREN 3
#define STACK (256 << 10)

static volatile int stop, ready, interrupted;

static void on_signal(int signal) {
    struct stat st;
    interrupted += stat("shared", &st) == 0;
}

static void interrupt_often(int microseconds) {
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &often, 0);
}

/* errno is the same for all, so only results tell. */
static int one_round(const char *own) {
    struct stat st;
    sigset_t blocked;
    int fd = open("shared", O_RDONLY), mine = open(own, O_RDWR | O_CREAT, 0600);
    int wrong = fd < 0 || mine < 0 || stat("shared", &st) || fstat(mine, &st);
    wrong |= pwrite(mine, own, 8, 0) != 8 || !holds(mine, 0, own);
    wrong |= close(fd) || close(mine) || unlink(own);
    sigprocmask(SIG_BLOCK, 0, &blocked);
    return wrong | sigismember(&blocked, SIGALRM);
}

static int works_beside(void *name) {
    int wrong = 0;
    __atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
    interrupt_often(211);
    while (!stop && !wrong) wrong = one_round(name);
    interrupt_often(0);
    _exit(wrong);
}

static pid_t beside(int (*work)(void *), void *argument, char **stack) {
    *stack = malloc(STACK);
    pid_t child = clone(work, *stack + STACK, CLONE_VM | SIGCHLD, argument);
    CHECK(child > 0);
    return child;
}

static void all_at_once(int rounds) {
    char *stacks[CHILDREN], *names[CHILDREN] = {"child-0.", "child-1.", "child-2."};
    pid_t children[CHILDREN];
    int wrong = 0;
    stop = ready = 0;
    for (int i = 0; i < CHILDREN; i++) children[i] = beside(works_beside, names[i], &stacks[i]);
    while (ready < CHILDREN) sched_yield();
    interrupt_often(137);
    for (int i = 0; i < rounds; i++) wrong += one_round("parent-.");
    interrupt_often(0);
    stop = 1;
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(status_of(children[i]) == 0);
        free(stacks[i]);
    }
    CHECK(wrong == 0);
    CHECK(interrupted > 0);
}

static int closes(void *fd) {
    char byte;
    int mine = *(int *)fd;
    int wrong = pread(mine, &byte, 1, 0) != 1 || close(mine) || pread(mine, &byte, 1, 0) != -1;
    _exit(wrong);
}

static int starts_others(void *unused) {
    char *arguments[] = {"sh", "-c", "test -s shared", 0};
    pid_t child;
    int status, wrong = posix_spawn(&child, "/bin/sh", 0, 0, arguments, environ);
    wrong |= waitpid(child, &status, 0) != child || status;
    child = vfork();
    if (child == 0) _exit(access("shared", R_OK) ? 1 : 0);
    wrong |= waitpid(child, &status, 0) != child || status;
    child = fork();
    if (child == 0) _exit(one_round("forked-."));
    wrong |= waitpid(child, &status, 0) != child || status;
    _exit(wrong | one_round("starter."));
}

static void one_after_the_other(void) {
    char *stack;
    for (int i = 0; i < 100; i++) {
        int fd = open("shared", O_RDONLY);
        CHECK(status_of(beside(closes, &fd, &stack)) == 0);
        CHECK(holds(fd, 0, "text") && !close(fd));
        free(stack);
    }
    CHECK(status_of(beside(starts_others, 0, &stack)) == 0);
    free(stack);
    CHECK(one_round("parent-.") == 0);
}

static void *nothing(void *unused) {
    return NULL;
}

static int starts_a_thread(void *unused) {
    pthread_t thread;
    _exit(pthread_create(&thread, 0, nothing, 0) == EAGAIN ? 0 : 1);
}

static int calls_once(void *unused) {
    struct stat st;
    _exit(stat("shared", &st) || chdir("/") || access("shared", F_OK) == 0 ? 1 : 0);
}

/* A sandbox's helper, whose thread pointer points into empty bytes (x86-64: errno lies below). The caller waits for it. */
static void without_thread_pointer(void) {
    static char bytes[16384] __attribute__((aligned(64)));
    char *stack = malloc(STACK);
    struct stat st;
    for (int i = 0; i < 100; i++) {
        pid_t child = clone(calls_once, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD, 0, 0, bytes + 8192, 0);
        CHECK(child > 0 && status_of(child) == 0);
        CHECK(stat("shared", &st) == 0);
    }
    free(stack);
}

/* Refused with a message, which is not to be seen here. */
static void no_threads(void) {
    char *stack;
    int standard_error = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    int status = status_of(beside(starts_a_thread, 0, &stack));
    dup2(standard_error, 2);
    close(standard_error), close(null), free(stack);
    CHECK(status == 0);
}

static void *in_a_thread(void *unused) {
    one_after_the_other();
    return NULL;
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    pthread_t thread;
    sigaction(SIGALRM, &action, 0);
    close(file_with("shared", "text"));
    all_at_once(count > 1 ? atoi(arguments[1]) : 3000);
    one_after_the_other();
    without_thread_pointer();
    no_threads();
    CHECK(!pthread_create(&thread, 0, in_a_thread, 0) && !pthread_join(thread, 0));
    return failures;
}
