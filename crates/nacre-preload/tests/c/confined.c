/* Programs that forbid themselves what they do not need. */
#include "check.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

/* In strict seccomp mode a process may only read, write and exit: its files of the pool, and others. */
static void strict(void) {
    char found[8] = {0};
    int pool = file_with("f", "text"), ends[2];
    CHECK(!pipe(ends) && lseek(pool, 0, SEEK_SET) == 0);
    pid_t child = fork();
    if (!child) {
        int good = !prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        good = good && read(pool, found, 2) == 2 && write(pool, "st", 2) == 2;
        good = good && write(ends[1], found, 2) == 2 && read(ends[0], found + 2, 2) == 2;
        syscall(SYS_exit, !good);
    }
    CHECK(status_of(child) == 0 && holds(pool, 0, "test"));
}

/* From now on these calls alone may be made. */
static int only(const int *calls, int count) {
    struct sock_filter filter[32];
    int len = 0;
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++) {
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {len, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A process that may open, write and take memory as well makes files where it has not stored before. */
static void filtered(void) {
    static const int calls[] = {SYS_openat, SYS_open, SYS_read, SYS_write, SYS_close, SYS_exit, SYS_rt_sigreturn,
                                SYS_brk, SYS_mmap, SYS_munmap};
    static char bytes[1 << 20];
    pid_t child = fork();
    if (!child) {
        int good = open("before", O_RDWR | O_CREAT, 0644) >= 0 && !only(calls, sizeof calls / sizeof *calls);
        int fd = open("filtered", O_RDWR | O_CREAT, 0644);
        for (int i = 0; good && i < 16; i++) good = write(fd, bytes, sizeof bytes) == sizeof bytes;
        syscall(SYS_exit, !good || close(fd));
    }
    CHECK(status_of(child) == 0);
}

/* From now on signals are sent to this process alone, and only by `tgkill`, as sandboxes of browsers have it. */
static int only_signals_to_itself(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tkill, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, getpid(), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A filter, or a tracer (PRoot), may know no other call that executes programs than the one that was asked for. */
static void executes(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execveat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    pid_t child = fork();
    if (!child) {
        if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
            execl("/bin/true", "true", NULL);
        }
        _exit(1);
    }
    CHECK(status_of(child) == 0);
}

static void *opens(void *unused) {
    struct stat st;
    return stat("here", &st) ? "no" : NULL;
}

/* Threads come and go behind such a filter, and children before it that shared its memory. */
static void threads_behind_a_filter(void) {
    close(file_with("here", "text"));
    pid_t child = fork();
    if (!child) {
        void *wrong = NULL;
        pid_t sharing = vfork();
        if (!sharing) _exit(access("here", F_OK) ? 1 : 0);
        int good = status_of(sharing) == 0 && !only_signals_to_itself();
        for (int i = 0; good && i < 20; i++) {
            pthread_t thread;
            good = !pthread_create(&thread, NULL, opens, NULL) && !pthread_join(thread, &wrong) && !wrong;
        }
        _exit(!good);
    }
    CHECK(status_of(child) == 0);
}

static int ends[2], wrong_places;

/* Does the calls that the filter below refuses, as brokers of sandboxes do: each asks somebody, and has an answer. */
static void does_the_call(int signal, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    char asked = signal, answer = 0;
    if (info->si_code != 1 || info->si_call_addr != (void *)u->uc_mcontext.gregs[REG_RIP]) wrong_places++;
    if (write(ends[1], &asked, 1) != 1 || read(ends[0], &answer, 1) != 1) wrong_places++;
    int is_access = u->uc_mcontext.gregs[REG_RAX] == SYS_faccessat || u->uc_mcontext.gregs[REG_RAX] == SYS_access;
    u->uc_mcontext.gregs[REG_RAX] = is_access && answer == signal ? 0 : -EXDEV;
}

/* From now on the handler does what is done with paths of the host. */
static int leaves_paths_to_the_handler(void) {
    static const int calls[] = {SYS_stat, SYS_newfstatat, SYS_access, SYS_faccessat, SYS_readlink, SYS_readlinkat, SYS_open, SYS_openat};
    enum { COUNT = sizeof calls / sizeof *calls };
    struct sigaction action = {.sa_sigaction = does_the_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct sock_filter filter[COUNT + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < COUNT; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], COUNT - i, 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {COUNT + 3, filter};
    if (pipe(ends) || sigaction(SIGSYS, &action, 0)) return 1;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Files of the pool are opened, more in turn and fewer at once, at the lowest numbers. */
static int opens_of_the_pool(void) {
    enum { AT_ONCE = 20 };
    int fds[AT_ONCE], first = -1, good = 1;
    char found[4];
    for (int i = 0; good && i < 100; i++) {
        int fd = open("here", O_RDONLY | O_CLOEXEC);
        if (i == 0) first = fd;
        good = fd >= 0 && fd == first && read(fd, found, 4) == 4 && !memcmp(found, "text", 4);
        good = good && fcntl(fd, F_GETFD) == FD_CLOEXEC && !close(fd);
        int other = eventfd(0, 0);
        good = good && other == first && !close(other);
    }
    for (int i = 0; i < AT_ONCE; i++) good = good && (fds[i] = open("here", O_RDWR)) >= first + i && !fcntl(fds[i], F_GETFD);
    for (int i = 0; i < AT_ONCE; i++) good = good && lseek(fds[i], i % 4, SEEK_SET) == i % 4;
    for (int i = 0; i < AT_ONCE; i++) good = good && read(fds[i], found, 1) == 1 && *found == "text"[i % 4];
    for (int i = 0; i < AT_ONCE; i++) good = good && lseek(fds[i], 0, SEEK_CUR) == i % 4 + 1 && !close(fds[i]);
    return good;
}

/* Calls of a browser's child are done by its handler, those on the pool are not refused. */
static void trapped(void) {
    struct stat st;
    close(file_with("here", "text"));
    /* Browsers ask so whether there are filters, before their children are forked. */
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) < 0 && errno == EFAULT);
    pid_t child = fork();
    if (!child) {
        int good = !stat("here", &st) && !leaves_paths_to_the_handler();
        for (int i = 0; good && i < 20; i++) {
            good = stat("/etc/passwd", &st) == -1 && errno == EXDEV && open("/etc/passwd", O_RDONLY) == -1 && errno == EXDEV;
            good = good && !access("/no/such/file", R_OK) && !stat("here", &st) && st.st_size == 4;
        }
        good = good && opens_of_the_pool();
        _exit(!good || wrong_places);
    }
    CHECK(status_of(child) == 0);
}

/* From now on files are opened for reading alone, as filters of `man` do it. */
static int only_reading(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_ACCMODE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_RDONLY, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What ends a program that starts after that, in a folder of the pool. Others of it are open or not. */
static int starts(const char *text, int open_file) {
    pid_t child = fork();
    if (!child) {
        int null = open("/dev/null", O_WRONLY);
        CHECK(dup2(null, 2) == 2 && !close_range(3, ~0U, 0));
        if (open_file) file_with("given", "text");
        if (only_reading()) _exit(1);
        execl("/bin/sh", "sh", "-c", text, NULL);
        _exit(1);
    }
    return status_of(child);
}

/* Its folder was the shell's and says nothing to most of them: nothing is found there, or made. */
static void reading(void) {
    file_with("here", "text");
    CHECK(starts("true", 0) == 0);
    CHECK(starts("test ! -e here && test ! -e missing && ! (: >made)", 0) == 0);
    CHECK(access("made", F_OK) < 0);
    CHECK(starts("true", 1) == 126);
}

static long rule(int rules, int type, const char *name, int flags) {
    struct landlock_path_beneath_attr beneath = {LANDLOCK_ACCESS_FS_READ_FILE, open(name, O_PATH | O_CLOEXEC)};
    long result = syscall(SYS_landlock_add_rule, rules, type, &beneath, flags);
    close(beneath.parent_fd);
    return result;
}

/* One that allows itself a folder of a pool, and nothing else. */
static void landlocked(void) {
    struct landlock_ruleset_attr all = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE};
    int rules = syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0) return;
    file_with("allowed", "text");
    CHECK(!rule(rules, LANDLOCK_RULE_PATH_BENEATH, ".", 0) && !rule(rules, LANDLOCK_RULE_PATH_BENEATH, "allowed", 0));
    CHECK(rule(rules, 77, ".", 0) < 0 && errno == EINVAL);
    CHECK(rule(rules, LANDLOCK_RULE_PATH_BENEATH, ".", 5) < 0 && errno == EINVAL);
    CHECK(rule(0, LANDLOCK_RULE_PATH_BENEATH, ".", 0) < 0 && errno == EBADFD);
    CHECK(rule(-1, LANDLOCK_RULE_PATH_BENEATH, ".", 0) < 0 && errno == EBADF);
    CHECK(rule(rules, LANDLOCK_RULE_PATH_BENEATH, "missing", 0) < 0 && errno == EBADF);
    pid_t child = fork();
    if (!child) {
        int good = !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_landlock_restrict_self, rules, 0);
        good = good && open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES;
        syscall(SYS_exit, !good || !holds(open("allowed", O_RDONLY), 0, "text"));
    }
    CHECK(status_of(child) == 0);
}

int main(void) {
    strict();
    filtered();
    threads_behind_a_filter();
    trapped();
    reading();
    landlocked();
    executes();
    return failures;
}
