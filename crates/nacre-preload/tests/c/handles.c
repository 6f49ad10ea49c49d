/* Files that are opened by their handles, and what stands in the way. */
#include "check.h"
#include <linux/capability.h>

union handle {
    struct file_handle head;
    char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
};

static int mount_of_last;

static union handle handle_of(int dir, const char *name, int flags) {
    union handle found = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    CHECK(!name_to_handle_at(dir, name, &found.head, &mount_of_last, flags));
    return found;
}

static int open_it(union handle *handle, int flags) {
    return open_by_handle_at(AT_FDCWD, &handle->head, flags);
}

#define FAILS(call, with) CHECK((errno = 0, (call) == -1) && errno == with)

static void names(void) {
    union handle file = handle_of(AT_FDCWD, "f", 0), link = handle_of(AT_FDCWD, "link", 0);
    int fd = open("f", O_RDONLY), there = mount_of_last;
    union handle followed = handle_of(AT_FDCWD, "link", AT_SYMLINK_FOLLOW), by_fd = handle_of(fd, "", AT_EMPTY_PATH);
    CHECK(!memcmp(&file, &followed, sizeof file) && !memcmp(&file, &by_fd, sizeof file));
    CHECK(memcmp(&file, &link, sizeof file) && mount_of_last == there);
    union handle small = {.head = {.handle_bytes = 4}};
    FAILS(name_to_handle_at(AT_FDCWD, "f", &small.head, &there, 0), EOVERFLOW);
    CHECK(small.head.handle_bytes == file.head.handle_bytes);
    small.head.handle_bytes = MAX_HANDLE_SZ + 1;
    FAILS(name_to_handle_at(AT_FDCWD, "f", &small.head, &there, 0), EINVAL);
    FAILS(name_to_handle_at(AT_FDCWD, "f", &small.head, &there, 1 << 20), EINVAL);
    FAILS(name_to_handle_at(AT_FDCWD, "none", &small.head, &there, 0), ENOENT);
    FAILS(name_to_handle_at(AT_FDCWD, "f", (void *)8, &there, 0), EFAULT);
    close(fd);
}

static void opening(void) {
    union handle file = handle_of(AT_FDCWD, "f", 0), folder = handle_of(AT_FDCWD, "sub", 0);
    union handle link = handle_of(AT_FDCWD, "link", 0), fifo = handle_of(AT_FDCWD, "fifo", 0);
    CHECK(!rename("f", "sub/other"));
    int fd = open_it(&file, O_RDWR), dir = open_it(&folder, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && holds(fd, 0, "text") && pwrite(fd, "T", 1, 0) == 1);
    CHECK(dir >= 0 && openat(dir, "other", O_RDONLY) >= 0 && !fchdir(dir) && holds(open("other", O_RDONLY), 0, "Text"));
    CHECK(!chdir(".."));
    FAILS(open_it(&link, O_RDONLY), ELOOP);
    CHECK(open_it(&link, O_PATH | O_NOFOLLOW) >= 0);
    CHECK(open_it(&fifo, O_RDONLY | O_NONBLOCK) >= 0);
    FAILS(open_it(&folder, O_RDWR), EISDIR);
    FAILS(open_it(&file, O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open_by_handle_at(777, &file.head, O_RDONLY), EBADF);
    CHECK(open_by_handle_at(fd, &file.head, O_RDONLY) >= 0);
    CHECK(!rename("sub/other", "f"));
}

/* Handles that name nothing of this pool. */
static void stale(void) {
    union handle file = handle_of(AT_FDCWD, "f", 0), gone = handle_of(AT_FDCWD, "gone", 0);
    CHECK(!unlink("gone"));
    FAILS(open_it(&gone, O_RDONLY), ESTALE);
    /* The number is used again, for another file. */
    for (int i = 0; i < 100; i++) {
        char name[20];
        sprintf(name, "new%d", i);
        close(file_with(name, "new"));
    }
    FAILS(open_it(&gone, O_RDONLY), ESTALE);
    /* The lower bytes of the number in the middle may name another file. */
    for (int at = 0; at < file.head.handle_bytes; at++) {
        union handle forged = file;
        if (at >= 8 && at < 14) continue;
        forged.head.f_handle[at] ^= 0x80;
        int fd = open_it(&forged, O_RDONLY);
        CHECK(fd == -1 && errno == ESTALE);
    }
    union handle none = {.head = {.handle_bytes = 0}};
    FAILS(open_it(&none, O_RDONLY), EINVAL);
}

static void without_capability(void) {
    union handle file = handle_of(AT_FDCWD, "f", 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(!syscall(SYS_capset, &header, none));
    FAILS(open_it(&file, O_RDONLY), EPERM);
}

int main(void) {
    close(file_with("f", "text")), close(file_with("gone", "gone"));
    CHECK(!symlink("f", "link") && !mkdir("sub", 0700) && !mkfifo("fifo", 0600));
    names();
    if (geteuid() == 0) opening(), stale();
    pid_t child = fork();
    if (!child) without_capability(), _exit(failures);
    CHECK(status_of(child) == 0);
    return failures;
}
