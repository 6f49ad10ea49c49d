// Every operation with 0, 1, 2 ... free units left: it succeeds, or fails with ENOSPC and nothing has changed; with space
// it succeeds then; and when all is removed every unit has come back.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MOST = 14, NAMES = 45 };

static const char *doing = "start";
static int left, filler;
static char bytes[1 << 20];

static void complain(const char *format, ...) {
    int saved = errno;
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s with %d units free: ", doing, left);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (errno %d: %s)\n", saved, strerror(saved));
    exit(1);
}
#define must(condition, ...) do { if (!(condition)) complain(__VA_ARGS__); } while (0)

static long free_units(void) {
    struct statvfs s;
    must(!statvfs("/nacre", &s), "statvfs");
    return s.f_bfree;
}

static void put(const char *name, size_t size, char byte) {
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    memset(bytes, byte, size);
    must(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && !close(fd), "cannot make %s", name);
}

// Leaves exactly `count` units.
static void fill_up(long count) {
    off_t end = 0;
    for (int round = 0; free_units() > count; round++) {
        long step = free_units() - count;
        must(round < 1000, "cannot fill the pool");
        if (step > 600) step -= step / 400 + 2;
        if (fallocate(filler, 0, end, step * 4096)) {
            must(errno == ENOSPC, "fallocate");
            if (fallocate(filler, 0, end, 4096)) break;
            step = 1;
        }
        end += step * 4096;
    }
    while (free_units() < count && end > 0) must(!ftruncate(filler, end -= 4096), "shrink the filler");
}

static void name_of(char *name, int i) { sprintf(name, "%0200d", i); }

// ---- operations: 0 or -1 with errno, as system calls

static int o_create(void) { int fd = open("n", O_CREAT | O_EXCL | O_WRONLY, 0600); return fd < 0 ? -1 : close(fd); }
static int o_create_long(void) { char name[256]; name_of(name, 999); int fd = open(name, O_CREAT | O_EXCL, 0600); return fd < 0 ? -1 : close(fd); }
static int o_mkdir(void) { return mkdir("n", 0700); }
static int o_create_below(void) { int fd = open("empty/n", O_CREAT | O_EXCL, 0600); return fd < 0 ? -1 : close(fd); }
static int o_symlink(void) { char to[900]; memset(to, 'x', sizeof to); to[899] = 0; return symlink(to, "n"); }
static int o_link(void) { char name[256]; name_of(name, 998); return link("f", name); }
static int o_rename(void) { char name[256]; name_of(name, 997); return rename("f", name); }
static int o_replace(void) { return rename("f", "g"); }
static int o_move(void) { return rename("f", "empty/f"); }
static int o_temporary(void) { int fd = open(".", O_TMPFILE | O_WRONLY, 0600); return fd < 0 ? -1 : close(fd); }
static int write_at(const char *name, int flags, off_t at, size_t count) {
    int fd = open(name, O_WRONLY | flags);
    must(fd >= 0, "open");
    memset(bytes, 'n', count);
    ssize_t got = flags & O_APPEND ? write(fd, bytes, count) : pwrite(fd, bytes, count, at);
    int saved = errno;
    close(fd);
    errno = saved;
    if (got < 0) return -1;
    // What fits may be written; the rest is refused.
    if ((size_t)got < count) { errno = ENOSPC; return -1; }
    return 0;
}
static int o_append(void) { return write_at("f", O_APPEND, 0, 3000); }
static int o_append_large(void) { return write_at("f", O_APPEND, 0, 30000); }
static int o_overwrite(void) { return write_at("f", 0, 4096, 8192); }
static int o_overwrite_part(void) { return write_at("f", 0, 4000, 5000); }
static int o_write_hole(void) { return write_at("holes", 0, 5 << 20, 9000); }
static int o_write_shared(void) { return write_at("clone", 0, 0, 12288); }
static int o_grow(void) { return truncate("f", 100000); }
static int o_xattr(void) { memset(bytes, 'a', 1500); return setxattr("f", "user.one", bytes, 1500, 0); }
static int o_xattr_large(void) { memset(bytes, 'a', 30000); return setxattr("f", "user.one", bytes, 30000, 0); }
static int o_allocate(void) { int fd = open("f", O_WRONLY), r = posix_fallocate(fd, 12288, 16384); close(fd); errno = r; return r ? -1 : 0; }
static int o_punch(void) {
    int fd = open("clone", O_WRONLY), r = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 6000), saved = errno;
    close(fd);
    errno = saved;
    return r;
}
static int o_clone(void) {
    int from = open("f", O_RDONLY), to = open("g", O_RDWR), r = ioctl(to, FICLONE, from), saved = errno;
    close(from), close(to);
    errno = saved;
    return r;
}
static int o_copy(void) {
    int from = open("f", O_RDONLY), to = open("g", O_RDWR);
    ssize_t got = copy_file_range(from, 0, to, 0, 12288, 0);
    int saved = got >= 0 && got < 12288 ? ENOSPC : errno;
    close(from), close(to);
    errno = saved;
    return got == 12288 ? 0 : -1;
}
static sigjmp_buf refused;
static void on_refusal(int signal) { siglongjmp(refused, 1); }
// A store into a hole needs a unit; SIGBUS says that there is none.
static int o_map(void) {
    int fd = open("holes", O_RDWR), failed;
    char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 1 << 20);
    must(m != MAP_FAILED, "map a hole");
    signal(SIGBUS, on_refusal);
    if (!(failed = sigsetjmp(refused, 1))) *(volatile char *)(m + 4096) = 'n';
    signal(SIGBUS, SIG_DFL);
    munmap(m, 8192);
    close(fd);
    errno = ENOSPC;
    return -failed;
}
static int o_unlink(void) { return unlink("f"); }
static int o_unlink_long(void) { char name[256]; name_of(name, 7); return unlink(name); }
static int o_rmdir(void) { return rmdir("empty"); }
static int o_cut(void) { return truncate("f", 5000); }
static int o_cut_shared(void) { return truncate("clone", 0); }
static int o_chmod(void) { return chmod("f", 0600); }
static int o_removexattr(void) { return removexattr("g", "user.there"); }

static struct operation {
    const char *name;
    int (*does)(void);
    int always; // makes room: must succeed without a free unit
} operations[] = {
    {"create", o_create, 0}, {"create among many", o_create_long, 0}, {"create below", o_create_below, 0},
    {"mkdir", o_mkdir, 0}, {"symlink", o_symlink, 0}, {"link", o_link, 0}, {"rename", o_rename, 0},
    {"rename over", o_replace, 0}, {"rename into", o_move, 0}, {"temporary", o_temporary, 0}, {"append", o_append, 0},
    {"append much", o_append_large, 0}, {"overwrite", o_overwrite, 0}, {"overwrite a part", o_overwrite_part, 0},
    {"write into a hole", o_write_hole, 0}, {"write to shared units", o_write_shared, 0}, {"grow", o_grow, 0},
    {"xattr", o_xattr, 0}, {"large xattr", o_xattr_large, 0}, {"allocate", o_allocate, 0}, {"punch", o_punch, 0},
    {"clone", o_clone, 0}, {"copy", o_copy, 0}, {"map", o_map, 0}, {"unlink", o_unlink, 1},
    {"unlink one of many", o_unlink_long, 1}, {"rmdir", o_rmdir, 1}, {"truncate", o_cut, 1},
    {"truncate shared units", o_cut_shared, 1}, {"chmod", o_chmod, 1}, {"remove xattr", o_removexattr, 1},
};

static void prepare(void) {
    char name[256];
    must(!mkdir("/nacre/full", 0755) && !chdir("/nacre/full") && !mkdir("empty", 0755), "folders");
    for (int i = 0; i < NAMES; i++) {
        name_of(name, i);
        must(!mknod(name, S_IFREG | 0600, 0), "mknod");
    }
    put("f", 12288, 'f');
    put("g", 12288, 'g');
    put("clone", 1, 'c');
    put("holes", 1, 'h');
    must(!truncate("holes", 8 << 20) && !setxattr("g", "user.there", "abcdefgh", 8, 0), "prepare");
    int from = open("f", O_RDONLY), to = open("clone", O_RDWR);
    must(!ioctl(to, FICLONE, from) && !close(from) && !close(to), "clone");
}

static int holds(const char *name, off_t at, size_t count, char one, char other) {
    int fd = open(name, O_RDONLY), good = 1;
    must(fd >= 0, "%s is gone", name);
    ssize_t got = pread(fd, bytes, count, at);
    close(fd);
    for (ssize_t i = 0; i < got; i++) good &= bytes[i] == one || bytes[i] == other;
    return good && got == (ssize_t)count;
}

// After a refusal: all names and contents as before, but what a write could place.
static void unchanged(void) {
    char name[256];
    struct stat s;
    must(!stat("f", &s) && s.st_nlink == 1 && s.st_size >= 12288 && s.st_size <= 42288, "f has changed: %ld", (long)s.st_size);
    must(holds("f", 0, 12288, 'f', 'n') && holds("f", s.st_size - 1, 1, 'f', s.st_size > 12288 ? 'n' : 'f'), "contents of f");
    must(holds("g", 0, 12288, 'g', 'f') && holds("clone", 0, 12288, 'f', 'n'), "contents of g or clone");
    must(holds("holes", 0, 1, 'h', 'h') && holds("holes", 1, 100000, 0, 0), "contents of holes");
    must(access("n", F_OK) && access("empty/n", F_OK) && access("empty/f", F_OK), "a name has come");
    for (int i = 0; i < NAMES; i++) {
        name_of(name, i);
        must(!access(name, F_OK), "name %d is gone", i);
    }
    for (int i = 997; i < 1000; i++) {
        name_of(name, i);
        must(access(name, F_OK), "name %d has come", i);
    }
    must(getxattr("f", "user.one", bytes, sizeof bytes) < 0 && getxattr("g", "user.there", bytes, 100) == 8, "attributes");
}

static void clear(void) {
    char name[256];
    const char *names[] = {"f", "g", "clone", "holes", "n", "empty/n", "empty/f"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(names[i]);
    for (int i = 0; i < 1000; i++) {
        name_of(name, i);
        unlink(name);
    }
    rmdir("n"), rmdir("empty");
    must(!chdir("/nacre") && !rmdir("full"), "cannot clear");
}

static int attempt(struct operation *o) {
    doing = o->name;
    prepare();
    fill_up(left);
    long before = free_units();
    errno = 0;
    int done = o->does(), error = errno;
    if (done < 0) {
        errno = error;
        must(error == ENOSPC && !o->always, "it is refused");
        unchanged();
        must(free_units() <= before, "free units came from nowhere");
    }
    must(!ftruncate(filler, 0), "the filler cannot be emptied");
    if (done < 0) must(!o->does(), "it fails with space, too");
    clear();
    return done;
}

// The canary: is refused, and half of it has happened.
static int o_half(void) {
    o_create();
    errno = ENOSPC;
    return -1;
}
static struct operation half = {"half", o_half, 0};

int main(int count, char **arguments) {
    filler = open("/nacre/filler", O_CREAT | O_RDWR, 0600);
    must(filler >= 0, "filler");
    prepare(), clear();
    if (count > 1 && !strcmp(arguments[1], "canary")) {
        left = MOST; // with none, the name itself may find no room
        return attempt(&half);
    }
    long empty = free_units();
    int refused = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        int done = -1;
        for (left = 0; left < MOST && (done < 0 || left < 4); left++) {
            done = attempt(operations + i);
            refused += done < 0;
            must(free_units() == empty, "%ld units were lost", empty - free_units());
        }
        must(!done, "it never succeeds");
    }
    must(refused > 30, "only %d were refused", refused);
    return 0;
}
