/* One line for each errno that the manual pages list for the calls that are served: what was tried,
   and what came of it. Run in a folder of a pool and in one of tmpfs, and the lines compared. */
#include "check.h"
#include <linux/fs.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#define BAD ((void *)8)
#define CLOSED 777
#define NAME256 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void show(const char *what, long result) {
    const char *name = result < 0 ? strerrorname_np(errno) : "done";
    printf("%s: %s\n", what, name ? name : "?");
}

/* Each is tried in a process of its own if it may leave something behind or wait. */
#define T(what) (errno = 0, show(#what, (long)(what)))
#define F(what)                                                  \
    do {                                                         \
        fflush(stdout);                                          \
        pid_t child = fork();                                    \
        if (!child) {                                            \
            alarm(3);                                            \
            show(#what, (errno = 0, (long)(what)));              \
            fflush(stdout);                                      \
            _exit(0);                                            \
        }                                                        \
        int status = status_of(child);                           \
        if (status) printf(#what ": ended %d\n", status);        \
    } while (0)

static char path_max[PATH_MAX + 10];
static int f, r, w, d, p, q[2], s, o;
static char *text = "text";
static off_t at;
static loff_t minus = -1;
static struct stat st;
static struct statx sx;
static struct statfs fs;
static struct flock lock;
static struct timespec times[2];
static char room[100];

static long how(const char *path, uint64_t flags, uint64_t mode, uint64_t resolve, size_t size) {
    struct open_how how[2] = {{flags, mode, resolve}};
    return syscall(SYS_openat2, AT_FDCWD, path, how, size);
}

static long set_lock(int fd, int command, int type, int whence, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = whence, .l_start = start, .l_len = len};
    return fcntl(fd, command, &lock);
}

static long named_socket(const char *name, int connects) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return (connects ? connect : bind)(fd, (void *)&address, sizeof address);
}

static long watch(int operation, int fd) {
    struct epoll_event event = {0};
    return epoll_ctl(epoll_create1(0), operation, fd, &event);
}

static long timed(const char *path, long nanoseconds, int flags) {
    struct timespec two[2] = {{1, nanoseconds}, {1, 0}};
    return utimensat(AT_FDCWD, path, two, flags);
}

static void *map(size_t len, int protection, int flags, int fd, off_t offset) {
    return mmap(NULL, len, protection, flags, fd, offset);
}

static void opens(void) {
    T(open("none", O_RDONLY));
    T(open("", O_RDONLY));
    T(open(BAD, O_RDONLY));
    T(open("f/x", O_RDONLY));
    T(open("none/x", O_CREAT | O_RDWR, 0600));
    T(open(NAME256, O_CREAT | O_RDWR, 0600));
    T(open(path_max, O_RDONLY));
    T(open("f", O_CREAT | O_EXCL, 0600));
    T(open("loop", O_RDONLY));
    T(open("l", O_NOFOLLOW));
    T(open("dangling", O_RDONLY));
    T(open("dangling", O_CREAT | O_EXCL, 0600));
    T(open("d", O_WRONLY));
    T(open("d", O_RDWR));
    T(open("d", O_CREAT, 0600));
    T(open("d/", O_CREAT, 0600));
    T(open("new/", O_CREAT | O_RDWR, 0600));
    T(open("f/", O_RDONLY));
    T(open("f", O_DIRECTORY));
    T(open("d", O_TMPFILE | O_RDONLY, 0600));
    T(open("f", O_TMPFILE | O_RDWR, 0600));
    T(open("pipe", O_WRONLY | O_NONBLOCK));
    T(open("socket", O_RDWR));
    T(open("d", O_DIRECTORY | O_CREAT, 0600));
    T(openat(CLOSED, "f", O_RDONLY));
    T(openat(f, "x", O_RDONLY));
    T(openat(d, "x", O_RDONLY));
    T(openat(d, "none", O_RDONLY));
    T(how("f", O_RDONLY, 0, 0, 8));
    T(how("f", O_RDONLY, 0, 0, 24));
    T(how("f", O_RDONLY, 0, 0, 32));
    T(how("f", O_RDONLY, 0600, 0, 24));
    T(how("f", O_RDONLY, 0, 1ull << 40, 24));
    T(how("f", 1ull << 40, 0, 0, 24));
    T(how("l", O_RDONLY, 0, RESOLVE_NO_SYMLINKS, 24));
    T(how("/etc/passwd", O_RDONLY, 0, RESOLVE_BENEATH, 24));
    T(how("../x", O_RDONLY, 0, RESOLVE_BENEATH, 24));
    T(syscall(SYS_openat2, AT_FDCWD, "f", BAD, 24));
    T(syscall(SYS_openat2, AT_FDCWD, "f", NULL, 5000));
    T(creat("d", 0600));
}

static void reads(void) {
    T(read(CLOSED, room, 4));
    T(read(w, room, 4));
    T(read(d, room, 4));
    T(read(o, room, 4));
    T(read(f, BAD, 4));
    T(write(CLOSED, text, 4));
    T(write(r, text, 4));
    T(write(f, BAD, 4));
    T(write(o, text, 4));
    T(pread(f, room, 4, -1));
    T(pwrite(f, text, 4, -1));
    T(pread(q[0], room, 4, 0));
    T(pwrite(f, text, 4, INT64_MAX));
    T(readv(f, BAD, 2));
    T(readv(f, NULL, -1));
    T(readv(f, NULL, 2000));
    T(writev(r, NULL, 0));
    T(preadv2(f, NULL, 0, 0, 1 << 20));
    T(lseek(f, -1, SEEK_SET));
    T(lseek(f, 0, 77));
    T(lseek(f, 100, SEEK_DATA));
    T(lseek(f, 100, SEEK_HOLE));
    T(lseek(q[0], 0, SEEK_SET));
    T(lseek(CLOSED, 0, SEEK_SET));
    T(lseek(o, 0, SEEK_SET));
    T(ftruncate(r, 0));
    T(ftruncate(f, -1));
    T(ftruncate(CLOSED, 0));
    T(ftruncate(d, 0));
    T(truncate("d", 0));
    T(truncate("none", 0));
    T(truncate("f", -1));
    T(truncate("f/x", 0));
    T(truncate("pipe", 0));
    T(fallocate(f, 0, 0, 0));
    T(fallocate(f, 0, -1, 4));
    T(fallocate(r, 0, 0, 4));
    T(fallocate(CLOSED, 0, 0, 4));
    T(fallocate(d, 0, 0, 4));
    T(fallocate(q[1], 0, 0, 4));
    T(fallocate(f, FALLOC_FL_PUNCH_HOLE, 0, 4));
    T(fallocate(f, 0x4000, 0, 4));
    T(fallocate(f, 0, INT64_MAX, 4));
    T(fsync(CLOSED));
    T(fsync(q[0]));
    T(fdatasync(o));
    T(sync_file_range(CLOSED, 0, 0, 0));
    T(sync_file_range(f, -1, 0, 0));
    T(sync_file_range(f, 0, 0, 99));
    T(posix_fadvise(f, 0, 0, 99) ? (errno = posix_fadvise(f, 0, 0, 99), -1) : 0);
    T(readahead(CLOSED, 0, 4));
    T(readahead(w, 0, 4));
}

static void names(void) {
    T(mkdir("f", 0700));
    T(mkdir("none/x", 0700));
    T(mkdir("f/x", 0700));
    T(mkdir("", 0700));
    T(mkdir(BAD, 0700));
    T(mkdir(NAME256, 0700));
    T(mkdir("loop/x", 0700));
    T(mkdir("dangling", 0700));
    T(mkdir(".", 0700));
    T(mkdirat(CLOSED, "x", 0700));
    T(mkdirat(f, "x", 0700));
    T(rmdir("f"));
    T(rmdir("none"));
    T(rmdir("d"));
    T(rmdir("d/."));
    T(rmdir("d/.."));
    T(rmdir("l"));
    T(unlink("d"));
    T(unlink("none"));
    T(unlink("f/x"));
    T(unlink("f/"));
    T(unlink(""));
    T(unlink(NAME256));
    T(unlink("loop/x"));
    T(unlink("."));
    T(unlinkat(AT_FDCWD, "d", 1));
    T(unlinkat(f, "x", 0));
    T(unlinkat(CLOSED, "x", 0));
    T(rename("none", "x"));
    T(rename("f", "d"));
    T(rename("d", "f"));
    T(rename("d", "d/y"));
    T(rename("e", "d"));
    T(rename("f", "none/x"));
    T(rename("f/x", "y"));
    T(rename("f", NAME256));
    T(rename("f", ""));
    T(rename("d/.", "y"));
    T(rename("f", "y/"));
    T(rename("loop/x", "y"));
    T(rename(BAD, "y"));
    T(renameat(CLOSED, "f", AT_FDCWD, "y"));
    T(renameat2(AT_FDCWD, "f", AT_FDCWD, "l", RENAME_NOREPLACE));
    T(renameat2(AT_FDCWD, "f", AT_FDCWD, "none", RENAME_EXCHANGE));
    T(renameat2(AT_FDCWD, "f", AT_FDCWD, "l", RENAME_NOREPLACE | RENAME_EXCHANGE));
    T(renameat2(AT_FDCWD, "f", AT_FDCWD, "l", 99));
    T(link("none", "x"));
    T(link("f", "l"));
    T(link("d", "x"));
    T(link("d", "f"));
    T(link("d", "d"));
    T(link("none", "f"));
    T(link("none", "f/x"));
    T(link("none", "none/x"));
    T(link("none", NAME256));
    T(link("f", "none/x"));
    T(link("f", "f/x"));
    T(link("f/x", "x"));
    T(link("f", NAME256));
    T(link("", "x"));
    T(link(BAD, "x"));
    T(link("f", BAD));
    T(link("/etc/none", "x"));
    T(link("/etc/passwd", "x"));
    T(link("f", "/proc/x"));
    T(linkat(AT_FDCWD, "f", AT_FDCWD, "x", 99));
    T(linkat(CLOSED, "f", AT_FDCWD, "x", 0));
    T(linkat(AT_FDCWD, "f", CLOSED, "x", 0));
    T(linkat(f, "x", AT_FDCWD, "x", 0));
    T(linkat(AT_FDCWD, "loop", AT_FDCWD, "x", AT_SYMLINK_FOLLOW));
    T(symlink("x", "f"));
    T(symlink("", "x"));
    T(symlink("x", ""));
    T(symlink("x", "none/x"));
    T(symlink("x", "f/x"));
    T(symlink(path_max, "x"));
    T(symlink(BAD, "x"));
    T(symlinkat("x", CLOSED, "x"));
    T(readlink("f", room, 9));
    T(readlink("d", room, 9));
    T(readlink("none", room, 9));
    T(readlink("f/x", room, 9));
    T(readlink("l", room, 0));
    T(readlink("l", BAD, 9));
    T(readlink("", room, 9));
    T(readlink(NAME256, room, 9));
    T(readlink("loop/x", room, 9));
    T(readlinkat(CLOSED, "l", room, 9));
    T(readlinkat(f, "", room, 9));
    T(readlinkat(f, "x", room, 9));
    T(mknod("f", S_IFREG | 0600, 0));
    T(mknod("x", S_IFDIR | 0600, 0));
    T(mknod("x", S_IFLNK | 0600, 0));
    T(mknod("none/x", S_IFIFO | 0600, 0));
    T(mknodat(f, "x", S_IFIFO | 0600, 0));
}

static void attributes(void) {
    T(stat("none", &st));
    T(stat("f/x", &st));
    T(stat("loop", &st));
    T(stat("", &st));
    T(stat("f", BAD));
    T(stat(BAD, &st));
    T(stat(NAME256, &st));
    T(stat(path_max, &st));
    T(fstat(CLOSED, &st));
    T(fstatat(AT_FDCWD, "f", &st, 99));
    T(fstatat(f, "x", &st, 0));
    T(fstatat(CLOSED, "f", &st, 0));
    T(fstatat(f, "", &st, AT_EMPTY_PATH));
    T(fstatat(f, "", &st, 0));
    T(statx(AT_FDCWD, "f", 0x40000000, STATX_ALL, &sx));
    T(statx(AT_FDCWD, "f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_ALL, &sx));
    T(statx(AT_FDCWD, "f", 0, 0x80000000, &sx));
    T(statx(AT_FDCWD, "f", 0, STATX_ALL, BAD));
    T(access("none", F_OK));
    T(access("f", 99));
    T(access("f/x", F_OK));
    T(access("loop", F_OK));
    T(syscall(SYS_faccessat2, AT_FDCWD, "f", F_OK, 99));
    T(syscall(SYS_faccessat2, CLOSED, "f", F_OK, 0));
    T(chmod("none", 0600));
    T(chmod("f/x", 0600));
    T(chmod("loop", 0600));
    T(fchmod(CLOSED, 0600));
    T(fchmod(o, 0600));
    T(fchmodat(f, "x", 0600, 0));
    T(chown("none", 0, 0));
    T(fchown(CLOSED, 0, 0));
    T(fchown(o, 0, 0));
    T(fchownat(AT_FDCWD, "f", 0, 0, 99));
    T(timed("none", 0, 0));
    T(timed("f", 2000000000, 0));
    T(timed("f", 0, 99));
    T(timed("", 0, AT_EMPTY_PATH));
    T(futimens(CLOSED, times));
    T(statfs("none", &fs));
    T(statfs("f", BAD));
    T(fstatfs(CLOSED, &fs));
    T(getxattr("f", "user.none", room, 9));
    T(getxattr("none", "user.x", room, 9));
    T(getxattr("f", "nonsense", room, 9));
    T(getxattr("f", "", room, 9));
    T(getxattr("f", BAD, room, 9));
    T(setxattr("f", "user.x", text, 4, 99));
    T(setxattr("f", "user.x", text, 4, XATTR_REPLACE));
    T(setxattr("f", "user.x", text, 4, XATTR_CREATE | XATTR_REPLACE));
    T(setxattr("f", "nonsense", text, 4, 0));
    T(setxattr("f", "user.x", BAD, 4, 0));
    T(setxattr("f", "user.x", text, 70000, 0));
    T(setxattr("f", "user." NAME256, text, 4, 0));
    T(fsetxattr(CLOSED, "user.x", text, 4, 0));
    T(fsetxattr(o, "user.x", text, 4, 0));
    T(removexattr("f", "user.none"));
    T(listxattr("none", room, 9));
    T(flistxattr(CLOSED, room, 9));
}

/* In a folder whose path is longer than 4096 bytes, in a process of its own. */
static void go_deep(void) {
    char name[200];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 21; i++) {
        mkdir(name, 0700);
        CHECK(!chdir(name));
    }
}

static long deep(size_t size) {
    go_deep();
    return syscall(SYS_getcwd, malloc(size), size);
}

/* The C library asks again with more room as long as it hears ERANGE, and aborts in the end. */
static long deep_by_library(void) {
    go_deep();
    char *path = getcwd(NULL, 0);
    return path ? !strstr(path, "nnn/nnn") : -1;
}

static void folders(void) {
    T(syscall(SYS_getdents64, CLOSED, room, 100));
    T(syscall(SYS_getdents64, f, room, 100));
    T(syscall(SYS_getdents64, d, room, 4));
    T(syscall(SYS_getdents64, d, BAD, 100));
    F(chdir("none"));
    F(chdir("f"));
    F(chdir("loop"));
    F(chdir(""));
    F(chdir(NAME256));
    F(fchdir(CLOSED));
    F(fchdir(f));
    T(syscall(SYS_getcwd, room, 1));
    T(syscall(SYS_getcwd, BAD, 100));
    F(deep(1));
    F(deep(4096));
    F(deep(9000));
    F(deep_by_library());
}

static void control(void) {
    T(fcntl(CLOSED, F_GETFL));
    T(fcntl(f, 9999));
    T(fcntl(f, F_DUPFD, -1));
    T(fcntl(f, F_DUPFD, 99999999));
    T(fcntl(f, F_SETFL, O_ASYNC | O_DIRECT << 20));
    T(fcntl(f, F_GETOWN));
    T(fcntl(f, F_GETSIG));
    T(fcntl(f, F_SETOWN, 0));
    T(fcntl(f, F_GETPIPE_SZ));
    T(fcntl(f, F_SETPIPE_SZ, 4096));
    T(fcntl(f, F_GET_SEALS));
    T(fcntl(f, F_ADD_SEALS, 1));
    T(fcntl(f, F_SETSIG, 999));
    T(fcntl(o, F_SETFL, O_APPEND));
    T(fcntl(o, F_SETLK, &lock));
    T(fcntl(f, 1028));
    T(set_lock(f, F_SETLK, 77, SEEK_SET, 0, 0));
    T(set_lock(f, F_SETLK, F_WRLCK, 77, 0, 0));
    T(set_lock(f, F_SETLK, F_WRLCK, SEEK_SET, -1, 0));
    T(set_lock(f, F_SETLK, F_WRLCK, SEEK_SET, 4, -9));
    T(set_lock(r, F_SETLK, F_WRLCK, SEEK_SET, 0, 0));
    T(set_lock(w, F_SETLK, F_RDLCK, SEEK_SET, 0, 0));
    T(set_lock(f, F_GETLK, F_UNLCK, SEEK_SET, 0, 0));
    T(set_lock(CLOSED, F_SETLK, F_WRLCK, SEEK_SET, 0, 0));
    T(fcntl(f, F_SETLK, BAD));
    T(flock(CLOSED, LOCK_EX));
    T(flock(f, 99));
    T(flock(o, LOCK_EX));
    T(ioctl(CLOSED, FIONREAD, room));
    T(ioctl(f, 0xdead, room));
    T(ioctl(f, FIONREAD, BAD));
    T(ioctl(f, FICLONE, CLOSED));
    T(ioctl(f, FICLONE, q[0]));
    T(dup(CLOSED));
    T(dup2(CLOSED, f));
    T(dup2(f, -1));
    T(dup3(f, f, 0));
    T(dup3(f, 500, 99));
    T(close(CLOSED));
    T(syscall(SYS_close_range, 9, 3, 0));
    T(syscall(SYS_close_range, 900, 901, 99));
}

static void memory(void) {
    T(map(0, PROT_READ, MAP_SHARED, f, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, CLOSED, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, f, 5));
    T(map(PAGE, PROT_READ, 0, f, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, w, 0));
    T(map(PAGE, PROT_READ, MAP_PRIVATE, w, 0));
    T(map(PAGE, PROT_WRITE, MAP_SHARED, r, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, d, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, o, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, q[0], 0));
    T(map(SIZE_MAX, PROT_READ, MAP_SHARED, f, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED, f, -PAGE));
    T(map(PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, f, 0));
    T(map(PAGE, PROT_READ, MAP_SHARED_VALIDATE | 1 << 27, f, 0));
    char *m = map(PAGE, PROT_READ, MAP_SHARED, r, 0);
    T(mprotect(m, PAGE, PROT_READ | PROT_WRITE));
    T(mprotect(m + 1, PAGE, PROT_READ));
    T(mprotect(m, PAGE, 1 << 20));
    T(msync(m + 1, PAGE, MS_SYNC));
    T(msync(m, PAGE, MS_SYNC | MS_ASYNC));
    T(msync(m, PAGE, 99));
    T(msync(m, PAGE, 0));
    T(madvise(m + 1, PAGE, MADV_NORMAL));
    T(madvise(m, PAGE, 999));
    T(madvise(m, PAGE, MADV_REMOVE));
    T(munmap(m + 1, PAGE));
    T(munmap(m, 0));
    T(mremap(m + 1, PAGE, PAGE, 0));
    T(mremap(m, PAGE, 0, 0));
    T(mremap(m, PAGE, 2 * PAGE, 99));
    T(munmap(m, PAGE));
    T(msync(m, PAGE, MS_SYNC));
    T(madvise(m, PAGE, MADV_NORMAL));
    T(mprotect(m, PAGE, PROT_READ));
}

static void transfers(void) {
    F(sendfile(CLOSED, f, NULL, 4));
    F(sendfile(q[1], CLOSED, NULL, 4));
    F(sendfile(q[1], w, NULL, 4));
    F(sendfile(r, f, NULL, 4));
    F(sendfile(d, f, NULL, 4));
    F(sendfile(o, f, NULL, 4));
    F(sendfile(q[0], f, NULL, 4));
    F(sendfile(q[1], d, NULL, 4));
    F(sendfile(q[1], f, BAD, 4));
    F(fcntl(w, F_SETFL, O_APPEND));
    F(sendfile(w, f, NULL, 4));
    F((write(q[1], "x", 1), splice(q[0], NULL, w, NULL, 1, 0)));
    F(fcntl(w, F_SETFL, 0));
    F(sendfile(q[1], f, (off_t *)&minus, 4));
    F(splice(f, NULL, CLOSED, NULL, 4, 0));
    F(splice(CLOSED, NULL, q[1], NULL, 4, 0));
    F(splice(f, NULL, w, NULL, 4, 0));
    F(splice(f, NULL, s, NULL, 4, 0));
    F(splice(w, NULL, q[1], NULL, 4, 0));
    F(splice(f, NULL, q[0], NULL, 4, 0));
    F(splice(q[1], NULL, f, NULL, 4, 0));
    F(splice(q[0], NULL, r, NULL, 4, 0));
    F(splice(d, NULL, q[1], NULL, 4, 0));
    F(splice(f, &minus, q[1], NULL, 4, 0));
    F(splice(f, NULL, q[1], &at, 4, 0));
    F(splice(f, BAD, q[1], NULL, 4, 0));
    F(splice(f, NULL, q[1], NULL, 4, 999));
    F(splice(f, NULL, q[1], NULL, 0, 0));
    F(tee(f, q[1], 4, 0));
    F(tee(q[0], f, 4, 0));
    F(vmsplice(f, NULL, 0, 0));
    F(vmsplice(CLOSED, NULL, 0, 0));
    F(copy_file_range(f, NULL, CLOSED, NULL, 4, 0));
    F(copy_file_range(f, NULL, r, NULL, 4, 0));
    F(copy_file_range(w, NULL, f, NULL, 4, 0));
    F(copy_file_range(f, NULL, d, NULL, 4, 0));
    F(copy_file_range(f, NULL, q[1], NULL, 4, 0));
    F(copy_file_range(f, NULL, w, NULL, 4, 99));
    F(copy_file_range(f, &minus, w, NULL, 4, 0));
}

static void others(void) {
    F(named_socket("f", 0));
    F(named_socket("none/x", 0));
    F(named_socket("f/x", 0));
    F(named_socket("dangling", 0));
    F(named_socket("none", 1));
    F(named_socket("f", 1));
    F(named_socket("f/x", 1));
    F(named_socket("socket", 1));
    F(bind(f, BAD, 4));
    F(connect(f, BAD, 4));
    F(accept(f, NULL, NULL));
    F(accept(CLOSED, NULL, NULL));
    F(listen(f, 1));
    F(getsockname(f, BAD, BAD));
    F(sendmsg(f, BAD, 0));
    F(recvmsg(f, BAD, 0));
    F(send(f, text, 4, 0));
    F(watch(EPOLL_CTL_ADD, f));
    F(watch(EPOLL_CTL_ADD, d));
    F(watch(EPOLL_CTL_ADD, CLOSED));
    F(watch(EPOLL_CTL_DEL, q[0]));
    F(epoll_ctl(f, EPOLL_CTL_ADD, q[0], BAD));
    F(inotify_add_watch(f, "f", IN_ALL_EVENTS));
    F(inotify_add_watch(inotify_init(), "none", IN_ALL_EVENTS));
    F(syscall(SYS_fanotify_mark, f, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "f"));
    F(syscall(SYS_clone3, BAD, 8));
    F(syscall(SYS_clone3, BAD, 88));
    F(syscall(SYS_clone3, NULL, 63));
    F(syscall(SYS_clone3, NULL, 99999));
    F(execl("none", "x", NULL));
    F(execl("d", "x", NULL));
    F(execl("f", "x", NULL));
    F(execl("loop", "x", NULL));
    F(execl("f/x", "x", NULL));
    F(execl("", "x", NULL));
    F(execl(NAME256, "x", NULL));
    F(syscall(SYS_execveat, CLOSED, "x", NULL, NULL, 0));
    F(syscall(SYS_execveat, f, "", NULL, NULL, AT_EMPTY_PATH));
    F(syscall(SYS_execveat, AT_FDCWD, "l", NULL, NULL, AT_SYMLINK_NOFOLLOW));
    F(syscall(SYS_execveat, AT_FDCWD, "f", NULL, NULL, 99));
}

int main(int argc, char **argv) {
    memset(path_max, 'a', PATH_MAX + 5);
    CHECK(!mkdir("d", 0700) && !mkdir("e", 0700) && !symlink("f", "l"));
    CHECK(!symlink("loop", "loop") && !symlink("none", "dangling") && !mkfifo("pipe", 0600));
    close(file_with("d/x", "in d"));
    f = file_with("f", "text");
    CHECK(!fchmod(f, 0600));
    s = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!named_socket("socket", 0));
    r = open("f", O_RDONLY), w = open("f", O_WRONLY), d = open("d", O_RDONLY);
    o = open("f", O_PATH);
    CHECK(!pipe(q) && write(q[1], text, 4) == 4);
    opens(), reads(), names(), attributes(), folders(), control(), memory(), transfers(), others();
    return failures != 0;
}
