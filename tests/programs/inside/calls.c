/* Checks of single calls in the current folder. Each group is a child process, so that one that
 * dies is reported like one that fails. */
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c)                                                                          \
    do {                                                                                  \
        errno = 0;                                                                        \
        if (!(c)) {                                                                       \
            fprintf(stderr, "FAILED: %s:%d: %s (%s)\n", __func__, __LINE__, #c, strerror(errno)); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)
#define REFUSED(call, code) CHECK((call) == -1 && errno == (code))

static int new_file(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static void descriptors(void) {
    int fd = new_file("d", "0123456789");
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    CHECK(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK) == 0);
    CHECK((fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK)) == (O_APPEND | O_NONBLOCK));
    CHECK(lseek(fd, 2, SEEK_SET) == 2 && write(fd, "A", 1) == 1 && lseek(fd, 0, SEEK_CUR) == 11);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 700);
    CHECK(high == 700 && fcntl(high, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFD) == 0);
    CHECK(lseek(high, 1, SEEK_SET) == 1 && lseek(fd, 0, SEEK_CUR) == 1);
    CHECK(dup3(fd, 701, O_CLOEXEC) == 701 && dup2(fd, 702) == 702 && dup2(fd, fd) == fd);
    REFUSED(dup3(fd, fd, 0), EINVAL);
    CHECK(close_range(700, 800, 0) == 0);
    REFUSED(lseek(701, 0, SEEK_CUR), EBADF);
    struct stat st;
    REFUSED(fstat(702, &st), EBADF);
    char byte;
    CHECK(read(fd, &byte, 1) == 1 && byte == '1');
    int host = open("/dev/null", O_WRONLY);
    CHECK(host >= 0 && dup2(host, fd) == fd && write(fd, "x", 1) == 1);
    CHECK(stat("d", &st) == 0 && st.st_size == 11);
    CHECK(dup2(open("d", O_RDONLY), host) == host && read(host, &byte, 1) == 1 && byte == '0');
    close(fd), close(host);
    int lowest = open("d", O_RDONLY), next = open("/dev/null", O_RDONLY);
    close(lowest);
    CHECK(open("/dev/zero", O_RDONLY) == lowest && next != lowest);
    int read_only = open("d", O_RDONLY), path = open("d", O_PATH), write_only = open("d", O_WRONLY);
    REFUSED(write(read_only, "x", 1), EBADF);
    REFUSED(read(write_only, &byte, 1), EBADF);
    REFUSED(read(path, &byte, 1), EBADF);
    REFUSED(ftruncate(read_only, 0), EINVAL);
    CHECK(fstat(path, &st) == 0 && st.st_size == 11);
    REFUSED(close(999), EBADF);
}

static void vectors_and_flags(void) {
    int fd = new_file("v", "");
    struct iovec parts[3] = {{"abc", 3}, {NULL, 0}, {"defgh", 5}};
    CHECK(writev(fd, parts, 3) == 8 && pwritev(fd, parts, 3, 100) == 8);
    CHECK(pwritev2(fd, parts, 3, 200, RWF_DSYNC) == 8 && pwritev2(fd, parts, 1, 0, RWF_APPEND) == 3);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 211);
    char a[4], b[10];
    struct iovec into[2] = {{a, 4}, {b, 10}};
    CHECK(preadv(fd, into, 2, 98) == 14 && !memcmp(a, "\0\0ab", 4) && !memcmp(b, "cdefgh\0\0\0\0", 10));
    CHECK(preadv2(fd, into, 2, 205, RWF_HIPRI) == 6 || errno == EOPNOTSUPP);
    CHECK(lseek(fd, 0, SEEK_CUR) == 8 && readv(fd, into, 2) == 14 && a[0] == 0);
    REFUSED(pread(fd, a, 4, -1), EINVAL);
    REFUSED(lseek(fd, -1, SEEK_SET), EINVAL);
    REFUSED(writev(fd, parts, -1), EINVAL);
    CHECK(pread(fd, a, 4, 1 << 30) == 0 && read(fd, a, 0) == 0);
    REFUSED(write(fd, (void *)8, 100), EFAULT);
    REFUSED(pread(fd, (void *)8, 100, 0), EFAULT);
    CHECK(fstat(fd, &st) == 0 && st.st_size == 211);
    REFUSED(stat((void *)8, &st), EFAULT);
    REFUSED(open((void *)8, O_RDONLY), EFAULT);
    REFUSED(fstat(fd, (void *)8), EFAULT);
    int direct = open("v", O_RDWR | O_DIRECT);
    void *page;
    CHECK(direct >= 0 && !posix_memalign(&page, 4096, 4096));
    CHECK(pwrite(direct, page, 4096, 4096) == 4096 && pread(direct, page, 4096, 0) == 4096 && !memcmp(page, "abcdefgh", 8));
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && sync_file_range(fd, 0, 0, 7) == 0 && syncfs(fd) == 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && readahead(fd, 0, 4096) == 0);
}

static void allocation(void) {
    int fd = new_file("a", "");
    struct stat st;
    CHECK(fallocate(fd, 0, 0, 1 << 20) == 0 && fstat(fd, &st) == 0 && st.st_size == 1 << 20 && st.st_blocks >= 2048);
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20) == 0 && fstat(fd, &st) == 0);
    CHECK(st.st_size == 1 << 20 && st.st_blocks >= 4096);
    CHECK(pwrite(fd, "x", 1, 70000) == 1);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 65536) == 0);
    char byte = 1;
    CHECK(pread(fd, &byte, 1, 70000) == 1 && byte == 0);
    CHECK(pwrite(fd, "yyyy", 4, 4094) == 4);
    int zeroed;
    CHECK((zeroed = fallocate(fd, FALLOC_FL_ZERO_RANGE, 4095, 2)) == 0 || errno == EOPNOTSUPP);
    char four[4];
    CHECK(pread(fd, four, 4, 4094) == 4 && !memcmp(four, zeroed ? "yyyy" : "y\0\0y", 4));
    REFUSED(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096), EOPNOTSUPP);
    REFUSED(fallocate(fd, 0, 0, 0), EINVAL);
    CHECK(ftruncate(fd, 5000) == 0 && ftruncate(fd, 10000) == 0);
    char rest[5000];
    CHECK(pread(fd, rest, 5000, 5000) == 5000);
    for (int i = 0; i < 5000; i++) CHECK(rest[i] == 0);
    CHECK(truncate("a", 3) == 0 && lseek(fd, 0, SEEK_END) == 3);
    REFUSED(ftruncate(fd, -1), EINVAL);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, "d", 1, 1 << 20) == 1 && ftruncate(fd, 3 << 20) == 0);
    CHECK(lseek(fd, 0, SEEK_DATA) == 1 << 20 && lseek(fd, 1 << 20, SEEK_HOLE) == (1 << 20) + 4096);
    CHECK(lseek(fd, 2 << 20, SEEK_HOLE) == 2 << 20);
    REFUSED(lseek(fd, 2 << 20, SEEK_DATA), ENXIO);
    REFUSED(lseek(fd, 4 << 20, SEEK_HOLE), ENXIO);
}

static void copies(void) {
    int from = new_file("from", ""), to = new_file("to", "");
    char data[50000], got[50000];
    for (unsigned i = 0; i < sizeof data; i++) data[i] = i * 7;
    CHECK(write(from, data, sizeof data) == sizeof data);
    off_t in = 0, out = 10;
    while (in < (off_t)sizeof data) CHECK(copy_file_range(from, &in, to, &out, sizeof data - in, 0) > 0);
    CHECK(out == 50010 && pread(to, got, sizeof got, 10) == sizeof got && !memcmp(data, got, sizeof got));
    CHECK(ftruncate(to, 100) == 0 && (ioctl(to, FICLONE, from) == 0 || errno == EOPNOTSUPP || errno == ENOTTY));
    if (ioctl(to, FICLONE, from) == 0) {
        CHECK(pread(to, got, sizeof got, 0) == sizeof got && !memcmp(data, got, sizeof got));
        CHECK(pwrite(to, "changed", 7, 5000) == 7 && pread(from, got, 7, 5000) == 7 && !memcmp(got, data + 5000, 7));
        CHECK(pwrite(from, "CHANGED", 7, 5000) == 7 && pread(to, got, 7, 5000) == 7 && !memcmp(got, "changed", 7));
    }
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    off_t at = 100;
    CHECK(splice(from, &at, pipes[1], NULL, 4000, 0) == 4000 && at == 4100 && read(pipes[0], got, 4000) == 4000);
    CHECK(!memcmp(got, data + 100, 4000));
    CHECK(write(pipes[1], data, 3000) == 3000 && lseek(to, 7, SEEK_SET) == 7);
    CHECK(splice(pipes[0], NULL, to, NULL, 3000, 0) == 3000 && lseek(to, 0, SEEK_CUR) == 3007);
    CHECK(pread(to, got, 3000, 7) == 3000 && !memcmp(got, data, 3000));
    CHECK(lseek(from, 0, SEEK_SET) == 0 && sendfile(pipes[1], from, NULL, 1000) == 1000 && lseek(from, 0, SEEK_CUR) == 1000);
    REFUSED(copy_file_range(from, NULL, open("to", O_RDONLY), NULL, 10, 0), EBADF);
}

static void paths(void) {
    CHECK(mkdir("p", 0755) == 0 && mkdir("p/q", 0700) == 0 && symlink("q", "p/l") == 0 && symlink("loop", "loop") == 0);
    int dir = open("p", O_RDONLY | O_DIRECTORY), path = open("p/q", O_PATH | O_DIRECTORY);
    CHECK(dir >= 0 && path >= 0);
    int fd = openat(dir, "l/file", O_CREAT | O_EXCL | O_RDWR, 0640);
    CHECK(fd >= 0 && write(fd, "12345", 5) == 5);
    REFUSED(openat(dir, "l/file", O_CREAT | O_EXCL | O_RDWR, 0640), EEXIST);
    struct stat a, b;
    CHECK(fstatat(path, "file", &a, 0) == 0 && fstatat(fd, "", &b, AT_EMPTY_PATH) == 0 && a.st_ino == b.st_ino);
    struct statx x;
    CHECK(statx(dir, "q/file", AT_STATX_SYNC_AS_STAT, STATX_ALL, &x) == 0 && x.stx_size == 5 && x.stx_ino == a.st_ino);
    CHECK((x.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS && x.stx_nlink == 1 && (x.stx_mode & 07777) == 0640);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &x) == 0 && x.stx_size == 5);
    REFUSED(open("loop", O_RDONLY), ELOOP);
    REFUSED(openat(dir, "l", O_RDONLY | O_NOFOLLOW), ELOOP);
    REFUSED(open("p/q/file/", O_RDONLY), ENOTDIR);
    REFUSED(open("p/q/file", O_RDONLY | O_DIRECTORY), ENOTDIR);
    REFUSED(open("p", O_WRONLY), EISDIR);
    REFUSED(open("", O_RDONLY), ENOENT);
    REFUSED(openat(fd, "x", O_RDONLY), ENOTDIR);
    REFUSED(openat(999, "x", O_RDONLY), EBADF);
    REFUSED(mkdir("p/q", 0700), EEXIST);
    REFUSED(rmdir("p"), ENOTEMPTY);
    REFUSED(rmdir("p/."), EINVAL);
    REFUSED(unlink("p"), EISDIR);
    REFUSED(rename("p", "p/q/r"), EINVAL);
    REFUSED(link("p", "hard"), EPERM);
    REFUSED(rename("p/q/file", "/tmp/nacre-calls-elsewhere"), EXDEV);
    REFUSED(link("p/q/file", "/tmp/nacre-calls-elsewhere"), EXDEV);
    CHECK(faccessat(dir, "q/file", R_OK | W_OK, 0) == 0 && faccessat(dir, "l", F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(linkat(dir, "l", dir, "l2", 0) == 0 && fstatat(dir, "l2", &a, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(a.st_mode));
    CHECK(linkat(dir, "q/file", dir, "hard", AT_SYMLINK_FOLLOW) == 0 && fstat(fd, &b) == 0 && b.st_nlink == 2);
    CHECK(unlinkat(dir, "hard", 0) == 0 && unlinkat(dir, "l2", 0) == 0 && renameat(dir, "q/file", AT_FDCWD, "file") == 0);
    struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
    CHECK(syscall(SYS_openat2, dir, "q", &how, sizeof how) >= 0);
    REFUSED(syscall(SYS_openat2, dir, "../file", &how, sizeof how), EXDEV);
    how.resolve = RESOLVE_NO_SYMLINKS;
    REFUSED(syscall(SYS_openat2, dir, "l", &how, sizeof how), ELOOP);
    char here[PATH_MAX], full[PATH_MAX], *given;
    CHECK(getcwd(here, sizeof here) && realpath("p/../p/l/..", full) && !strncmp(full, here, strlen(here)) && !strcmp(full + strlen(here), "/p"));
    CHECK(fchdir(path) == 0 && (given = getcwd(NULL, 0)) && !strcmp(given + strlen(here), "/p/q"));
    CHECK(chdir("../..") == 0 && getcwd(full, sizeof full) && !strcmp(here, full));
    REFUSED(getcwd(full, 2) ? 0 : -1, ERANGE);
    char up[300] = "";
    for (int i = 0; i < 30; i++) strcat(up, "../");
    CHECK(stat(strcat(up, "etc/passwd"), &a) == 0 && stat("/etc/passwd", &b) == 0 && a.st_ino == b.st_ino);
    CHECK(symlink("/etc/passwd", "host") == 0 && stat("host", &a) == 0 && a.st_ino == b.st_ino);
    char link[20], proc[64];
    CHECK(readlink("p/l", link, 1) == 1 && link[0] == 'q');
    REFUSED(readlink("file", link, 10), EINVAL);
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    CHECK(readlink(proc, full, sizeof full) > 0 && !strncmp(full, here, strlen(here)));
    int again = open(proc, O_RDONLY);
    CHECK(again >= 0 && read(again, link, 20) == 5);
    char deep[PATH_MAX] = "deep", name[256];
    memset(name, 'n', 255), name[255] = 0;
    CHECK(mkdir(deep, 0755) == 0 && chdir(deep) == 0);
    for (int i = 0; i < 30; i++) CHECK(mkdir(name, 0755) == 0 && chdir(name) == 0);
    for (int i = 0; i < 30; i++) CHECK(chdir("..") == 0 && rmdir(name) == 0);
    CHECK(chdir("..") == 0 && rmdir("deep") == 0);
    CHECK(mkdir("lost", 0755) == 0 && chdir("lost") == 0 && rmdir("../lost") == 0);
    REFUSED(open("new", O_CREAT | O_WRONLY, 0644), ENOENT);
    REFUSED(getcwd(full, sizeof full) ? 0 : -1, ENOENT);
    CHECK(chdir(here) == 0);
}

static int visited;
static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    visited++;
    return path && st && ftw->level >= 0 && type != FTW_NS ? 0 : 1;
}

static void folders(void) {
    CHECK(mkdir("f", 0755) == 0 && mkdir("f/sub", 0755) == 0);
    char name[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "f/%04d", i);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
    DIR *d = opendir("f");
    CHECK(d);
    int n = 0;
    long place = 0;
    char at_place[256] = "";
    for (struct dirent *e; (e = readdir(d)); n++) {
        CHECK(e->d_ino && (e->d_type == DT_REG || e->d_type == DT_DIR));
        if (n == 500) strcpy(at_place, e->d_name);
        if (n == 499) place = telldir(d);
    }
    CHECK(n == 1003);
    seekdir(d, place);
    CHECK(!strcmp(readdir(d)->d_name, at_place));
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));) /* removing while reading loses no entry */
        if (e->d_type == DT_REG && (atoi(e->d_name) & 1)) CHECK(unlinkat(dirfd(d), e->d_name, 0) == 0);
    rewinddir(d);
    for (n = 0; readdir(d); n++) {}
    CHECK(n == 503 && closedir(d) == 0);
    CHECK(nftw("f", visit, 10, FTW_PHYS) == 0 && visited == 502);
    visited = 0;
    CHECK(nftw("f", visit, 10, FTW_CHDIR | FTW_DEPTH) == 0 && visited == 502);
    glob_t found;
    CHECK(glob("f/00*[24]", 0, NULL, &found) == 0 && found.gl_pathc == 20);
    struct dirent **list;
    CHECK(scandir("f", &list, NULL, alphasort) == 503 && !strcmp(list[2]->d_name, "0000"));
    struct statfs fs;
    struct statvfs vfs;
    CHECK(statfs("f", &fs) == 0 && fs.f_bsize == 4096 && fs.f_bavail <= fs.f_blocks && fs.f_namelen == 255);
    CHECK(statvfs("f", &vfs) == 0 && vfs.f_frsize > 0 && vfs.f_namemax == 255);
    int fd = open("f", O_RDONLY);
    char buffer[100];
    REFUSED(read(fd, buffer, 10), EISDIR);
    REFUSED(syscall(SYS_getdents64, fd, buffer, 10), EINVAL);
    CHECK(syscall(SYS_getdents64, fd, buffer, 100) > 0);
    CHECK(fsync(fd) == 0);
}

static void names_of_the_program(void) {
    CHECK(strcmp(program_invocation_short_name, "calls") == 0);
    CHECK(strstr(program_invocation_name, "/calls") != NULL);
}

static void streams(void) {
    FILE *f = fopen("s", "w+");
    CHECK(f);
    for (int i = 0; i < 5000; i++) fprintf(f, "line %d\n", i);
    CHECK(fseek(f, 0, SEEK_SET) == 0);
    char line[64];
    int n = 0;
    while (fgets(line, sizeof line, f)) CHECK(atoi(line + 5) == n++);
    CHECK(n == 5000 && fseek(f, -10, SEEK_END) == 0 && fgetc(f) == 'l' && ungetc('L', f) == 'L' && fgetc(f) == 'L');
    CHECK(freopen("s", "a+", f) && fputs("end\n", f) >= 0 && fflush(f) == 0 && ftell(f) == 48894 && fclose(f) == 0);
    CHECK((f = fopen("s", "r+e")) && fputs("LINE", f) >= 0 && fseeko(f, 5, SEEK_SET) == 0 && fgetc(f) == '0' && fclose(f) == 0);
    CHECK(!fopen("s", "wx") && errno == EEXIST);
    CHECK((f = popen("cat s | wc -c", "r")) && fgets(line, sizeof line, f) && atoi(line) == 48894 && pclose(f) == 0);
    CHECK((f = popen("cat >piped", "w")) && fputs("through\n", f) >= 0 && pclose(f) == 0);
    struct stat st;
    CHECK(stat("piped", &st) == 0 && st.st_size == 8);
    char pattern[] = "mkXXXXXX", folder[] = "dirXXXXXX";
    int fd = mkstemp(pattern);
    CHECK(fd >= 0 && (f = fdopen(fd, "w")) && fputs("x", f) >= 0 && fclose(f) == 0 && mkdtemp(folder) && rmdir(folder) == 0);
    CHECK(system("echo from system >sys && test -s sys") == 0);
    CHECK(remove("sys") == 0 && access("sys", F_OK) == -1);
    char *text = NULL;
    size_t size = 0;
    CHECK((f = fopen("s", "r")) && getdelim(&text, &size, 0, f) == 48894 && feof(f));
    CHECK(aio_read(&(struct aiocb){.aio_fildes = fileno(f), .aio_buf = line, .aio_nbytes = 4}) == 0);
    sleep(0);
}

static void children(void) {
    int fd = new_file("c", "");
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "echo vforked >c", NULL);
        _exit(9);
    }
    int status;
    char text[64] = "";
    CHECK(waitpid(child, &status, 0) == child && status == 0 && pread(fd, text, 64, 0) == 8);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_addchdir_np(&actions, "/");
    char *argv[] = {"sh", "-c", "pwd; echo err >&2", NULL};
    CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, argv, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK((fd = open("spawned", O_RDONLY)) >= 0 && read(fd, text, 64) == 6 && !memcmp(text, "/\nerr\n", 6));
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        CHECK(chdir("/") == 0 && lseek(fd, 2, SEEK_SET) == 2);
        close(fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && lseek(fd, 0, SEEK_CUR) == 2);
    CHECK(access("spawned", F_OK) == 0);
    char *none[] = {NULL}, *args[] = {"ls", "spawned", NULL};
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        close(1);
        open("ls", O_CREAT | O_WRONLY, 0600);
        execve("/bin/ls", args, none);
        _exit(9);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && (fd = open("ls", O_RDONLY)) >= 0 && read(fd, text, 64) == 8);
}

static volatile sig_atomic_t alarms;
static int alarm_fd;
static void on_alarm(int signal) {
    (void)signal;
    int saved = errno;
    if (pwrite(alarm_fd, "alarm", 5, (alarms++ % 1000) * 5) != 5) abort();
    struct stat st;
    if (stat("sig", &st) || st.st_size == 0) abort();
    errno = saved;
}

static void *append_many(void *argument) {
    for (int i = 0; i < 2000; i++) {
        char line[16];
        int n = snprintf(line, sizeof line, "%c%06d\n", *(char *)argument, i);
        if (write(alarm_fd + 1, line, n) != n) abort();
    }
    return NULL;
}

static void signals_and_threads(void) {
    int fd = new_file("sig", "first");
    alarm_fd = 500;
    CHECK(dup2(fd, 500) == 500 && dup2(open("app", O_CREAT | O_APPEND | O_WRONLY, 0600), 501) == 501);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 500}, {0, 500}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, append_many, "abcd" + i) == 0);
    char block[8192], name[32];
    for (int i = 0; i < 3000 || alarms < 20; i++) {
        memset(block, i, sizeof block);
        snprintf(name, sizeof name, "sig-%d", i % 10);
        int one = open(name, O_CREAT | O_RDWR, 0600);
        CHECK(one >= 0 && pwrite(one, block, sizeof block, 100) == sizeof block && close(one) == 0);
        if (i % 3 == 0) CHECK(unlink(name) == 0);
    }
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL) == 0 && alarms >= 20);
    struct stat st;
    CHECK(stat("app", &st) == 0 && st.st_size == 4 * 2000 * 8);
}

static void *cancelled(void *fd) {
    char block[4096];
    for (;;) {
        if (pread(*(int *)fd, block, sizeof block, 0) < 0) abort();
        pthread_testcancel();
    }
}

static void cancellation(void) {
    int fd = new_file("cancel", "0123");
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, cancelled, &fd) == 0);
        usleep(1000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(pwrite(fd, "x", 1, 0) == 1);
}

static void on_bus(int signal) {
    (void)signal;
    _exit(42);
}

static void mappings(void) {
    int fd = new_file("m", "");
    CHECK(ftruncate(fd, 5 * 4096) == 0);
    char *m = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), byte;
    CHECK(m != MAP_FAILED);
    strcpy(m + 4096, "written by memory");
    CHECK(pread(fd, &byte, 1, 4096) == 1 && byte == 'w' && pwrite(fd, "W", 1, 4096) == 1 && m[4096] == 'W');
    CHECK(msync(m, 4096, MS_SYNC) == 0 && madvise(m, 4096, MADV_WILLNEED) == 0);
    char *second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, open("m", O_RDONLY), 4096);
    CHECK(second != MAP_FAILED && second[0] == 'W');
    m[4096] = 'V';
    CHECK(second[0] == 'V' && mprotect(m, 4096, PROT_READ) == 0);
    char *private = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 4096);
    CHECK(private != MAP_FAILED && private[0] == 'V');
    private[0] = 'P';
    CHECK(m[4096] == 'V');
    m = mremap(m + 2 * 4096, 2 * 4096, 3 * 4096, MREMAP_MAYMOVE);
    CHECK(m != MAP_FAILED);
    m[2 * 4096] = 'r';
    CHECK(pread(fd, &byte, 1, 4 * 4096) == 1 && byte == 'r');
    CHECK(close(fd) == 0);
    m[0] = 's';
    CHECK((fd = open("m", O_RDWR)) >= 0 && pread(fd, &byte, 1, 2 * 4096) == 1 && byte == 's');
    REFUSED(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, open("m", O_RDONLY), 0) == MAP_FAILED ? -1 : 0, EACCES);
    REFUSED(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 100) == MAP_FAILED ? -1 : 0, EINVAL);
    pid_t child = fork();
    if (child == 0) {
        m[1] = 'c';
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && m[1] == 'c');
    CHECK(munmap(m, 3 * 4096) == 0);
    char *beyond = mmap(NULL, 10 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(beyond != MAP_FAILED && beyond[5 * 4096 - 1] == 0);
    if ((child = fork()) == 0) {
        signal(SIGBUS, on_bus);
        byte = *(volatile char *)(beyond + 6 * 4096);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
    CHECK(mmap(beyond, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 4096) == beyond && beyond[0] == 'V');
    CHECK(unlink("m") == 0 && close(fd) == 0);
    beyond[0] = 'u';
    CHECK(beyond[0] == 'u' && munmap(beyond, 10 * 4096) == 0);
}

static void locks(void) {
    int fd = new_file("lock", "0123456789"), other = open("lock", O_RDWR);
    struct flock ofd = {.l_type = F_WRLCK, .l_start = 2, .l_len = 3}, probe = {.l_type = F_RDLCK};
    CHECK(fcntl(fd, F_OFD_SETLK, &ofd) == 0 && fcntl(other, F_OFD_GETLK, &probe) == 0);
    CHECK(probe.l_type == F_WRLCK && probe.l_start == 2 && probe.l_len == 3 && probe.l_pid == -1);
    REFUSED(fcntl(other, F_OFD_SETLK, &ofd), EAGAIN);
    ofd.l_type = F_UNLCK;
    CHECK(fcntl(fd, F_OFD_SETLK, &ofd) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_start = 5};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && fcntl(other, F_SETLK, &lock) == 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        struct flock theirs = {.l_type = F_RDLCK, .l_start = 0};
        CHECK(fcntl(fd, F_GETLK, &theirs) == 0 && theirs.l_type == F_WRLCK && theirs.l_pid == parent && theirs.l_start == 5);
        theirs = (struct flock){.l_type = F_WRLCK, .l_start = 0, .l_len = 5};
        CHECK(fcntl(fd, F_SETLK, &theirs) == 0);
        REFUSED(fcntl(fd, F_SETLK, &lock), EAGAIN);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(other) == 0);
    if ((child = fork()) == 0) {
        CHECK(fcntl(fd, F_SETLK, &lock) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(flock(fd, LOCK_EX) == 0 && (other = open("lock", O_RDONLY)) >= 0);
    REFUSED(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    CHECK(flock(fd, LOCK_SH) == 0 && flock(other, LOCK_SH | LOCK_NB) == 0);
    CHECK(lockf(fd, F_TLOCK, 0) == 0 && lockf(fd, F_ULOCK, 0) == 0);
    struct sigaction action = {.sa_handler = on_alarm};
    alarm_fd = new_file("sig", "x");
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && flock(fd, LOCK_EX | LOCK_NB) == -1);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){{0, 50000}, {0, 50000}}, NULL) == 0);
    REFUSED(flock(open("lock", O_RDONLY), LOCK_EX), EINTR);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL) == 0);
}

static void times_and_modes(void) {
    int fd = new_file("t", "x");
    struct timespec times[2] = {{1, 5}, {2, 999999999}};
    struct stat st, before;
    CHECK(futimens(fd, times) == 0 && fstat(fd, &st) == 0 && st.st_atim.tv_nsec == 5 && st.st_mtim.tv_nsec == 999999999);
    times[0].tv_nsec = UTIME_OMIT, times[1].tv_nsec = UTIME_NOW;
    CHECK(utimensat(AT_FDCWD, "t", times, 0) == 0 && stat("t", &st) == 0 && st.st_atim.tv_sec == 1 && st.st_mtim.tv_sec > 1000000000);
    CHECK(stat("t", &before) == 0 && usleep(20000) == 0 && write(fd, "y", 1) == 1 && stat("t", &st) == 0);
    CHECK(st.st_mtim.tv_sec > before.st_mtim.tv_sec || st.st_mtim.tv_nsec > before.st_mtim.tv_nsec);
    CHECK(stat(".", &before) == 0 && usleep(20000) == 0 && rename("t", "t2") == 0 && stat(".", &st) == 0);
    CHECK(st.st_mtim.tv_sec > before.st_mtim.tv_sec || st.st_mtim.tv_nsec > before.st_mtim.tv_nsec);
    CHECK(fchmod(fd, 04755) == 0 && fstat(fd, &st) == 0 && (st.st_mode & 07777) == 04755);
    umask(0);
    CHECK(mkdir("tm", 0777) == 0 && stat("tm", &st) == 0 && (st.st_mode & 07777) == 0777);
    umask(077);
    CHECK(mknod("tn", S_IFREG | 0666, 0) == 0 && stat("tn", &st) == 0 && (st.st_mode & 07777) == 0600);
    if (geteuid() == 0) {
        CHECK(fchown(fd, 12, 34) == 0 && fstat(fd, &st) == 0 && st.st_uid == 12 && st.st_gid == 34 && (st.st_mode & 04000) == 0);
        CHECK(lchown("t2", -1, 56) == 0 && fstat(fd, &st) == 0 && st.st_uid == 12 && st.st_gid == 56);
        CHECK(seteuid(1000) == 0);
        REFUSED(chmod("t2", 0777), EPERM);
        REFUSED(open("tn", O_RDONLY), EACCES);
        REFUSED(access("t2", W_OK) == 0 ? access("tn", 8) : -1, EINVAL);
        CHECK(seteuid(0) == 0 && open("tn", O_RDONLY) >= 0);
    }
}

static void never_silently_wrong(void) {
    /* What is not served must fail, and must not do something else. */
    int fd = new_file("n", "content");
    int queue = syscall(SYS_io_setup, 1, &(unsigned long){0});
    (void)queue;
    CHECK(ioctl(fd, TCGETS, &(char[256]){0}) == -1 && errno == ENOTTY && !isatty(fd));
    REFUSED(getsockname(fd, (struct sockaddr *)&(char[128]){0}, &(socklen_t){128}), ENOTSOCK);
    REFUSED(pwrite(fd, "x", 1, LONG_MAX), EINVAL);
    REFUSED(syscall(SYS_renameat2, AT_FDCWD, "n", AT_FDCWD, "n2", 1 << 10), EINVAL);
    REFUSED(unlinkat(AT_FDCWD, "n", 0x4000), EINVAL);
    REFUSED(syscall(SYS_statx, AT_FDCWD, "n", 1 << 20, 0, &(struct statx){0}), EINVAL);
    struct stat st;
    CHECK(stat("n", &st) == 0 && st.st_size == 7);
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    char got[8];
    CHECK(sendfile(sockets[0], fd, &(off_t){3}, 10) == 4 && read(sockets[1], got, 8) == 4 && !memcmp(got, "tent", 4));
    struct pollfd polled = {fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&polled, 1, 1000) == 1 && polled.revents == (POLLIN | POLLOUT));
}

static int run(const char *name, void (*group)(void)) {
    pid_t child = fork();
    if (child == 0) {
        group();
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fprintf(stderr, "FAILED: %s: died of signal %d\n", name, WTERMSIG(status));
    printf("%-24s %s\n", name, status ? "FAILED" : "ok");
    fflush(stdout);
    return status != 0;
}

int main(void) {
    int failed = 0;
#define RUN(group) failed += run(#group, group)
    RUN(descriptors);
    RUN(vectors_and_flags);
    RUN(allocation);
    RUN(copies);
    RUN(paths);
    RUN(folders);
    RUN(streams);
    RUN(names_of_the_program);
    RUN(children);
    RUN(signals_and_threads);
    RUN(cancellation);
    RUN(mappings);
    RUN(locks);
    RUN(times_and_modes);
    RUN(never_silently_wrong);
    return failed != 0;
}
