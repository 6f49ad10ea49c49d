/* What chattr, extended attributes, statx, leases, watches of folders and chroot find on a pool. */
#include "check.h"
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static void chattr(int fd) {
    int flags = -1, immutable = FS_IMMUTABLE_FL, none = 0;
    CHECK(!ioctl(fd, FS_IOC_GETFLAGS, &flags) && flags == 0);
    CHECK(!ioctl(fd, FS_IOC_SETFLAGS, &none));
    CHECK(ioctl(fd, FS_IOC_SETFLAGS, &immutable) == -1 && errno == EOPNOTSUPP);
    CHECK(ioctl(fd, FS_IOC_SETFLAGS, 8) == -1 && errno == EFAULT);
    struct fsxattr more = {.fsx_xflags = 5, .fsx_projid = 5};
    CHECK(!ioctl(fd, FS_IOC_FSGETXATTR, &more) && !more.fsx_xflags && !more.fsx_projid);
    CHECK(!ioctl(fd, FS_IOC_FSSETXATTR, &more));
    more.fsx_projid = 5;
    CHECK(ioctl(fd, FS_IOC_FSSETXATTR, &more) == -1 && errno == EOPNOTSUPP);
    CHECK(!ioctl(fd, FS_IOC_GETFLAGS, &flags) && flags == 0);
}

/* The same by the calls of Linux 6.17, of a path or a descriptor. */
static void chattr_by_path(int fd) {
    enum { GET = 468, SET };
    uint64_t attributes[3] = {0};
    int host = open("/etc", O_RDONLY | O_DIRECTORY), dir = open(".", O_RDONLY | O_DIRECTORY);
    if (syscall(GET, host, "passwd", attributes, sizeof attributes, 0) == -1 && errno == ENOSYS) return;
    for (int call = GET; call <= SET; call++) {
        CHECK(syscall(call, dir, "f", attributes, sizeof attributes, 0) == -1 && errno == EOPNOTSUPP);
        CHECK(syscall(call, host, "/nacre/d/f", attributes, sizeof attributes, 0) == -1 && errno == EOPNOTSUPP);
        CHECK(syscall(call, fd, "", attributes, sizeof attributes, AT_EMPTY_PATH) == -1 && errno == EOPNOTSUPP);
        CHECK(syscall(call, dir, "none", attributes, sizeof attributes, 0) == -1 && errno == ENOENT);
        CHECK(syscall(call, fd, "", attributes, sizeof attributes, 0) == -1 && errno == ENOENT);
        CHECK(syscall(call, dir, "f", attributes, sizeof attributes, 0x8000) == -1 && errno == EINVAL);
    }
}

static struct statx statx_of(const char *path) {
    struct statx found = {0};
    CHECK(!statx(AT_FDCWD, path, 0, STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID, &found));
    CHECK((found.stx_mask & (STATX_BASIC_STATS | STATX_BTIME)) == (STATX_BASIC_STATS | STATX_BTIME));
    CHECK(found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT && !(found.stx_attributes & ~found.stx_attributes_mask));
    return found;
}

static void fields(void) {
    struct stat old;
    struct statx root = statx_of("/nacre"), file = statx_of("f");
    CHECK(root.stx_attributes & STATX_ATTR_MOUNT_ROOT && !(file.stx_attributes & STATX_ATTR_MOUNT_ROOT));
    CHECK(!stat("f", &old) && file.stx_size == 4 && file.stx_nlink == 1 && file.stx_mode == old.st_mode);
    CHECK(file.stx_ino == old.st_ino && makedev(file.stx_dev_major, file.stx_dev_minor) == old.st_dev);
    CHECK(file.stx_blocks == old.st_blocks && file.stx_blksize == old.st_blksize && file.stx_uid == old.st_uid);
    CHECK(file.stx_mtime.tv_sec == old.st_mtim.tv_sec && file.stx_mtime.tv_nsec == old.st_mtim.tv_nsec);
    CHECK(file.stx_btime.tv_sec <= file.stx_ctime.tv_sec && file.stx_btime.tv_sec > 0);
}

/* What is refused, and never reaches another file meanwhile. */
static void refused(int fd) {
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(fcntl(fd, F_GETLEASE) == F_UNLCK);
    CHECK(fcntl(fd, F_SETLEASE, F_WRLCK) == -1 && errno == EINVAL);
    CHECK(fcntl(dir, F_NOTIFY, DN_CREATE) == -1 && errno == EINVAL);
    if (geteuid()) return;
    CHECK(chroot(".") == -1 && errno == EOPNOTSUPP);
    CHECK(chroot("/nacre") == -1 && errno == EOPNOTSUPP);
    CHECK(chroot("f") == -1 && errno == ENOTDIR);
    CHECK(chroot("/nacre/none") == -1 && errno == ENOENT);
    /* A folder of the host may be the root; the pool stays where it was. */
    pid_t child = fork();
    if (!child) {
        CHECK(!chdir("/usr") && !chroot("/usr") && access("/bin", X_OK) == 0);
        CHECK(holds(open("/nacre/d/f", O_RDONLY), 0, "text"));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
}

/* What an absolute path leads to if a folder is its root: never out of it, be it the pool's or the host's. */
static void roots(void) {
    struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_IN_ROOT};
    int pool = open(".", O_RDONLY | O_DIRECTORY), host = open("/etc", O_RDONLY | O_DIRECTORY);
    CHECK(holds(syscall(SYS_openat2, pool, "/f", &how, sizeof how), 0, "text"));
    CHECK(holds(syscall(SYS_openat2, pool, "//../f", &how, sizeof how), 0, "text"));
    CHECK(syscall(SYS_openat2, pool, "/", &how, sizeof how) >= 0);
    CHECK(syscall(SYS_openat2, pool, "/nacre/d/f", &how, sizeof how) == -1 && errno == ENOENT);
    CHECK(syscall(SYS_openat2, host, "/nacre/d/f", &how, sizeof how) == -1 && errno == ENOENT);
    CHECK(syscall(SYS_openat2, host, "/passwd", &how, sizeof how) >= 0);
}

/* Extended attributes of what a folder's descriptor and a path name, or a descriptor alone (Linux 6.13). */
static long attribute(int call, int dir, const char *path, int flags, const char *name, void *value, unsigned size, unsigned how) {
    struct { uint64_t value; uint32_t size, flags; } args = {(uintptr_t)value, size, how};
    return syscall(call, dir, path, flags, name, &args, sizeof args);
}

static void attributes_below_folders(int fd) {
    enum { SET = 463, GET, LIST, REMOVE };
    char room[64] = "";
    int host = open("/etc", O_RDONLY | O_DIRECTORY), dir = open(".", O_RDONLY | O_DIRECTORY);
    if (syscall(LIST, host, "passwd", 0, room, 0) == -1 && errno == ENOSYS) return;
    CHECK(!symlink("f", "link") && dir >= 0);
    CHECK(!attribute(SET, dir, "f", 0, "user.one", "value", 5, XATTR_CREATE));
    CHECK(attribute(SET, dir, "f", 0, "user.one", "value", 5, XATTR_CREATE) == -1 && errno == EEXIST);
    CHECK(attribute(GET, dir, "f", 0, "user.one", room, sizeof room, 0) == 5 && !strcmp(room, "value"));
    CHECK(getxattr("f", "user.one", room, 0) == 5);
    CHECK(attribute(GET, dir, "link", 0, "user.one", room, 0, 0) == 5);
    CHECK(attribute(GET, dir, "link", AT_SYMLINK_NOFOLLOW, "user.one", room, 0, 0) == -1 && errno == ENODATA);
    CHECK(attribute(GET, host, "/nacre/d/f", 0, "user.one", room, 0, 0) == 5);
    CHECK(attribute(GET, dir, "none", 0, "user.one", room, 0, 0) == -1 && errno == ENOENT);
    CHECK(attribute(GET, dir, "f", 0x8000, "user.one", room, 0, 0) == -1 && errno == EINVAL);
    CHECK(attribute(GET, dir, "f", 0, "user.one", room, 0, XATTR_CREATE) == -1 && errno == EINVAL);
    CHECK(syscall(LIST, dir, "f", 0, room, sizeof room) == 9 && !strcmp(room, "user.one"));
    CHECK(!syscall(REMOVE, dir, "f", 0, "user.one") && getxattr("f", "user.one", room, 0) == -1);
    CHECK(!attribute(SET, fd, "", AT_EMPTY_PATH, "user.two", "2", 1, 0));
    CHECK(attribute(GET, fd, NULL, AT_EMPTY_PATH, "user.two", room, sizeof room, 0) == 1 && *room == '2');
    CHECK(attribute(GET, fd, "", 0, "user.two", room, 0, 0) == -1 && errno == ENOENT);
    CHECK(syscall(LIST, fd, "", AT_EMPTY_PATH, room, sizeof room) == 9 && !strcmp(room, "user.two"));
    CHECK(!syscall(REMOVE, fd, "", AT_EMPTY_PATH, "user.two"));
    CHECK(syscall(LIST, dir, "f", 0, room, sizeof room) == 0 && flistxattr(fd, room, sizeof room) == 0);
}

int main(void) {
    int fd = file_with("f", "text");
    roots();
    attributes_below_folders(fd);
    chattr(fd);
    chattr_by_path(fd);
    fields();
    refused(fd);
    return failures;
}
