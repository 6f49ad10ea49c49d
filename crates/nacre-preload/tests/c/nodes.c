/* Fifos and sockets are for those whom their modes and owners let, as these are now. */
#include "check.h"

enum { USER = 60305 };

static int connects(const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strcpy(name.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    int result = connect(fd, (struct sockaddr *)&name, sizeof name) ? errno : 0;
    close(fd);
    return result;
}

static int opens(const char *path) {
    int fd = open(path, O_RDWR | O_NONBLOCK);
    return fd < 0 ? errno : close(fd);
}

/* What another user gets. */
static int of_other(int (*what)(const char *), const char *path) {
    pid_t child = fork();
    if (child == 0) {
        if (setresgid(USER, USER, USER) || setresuid(USER, USER, USER)) _exit(99);
        _exit(what(path));
    }
    return status_of(child);
}

static void sockets(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(fd, (struct sockaddr *)&name, sizeof name) && !listen(fd, 20));
    CHECK(of_other(connects, "socket") == EACCES);
    CHECK(!chmod("socket", 0666) && of_other(connects, "socket") == 0);
    CHECK(!chmod("socket", 0600) && of_other(connects, "socket") == EACCES);
    CHECK(!chown("socket", USER, USER) && of_other(connects, "socket") == 0);
    CHECK(connects("socket") == 0);
}

static void fifos(void) {
    CHECK(!mkfifo("fifo", 0666) && of_other(opens, "fifo") == EACCES);
    CHECK(!chmod("fifo", 0666) && of_other(opens, "fifo") == 0);
    CHECK(!chmod("fifo", 0600) && of_other(opens, "fifo") == EACCES && opens("fifo") == 0);
    CHECK(!chown("fifo", USER, USER) && of_other(opens, "fifo") == 0 && opens("fifo") == 0);
    /* Opened first where the umask takes more away. */
    umask(0);
    CHECK(!mkfifo("wide", 0666));
    umask(077);
    CHECK(opens("wide") == 0 && of_other(opens, "wide") == 0);
    /* Made by one, opened first by another one, then by who owns it. */
    CHECK(!mkfifo("given", 0600) && !chown("given", USER, USER));
    CHECK(opens("given") == 0 && of_other(opens, "given") == 0);
}

int main(void) {
    CHECK(!chmod(".", 0777));
    umask(022);
    sockets();
    fifos();
    return failures;
}
