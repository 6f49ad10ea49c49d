/* inotify on files of the pool: each step is told as the kernel tells it of a tmpfs, beside. */
#include "check.h"
#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#define HOST "/dev/shm/nacre-watches-test"
#define ROOM 65536

/* All that waits, one line for each event; wd is written as its place in `names`. */
static char *told(int fd, char *text) {
    static char room[ROOM] __attribute__((aligned(8)));
    unsigned first = 0;
    *text = 0;
    while (poll(&(struct pollfd){fd, POLLIN}, 1, 0) == 1) {
        ssize_t len = read(fd, room, sizeof room);
        CHECK(len > 0);
        for (char *at = room; at < room + len;) {
            struct inotify_event *e = (void *)at;
            if (e->cookie && !first) first = e->cookie;
            CHECK(e->len % 16 == 0 && (!e->len || strnlen(e->name, e->len) < e->len));
            sprintf(text + strlen(text), "%d %x %s %s\n", e->wd, e->mask,
                    e->cookie ? e->cookie == first ? "C" : "D" : "-", e->len ? e->name : "");
            at += sizeof *e + e->len;
        }
    }
    return text;
}

typedef void step(void);

static void touch(const char *name) { close(open(name, O_WRONLY | O_CREAT, 0644)); }

static void put(const char *name, const char *text) {
    int fd = open(name, O_WRONLY | O_APPEND);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void s_create(void) { touch("d/new"); mkdir("d/sub", 0755); symlink("x", "d/link"); mknod("d/p", S_IFIFO | 0600, 0); }
static void s_write(void) { put("d/file", "one"); put("d/file", "two"); }
static void s_read(void) {
    char c[9];
    int fd = open("d/file", O_RDONLY);
    CHECK(read(fd, c, 2) == 2 && pread(fd, c, 2, 0) == 2 && read(fd, c, 0) == 0);
    close(fd);
}
static void s_rename(void) { rename("d/file", "d/other"); rename("d/other", "e/moved"); rename("e/moved", "d/file"); }
static void s_outside(void) { touch("x"); rename("x", "d/x"); rename("d/x", "y"); unlink("y"); }
static void s_replace(void) { touch("x"); put("x", "new"); rename("x", "d/file"); }
static void s_folder(void) { mkdir("d/f", 0755); chmod("d/f", 0700); rename("d/f", "e/f"); rmdir("e/f"); }
static void s_attributes(void) {
    chmod("d/file", 0600); chown("d/file", 0, 0); truncate("d/file", 2);
    utimensat(AT_FDCWD, "d/file", (struct timespec[2]){{.tv_nsec = UTIME_OMIT}, {5, 5}}, 0);
    utimensat(AT_FDCWD, "d/file", (struct timespec[2]){{5, 5}, {.tv_nsec = UTIME_OMIT}}, 0);
    utimensat(AT_FDCWD, "d/file", NULL, 0);
    setxattr("d/file", "user.a", "b", 1, 0); removexattr("d/file", "user.a");
}
static void s_open(void) {
    int fd = open("d/file", O_RDWR | O_TRUNC);
    CHECK(pwrite(fd, "abc", 3, 100) == 3 && ftruncate(fd, 10) == 0 && !fallocate(fd, 0, 0, 5000));
    CHECK(write(fd, "", 0) == 0 && !fchmod(fd, 0640));
    int copy = dup(fd);
    close(fd);
    close(copy);
}
static void s_link(void) { link("d/file", "d/second"); unlink("d/second"); link("d/file", "e/third"); unlink("e/third"); }
static void s_held(void) {
    touch("d/held");
    int fd = open("d/held", O_WRONLY);
    unlink("d/held");
    CHECK(write(fd, "x", 1) == 1);
    close(fd);
}
static void s_gone(void) { unlink("d/file"); }
static void s_rmdir(void) { rmdir("e"); }
static void s_tmp(void) {
    int fd = open("d", O_TMPFILE | O_RDWR, 0600);
    char name[64];
    sprintf(name, "/proc/self/fd/%d", fd);
    CHECK(!linkat(AT_FDCWD, name, AT_FDCWD, "d/named", AT_SYMLINK_FOLLOW));
    close(fd);
}
static void s_exchange(void) {
    touch("e/b");
    CHECK(!syscall(SYS_renameat2, AT_FDCWD, "d/file", AT_FDCWD, "e/b", 2));
    CHECK(!syscall(SYS_renameat2, AT_FDCWD, "d/file", AT_FDCWD, "e/b", 2));
    unlink("e/b");
}

static struct { const char *name; step *run; } steps[] = {
    {"create", s_create}, {"write", s_write}, {"read", s_read}, {"rename", s_rename},
    {"outside", s_outside}, {"folder", s_folder}, {"attributes", s_attributes}, {"open", s_open},
    {"link", s_link}, {"held", s_held}, {"exchange", s_exchange}, {"tmpfile", s_tmp},
    {"replace", s_replace}, {"gone", s_gone}, {"rmdir", s_rmdir},
};

#define STEPS (int)(sizeof steps / sizeof *steps)

/* What the steps tell in a folder, with watches of these kinds. */
static void run(const char *place, int mask, char out[][ROOM]) {
    char here[PATH_MAX];
    CHECK(getcwd(here, sizeof here) && !chdir(place));
    mkdir("d", 0755), mkdir("e", 0755), touch("d/file");
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(inotify_add_watch(fd, "d", mask) == 1 && inotify_add_watch(fd, "e", mask) == 2);
    CHECK(inotify_add_watch(fd, "d/file", mask) == 3);
    for (int i = 0; i < STEPS; i++) steps[i].run(), told(fd, out[i]);
    close(fd);
    CHECK(!chdir(here));
}

static void compare(int mask) {
    static char ours[STEPS][ROOM], theirs[STEPS][ROOM];
    CHECK(!mkdir("w", 0755) && !mkdir(HOST "/w", 0755));
    run("w", mask, ours);
    run(HOST "/w", mask, theirs);
    for (int i = 0; i < STEPS; i++)
        /* tmpfs makes up a name for a file without one. */
        if (!(mask & IN_OPEN && steps[i].run == s_tmp) && strcmp(ours[i], theirs[i])) {
            dprintf(2, "%s (mask %x)\n-- on the pool:\n%s-- on tmpfs:\n%s", steps[i].name, mask, ours[i], theirs[i]);
            failures++;
        }
    system("rm -rf w " HOST "/w");
}

static char text[ROOM];

static int says(int fd, const char *wanted) {
    int same = !strcmp(told(fd, text), wanted);
    if (!same) dprintf(2, "told: %swanted: %s", text, wanted);
    return same;
}

/* Masks: replaced, added to, refused; and what cannot be watched. */
static void masks(void) {
    int fd = inotify_init1(IN_NONBLOCK);
    touch("m");
    int wd = inotify_add_watch(fd, "m", IN_ATTRIB);
    CHECK(wd == 1 && inotify_add_watch(fd, "m", IN_MODIFY | IN_MASK_ADD) == wd);
    chmod("m", 0600), put("m", "x");
    CHECK(says(fd, "1 4 - \n1 2 - \n"));
    CHECK(inotify_add_watch(fd, "m", IN_MODIFY) == wd);
    chmod("m", 0644);
    CHECK(says(fd, ""));
    CHECK(inotify_add_watch(fd, "m", IN_MODIFY | IN_MASK_CREATE) == -1 && errno == EEXIST);
    CHECK(inotify_add_watch(fd, "m", IN_MODIFY | IN_ONLYDIR) == -1 && errno == ENOTDIR);
    CHECK(inotify_add_watch(fd, "m", 0) == -1 && errno == EINVAL);
    CHECK(inotify_add_watch(fd, "none", IN_MODIFY) == -1 && errno == ENOENT);
    CHECK(inotify_add_watch(open("m", O_RDONLY), "m", IN_MODIFY) == -1 && errno == EINVAL);
    CHECK(inotify_add_watch(999, "m", IN_MODIFY) == -1 && errno == EBADF);
    CHECK(inotify_rm_watch(fd, wd) == 0 && says(fd, "1 8000 - \n"));
    CHECK(inotify_rm_watch(fd, wd) == -1 && errno == EINVAL);
    put("m", "x");
    CHECK(says(fd, ""));
    CHECK(inotify_add_watch(fd, "m", IN_MODIFY | IN_ONESHOT) == 2);
    put("m", "x"), put("m", "x");
    CHECK(says(fd, "2 2 - \n2 8000 - \n"));
    symlink("m", "l");
    CHECK(inotify_add_watch(fd, "l", IN_ATTRIB | IN_DONT_FOLLOW) == 3);
    chmod("l", 0600);
    CHECK(says(fd, ""));
    lchown("l", 0, 0);
    CHECK(says(fd, "3 4 - \n"));
    close(fd);
}

/* Names of all lengths; host and pool in one queue, in order. */
static void names(void) {
    int fd = inotify_init1(IN_NONBLOCK);
    char name[300] = "n/", wanted[400];
    mkdir("n", 0755), mkdir(HOST "/n", 0755);
    CHECK(inotify_add_watch(fd, "n", IN_CREATE) == 1 && inotify_add_watch(fd, HOST "/n", IN_CREATE) == 2);
    for (int len = 1; len <= 255; len++) {
        memset(name + 2, 'a' + len % 26, len), name[2 + len] = 0;
        touch(name);
        sprintf(wanted, "1 100 - %s\n", name + 2);
        CHECK(says(fd, wanted));
    }
    touch("n/1"), touch(HOST "/n/2"), touch("n/3"), touch(HOST "/n/4");
    CHECK(says(fd, "1 100 - 1\n2 100 - 2\n1 100 - 3\n2 100 - 4\n"));
    close(fd);
}

/* A small buffer gets what fits, and the rest is still there for who waits. */
static void small(void) {
    int fd = inotify_init();
    char room[16 + 256];
    touch("s");
    CHECK(inotify_add_watch(fd, "s", IN_ATTRIB | IN_MODIFY | IN_OPEN | IN_CLOSE) == 1);
    put("s", "x"), chmod("s", 0600);
    unsigned masks[4] = {IN_OPEN, IN_MODIFY, IN_CLOSE_WRITE, IN_ATTRIB};
    CHECK(read(fd, room, 15) == -1 && errno == EINVAL);
    for (int i = 0; i < 4; i++) {
        struct pollfd wait = {fd, POLLIN};
        CHECK(poll(&wait, 1, 0) == 1);
        CHECK(read(fd, room, 16) == 16 && ((struct inotify_event *)room)->mask == masks[i]);
    }
    CHECK(poll(&(struct pollfd){fd, POLLIN}, 1, 0) == 0);
    put("s", "x");
    struct iovec parts[2] = {{room, 8}, {room + 8, 100}};
    CHECK(readv(fd, parts, 2) == 48 && ((struct inotify_event *)room)[1].mask == IN_MODIFY);
    close(fd);
}

/* Who asks how much there is can read just that, also in two steps, and what comes behind it. */
static void counted(void) {
    int fd = inotify_init(), bytes = -1, host = inotify_init();
    char room[400];
    mkdir("c", 0755);
    CHECK(inotify_add_watch(fd, "c", IN_CREATE | IN_OPEN | IN_CLOSE) == 1);
    CHECK(!ioctl(fd, FIONREAD, &bytes) && bytes == 0);
    touch("c/one");
    for (int again = 0; again < 2; again++) CHECK(!ioctl(fd, FIONREAD, &bytes) && bytes == 3 * 32);
    touch("c/a-longer-name");
    CHECK(!ioctl(fd, FIONREAD, &bytes) && bytes == 6 * 32);
    CHECK(poll(&(struct pollfd){fd, POLLIN}, 1, 0) == 1);
    CHECK(read(fd, room, 50) == 32 && read(fd, room, bytes - 32) == bytes - 32);
    CHECK(!strcmp(((struct inotify_event *)(room + 4 * 32))->name, "a-longer-name"));
    CHECK(poll(&(struct pollfd){fd, POLLIN}, 1, 0) == 0);
    CHECK(!ioctl(fd, FIONREAD, &bytes) && bytes == 0);
    CHECK(!ioctl(host, FIONREAD, &bytes) && bytes == 0);
    CHECK(ioctl(fd, FIONREAD, NULL) == -1 && errno == EFAULT);
    close(fd), close(host);
}

/* All ways to wait are woken by another process. */
static void waiting(void) {
    int fd = inotify_init(), set = epoll_create1(0), ready, bytes = 0;
    fd_set fds;
    touch("a");
    CHECK(inotify_add_watch(fd, "a", IN_MODIFY) == 1);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN});
    for (int how = 0; how < 4; how++) {
        pid_t child = fork();
        if (!child) usleep(2000), put("a", "x"), _exit(0);
        switch (how) {
        case 0: CHECK(poll(&(struct pollfd){fd, POLLIN}, 1, -1) == 1); break;
        case 1: CHECK(epoll_wait(set, &(struct epoll_event){0}, 1, -1) == 1); break;
        case 2: FD_ZERO(&fds); FD_SET(fd, &fds); CHECK(select(fd + 1, &fds, 0, 0, 0) == 1); break;
        }
        struct inotify_event e[20];
        CHECK(read(fd, e, sizeof e) == sizeof *e && e->mask == IN_MODIFY && e->wd == 1);
        CHECK(status_of(child) == 0);
    }
    put("a", "y");
    CHECK(!ioctl(fd, FIONREAD, &bytes) && bytes == (int)sizeof(struct inotify_event));
    close(fd), close(set);
}

/* The kernel's own queue overflows. */
static void overflow(void) {
    FILE *limit = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    int most = 0, fd = inotify_init1(IN_NONBLOCK), seen = 0, last = 0;
    CHECK(limit && fscanf(limit, "%d", &most) == 1);
    fclose(limit);
    if (most > 100000) return;
    touch("o");
    CHECK(inotify_add_watch(fd, "o", IN_MODIFY | IN_ATTRIB) == 1);
    int file = open("o", O_WRONLY);
    for (int i = 0; i <= most; i++) i % 2 ? fchmod(file, 0600) : (void)pwrite(file, "x", 1, 0);
    static char room[ROOM];
    ssize_t len;
    while ((len = read(fd, room, sizeof room)) > 0)
        for (char *at = room; at < room + len; at += 16, seen++) last = ((struct inotify_event *)at)->mask;
    CHECK(seen == most + 1 && last == IN_Q_OVERFLOW);
    if (seen != most + 1) dprintf(2, "%d of %d, last %x\n", seen, most, last);
    close(file), close(fd);
}

static char *self;

/* The instance goes on in children, in programs that they execute, and in duplicates. */
static void inherited(void) {
    int fd = inotify_init(), copy;
    struct inotify_event e[20];
    touch("i");
    CHECK(inotify_add_watch(fd, "i", IN_MODIFY) == 1);
    pid_t child = fork();
    if (!child) {
        put("i", "x");
        _exit(read(fd, e, sizeof e) == 16 && e->mask == IN_MODIFY ? 0 : 1);
    }
    CHECK(status_of(child) == 0);
    put("i", "x");
    char number[20];
    sprintf(number, "%d", fd);
    child = fork();
    if (!child) execl(self, self, "inherit", number, NULL), _exit(9);
    CHECK(status_of(child) == 0);
    copy = dup(fd);
    close(fd);
    put("i", "x");
    CHECK(read(copy, e, sizeof e) == 16 && e->mask == IN_MODIFY && e->wd == 1);
    CHECK(inotify_rm_watch(copy, 1) == 0 && read(copy, e, sizeof e) == 16 && e->mask == IN_IGNORED);
    close(copy);
}

static int inherit(int fd) {
    struct inotify_event e[20];
    CHECK(read(fd, e, sizeof e) == 16 && e->mask == IN_MODIFY);
    int wd = inotify_add_watch(fd, "i", IN_ATTRIB | IN_MASK_ADD);
    CHECK(wd == 1);
    chmod("i", 0600);
    CHECK(read(fd, e, sizeof e) == 16 && e->mask == IN_ATTRIB);
    return failures;
}

/* Inode of the shadow of an instance's last watch. */
static long shadow_of(int fd) {
    char path[64], line[256];
    long inode = 0;
    sprintf(path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "r");
    while (fgets(line, sizeof line, info))
        if (!inode) sscanf(line, "inotify wd:%*x ino:%lx", &inode);
    fclose(info);
    return inode;
}

static int is_there(long inode) {
    char command[128];
    int count = -1;
    sprintf(command, "find /dev/shm -xdev -inum %ld -path '*nodes/watch-*' 2> /dev/null | wc -l", inode);
    FILE *list = popen(command, "r");
    CHECK(fscanf(list, "%d", &count) == 1);
    pclose(list);
    return count;
}

/* Nothing of an instance is left when it is closed or its process is gone. */
static void ended(void) {
    touch("g");
    int fd = inotify_init(), ends[2];
    CHECK(inotify_add_watch(fd, "g", IN_MODIFY) == 1 && inotify_add_watch(fd, ".", IN_MODIFY) == 2);
    long shadow = shadow_of(fd);
    CHECK(is_there(shadow) == 1);
    close(fd);
    CHECK(is_there(shadow) == 0 && !pipe(ends));
    pid_t child = fork();
    if (!child) {
        fd = inotify_init();
        inotify_add_watch(fd, "g", IN_MODIFY);
        shadow = shadow_of(fd);
        CHECK(is_there(shadow) == 1 && write(ends[1], &shadow, sizeof shadow) == sizeof shadow);
        exit(failures);
    }
    CHECK(status_of(child) == 0 && read(ends[0], &shadow, sizeof shadow) == sizeof shadow);
    CHECK(is_there(shadow) == 0);
    put("g", "x");
}

static int running;

static void *writer(void *name) {
    for (int i = 0; running; i++) put(name, "x");
    return NULL;
}

/* What is done after a read is told: no change is lost between two of them. */
static void races(void) {
    int fd = inotify_init(), folder = inotify_init1(IN_NONBLOCK);
    struct inotify_event e[20];
    touch("r");
    CHECK(inotify_add_watch(fd, "r", IN_MODIFY) == 1 && inotify_add_watch(folder, ".", IN_ALL_EVENTS) == 1);
    running = 4;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(threads + i, 0, writer, "r");
    for (int i = 0; i < 2000; i++) CHECK(read(fd, e, sizeof e) >= 16);
    running = 0;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    told(fd, text), put("r", "x");
    CHECK(says(fd, "1 2 - \n"));
    close(fd), close(folder);
}

int main(int argc, char **argv) {
    if (argc > 2) return inherit(atoi(argv[2]));
    self = argv[0];
    system("rm -rf " HOST "; mkdir " HOST);
    compare(IN_ALL_EVENTS);
    compare(IN_ALL_EVENTS | IN_EXCL_UNLINK);
    compare(IN_CREATE | IN_DELETE | IN_MOVE);
    masks(), names(), small(), counted(), waiting(), overflow(), inherited(), ended(), races();
    system("rm -rf " HOST);
    return failures;
}
