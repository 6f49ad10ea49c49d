/* io_uring: requests on files of the pool and of the host in one ring, as liburing makes them. */
#include "check.h"
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#define HOST "/dev/shm/nacre-uring-test"
#define DEPTH 32

static struct io_uring ring;

static struct io_uring_sqe *sqe(long data) {
    struct io_uring_sqe *one = io_uring_get_sqe(&ring);
    CHECK(one != NULL);
    memset(one, 0, sizeof *one);
    one->user_data = data;
    return one;
}

/* Submits, waits, and sets results by the requests' data. */
static void run(int *results, int n) {
    for (int i = 0; i < n; i++) results[i] = 12345;
    CHECK(io_uring_submit_and_wait(&ring, n) == n);
    for (int i = 0; i < n; i++) {
        struct io_uring_cqe *found;
        CHECK(io_uring_wait_cqe(&ring, &found) == 0);
        CHECK(found->user_data < n && results[found->user_data] == 12345);
        results[found->user_data] = found->res;
        io_uring_cqe_seen(&ring, found);
    }
}

#define ONE(prepare) ({ struct io_uring_sqe *s = sqe(0); prepare; s->user_data = 0; int r; run(&r, 1); r; })

static void transfers(int fd) {
    char bytes[64] = {0};
    struct iovec parts[2] = {{"vec", 3}, {"tors", 4}}, room[2] = {{bytes, 2}, {bytes + 2, 20}};
    CHECK(ONE(io_uring_prep_write(s, fd, "hello world", 11, 0)) == 11);
    CHECK(ONE(io_uring_prep_read(s, fd, bytes, 64, 6)) == 5 && !strcmp(bytes, "world"));
    CHECK(ONE(io_uring_prep_writev(s, fd, parts, 2, 100)) == 7 && holds(fd, 100, "vectors"));
    CHECK(ONE(io_uring_prep_readv(s, fd, room, 2, 101)) == 6 && !memcmp(bytes, "ectors", 6));
    CHECK(ONE(io_uring_prep_writev2(s, fd, parts, 1, 0, RWF_APPEND)) == 3 && holds(fd, 107, "vec"));
    CHECK(ONE(io_uring_prep_read(s, fd, bytes, 8, 4096)) == 0);
    CHECK(lseek(fd, 1, SEEK_SET) == 1 && ONE(io_uring_prep_read(s, fd, bytes, 4, -1)) == 4);
    CHECK(!memcmp(bytes, "ello", 4) && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(ONE(io_uring_prep_fsync(s, fd, 0)) == 0);
    CHECK(ONE(io_uring_prep_fsync(s, fd, IORING_FSYNC_DATASYNC)) == 0);
    CHECK(ONE(io_uring_prep_fallocate(s, fd, 0, 0, 9000)) == 0 && lseek(fd, 0, SEEK_END) == 9000);
    CHECK(ONE(io_uring_prep_fadvise(s, fd, 0, 10, POSIX_FADV_DONTNEED)) == 0);
    CHECK(ONE(io_uring_prep_sync_file_range(s, fd, 10, 0, 0)) == 0);
    CHECK(ONE(io_uring_prep_read(s, fd, (void *)8, 8, 0)) == -EFAULT);
    CHECK(ONE(io_uring_prep_read(s, 900, bytes, 8, 0)) == -EBADF);
    CHECK(ONE((io_uring_prep_read(s, fd, bytes, 8, 0), s->flags |= IOSQE_BUFFER_SELECT)) < 0);
    CHECK(ftruncate(fd, 0) == 0);
}

static void names(void) {
    struct statx found;
    char value[16];
    CHECK(ONE(io_uring_prep_mkdirat(s, AT_FDCWD, "folder", 0755)) == 0);
    CHECK(ONE(io_uring_prep_mkdirat(s, AT_FDCWD, "folder", 0755)) == -EEXIST);
    int fd = ONE(io_uring_prep_openat(s, AT_FDCWD, "folder/new", O_CREAT | O_EXCL | O_RDWR, 0640));
    CHECK(fd > 2 && write(fd, "12345", 5) == 5);
    CHECK(ONE(io_uring_prep_statx(s, AT_FDCWD, "folder/new", 0, STATX_SIZE, &found)) == 0);
    CHECK(found.stx_size == 5);
    CHECK(ONE(io_uring_prep_statx(s, fd, "", AT_EMPTY_PATH, STATX_SIZE, &found)) == 0);
    CHECK(ONE(io_uring_prep_fsetxattr(s, fd, "user.a", "value", 0, 5)) == 0);
    CHECK(ONE(io_uring_prep_getxattr(s, "user.a", value, "folder/new", 16)) == 5 && !memcmp(value, "value", 5));
    CHECK(ONE(io_uring_prep_close(s, fd)) == 0 && fcntl(fd, F_GETFD) == -1);
    struct open_how how = {.flags = O_RDONLY};
    fd = ONE(io_uring_prep_openat2(s, AT_FDCWD, "folder/new", &how));
    CHECK(fd > 2 && holds(fd, 0, "12345") && !close(fd));
    CHECK(ONE(io_uring_prep_linkat(s, AT_FDCWD, "folder/new", AT_FDCWD, "folder/second", 0)) == 0);
    CHECK(ONE(io_uring_prep_symlinkat(s, "new", AT_FDCWD, "folder/link")) == 0);
    CHECK(ONE(io_uring_prep_renameat(s, AT_FDCWD, "folder/new", AT_FDCWD, "folder/old", 0)) == 0);
    CHECK(ONE(io_uring_prep_openat(s, AT_FDCWD, "folder/link", O_RDONLY, 0)) == -ENOENT);
    CHECK(!access("folder/old", F_OK) && !access("folder/second", F_OK));
    for (char **name = (char *[]){"folder/old", "folder/second", "folder/link", NULL}; *name; name++)
        CHECK(ONE(io_uring_prep_unlinkat(s, AT_FDCWD, *name, 0)) == 0);
    CHECK(ONE(io_uring_prep_unlinkat(s, AT_FDCWD, "folder", AT_REMOVEDIR)) == 0);
    CHECK(ONE(io_uring_prep_statx(s, AT_FDCWD, "/usr", 0, STATX_MODE, &found)) == 0 && S_ISDIR(found.stx_mode));
}

static void mixed(int fd, int host) {
    int results[DEPTH];
    struct io_uring_sqe *all[DEPTH];
    for (int i = 0; i < DEPTH; i++) {
        io_uring_prep_write(all[i] = sqe(0), i % 3 ? fd : host, "abcdefgh", 1 + i % 8, i * 8);
        all[i]->user_data = i;
    }
    run(results, DEPTH);
    for (int i = 0; i < DEPTH; i++) {
        CHECK(results[i] == 1 + i % 8);
        CHECK(all[i]->opcode == IORING_OP_WRITE && all[i]->len == 1 + i % 8);
    }
    CHECK(holds(fd, 8, "ab") && holds(host, 0, "a") && holds(fd, 56, "abcdefgh"));
}

static struct io_uring_sqe *linked(long data, int flags) {
    struct io_uring_sqe *one = sqe(data);
    one->flags = flags;
    return one;
}
#define PUT(data, with, prepare) do { struct io_uring_sqe *s = sqe(0); prepare; s->user_data = data; s->flags = with; } while (0)

static void links(int fd, int host) {
    char bytes[16] = {0};
    int r[5];
    CHECK(!ftruncate(fd, 0) && !ftruncate(host, 0));
    /* In order, each after the one before. */
    PUT(0, IOSQE_IO_LINK, io_uring_prep_write(s, fd, "first", 5, 0));
    PUT(1, IOSQE_IO_LINK, io_uring_prep_fsync(s, fd, 0));
    PUT(2, 0, io_uring_prep_read(s, fd, bytes, 5, 0));
    run(r, 3);
    CHECK(r[0] == 5 && r[1] == 0 && r[2] == 5 && !strcmp(bytes, "first"));
    /* One that fails cancels the rest of its chain, and no other. */
    PUT(0, IOSQE_IO_LINK, io_uring_prep_read(s, fd, (void *)8, 5, 0));
    PUT(1, IOSQE_IO_LINK, io_uring_prep_write(s, fd, "WRONG", 5, 0));
    PUT(2, 0, io_uring_prep_write(s, host, "WRONG", 5, 0));
    PUT(3, 0, io_uring_prep_write(s, fd, "right", 5, 10));
    run(r, 4);
    CHECK(r[0] == -EFAULT && r[1] == -ECANCELED && r[2] == -ECANCELED && r[3] == 5);
    CHECK(holds(fd, 0, "first") && holds(fd, 10, "right") && lseek(host, 0, SEEK_END) == 0);
    /* So does a short one. */
    PUT(0, IOSQE_IO_LINK, io_uring_prep_read(s, fd, bytes, 16, 12));
    PUT(1, IOSQE_IO_LINK, io_uring_prep_write(s, host, "WRONG", 5, 0));
    PUT(2, 0, io_uring_prep_write(s, fd, "WRONG", 5, 0));
    run(r, 3);
    CHECK(r[0] == 3 && r[1] == -ECANCELED && r[2] == -ECANCELED && lseek(host, 0, SEEK_END) == 0);
    /* A hard link holds. */
    PUT(0, IOSQE_IO_HARDLINK, io_uring_prep_read(s, fd, bytes, 16, 12));
    PUT(1, 0, io_uring_prep_write(s, fd, "F", 1, 0));
    run(r, 2);
    CHECK(r[0] == 3 && r[1] == 1 && holds(fd, 0, "First"));
    /* A copy from the host to the pool and back: each waits for the bytes. */
    CHECK(pwrite(host, "copied", 6, 0) == 6);
    memset(bytes, 0, sizeof bytes);
    PUT(0, IOSQE_IO_LINK, io_uring_prep_read(s, host, bytes, 6, 0));
    PUT(1, IOSQE_IO_LINK, io_uring_prep_write(s, fd, bytes, 6, 20));
    PUT(2, 0, io_uring_prep_write(s, host, bytes, 6, 6));
    run(r, 3);
    CHECK(r[0] == 6 && r[1] == 6 && r[2] == 6 && holds(fd, 20, "copied") && holds(host, 6, "copied"));
    /* Behind what may never come nothing of a pool is promised. */
    int ends[2];
    CHECK(!pipe(ends));
    PUT(0, IOSQE_IO_LINK, io_uring_prep_poll_add(s, ends[0], POLLIN));
    PUT(1, 0, io_uring_prep_write(s, fd, "WRONG", 5, 0));
    CHECK(io_uring_submit(&ring) == 2 && write(ends[1], "x", 1) == 1);
    for (int i = 0; i < 2; i++) {
        struct io_uring_cqe *found;
        CHECK(!io_uring_wait_cqe(&ring, &found));
        CHECK(found->user_data == 0 ? found->res == POLLIN : found->res == -EOPNOTSUPP);
        io_uring_cqe_seen(&ring, found);
    }
    CHECK(holds(fd, 0, "First"));
    for (int i = 0; i < 2; i++) close(ends[i]);
}

static void drained(int fd, int host) {
    char bytes[8] = {0};
    int r[3];
    PUT(0, 0, io_uring_prep_write(s, host, "host", 4, 0));
    PUT(1, 0, io_uring_prep_write(s, fd, "pool", 4, 0));
    PUT(2, IOSQE_IO_DRAIN, io_uring_prep_read(s, fd, bytes, 4, 0));
    run(r, 3);
    CHECK(r[0] == 4 && r[1] == 4 && r[2] == 4 && !strcmp(bytes, "pool"));
    PUT(0, IOSQE_IO_DRAIN, io_uring_prep_fsync(s, host, 0));
    PUT(1, 0, io_uring_prep_fsync(s, fd, 0));
    run(r, 2);
    CHECK(r[0] == 0 && r[1] == 0);
}

/* Registered files stay open whatever becomes of their numbers. */
static void registered(int host) {
    int file = file_with("registered", "registered"), r[2];
    int fds[3] = {file, -1, host};
    char bytes[16] = {0};
    struct iovec room = {bytes, 16};
    CHECK(!io_uring_register_files(&ring, fds, 3) && !io_uring_register_buffers(&ring, &room, 1));
    CHECK(!close(file) && !unlink("registered"));
    PUT(0, IOSQE_FIXED_FILE, io_uring_prep_read_fixed(s, 0, bytes, 10, 0, 0));
    PUT(1, IOSQE_FIXED_FILE, io_uring_prep_write(s, 2, "fixed", 5, 0));
    run(r, 2);
    CHECK(r[0] == 10 && !memcmp(bytes, "registered", 10) && r[1] == 5 && holds(host, 0, "fixed"));
    file = file_with("updated", "updated");
    CHECK(io_uring_register_files_update(&ring, 1, &file, 1) == 1 && !close(file));
    PUT(0, IOSQE_FIXED_FILE, io_uring_prep_write_fixed(s, 1, memcpy(bytes, "UP", 2), 2, 0, 0));
    PUT(1, IOSQE_FIXED_FILE, io_uring_prep_read(s, 1, bytes + 8, 7, 0));
    run(r, 2);
    CHECK(r[0] == 2 && r[1] == 7 && !memcmp(bytes + 8, "UPdated", 7));
    CHECK(ONE(io_uring_prep_close_direct(s, 1)) == 0);
    CHECK(ONE((io_uring_prep_read(s, 1, bytes, 7, 0), s->flags = IOSQE_FIXED_FILE)) == -EBADF);
    CHECK(!io_uring_unregister_files(&ring) && !io_uring_unregister_buffers(&ring));
    CHECK(ONE((io_uring_prep_read(s, 0, bytes, 7, 0), s->flags = IOSQE_FIXED_FILE)) == -EBADF);
}

static void told_and_silent(int fd) {
    int told = eventfd(0, EFD_NONBLOCK), r;
    uint64_t count;
    struct pollfd one = {ring.ring_fd, POLLIN};
    CHECK(!io_uring_register_eventfd(&ring, told));
    io_uring_prep_write(sqe(0), fd, "x", 1, 0);
    CHECK(poll(&one, 1, 0) == 0 && io_uring_submit(&ring) == 1 && poll(&one, 1, 0) == 1);
    CHECK(read(told, &count, 8) == 8 && count == 1);
    struct io_uring_cqe *found;
    CHECK(!io_uring_peek_cqe(&ring, &found) && found->res == 1);
    io_uring_cqe_seen(&ring, found);
    CHECK(!io_uring_unregister_eventfd(&ring) && !close(told));
    PUT(0, IOSQE_CQE_SKIP_SUCCESS, io_uring_prep_write(s, fd, "quiet", 5, 0));
    CHECK(io_uring_submit(&ring) == 1 && io_uring_peek_cqe(&ring, &found) == -EAGAIN && holds(fd, 0, "quiet"));
    struct __kernel_timespec soon = {0, 1000000};
    CHECK(io_uring_wait_cqe_timeout(&ring, &found, &soon) == -ETIME);
}

/* More completions than their ring has room for are kept. */
static void many(int fd) {
    char bytes[2];
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < DEPTH; i++) io_uring_prep_read(sqe(0), fd, bytes, 1, i % 4);
        CHECK(io_uring_submit(&ring) == DEPTH);
    }
    for (int i = 0; i < 8 * DEPTH; i++) {
        struct io_uring_cqe *found;
        CHECK(!io_uring_wait_cqe(&ring, &found) && found->res == 1);
        io_uring_cqe_seen(&ring, found);
    }
}

static void *own_ring(void *number) {
    char name[32];
    struct io_uring own;
    snprintf(name, sizeof name, "thread%ld", (long)number);
    int fd = file_with(name, "");
    CHECK(!io_uring_queue_init(8, &own, 0));
    for (long i = 0; i < 2000; i++) {
        struct io_uring_sqe *s = io_uring_get_sqe(&own);
        struct io_uring_cqe *found;
        io_uring_prep_write(s, fd, &i, sizeof i, i * sizeof i);
        s->user_data = i;
        CHECK(io_uring_submit_and_wait(&own, 1) == 1 && !io_uring_wait_cqe(&own, &found));
        CHECK(found->user_data == i && found->res == sizeof i);
        io_uring_cqe_seen(&own, found);
    }
    CHECK(lseek(fd, 0, SEEK_END) == 2000 * sizeof(long));
    io_uring_queue_exit(&own);
    close(fd);
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (long i = 0; i < 4; i++) pthread_create(&all[i], NULL, own_ring, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

static volatile int submitting = 1;

static void *pushes(void *unused) {
    while (submitting) syscall(SYS_io_uring_enter, ring.ring_fd, DEPTH, 0, 0, NULL, 0);
    return unused;
}

/* A ring has one producer, but whoever likes may hand over what is there: each request is done once,
 * by either, and completes with its own result. */
static void handed_over_by_two(int fd) {
    pthread_t other;
    CHECK(!pthread_create(&other, NULL, pushes, NULL));
    for (long round = 0; round < 500; round++) {
        char seen[DEPTH] = {0}, byte = 'a' + round % 26;
        for (int i = 0; i < DEPTH; i++) {
            struct io_uring_sqe *s = io_uring_get_sqe(&ring);
            /* The slots are free once the other one has handed over the last of them. */
            while (!s) s = io_uring_get_sqe(&ring);
            io_uring_prep_write(s, fd, &byte, 1, i);
            s->user_data = i;
        }
        int flushed = io_uring_submit(&ring);
        CHECK(flushed >= 0 || flushed == -EBUSY);
        for (int i = 0; i < DEPTH; i++) {
            struct io_uring_cqe *found;
            CHECK(!io_uring_wait_cqe(&ring, &found) && found->res == 1);
            CHECK(found->user_data < DEPTH && !seen[found->user_data]++);
            io_uring_cqe_seen(&ring, found);
        }
        char all[DEPTH];
        CHECK(pread(fd, all, DEPTH, 0) == DEPTH);
        for (int i = 0; i < DEPTH; i++) CHECK(all[i] == byte);
    }
    submitting = 0;
    pthread_join(other, NULL);
    CHECK(ftruncate(fd, 0) == 0);
}

/* What would not reach the pool is not offered. */
static void probed(void) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    CHECK(probe != NULL);
    CHECK(io_uring_opcode_supported(probe, IORING_OP_WRITEV));
    CHECK(io_uring_opcode_supported(probe, IORING_OP_ACCEPT));
    CHECK(!io_uring_opcode_supported(probe, IORING_OP_SPLICE));
    CHECK(!io_uring_opcode_supported(probe, IORING_OP_TEE));
    io_uring_free_probe(probe);
}

/* Registered memory, read and written in parts (Linux 6.15). */
static void fixed_parts(int fd) {
    enum { READV_FIXED = 60, WRITEV_FIXED = 61 };
    static char bytes[64] = "of registered memory";
    struct iovec all = {bytes, sizeof bytes}, parts[2] = {{bytes + 3, 10}, {bytes, 2}};
    CHECK(!ftruncate(fd, 0) && !io_uring_register_buffers(&ring, &all, 1));
    int wrote = ONE((io_uring_prep_writev(s, fd, parts, 2, 0), s->opcode = WRITEV_FIXED));
    if (wrote != -EINVAL) {
        CHECK(wrote == 12 && holds(fd, 0, "registeredof"));
        CHECK(ONE((io_uring_prep_readv(s, fd, parts, 2, 2), s->opcode = READV_FIXED)) == 10);
        CHECK(!memcmp(bytes + 3, "gisteredof", 10));
    }
    CHECK(!io_uring_unregister_buffers(&ring) && !ftruncate(fd, 0));
}

static void forked(int fd) {
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        CHECK(!io_uring_queue_init(8, &ring, 0));
        CHECK(ONE(io_uring_prep_write(s, fd, "child", 5, 0)) == 5 && holds(fd, 0, "child"));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(ONE(io_uring_prep_write(s, fd, "parent", 6, 0)) == 6 && holds(fd, 0, "parent"));
}

static void refused(void) {
    struct io_uring other;
    CHECK(io_uring_queue_init(8, &other, IORING_SETUP_SQPOLL) == -EPERM);
    struct io_uring_params params = {.flags = 1 << 14};
    CHECK(syscall(SYS_io_uring_setup, 8, &params) == -1 && errno == EINVAL);
}

static void all(int fd, int host) {
    transfers(fd);
    names();
    mixed(fd, host);
    links(fd, host);
    drained(fd, host);
    registered(host);
    told_and_silent(fd);
    many(fd);
}

int main(int argc, char **argv) {
    int host = open(HOST, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(host >= 0 && !unlink(HOST));
    int made = io_uring_queue_init(DEPTH, &ring, 0);
    if (made == -ENOSYS || made == -EPERM) {
        puts("skipped: this kernel has no rings, or none that can be answered for (Linux 6.10)");
        return 0;
    }
    CHECK(made == 0);
    int fd = file_with("file", "hello");
    all(fd, host);
    if (argc < 2) refused();
    probed();
    fixed_parts(fd);
    handed_over_by_two(fd);
    threads();
    forked(fd);
    io_uring_queue_exit(&ring);
    CHECK(!io_uring_queue_init(DEPTH, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN));
    mixed(fd, host);
    links(fd, host);
    io_uring_queue_exit(&ring);
    return failures;
}
