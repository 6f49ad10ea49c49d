/* Descriptors: numbers, duplicates, transfers, passing, closing everything. */
#include "check.h"
#include <dirent.h>
#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static void numbers(int fd) {
    CHECK(fd == 3);
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 50);
    CHECK(copy >= 50 && fcntl(copy, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(2, copy) == copy && write(copy, "", 0) == 0);
    CHECK(dup2(fd, copy) == copy && holds(copy, 0, "hello"));
    CHECK(!close(copy) && pread(copy, &copy, 1, 0) == -1 && errno == EBADF);
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
}

static void transfers(int fd) {
    int ends[2], to = file_with("to", "");
    char bytes[16];
    off_t at = 0;
    loff_t from = 1;
    CHECK(!pipe(ends));
    CHECK(sendfile(ends[1], fd, &at, 3) == 3 && at == 3);
    CHECK(read(ends[0], bytes, 10) == 3 && !memcmp(bytes, "hel", 3));
    CHECK(write(ends[1], "piped", 5) == 5 && splice(ends[0], 0, to, 0, 100, 0) == 5);
    CHECK(holds(to, 0, "piped"));
    CHECK(splice(to, &from, ends[1], 0, 3, 0) == 3 && from == 4);
    CHECK(read(ends[0], bytes, 10) == 3 && !memcmp(bytes, "ipe", 3));
    CHECK(copy_file_range(to, &(loff_t){0}, fd, &(loff_t){10}, 5, 0) == 5);
    CHECK(holds(fd, 10, "piped"));
}

static void polling(int fd) {
    struct pollfd one = {fd, POLLIN | POLLOUT, 0};
    struct epoll_event event = {EPOLLIN};
    CHECK(poll(&one, 1, 0) == 1 && one.revents == (POLLIN | POLLOUT));
    int poller = epoll_create1(0);
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == -1 && errno == EPERM);
    close(poller);
}

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static void send_fd(int socket, int fd) {
    union control control = {0};
    struct iovec vector = {"x", 1};
    struct msghdr message = {0, 0, &vector, 1, control.bytes, sizeof control, 0};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket) {
    union control control = {0};
    char byte;
    int fd = -1;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {0, 0, &vector, 1, control.bytes, sizeof control, 0};
    CHECK(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}

static void passing(void) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = fork();
    if (child == 0) {
        send_fd(pair[1], file_with("passed", "passed"));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    int fd = receive_fd(pair[0]);
    CHECK(lseek(fd, 0, SEEK_CUR) == 6 && holds(fd, 0, "passed"));
    close(fd), close(pair[0]), close(pair[1]);
}

static void named_sockets(void) {
    char folder[64], byte;
    struct sockaddr_un name = {AF_UNIX}, near = {AF_UNIX, "socket"}, found;
    socklen_t len = sizeof found;
    struct stat st;
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(getcwd(folder, sizeof folder));
    snprintf(name.sun_path, sizeof name.sun_path, "%s/socket", folder);
    CHECK(!bind(server, (void *)&name, sizeof name) && !listen(server, 1));
    CHECK(!stat("socket", &st) && S_ISSOCK(st.st_mode));
    CHECK(!getsockname(server, (void *)&found, &len) && !strcmp(found.sun_path, name.sun_path));
    pid_t child = fork();
    if (child == 0) {
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(!connect(client, (void *)&near, sizeof near) && write(client, "k", 1) == 1);
        _exit(failures);
    }
    int accepted = accept(server, 0, 0);
    CHECK(accepted >= 0 && read(accepted, &byte, 1) == 1 && status_of(child) == 0);
    close(accepted), close(server);
}

static int is_named(int (*ask)(int, struct sockaddr *, socklen_t *), int fd, const char *wanted) {
    struct sockaddr_un found = {0};
    socklen_t len = sizeof found;
    return !ask(fd, (void *)&found, &len) && !strcmp(found.sun_path, wanted) &&
           len == offsetof(struct sockaddr_un, sun_path) + strlen(wanted) + 1;
}

static struct sockaddr_un in_folder(const char *name) {
    struct sockaddr_un at = {AF_UNIX};
    CHECK(getcwd(at.sun_path, 64));
    strcat(strcat(at.sun_path, "/"), name);
    return at;
}

/* In a program that has inherited a socket which listens; it is connected to by another one. */
static int heir(int server) {
    struct sockaddr_un name = in_folder("heirloom");
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(is_named(getsockname, server, name.sun_path));
    CHECK(!connect(client, (void *)&name, sizeof name));
    CHECK(is_named(getpeername, client, name.sun_path));
    return failures;
}

static void inherited_sockets(void) {
    char number[16];
    struct sockaddr_un name = in_folder("heirloom");
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(server, (void *)&name, sizeof name) && !listen(server, 1));
    snprintf(number, sizeof number, "%d", server);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "descriptors", number, (char *)0);
        _exit(99);
    }
    CHECK(status_of(child) == 0);
    CHECK(!unlink("heirloom") && is_named(getsockname, server, name.sun_path));
    close(server);
}

/* Asks by a datagram, and waits for the answer. */
static int asks(const struct sockaddr_un *server, const struct sockaddr_un *own) {
    char byte = 'q';
    int client = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(!bind(client, (void *)own, sizeof *own));
    for (int i = 0; i < 2; i++) {
        CHECK(sendto(client, "q", 1, 0, (void *)server, sizeof *server) == 1);
        CHECK(recv(client, &byte, 1, 0) == 1 && byte == 'a');
    }
    return failures;
}

static void answered_datagrams(void) {
    struct sockaddr_un name = in_folder("server"), own = in_folder("client"), from;
    char byte;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {&from, sizeof from, &vector, 1, 0, 0, 0};
    socklen_t len = sizeof from;
    int server = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(!bind(server, (void *)&name, sizeof name));
    pid_t child = fork();
    if (child == 0) _exit(asks(&name, &own));
    CHECK(recvfrom(server, &byte, 1, 0, (void *)&from, &len) == 1);
    CHECK(!strcmp(from.sun_path, own.sun_path));
    CHECK(sendto(server, "a", 1, 0, (void *)&from, len) == 1);
    memset(&from, 0, sizeof from);
    CHECK(recvmsg(server, &message, 0) == 1 && !strcmp(from.sun_path, own.sun_path));
    CHECK(sendto(server, "a", 1, 0, (void *)&from, message.msg_namelen) == 1);
    CHECK(status_of(child) == 0);
    close(server);
}

static void fifos(void) {
    char bytes[8];
    CHECK(!mkfifo("fifo", 0600));
    pid_t child = fork();
    if (child == 0) {
        int end = open("fifo", O_WRONLY);
        _exit(write(end, "fifo", 4) == 4 ? 0 : 1);
    }
    int end = open("fifo", O_RDONLY);
    CHECK(end >= 0 && read(end, bytes, 8) == 4 && !memcmp(bytes, "fifo", 4));
    CHECK(status_of(child) == 0);
    close(end);
}

/* As daemons do. What the library itself keeps open must survive. */
static void close_everything(void) {
    int fd = file_with("kept", "kept");
    CHECK(dup2(fd, 3) == 3 && !syscall(SYS_close_range, 4, ~0U, 0) && holds(3, 0, "kept"));
    for (int i = 3; i < 2000; i++) close(i);
    fd = open("kept", O_RDWR);
    CHECK(fd == 3 && holds(fd, 0, "kept"));
    CHECK(mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
}

#define IS_CLOSED(call)                                    \
    do {                                                   \
        int closed = open("closed", O_CREAT | O_RDWR, 0600); \
        CHECK(closed >= 0 && !close(closed));              \
        errno = 0;                                         \
        CHECK((long)(call) == -1 && errno == EBADF);       \
    } while (0)

/* What is kept open behind a number that was closed is not to be had by it. */
static void closed_numbers(int fd) {
    char bytes[8];
    int ends[2], sockets[2];
    struct iovec part = {bytes, sizeof bytes};
    struct flock lock = {.l_type = F_WRLCK};
    CHECK(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    IS_CLOSED(readv(closed, &part, 1));
    IS_CLOSED(preadv2(closed, &part, 1, 0, 0));
    IS_CLOSED(writev(closed, &part, 1));
    IS_CLOSED(syscall(SYS_read, closed, -1, 1));
    IS_CLOSED(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, closed, 0));
    IS_CLOSED(mmap(0, PAGE, PROT_READ, MAP_SHARED, closed, 0));
    IS_CLOSED(fcntl(closed, F_GETLK, &lock));
    IS_CLOSED(fcntl(closed, F_SETLK, &lock));
    IS_CLOSED(sendfile(ends[1], closed, 0, 1));
    IS_CLOSED(sendfile(fd, closed, 0, 1));
    IS_CLOSED(splice(closed, 0, ends[1], 0, 1, 0));
    IS_CLOSED(tee(closed, ends[1], 1, 0));
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    IS_CLOSED((*(int *)CMSG_DATA(CMSG_FIRSTHDR(&message)) = closed, sendmsg(sockets[0], &message, 0)));
    for (int i = 0; i < 2; i++) CHECK(!close(ends[i]) && !close(sockets[i]));
}

#define HIGHEST 4096

/* Which descriptors there are, as the kernel's listing must show them. */
static void note_open(char *open) {
    for (int fd = 0; fd < HIGHEST; fd++) open[fd] = fcntl(fd, F_GETFD) != -1;
}

/* The place of a name in a listing: its number, or behind all numbers. */
static int place_of(const char *name) {
    int number = atoi(name);
    CHECK(number < HIGHEST);
    return *name < '0' || *name > '9' || number >= HIGHEST ? HIGHEST : number;
}

static void list_by_library(const char *path, char *shown) {
    struct dirent *entry;
    DIR *folder = opendir(path);
    CHECK(folder);
    while (folder && (entry = readdir(folder))) shown[place_of(entry->d_name)] = 1;
    CHECK(folder && shown[dirfd(folder)]);
    shown[dirfd(folder)] = 0;
    closedir(folder);
}

/* `name` is where a record's name is; the buffer has room for one record or two. */
static void list_by_call(int number, int name, int folder, char *shown) {
    char records[64];
    long len;
    CHECK(lseek(folder, 0, SEEK_SET) == 0);
    while ((len = syscall(number, folder, records, sizeof records)) > 0) {
        for (char *record = records; record < records + len; record += *(unsigned short *)(record + 16))
            shown[place_of(record + name)] = 1;
    }
    CHECK(len == 0 && shown[folder]);
    shown[folder] = 0;
}

static void listed(const char *path) {
    char open_now[HIGHEST + 1] = {0}, shown[3][HIGHEST + 1] = {{0}};
    note_open(open_now);
    list_by_library(path, shown[0]);
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0);
    list_by_call(SYS_getdents64, 19, folder, shown[1]);
    list_by_call(SYS_getdents, 18, folder, shown[2]);
    close(folder);
    for (int way = 0; way < 3; way++) {
        CHECK(shown[way][HIGHEST]);
        CHECK(!memcmp(open_now, shown[way], HIGHEST));
    }
}

/* Who lists the open descriptors meets none that it cannot use. */
static void listings(void) {
    char own[64], thread[64];
    int high = dup2(0, 900);
    snprintf(own, sizeof own, "/proc/%d/fd", getpid());
    snprintf(thread, sizeof thread, "/proc/self/task/%d/fdinfo", (int)syscall(SYS_gettid));
    const char *paths[] = {"/proc/self/fd", "/dev/fd/", "/proc/thread-self/fd", "/proc/self/fdinfo", own, thread};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) listed(paths[i]);
    CHECK(close(high) == 0);
}

/* Names that are numbers are shown wherever they are no descriptors. */
static void numbers_elsewhere(void) {
    char folder[] = "/tmp/numbers-XXXXXX", name[64], shown[HIGHEST + 1] = {0};
    CHECK(mkdtemp(folder));
    for (int i = 900; i < 1100; i++) {
        snprintf(name, sizeof name, "%s/%d", folder, i);
        CHECK(!mkdir(name, 0700));
    }
    DIR *stream = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(stream))) shown[place_of(entry->d_name)] = 1;
    closedir(stream);
    for (int i = 900; i < 1100; i++) {
        CHECK(shown[i]);
        snprintf(name, sizeof name, "%s/%d", folder, i);
        CHECK(!rmdir(name));
    }
    CHECK(!rmdir(folder));
}

/* Without a /proc of its own, as sandboxes look whether a folder is left open. */
static void listed_from_a_sandbox(void) {
    int proc = open("/proc", O_PATH | O_DIRECTORY);
    char root[] = "/tmp/root-XXXXXX";
    CHECK(mkdtemp(root));
    pid_t child = fork();
    if (child == 0) {
        char open_now[HIGHEST + 1] = {0}, shown[HIGHEST + 1] = {0}, own[32];
        note_open(open_now);
        CHECK(!chroot(root) && !chdir("/"));
        snprintf(own, sizeof own, "%d/fd", getpid());
        int folder = openat(proc, own, O_RDONLY | O_DIRECTORY);
        CHECK(folder >= 0);
        list_by_call(SYS_getdents64, 19, folder, shown);
        CHECK(!memcmp(open_now, shown, HIGHEST));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(!close(proc) && !rmdir(root));
}

int main(int argc, char **argv) {
    if (argc > 1) return heir(atoi(argv[1]));
    int fd = file_with("file", "hello");
    numbers(fd);
    transfers(fd);
    polling(fd);
    passing();
    named_sockets();
    inherited_sockets();
    answered_datagrams();
    fifos();
    closed_numbers(fd);
    listings();
    numbers_elsewhere();
    if (geteuid() == 0) listed_from_a_sandbox();
    close_everything();
    return failures;
}
