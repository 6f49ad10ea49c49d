/* Pools are attached when they are first used: late [WHAT]. Without WHAT all is tried, each in a
   program of its own, which begins without any pool. */
#include "check.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const char *self;

/* Whether the pool is mapped. Its file is called so. */
static int is_attached(void) {
    char line[500];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        size_t len = strlen(line);
        found |= len > 6 && !strcmp(line + len - 6, "/pool\n");
    }
    fclose(maps);
    return found;
}

static int runs(const char *what, int fd) {
    char number[20];
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = fork();
    if (child) return status_of(child);
    execl(self, self, what, number, NULL);
    _exit(99);
}

static int is_there(const char *name, const char *text) {
    int fd = open(name, O_RDONLY), found = fd >= 0 && holds(fd, 0, text);
    close(fd);
    return found;
}

static void untouched(int fd) {
    struct stat stat;
    CHECK(!is_attached());
    CHECK(!access("/tmp", W_OK) && !lstat("/etc/passwd", &stat) && access("/nonexistent/x", F_OK));
    pid_t child = fork();
    if (!child) _exit(is_attached());
    CHECK(status_of(child) == 0);
    CHECK(!is_attached());
    CHECK(!stat.st_size || !lstat("/nacre/f", &stat));
    CHECK(is_attached());
}

static pthread_barrier_t barrier;

static void *races(void *number) {
    char name[40];
    snprintf(name, sizeof name, "/nacre/thread%ld", (long)number);
    pthread_barrier_wait(&barrier);
    close(file_with(name, "raced"));
    CHECK(is_there(name, "raced") && is_there("/nacre/f", "text"));
    return NULL;
}

static void threads(int fd) {
    enum { THREADS = 8 };
    pthread_t all[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++) CHECK(!pthread_create(&all[i], NULL, races, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
}

static volatile int stop;

static void *forks(void *unused) {
    while (!stop) {
        pid_t child = fork();
        if (!child) _exit(!is_there("/nacre/f", "text"));
        CHECK(status_of(child) == 0);
    }
    return NULL;
}

/* Children are forked while another thread attaches. */
static void forks_meanwhile(int fd) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, forks, NULL));
    usleep(rand() % 3000);
    CHECK(is_there("/nacre/f", "text"));
    stop = 1;
    pthread_join(thread, NULL);
}

static void of_fork(int fd) {
    pid_t child = fork();
    if (!child) {
        close(file_with("/nacre/child", "first"));
        _exit(failures);
    }
    CHECK(status_of(child) == 0 && !is_attached());
    CHECK(is_there("/nacre/child", "first"));
}

static void handles(int signal) {
    int before = errno = EDOM;
    int fd = open("/nacre/handled", O_CREAT | O_WRONLY, 0600);
    stop = write(fd, "seen", 4) == 4 && !close(fd) && errno == before ? 1 : 2;
}

/* On an alternate stack of usual size, in the middle of anything. */
static void handler(int fd) {
    static char room[16 << 10];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_ONSTACK};
    CHECK(!sigaltstack(&stack, NULL) && !sigaction(SIGALRM, &action, NULL));
    ualarm(2000, 0);
    while (!stop) free(malloc(rand() % 5000));
    CHECK(stop == 1 && is_there("/nacre/handled", "seen"));
}

static void vforks(int fd) {
    pid_t child = vfork();
    if (!child) {
        fd = open("/nacre/vforked", O_CREAT | O_WRONLY, 0600);
        _exit(write(fd, "from below", 10) != 10);
    }
    CHECK(status_of(child) == 0 && is_there("/nacre/vforked", "from below"));
}

static void another_user(int fd) {
    if (getuid()) return;
    CHECK(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
    CHECK(is_there("/nacre/f", "text") && open("/nacre/mine", O_CREAT | O_WRONLY, 0600) < 0);
}

/* Nothing but read, write and exit is allowed, and the pool is still read. */
static void strict(int fd) {
    char text[5] = "";
    fd = open("/nacre/f", O_RDONLY);
    CHECK(read(fd, text, 2) == 2);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return;
    int read_well = read(fd, text + 2, 2) == 2 && !memcmp(text, "text", 4);
    syscall(SYS_exit, !read_well);
}

static void few_descriptors(int fd) {
    struct rlimit few = {3, 3};
    CHECK(!setrlimit(RLIMIT_NOFILE, &few));
    struct stat stat;
    CHECK(!lstat("/nacre/f", &stat) && stat.st_size == 4);
}

static void failed_exec(int fd) {
    char *none[] = {NULL};
    close(file_with("/tmp/late-garbage", "\1\2\3\4"));
    CHECK(is_there("/nacre/f", "text"));
    for (int i = 0; i < 3; i++) {
        CHECK(execve("/etc/passwd", none, none) < 0 && errno == EACCES);
        CHECK(is_there("/nacre/f", "text"));
    }
    CHECK(!chmod("/tmp/late-garbage", 0700));
    CHECK(execve("/tmp/late-garbage", none, none) < 0 && errno == ENOEXEC);
    CHECK(!unlink("/tmp/late-garbage") && is_there("/nacre/f", "text"));
    close(file_with("/nacre/after", "still"));
    CHECK(is_there("/nacre/after", "still"));
}

/* Of an attached process that holds nothing. */
static void child(int fd) { CHECK(!is_attached() && is_there("/nacre/f", "text")); }

static void leaves(int fd) {
    CHECK(is_there("/nacre/f", "text"));
    CHECK(runs("child", -1) == 0);
    execl(self, self, "child", "-1", NULL);
    CHECK(!"execl");
}

static void inherited(int fd) {
    CHECK(holds(fd, 0, "text") && lseek(fd, 0, SEEK_CUR) == 3);
}

static void inherits(int fd) {
    fd = open("/nacre/f", O_RDONLY);
    CHECK(lseek(fd, 3, SEEK_SET) == 3);
    CHECK(runs("inherited", fd) == 0 && !close(fd) && runs("child", -1) == 0);
}

static void in_folder(int fd) {
    char path[100] = "";
    CHECK(getcwd(path, sizeof path) && !strcmp(path, "/nacre/folder"));
    CHECK(is_there("inside", "here") && !chdir("/tmp"));
    execl(self, self, "child", "-1", NULL);
}

static void stands(int fd) {
    CHECK((!mkdir("/nacre/folder", 0700) || errno == EEXIST) && !chdir("/nacre/folder"));
    close(file_with("inside", "here"));
    CHECK(runs("in_folder", -1) == 0);
}

/* A file comes over a socket to who has used no pool. */
static void receives(int fd) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(!is_attached() && recvmsg(fd, &message, 0) == 1);
    int sent;
    memcpy(&sent, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sent);
    CHECK(holds(sent, 0, "text"));
}

static void sends(int fd) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t receiver = fork();
    char number[20];
    snprintf(number, sizeof number, "%d", pair[1]);
    if (!receiver) execl(self, self, "receives", number, NULL);
    fd = open("/nacre/f", O_RDONLY);
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && status_of(receiver) == 0);
}

static const struct {
    const char *name;
    void (*run)(int);
    int alone;
} ALL[] = {
    {"untouched", untouched}, {"threads", threads},           {"forks_meanwhile", forks_meanwhile},
    {"of_fork", of_fork},     {"handler", handler},           {"vforks", vforks},
    {"strict", strict},       {"another_user", another_user}, {"few_descriptors", few_descriptors},
    {"failed_exec", failed_exec}, {"leaves", leaves},         {"inherits", inherits},
    {"stands", stands},       {"sends", sends},               {"child", child, 1},
    {"inherited", inherited, 1}, {"in_folder", in_folder, 1}, {"receives", receives, 1},
};

int main(int argc, char **argv) {
    self = argv[0];
    alarm(100);
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        if (argc == 1 && !ALL[i].alone) {
            int status = runs(ALL[i].name, -1);
            if (status) dprintf(2, "%s: %d\n", ALL[i].name, status), failures++;
        }
        if (argc > 1 && !strcmp(argv[1], ALL[i].name)) ALL[i].run(atoi(argv[2]));
    }
    CHECK(argc > 1 || !is_attached());
    return failures != 0;
}
