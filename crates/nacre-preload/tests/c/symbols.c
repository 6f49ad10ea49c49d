/* Calls that enter by symbols of the C library's names behave as the library's own. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <sys/time.h>

static void are_bound(void) {
    Dl_info info;
    void *ours[] = {(void *)read, (void *)write, (void *)pread, (void *)pwrite, (void *)fsync, (void *)fdatasync,
                    (void *)open, (void *)openat, (void *)close, (void *)stat, (void *)lstat, (void *)fstat,
                    (void *)fstatat, (void *)statx, (void *)mkdir, (void *)mkdirat, (void *)unlink, (void *)unlinkat,
                    (void *)rmdir, (void *)rename, (void *)renameat, (void *)renameat2};
    for (unsigned i = 0; i < sizeof ours / sizeof *ours; i++)
        CHECK(dladdr(ours[i], &info) && strstr(info.dli_fname, "libnacre_preload"));
}

static void errors(int fd) {
    char byte = 0, *nowhere = (char *)16;
    int reader = open("file", O_RDONLY), folder = open(".", O_RDONLY | O_DIRECTORY), path = open("file", O_PATH);
    errno = 0;
    CHECK(pread(fd, &byte, 1, 0) == 1 && errno == 0);
    CHECK(pread(-1, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(read(99999, &byte, 1) == -1 && errno == EBADF);
    CHECK(pread(fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    CHECK(pwrite(fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, &byte, 1, -1) == -1 && errno == EINVAL);
    CHECK(pwrite(reader, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(read(folder, &byte, 1) == -1 && errno == EISDIR);
    CHECK(pread(path, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(fsync(path) == -1 && errno == EBADF);
    CHECK(pread(fd, &byte, 1, 1 << 20) == 0 && !fsync(fd) && !fdatasync(fd));
    CHECK(!close(reader) && !close(folder) && !close(path));
    CHECK(pread(reader, &byte, 1, 0) == -1 && errno == EBADF);
}

#define SAME(call, number, ...)                                                                       \
    do {                                                                                              \
        memset(&one, 1, sizeof one), memset(&other, 1, sizeof other);                                 \
        errno = 0;                                                                                    \
        long first = call, error = errno, second = syscall(number, __VA_ARGS__);                      \
        CHECK(first == second && error == (first ? errno : 0) && !memcmp(&one, &other, sizeof one)); \
    } while (0)

/* What is told of files is what the system calls tell: of the pool's and the host's, by all kinds of paths. */
static void attributes(int fd) {
    union { struct stat old; struct statx new; } one, other;
    char here[PAGE], whole[2 * PAGE], name[400];
    memset(name, 'n', 399), name[399] = 0;
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0 && getcwd(here, sizeof here) && !symlink("file", "link") && !symlink("nothing", "dangling"));
    snprintf(whole, sizeof whole, "%s/link", here);
    const char *paths[] = {"file", "link", "dangling", "nothing", "", ".", "..", "./file", "file/", "file/x", "link/",
                           here, whole, "/etc/passwd", "/etc/none", "/", name, (char *)8, 0};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *path = paths[i];
        SAME(stat(path, &one.old), SYS_stat, path, &other);
        SAME(lstat(path, &one.old), SYS_lstat, path, &other);
        for (int flags = 0; flags <= AT_EMPTY_PATH; flags += AT_SYMLINK_NOFOLLOW) {
            SAME(fstatat(folder, path, &one.old, flags), SYS_newfstatat, folder, path, &other, flags);
            SAME(statx(folder, path, flags, STATX_ALL, &one.new), SYS_statx, folder, path, flags, STATX_ALL, &other);
        }
        SAME(fstatat(-1, path, &one.old, 0), SYS_newfstatat, -1, path, &other, 0);
        SAME(fstatat(fd, path, &one.old, AT_EMPTY_PATH), SYS_newfstatat, fd, path, &other, AT_EMPTY_PATH);
    }
    SAME(fstat(fd, &one.old), SYS_fstat, fd, &other);
    SAME(fstat(-1, &one.old), SYS_fstat, -1, &other);
    SAME(statx(folder, "file", 0, 1u << 31, &one.new), SYS_statx, folder, "file", 0, 1u << 31, &other);
    CHECK(stat("file", (void *)16) == -1 && errno == EFAULT && fstat(fd, (void *)16) == -1 && errno == EFAULT);
    CHECK(!close(folder) && !unlink("link") && !unlink("dangling"));
}

/* access and readlink by all kinds of paths; `folder` and `link` are of the pool or of the host. */
static void access_and_links(int folder, const char *name, const char *link) {
    char one[PAGE], other[PAGE];
    const char *paths[] = {name, link, "none", "/etc/none/x", "/etc/passwd", "/bin", "/proc/self/exe", "/etc/../bin", ".", "", (char *)8, 0};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *path = paths[i];
        for (int mode = R_OK - 1; mode <= R_OK + 4; mode++) {
            SAME(access(path, mode), SYS_access, path, mode);
            SAME(faccessat(folder, path, mode, 0), SYS_faccessat, folder, path, mode);
        }
        SAME(readlink(path, one, sizeof one), SYS_readlink, path, other, sizeof other);
        SAME(readlinkat(folder, path, one, sizeof one), SYS_readlinkat, folder, path, other, sizeof other);
    }
}

/* Of the host, where a link may lead into the pool, and one that leads nowhere does not. */
static void attributes_of_the_host(void) {
    char link[] = "/dev/shm/nacre-link-XXXXXX";
    union { struct stat old; struct statx new; } one, other;
    SAME(stat("/etc/passwd", &one.old), SYS_stat, "/etc/passwd", &other);
    SAME(lstat("/etc/passwd/x", &one.old), SYS_lstat, "/etc/passwd/x", &other);
    SAME(fstatat(AT_FDCWD, "/etc/none/x", &one.old, 0), SYS_newfstatat, AT_FDCWD, "/etc/none/x", &other, 0);
    SAME(stat("/etc/passwd", (void *)16), SYS_stat, "/etc/passwd", 16);
    int host = mkstemp(link);
    SAME(fstat(host, &one.old), SYS_fstat, host, &other);
    CHECK(!close(host) && fstat(host, &one.old) == -1 && errno == EBADF);
    CHECK(!unlink(link) && stat(link, &one.old) == -1 && errno == ENOENT);
    CHECK(!symlink("/nacre/d/file", link) && !stat(link, &one.old) && one.old.st_size == 4096);
    SAME(stat(link, &one.old), SYS_stat, link, &other);
    SAME(lstat(link, &one.old), SYS_lstat, link, &other);
    SAME(statx(AT_FDCWD, link, 0, STATX_ALL, &one.new), SYS_statx, AT_FDCWD, link, 0, STATX_ALL, &other);
    int pool = open(".", O_RDONLY | O_DIRECTORY), etc = open("/etc", O_RDONLY | O_DIRECTORY), file;
    access_and_links(pool, "file", link);
    access_and_links(etc, "passwd", link);
    SAME(fstatat(etc, "passwd", &one.old, 0), SYS_newfstatat, etc, "passwd", &other, 0);
    SAME(fstatat(etc, "none", &one.old, 0), SYS_newfstatat, etc, "none", &other, 0);
    CHECK((file = open(link, O_RDWR)) > etc && !fstat(file, &one.old) && one.old.st_size == 4096 && !close(file));
    CHECK((file = openat(etc, "passwd", O_RDONLY)) > etc && pread(file, &one, 1, 0) == 1 && !close(file));
    CHECK(openat(etc, "none", O_RDONLY) == -1 && errno == ENOENT && openat(etc, "none/x", O_RDONLY) == -1);
    CHECK(!unlink(link) && !close(etc) && !close(pool));
}

static void descriptors(void) {
    struct stat stat;
    char byte;
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    umask(027);
    int made = openat(folder, "made", O_CREAT | O_EXCL | O_RDWR, 0666);
    CHECK(made > folder && write(made, "bytes", 5) == 5 && !fstat(made, &stat) && stat.st_mode == (S_IFREG | 0640));
    CHECK(open("made", O_CREAT | O_EXCL | O_RDWR, 0666) == -1 && errno == EEXIST);
    CHECK(open("none", O_RDONLY) == -1 && errno == ENOENT && open(".", O_RDWR) == -1 && errno == EISDIR);
    CHECK(open((char *)8, O_RDONLY) == -1 && errno == EFAULT && openat(made, "x", O_RDONLY) == -1 && errno == ENOTDIR);
    CHECK(!close(made) && close(made) == -1 && errno == EBADF && close(-1) == -1 && errno == EBADF);
    CHECK(open("made", O_WRONLY | O_TRUNC) == made && !fstat(made, &stat) && stat.st_size == 0 && !close(made));
    CHECK(open("/etc/passwd", O_RDONLY | O_CLOEXEC) == made && read(made, &byte, 1) == 1 && fcntl(made, F_GETFD) == 1);
    CHECK(!close(made) && open("made", O_RDONLY) == made && fcntl(made, F_GETFD) == 0 && read(made, &byte, 1) == 0);
    CHECK(!mkfifo("fifo", 0600) && open("fifo", O_WRONLY | O_NONBLOCK) == -1 && errno == ENXIO && !unlink("fifo"));
    CHECK(!close(made) && !close(folder) && !unlink("made"));
}

#define FAILS(call, number, ...)                                                  \
    do {                                                                          \
        errno = 0;                                                                \
        long first = call, error = errno, second = syscall(number, __VA_ARGS__); \
        CHECK(first == -1 && second == -1 && error == errno);                     \
    } while (0)

/* Names are refused for the reasons of the system calls, in pools and on the host, and else made, moved and removed. */
static void names(void) {
    struct stat stat;
    char name[400];
    memset(name, 'n', 399), name[399] = 0;
    int folder = open(".", O_RDONLY | O_DIRECTORY), at = AT_REMOVEDIR;
    umask(027);
    CHECK(!mkdir("folder", 01777) && !mkdirat(folder, "folder/in", 0777) && !symlink("folder", "link"));
    CHECK(!lstat("folder", &stat) && stat.st_mode == (S_IFDIR | 01750) && stat.st_nlink == 3);
    const char *bad[] = {"", ".", "..", "file/", "file/x/y", "none/x/y", "/", "/none/x", name, (char *)8};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = bad[i];
        FAILS(mkdir(path, 0777), SYS_mkdir, path, 0777);
        FAILS(mkdirat(folder, path, 0777), SYS_mkdirat, folder, path, 0777);
        FAILS(unlink(path), SYS_unlink, path);
        FAILS(rmdir(path), SYS_rmdir, path);
        FAILS(unlinkat(folder, path, at), SYS_unlinkat, folder, path, at);
        FAILS(rename(path, "new"), SYS_rename, path, "new");
        FAILS(rename("folder", path), SYS_rename, "folder", path);
        FAILS(renameat(folder, "folder", folder, path), SYS_renameat, folder, "folder", folder, path);
    }
    FAILS(mkdir("file", 0777), SYS_mkdir, "file", 0777);
    FAILS(rmdir("file"), SYS_rmdir, "file");
    FAILS(rmdir("folder"), SYS_rmdir, "folder");
    FAILS(rmdir("link"), SYS_rmdir, "link");
    FAILS(unlink("folder"), SYS_unlink, "folder");
    FAILS(unlinkat(folder, "file", 1), SYS_unlinkat, folder, "file", 1);
    FAILS(rename("folder", "folder/in/x"), SYS_rename, "folder", "folder/in/x");
    FAILS(rename("file", "folder"), SYS_rename, "file", "folder");
    FAILS(rename("folder", "file"), SYS_rename, "folder", "file");
    FAILS(rename("file", "/tmp/x"), SYS_rename, "file", "/tmp/x");
    FAILS(renameat2(folder, "file", folder, "link", 1), SYS_renameat2, folder, "file", folder, "link", 1);
    FAILS(renameat2(folder, "file", folder, "none", 2), SYS_renameat2, folder, "file", folder, "none", 2);
    FAILS(renameat2(folder, "file", folder, "link", 3), SYS_renameat2, folder, "file", folder, "link", 3);
    FAILS(unlinkat(-1, "file", 0), SYS_unlinkat, -1, "file", 0);
    CHECK(!rename("folder/in", "in") && access("folder/in", F_OK) == -1 && !rename("in", "folder/in"));
    CHECK(!renameat2(folder, "link", folder, "folder", 2) && !lstat("folder", &stat) && S_ISLNK(stat.st_mode));
    CHECK(!rename("file", "folder") && access("file", F_OK) == -1 && !renameat(folder, "folder", folder, "file"));
    CHECK(!unlinkat(folder, "link/in", AT_REMOVEDIR) && !rmdir("link") && access("link", F_OK) == -1);
    CHECK(!mkfifo("fifo", 0600) && !rename("fifo", "other") && !unlink("other") && !close(folder));
}

/* The position moves with each call, also one that is shared with a child. */
static void positions(int fd) {
    char bytes[8];
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, bytes, 8) == 8 && write(fd, "12345678", 8) == 8);
    pid_t child = fork();
    if (child == 0) _exit(read(fd, bytes, 8) != 8);
    CHECK(status_of(child) == 0 && lseek(fd, 0, SEEK_CUR) == 24);
    CHECK(read(fd, bytes, 8) == 8 && lseek(fd, 0, SEEK_CUR) == 32);
    CHECK(pread(fd, bytes, 8, 8) == 8 && !memcmp(bytes, "12345678", 8));
}

static volatile int hits;
static int file;

static void handler(int signal) {
    char bytes[64];
    struct stat known;
    CHECK(pread(file, bytes, 64, 128) == 64 && bytes[5] == 'x');
    int again = open("file", O_RDONLY);
    CHECK(again > file && !stat("file", &known) && known.st_size == 4096 && !close(again));
    CHECK(!mkdir("three", 0700) && !rename("three", "four") && !rmdir("four"));
    hits++;
}

/* Signals at every point of a call; their handlers make the same calls. */
static void signals(int fd) {
    char bytes[64];
    struct stat known;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 211}, {0, 211}}, never = {{0, 0}, {0, 0}};
    file = fd;
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &often, 0));
    for (int i = 0; i < 400000 && hits < 300; i++) {
        CHECK(pread(fd, bytes, 64, 64) == 64 && bytes[0] == 'x' && bytes[63] == 'x');
        CHECK(pwrite(fd, bytes, 64, 64) == 64 && !stat("file", &known) && known.st_nlink == 1);
        int again = open("file", O_RDONLY);
        CHECK(again > fd && !close(again));
        CHECK(!mkdir("one", 0700) && !rename("one", "two") && !rmdir("two"));
    }
    CHECK(!setitimer(ITIMER_REAL, &never, 0) && hits > 3);
}

static void *reads_a_pipe(void *fd) {
    char byte;
    read(*(int *)fd, &byte, 1);
    return 0;
}

static void *reads_for_ever(void *fd) {
    char byte;
    while (pread(*(int *)fd, &byte, 1, 0) == 1) hits++;
    return 0;
}

static void is_cancelled(void *(*what)(void *), int *fd) {
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, 0, what, fd));
    do usleep(20000); while (!hits);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

/* They are points of cancellation, of other threads and of the only one. */
static void cancellation(int fd) {
    char byte;
    alarm(60);
    pid_t child = fork();
    if (child == 0) {
        pthread_cancel(pthread_self());
        pread(fd, &byte, 1, 0);
        _exit(1);
    }
    CHECK(status_of(child) == 0);
    int pipes[2];
    hits = 0;
    CHECK(!pipe(pipes));
    is_cancelled(reads_for_ever, &fd);
    is_cancelled(reads_a_pipe, pipes);
    CHECK(hits > 0);
    CHECK(pread(fd, &byte, 1, 64) == 1 && byte == 'x');
}

int main(void) {
    char bytes[4096];
    memset(bytes, 'x', sizeof bytes);
    int fd = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && write(fd, bytes, sizeof bytes) == sizeof bytes && pread(fd, bytes, 1, 0) == 1);
    are_bound();
    errors(fd);
    attributes(fd);
    attributes_of_the_host();
    descriptors();
    names();
    positions(fd);
    signals(fd);
    signal(SIGALRM, SIG_DFL);
    cancellation(fd);
    return failures;
}
