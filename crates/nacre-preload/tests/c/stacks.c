/* Calls need next to nothing of the program's stack, whatever stack that is, and handlers run on the program's stacks. */
#include "check.h"
#include <spawn.h>
#include <sys/time.h>
#include <ucontext.h>

/* What is left of a stack for calls, and of one with two handlers for these, their calls and the signals' delivery. */
enum { LEFT = 1400, LEFT_BY_TWO = 2304 };

/* `len` bytes above a page that must not be touched. */
static char *above_guard(size_t len) {
    char *start = mmap(0, PAGE + len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED && !mprotect(start, PAGE, PROT_NONE));
    return start + PAGE;
}

static int mappings(void) {
    char line[512];
    int lines = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) lines++;
    fclose(maps);
    return lines;
}

/* Names of files, for calls in the middle of calls too. */
static __thread struct {
    struct stat found;
    char name[32], other[32], text[8];
} all[8];
static __thread int depth;

/* Each kind of call, with as little stack of its own as can be once the names are known. */
static void calls(void) {
    int me = depth++ % 8;
    struct stat *found = &all[me].found;
    char *name = all[me].name, *other = all[me].other, *text = all[me].text;
    if (!*name) {
        sprintf(name, "file-%lx-%d", (long)pthread_self(), me);
        sprintf(other, "other-%lx-%d", (long)pthread_self(), me);
    }
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && write(fd, "nacre", 5) == 5 && pread(fd, text, 8, 0) == 5);
    CHECK(!fstat(fd, found) && found->st_size == 5 && !fsync(fd) && !close(fd));
    CHECK(!rename(name, other) && stat(name, found) == -1 && errno == ENOENT);
    CHECK(!stat(other, found) && !unlink(other));
    CHECK(!mkdir(name, 0700) && !rmdir(name));
    CHECK(stat("/nowhere/at/all", found) == -1 && errno == ENOENT);
    CHECK(open("/proc/self/nothing", O_RDONLY) == -1 && errno == ENOENT);
    depth--;
}

static volatile int hits, inner;
static char *alternate;
static size_t small, frame;

static int on_alternate(void *at) {
    return (char *)at >= alternate && (char *)at < alternate + small;
}

static void measure(int signal, siginfo_t *info, void *context) {
    frame = alternate + small - (char *)context;
}

/* A stack for two handlers: how much the kernel stores for each depends on the processor's registers. */
static void make_small_stack(void) {
    small = 16 * PAGE;
    alternate = above_guard(small);
    stack_t stack = {.ss_sp = alternate, .ss_size = small};
    struct sigaction action = {.sa_sigaction = measure, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    CHECK(!sigaltstack(&stack, 0) && !sigaction(SIGUSR1, &action, 0) && !raise(SIGUSR1) && frame);
    small = 2 * frame + LEFT_BY_TWO;
    alternate = above_guard((small + PAGE - 1) / PAGE * PAGE);
}

static void work(int signal) {
    volatile long canary = 0x6e61637265;
    CHECK(on_alternate((void *)&canary));
    calls();
    CHECK(canary == 0x6e61637265);
    hits++;
}

/* A new program that is started in a handler has no signals blocked. */
static void spawn(int signal) {
    char *argv[] = {"sh", "-c", "grep -q '^SigBlk:.0*$' /proc/self/status", 0}, *wrong[] = {"/nacre/no", 0};
    pid_t child;
    CHECK(!posix_spawn(&child, "/bin/sh", 0, 0, argv, environ) && !status_of(child));
    child = vfork();
    if (child == 0) {
        execv(wrong[0], wrong);
        execv("/bin/sh", argv);
    }
    CHECK(status_of(child) == 0);
    calls();
    hits++;
}

static void nested(int signal) {
    char here;
    CHECK(on_alternate(&here));
    inner++;
}

static void every(int us) {
    struct itimerval often = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &often, 0);
}

static void on_small_alternate_stacks(void) {
    make_small_stack();
    stack_t stack = {.ss_sp = alternate, .ss_size = small}, none = {.ss_flags = SS_DISABLE}, found;
    struct sigaction action = {.sa_handler = work, .sa_flags = SA_ONSTACK};
    CHECK(!sigaltstack(&stack, 0) && !sigaction(SIGUSR1, &action, 0));
    raise(SIGUSR1);
    CHECK(hits == 1);
    action.sa_handler = spawn;
    action.sa_flags |= SA_NODEFER;
    CHECK(!sigaction(SIGUSR2, &action, 0));
    raise(SIGUSR2);
    CHECK(hits == 2);
    calls();
    hits = 1;
    /* Further signals on the same stack must not begin it anew. */
    action.sa_handler = nested;
    action.sa_flags &= ~SA_NODEFER; /* one at a time: there is no room for more, whoever serves the calls */
    CHECK(!sigaction(SIGALRM, &action, 0));
    every(300);
    for (int i = 0; i < 200; i++) {
        raise(SIGUSR1);
        calls();
    }
    every(0);
    CHECK(hits == 201 && inner > 0);
    CHECK(!sigaltstack(0, &found) && found.ss_sp == alternate && found.ss_flags == 0);
    CHECK(!sigaltstack(&none, 0));
}

/* What comes into mappings when it is touched needs room for a frame of a signal, no more. */
static void touch(void) {
    enum { LEN = 4 << 20, STEP = 68 << 10 };
    char name[32];
    sprintf(name, "mapped-%lx", (long)pthread_self());
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, LEN) && pwrite(fd, "nacre", 5, LEN / 2) == 5);
    for (int flags = MAP_SHARED; flags <= MAP_PRIVATE; flags++) {
        char *bytes = mmap(0, LEN, PROT_READ | PROT_WRITE, flags, fd, 0);
        CHECK(bytes != MAP_FAILED);
        for (int at = 0; at < LEN; at += STEP) bytes[at] = 1;
        CHECK(!memcmp(bytes + LEN / 2, "nacre", 5) && !munmap(bytes, LEN));
    }
    CHECK(!unlink(name) && !close(fd));
}

static void *thread(void *unused) {
    calls();
    touch();
    return 0;
}

static void in_small_threads(void) {
    pthread_attr_t attributes;
    pthread_t some[8];
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, 16384));
    int before = 0;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 8; i++) CHECK(!pthread_create(&some[i], &attributes, thread, 0));
        for (int i = 0; i < 8; i++) pthread_join(some[i], 0);
        if (round == 10) before = mappings();
    }
    /* The stacks of threads that ended serve others. */
    CHECK(mappings() < before + 60);
}

static ucontext_t back, little;

static void too_much(void) {
    volatile char bytes[2048];
    bytes[0] = 1;
}

static void with_little_stack(void (*what)(void)) {
    calls();
    char *stack = above_guard(PAGE);
    getcontext(&little);
    little.uc_stack.ss_sp = stack;
    little.uc_stack.ss_size = LEFT;
    little.uc_link = &back;
    makecontext(&little, what, 0);
    CHECK(!swapcontext(&back, &little));
}

static sigjmp_buf out;
static char *near;

static void leave(int signal) {
    char here;
    CHECK(labs(&here - near) < 32768);
    calls();
    depth = 0;
    siglongjmp(out, 1);
}

static void count(int signal) {
    char here;
    CHECK(labs(&here - near) < 32768);
    calls();
    hits++;
}

/* Handlers of signals that interrupt a waiting call run on the program's stack, and may never come back. */
static void in_waiting_calls(void) {
    char here;
    near = &here;
    char fifo[40];
    snprintf(fifo, sizeof fifo, "/dev/shm/nacre-fifo-%d", getpid());
    CHECK(!mkfifo(fifo, 0600));
    struct sigaction action = {.sa_handler = count};
    struct itimerval soon = {{0, 0}, {0, 2000}}, often = {{0, 50000}, {0, 2000}};
    hits = 0;
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &often, 0));
    /* The first may come before the call. */
    CHECK(open(fifo, O_RDONLY) == -1 && errno == EINTR && hits >= 1);
    CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, 0));
    action.sa_handler = leave;
    CHECK(!sigaction(SIGALRM, &action, 0));
    int before = 0;
    for (volatile int i = 0; i < 300; i++) {
        if (!sigsetjmp(out, 1)) {
            setitimer(ITIMER_REAL, &soon, 0);
            open(fifo, O_RDONLY);
        }
        if (i == 20) before = mappings();
    }
    calls();
    CHECK(mappings() < before + 40);
    unlink(fifo);
}

/* A child in our memory leaves us our stack, whether it executes a program or not. */
static void beside_children(void) {
    char *argv[] = {"true", 0}, *wrong[] = {"/nacre/not-there", 0};
    int before = 0;
    for (int i = 0; i < 60; i++) {
        pid_t child;
        CHECK(!posix_spawn(&child, "/bin/true", 0, 0, argv, environ) && !status_of(child));
        CHECK(posix_spawn(&child, wrong[0], 0, 0, wrong, environ) == ENOENT);
        calls();
        if (i == 10) before = mappings();
    }
    CHECK(mappings() < before + 10);
}

/* Signals at every point of a call. */
static void under_fire(void) {
    char here;
    near = &here;
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGALRM, &action, 0));
    hits = 0;
    every(997);
    for (int i = 0; i < 1500; i++) calls();
    every(0);
    CHECK(hits > 10);
    /* Nothing is left blocked. */
    sigset_t blocked;
    CHECK(!sigprocmask(SIG_SETMASK, 0, &blocked) && sigisemptyset(&blocked));
}

int main(int count, char **arguments) {
    with_little_stack(arguments[1] && !strcmp(arguments[1], "canary") ? too_much : calls);
    on_small_alternate_stacks();
    in_small_threads();
    in_waiting_calls();
    beside_children();
    under_fire();
    return failures;
}
