/* Paths of the host, some of which links lead into a pool: calls that enter by symbols of the C library's names answer as system
 * calls do. No file of a pool is opened but in children, as calls take other ways afterwards. */
#include "check.h"

#define SIZE 77

static int folder;
/* What was asked for last may change how the next question is put. */
static const char *before;

static const char *shown(const char *path) { return (size_t)path > PAGE ? path : "no path"; }

#define SAME(call, number, ...)                                                                           \
    do {                                                                                                  \
        stat(before, (struct stat *)&one);                                                                \
        memset(&one, 1, sizeof one), memset(&other, 1, sizeof other);                                     \
        errno = 0;                                                                                        \
        long first = call, error = errno, second = syscall(number, __VA_ARGS__);                          \
        if (first != second || error != (first ? errno : 0) || memcmp(&one, &other, sizeof one)) {        \
            dprintf(2, "%s of %.60s: %ld %ld, not %ld %d\n", #call, shown(path), first, error, second, errno);   \
            failures++;                                                                                   \
        }                                                                                                 \
    } while (0)

static void told_after(const char *last, const char *path) {
    before = last;
    union { struct stat old; struct statx new; char text[300]; } one, other;
    SAME(stat(path, &one.old), SYS_stat, path, &other);
    SAME(lstat(path, &one.old), SYS_lstat, path, &other);
    int flags[] = {0, AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, 1};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        SAME(fstatat(folder, path, &one.old, flags[i]), SYS_newfstatat, folder, path, &other, flags[i]);
        SAME(statx(folder, path, flags[i], STATX_ALL, &one.new), SYS_statx, folder, path, flags[i], STATX_ALL, &other);
    }
    SAME(stat(path, (void *)16), SYS_stat, path, 16);
    for (int mode = F_OK; mode <= R_OK; mode++) SAME(access(path, mode), SYS_access, path, mode);
    SAME(readlink(path, one.text, sizeof one), SYS_readlink, path, &other, sizeof other);
    SAME(readlinkat(folder, path, one.text, sizeof one), SYS_readlinkat, folder, path, &other, sizeof other);
}

static void told(const char *path) {
    told_after("near", path);
    told_after("none", path);
}

/* What a child gets by opening: which file, or why not. */
static struct { long error; dev_t device; ino_t number; off_t size; } *got;

/* What the compiler makes of an open without a mode in a program that is built to be checked. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int at, const char *path, int flags);
int __openat64_2(int at, const char *path, int flags);

enum { WAYS = 7, SYSTEM_CALL = 2, CHECKED = 3 };

static long open_by(int way, const char *path, int flags) {
    switch (way) {
    case 0: return open(path, flags, 0600);
    case 1: return openat(folder, path, flags, 0600);
    case SYSTEM_CALL: return syscall(SYS_openat, folder, path, flags, 0600);
    case CHECKED: return __open_2(path, flags);
    case 4: return __open64_2(path, flags);
    case 5: return __openat_2(folder, path, flags);
    default: return __openat64_2(folder, path, flags);
    }
}

static void open_in_child(int way, const char *path, int flags) {
    memset(got, 0, sizeof *got);
    pid_t child = fork();
    if (child == 0) {
        struct stat found;
        long fd = open_by(way, path, flags);
        got->error = fd < 0 ? errno : fstat(fd, &found);
        if (fd >= 0) got->device = found.st_dev, got->number = found.st_ino, got->size = found.st_size;
        _exit(0);
    }
    CHECK(status_of(child) == 0);
}

static void opened(const char *path) {
    const int flags[] = {O_RDONLY, O_RDWR | O_NOFOLLOW, O_PATH | O_NOFOLLOW, O_RDONLY | O_CREAT | O_EXCL, O_RDWR | O_CREAT};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        const char *some = shown(path);
        if (flags[i] & O_CREAT && strncmp(some, "new", 3) && strncmp(some, "away", 4) && strncmp(some, "in", 2)) continue;
        char found[WAYS][sizeof *got];
        const int ways = flags[i] & O_CREAT ? CHECKED : WAYS;
        for (int way = 0; way < ways; way++) {
            open_in_child(way, path, flags[i]);
            if (flags[i] & O_CREAT && !got->error) got->number = 0, unlink("in/made"), unlink("in/none");
            memcpy(found[way], got, sizeof *got);
        }
        for (int way = 0; way < ways; way++) {
            if (!memcmp(found[way], found[SYSTEM_CALL], sizeof *got)) continue;
            dprintf(2, "open of %.60s, %#x, way %d: %ld, not %ld\n", some, flags[i], way, *(long *)found[way], *(long *)found[SYSTEM_CALL]);
            failures++;
        }
    }
}

/* A checked open that would need a mode ends the program. */
static void modes_are_missed(void) {
    for (int way = CHECKED; way < WAYS; way++) {
        for (int flags = O_CREAT; flags; flags = flags == O_CREAT ? O_TMPFILE : 0) {
            pid_t child = fork();
            if (child == 0) {
                dup2(open("/dev/null", O_WRONLY), 2);
                open_by(way, "plain", flags | O_RDWR);
                _exit(0);
            }
            CHECK(status_of(child) == 1000 + SIGABRT);
        }
    }
}

/* A path whose end is that of the mapped memory, and one that has no end there. */
static void at_the_end_of_memory(void) {
    char *memory = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *end = memory + PAGE;
    struct stat found;
    CHECK(memory != MAP_FAILED && !munmap(end, PAGE));
    for (int len = 1; len < 40; len++) {
        char *path = end - len - 1;
        memset(path, 'a', len), path[len] = 0;
        CHECK(lstat(path, &found) == -1 && errno == ENOENT && open(path, O_RDONLY) == -1 && errno == ENOENT);
        path[len] = 'a';
        CHECK(lstat(path, &found) == -1 && errno == EFAULT && open(path, O_RDONLY) == -1 && errno == EFAULT);
        CHECK(syscall(SYS_newfstatat, folder, path, &found, AT_EMPTY_PATH) == -1 && errno == EFAULT);
    }
    strcpy(end - 6, "plain");
    CHECK(!stat(end - 6, &found) && S_ISREG(found.st_mode) && !munmap(memory, PAGE));
}

/* As the C library's fstat calls: no path, an empty one, another one, and none that can be read. */
static void of_descriptors(void) {
    struct stat one, other;
    int file = open("plain", O_RDONLY);
    const char *path = "", *paths[] = {"", "plain", (char *)8, 0};
    CHECK(file >= 0 && !fstat(file, &one) && !fcntl(folder, F_SETFD, FD_CLOEXEC));
    for (int i = 0; i < 4; i++) {
        int at = i == 1 ? folder : file;
        SAME(fstatat(at, paths[i], &one, AT_EMPTY_PATH), SYS_newfstatat, at, paths[i], &other, AT_EMPTY_PATH);
    }
    CHECK(!close(file) && fstat(file, &one) == -1 && errno == EBADF);
}

/* Absolute paths lead into the pool from wherever they are said to start. */
static void past_a_folder(const char *target) {
    struct stat found, there;
    char file[2 * PAGE + 8], link[40];
    snprintf(file, sizeof file, "%s/file", target);
    CHECK(!stat(target, &there) && !fstatat(folder, target, &found, 0) && found.st_ino == there.st_ino && found.st_dev == there.st_dev);
    CHECK(!fstatat(folder, file, &found, AT_SYMLINK_NOFOLLOW) && found.st_size == SIZE);
    for (int way = 0; way < 2 + 1; way++) {
        open_in_child(way, file, O_RDONLY);
        CHECK(!got->error && got->size == SIZE);
        open_in_child(way, target, O_RDONLY | O_DIRECTORY);
        CHECK(!got->error && got->number == there.st_ino && got->device == there.st_dev);
    }
    /* Another name of an open folder of the host. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    CHECK(!fstat(folder, &there) && !fstatat(folder, link, &found, 0) && found.st_ino == there.st_ino);
}

int main(void) {
    /* What is above is nobody else's, either: it is looked at twice. */
    char own[] = "/dev/shm/nacre-hosts-XXXXXX", host[sizeof own + 5], base[PAGE], target[2 * PAGE], absolute[4 * PAGE], name[301], deep[PAGE + 2];
    struct stat stat_of, link;
    CHECK(getcwd(base, sizeof base) && !mkdir("folder", 0700) && !mknod("folder/file", S_IFREG | 0644, 0));
    CHECK(!truncate("folder/file", SIZE) && mkdtemp(own) && sprintf(host, "%s/host", own) && !mkdir(host, 0700));
    CHECK(!chdir(host) && !mkdir("sub", 0700));
    CHECK(!mknod("plain", S_IFREG | 0644, 0) && (folder = open(host, O_RDONLY | O_DIRECTORY)) >= 0);
    snprintf(target, sizeof target, "%s/folder", base);
    CHECK(!symlink(target, "in") && !symlink("in/file", "file") && !symlink("in/made", "new") && !symlink("in/none", "gone"));
    CHECK(!symlink("/nowhere/none", "away") && !symlink("loop", "loop") && !symlink("plain", "near"));
    CHECK(!symlink("../in", "sub/up") && !symlink("sub/up/file", "deep"));
    got = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(name, 'n', 300), name[300] = 0;
    for (int i = 0; i < PAGE; i += 2) memcpy(deep + i, "a/", 2);
    deep[PAGE] = 0;
    const char *paths[] = {"in", "in/", "in/file", "in/none", "in/file/x", "file", "file/", "new", "new/", "gone", "gone/x", "away",
                           "away/x", "loop", "loop/", "loop/x", "near", "near/", "near/x", "plain", "plain/", "plain/x", "sub", "sub/",
                           "sub/none", "sub/none/x/y", "none", "none/", "none/x", "sub/up", "sub/up/", "sub/up/file", "sub/up/none",
                           "deep", "deep/x", "./plain", "./file", "../none", ".", "..", "sub/../in/file", "sub//up/file", "", ".none",
                           "..none/x", name, deep, deep + 1, deep + 2, (char *)8, 0};
    /* Descriptors of the host are marked by the first call. */
    CHECK(!fstat(folder, &stat_of));
    past_a_folder(target);
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        told(paths[i]);
        if ((size_t)paths[i] <= PAGE) continue;
        snprintf(absolute, sizeof absolute, "%s/%s", host, paths[i]);
        told(absolute);
        snprintf(absolute, sizeof absolute, "//%s/sub/../%s", host, paths[i]);
        told(absolute);
        snprintf(absolute, sizeof absolute, "%s/%s", target, paths[i]);
        told(absolute);
    }
    told(base), told(target), told("/"), told("/proc/self/fd/0");
    CHECK(!stat("deep", &stat_of) && stat_of.st_size == SIZE && !lstat("deep", &link) && S_ISLNK(link.st_mode));
    CHECK(!fstatat(folder, "in/file", &link, AT_SYMLINK_NOFOLLOW) && link.st_ino == stat_of.st_ino);
    CHECK(!access("file", R_OK) && access("gone", F_OK) == -1 && errno == ENOENT && stat("new", &link) == -1);
    CHECK(!lstat("in/", &link) && S_ISDIR(link.st_mode) && stat("loop", &link) == -1 && errno == ELOOP);
    at_the_end_of_memory();
    of_descriptors();
    modes_are_missed();
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) opened(paths[i]);
    open_in_child(0, "new", O_RDWR | O_CREAT);
    CHECK(!got->error && !stat("in/made", &stat_of) && stat_of.st_ino == got->number && stat_of.st_dev == got->device);
    const char *made[] = {"in/made", "in", "file", "new", "gone", "away", "loop", "near", "sub/up", "deep", "plain"};
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++) CHECK(!unlink(made[i]));
    CHECK(!rmdir("sub") && !rmdir(host) && !rmdir(own));
    return failures;
}
