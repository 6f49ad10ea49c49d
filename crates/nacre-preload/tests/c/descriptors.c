/* Descriptors: numbers, duplicates, transfers, passing, closing everything. */
#include "check.h"
#include <poll.h>
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

int main(void) {
    int fd = file_with("file", "hello");
    numbers(fd);
    transfers(fd);
    polling(fd);
    passing();
    named_sockets();
    fifos();
    closed_numbers(fd);
    close_everything();
    return failures;
}
