/* Handlers see a call that goes on afterwards at its instruction, one that is over behind it. Since glibc 2.41 a thread that
 * waits is cancelled only at the former. */
#include "check.h"
#include <sys/file.h>

/* Where the handler saw the program; shared with the helper. */
static volatile long *seen;

/* From `call` to its instruction: no symbol and no address tells that one could jump there. */
extern const int call_at;

/* A call of the kernel at a known place. */
__attribute__((noinline)) long call(long number, long a, long b, long c, long d) {
    register long r10 asm("r10") = d;
    long result = number;
    asm volatile(".pushsection .rodata\n call_at: .long 1f - call\n .popsection\n 1: syscall"
                 : "+a"(result)
                 : "D"(a), "S"(b), "d"(c), "r"(r10)
                 : "rcx", "r11", "memory");
    return result;
}

enum { SYSCALL_LEN = 2 };

static long at_call(void) { return (long)call + call_at; }

static long behind_call(void) { return at_call() + SYSCALL_LEN; }

static void look(int signal, siginfo_t *info, void *context) {
    *seen = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

static void at_signal(int flags) {
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(SIGUSR1, &action, 0));
    *seen = 0;
}

static int sleeps(pid_t process) {
    char path[40], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return state == 'S';
}

/* Sends the signal once the program sleeps, and lets it go on once its handler has run. */
static pid_t helper(void (*go_on)(void)) {
    pid_t waiting = getpid(), child = fork();
    if (child) return child;
    for (int times = 0; times < 5; times = sleeps(waiting) ? times + 1 : 0) usleep(10000);
    kill(waiting, SIGUSR1);
    while (!*seen) usleep(1000);
    go_on();
    _exit(failures);
}

static void open_fifo(void) { CHECK(open("fifo", O_WRONLY) >= 0); }

static int owner;

static void connect_to_it(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    CHECK(!connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&name, sizeof name));
}

static void unlock(void) { CHECK(!flock(owner, LOCK_UN)); }

static void nothing(void) {}

static void fifos(void) {
    CHECK(!mkfifo("fifo", 0600));
    at_signal(SA_RESTART);
    pid_t child = helper(open_fifo);
    CHECK(call(SYS_openat, AT_FDCWD, (long)"fifo", O_RDONLY, 0) >= 0 && *seen == at_call());
    CHECK(!status_of(child));
    at_signal(0);
    child = helper(nothing);
    CHECK(call(SYS_openat, AT_FDCWD, (long)"fifo", O_RDONLY, 0) == -EINTR && *seen == behind_call());
    CHECK(!status_of(child));
}

static void connections(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    socklen_t len = sizeof name;
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(listening, (void *)&name, sizeof name) && !listen(listening, 1));
    at_signal(SA_RESTART);
    pid_t child = helper(connect_to_it);
    CHECK(call(SYS_accept4, listening, (long)&name, (long)&len, 0) >= 0 && *seen == at_call());
    CHECK(!status_of(child));
}

static void locks(void) {
    int waiting = open("locked", O_RDWR | O_CREAT, 0600);
    owner = open("locked", O_RDWR);
    CHECK(!flock(owner, LOCK_EX));
    at_signal(0);
    pid_t child = helper(nothing);
    CHECK(call(SYS_flock, waiting, LOCK_EX, 0, 0) == -EINTR && *seen == behind_call());
    CHECK(!status_of(child));
    at_signal(SA_RESTART);
    child = helper(unlock);
    CHECK(call(SYS_flock, waiting, LOCK_EX, 0, 0) == 0 && *seen == at_call());
    CHECK(!status_of(child));
}

int main(void) {
    seen = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fifos();
    connections();
    locks();
    return failures;
}
