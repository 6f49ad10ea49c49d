/* Alternate stacks that were made unusable: what becomes of calls with bad pointers, of signals and
   of faults, one line for each case. To be compared with the lines without Nacre. */
#include "check.h"
#include <sys/resource.h>

enum { FAULT_ON_STACK = 1, OTHER_ON_STACK = 2, NO_FAULT_HANDLER = 4, UNMAPPED = 8, MADE_GOOD = 16, CASES = 32 };

static void fault(int signal) {
    _exit(40);
}

static void other(int signal) {
    CHECK(write(1, "other ", 6) == 6);
}

static void handle(int signal, void (*handler)(int), int on_stack) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = on_stack ? SA_ONSTACK : 0};
    CHECK(!sigaction(signal, &action, NULL));
}

static void spoil(int which) {
    stack_t stack = {.ss_size = 16 * PAGE};
    stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!sigaltstack(&stack, NULL));
    if (!(which & NO_FAULT_HANDLER)) handle(SIGSEGV, fault, which & FAULT_ON_STACK);
    handle(SIGUSR1, other, which & OTHER_ON_STACK);
    CHECK(which & UNMAPPED ? !munmap(stack.ss_sp, stack.ss_size) : !mprotect(stack.ss_sp, stack.ss_size, PROT_READ));
    if (!(which & MADE_GOOD)) return;
    int with = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (which & UNMAPPED)
        CHECK(mmap(stack.ss_sp, stack.ss_size, PROT_READ | PROT_WRITE, with, -1, 0) == stack.ss_sp);
    else
        CHECK(!mprotect(stack.ss_sp, stack.ss_size, PROT_READ | PROT_WRITE));
}

/* What is tried with the stack: a bad pointer, a signal, a fault. */
static void try(int which, int what) {
    int fd = file_with("f", "text");
    spoil(which);
    if (what == 0) _exit(pread(fd, (void *)8, 3, 0) < 0 && errno == EFAULT ? 50 : 51);
    if (what == 1) raise(SIGUSR1);
    if (what == 2) *(volatile char *)8 = 1;
    _exit(30);
}

int main(void) {
    CHECK(!setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}));
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int which = 0; which < CASES; which++)
        for (int what = 0; what < 3; what++) {
            pid_t child = fork();
            if (!child) try(which, what);
            printf("%d %d: %d\n", which, what, status_of(child));
        }
    return failures;
}
