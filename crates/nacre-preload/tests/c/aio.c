/* Linux AIO: requests on files of the pool and of the host in one context. */
#include "check.h"
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#define HOST "/dev/shm/nacre-aio-test"
#define DEPTH 64

typedef struct iocb block;
typedef struct io_event event;

/* As the kernel maps it at the address that names a context; libaio and QEMU read it. */
struct ring {
    unsigned id, nr, head, tail, magic, features[2], header_length;
    event events[];
};

static aio_context_t context;

static int submit(block **blocks, long n) { return syscall(SYS_io_submit, context, n, blocks); }

static int reap(event *events, long least, long most) {
    return syscall(SYS_io_getevents, context, least, most, events, NULL);
}

static int reap_now(event *events, long most) {
    return syscall(SYS_io_getevents, context, 0L, most, events, &(struct timespec){0});
}

static block request(int opcode, int fd, void *at, size_t len, off_t offset) {
    return (block){.aio_data = 77, .aio_lio_opcode = opcode, .aio_fildes = fd,
                   .aio_buf = (unsigned long)at, .aio_nbytes = len, .aio_offset = offset};
}

/* Submits one request and returns its result. */
static long one(block b) {
    block *list = &b, before = b;
    event found = {0};
    int submitted = submit(&list, 1);
    if (submitted != 1) return -errno;
    CHECK(reap(&found, 1, 1) == 1);
    CHECK(found.obj == (unsigned long)&b && found.data == 77 && found.res2 == 0);
    CHECK(!memcmp(&b, &before, sizeof b));
    return found.res;
}

static void kinds(int fd) {
    char bytes[64] = {0};
    struct iovec parts[2] = {{"vec", 3}, {"tors", 4}}, room[2] = {{bytes, 2}, {bytes + 2, 20}};
    CHECK(one(request(IOCB_CMD_PWRITE, fd, "hello world", 11, 0)) == 11);
    CHECK(one(request(IOCB_CMD_PREAD, fd, bytes, 64, 6)) == 5 && !strcmp(bytes, "world"));
    CHECK(one(request(IOCB_CMD_PWRITEV, fd, parts, 2, 100)) == 7 && holds(fd, 100, "vectors"));
    CHECK(one(request(IOCB_CMD_PREADV, fd, room, 2, 101)) == 6 && !memcmp(bytes, "ectors", 6));
    CHECK(one(request(IOCB_CMD_FSYNC, fd, 0, 0, 0)) == 0);
    CHECK(one(request(IOCB_CMD_FDSYNC, fd, 0, 0, 0)) == 0);
    CHECK(one(request(IOCB_CMD_PREAD, fd, bytes, 64, 5000)) == 0);
    block synced = request(IOCB_CMD_PWRITE, fd, "S", 1, 0);
    synced.aio_rw_flags = RWF_DSYNC;
    CHECK(one(synced) == 1 && holds(fd, 0, "Sello"));
    synced.aio_rw_flags = RWF_APPEND;
    CHECK(one(synced) == 1 && holds(fd, 106, "sS"));
}

static void errors(int fd) {
    int reading = open("file", O_RDONLY), folder = open(".", O_RDONLY);
    CHECK(one(request(IOCB_CMD_PWRITE, reading, "x", 1, 0)) == -EBADF);
    CHECK(one(request(IOCB_CMD_PREAD, fd, (void *)8, 8, 0)) == -EFAULT);
    CHECK(one(request(IOCB_CMD_PREAD, fd, "x", 1, -5)) == -EINVAL);
    CHECK(one(request(IOCB_CMD_PREAD, folder, "x", 1, 0)) < 0);
    CHECK(one(request(IOCB_CMD_PREAD, 999, "x", 1, 0)) == -EBADF);
    /* What stands before one that is refused is submitted. */
    block good = request(IOCB_CMD_PWRITE, fd, "G", 1, 0), bad = good, *list[3] = {&good, &bad, &good};
    event found;
    bad.aio_fildes = reading;
    CHECK(submit(list, 3) == 1 && reap(&found, 1, 1) == 1 && found.obj == (unsigned long)&good);
    /* Nothing is done in a context that is none. */
    CHECK(syscall(SYS_io_submit, 4096UL, 1L, list) == -1 && errno == EINVAL);
    good.aio_buf = (unsigned long)"X";
    aio_context_t gone = 0;
    CHECK(!syscall(SYS_io_setup, 4, &gone) && !syscall(SYS_io_destroy, gone));
    CHECK(syscall(SYS_io_submit, gone, 1L, list) == -1 && errno == EINVAL && holds(fd, 0, "G"));
    close(reading);
    close(folder);
}

/* Requests on both kinds of files in one submission. */
static void mixed(int fd, int host) {
    block blocks[DEPTH], *list[DEPTH];
    event found[DEPTH];
    int seen[DEPTH] = {0};
    for (int i = 0; i < DEPTH; i++) {
        blocks[i] = request(IOCB_CMD_PWRITE, i % 3 ? fd : host, "abcdefgh", 1 + i % 8, i * 8);
        blocks[i].aio_data = i;
        list[i] = &blocks[i];
    }
    CHECK(submit(list, DEPTH) == DEPTH);
    CHECK(reap(found, DEPTH, DEPTH) == DEPTH);
    for (int i = 0; i < DEPTH; i++) {
        block *b = (block *)found[i].obj;
        CHECK(b == &blocks[found[i].data] && found[i].res == (long)b->aio_nbytes);
        seen[found[i].data]++;
    }
    for (int i = 0; i < DEPTH; i++) CHECK(seen[i] == 1);
    CHECK(holds(fd, 8, "ab") && holds(host, 0, "a") && holds(fd, 56, "abcdefgh"));
    CHECK(reap_now(found, 1) == 0);
}

/* An event is told, and who reads the ring without a call finds the program's own block there. */
static void told_and_read_in_the_ring(int fd) {
    struct ring *ring = (struct ring *)context;
    int told = eventfd(0, EFD_NONBLOCK);
    uint64_t count = 0;
    block b = request(IOCB_CMD_PWRITE, fd, "ring", 4, 0), *list = &b;
    b.aio_flags = IOCB_FLAG_RESFD;
    b.aio_resfd = told;
    CHECK(ring->head == ring->tail && submit(&list, 1) == 1);
    CHECK(read(told, &count, 8) == 8 && count == 1);
    CHECK(ring->tail == (ring->head + 1) % ring->nr);
    event *found = &ring->events[ring->head];
    CHECK(found->obj == (unsigned long)&b && found->res == 4 && found->data == 77);
    ring->head = ring->tail;
    close(told);
}

static void waiting_with_a_mask(int fd) {
    struct { const sigset_t *set; size_t size; } mask;
    sigset_t none;
    sigemptyset(&none);
    mask.set = &none, mask.size = 8;
    block b = request(IOCB_CMD_FSYNC, fd, 0, 0, 0), *list = &b;
    event found;
    CHECK(submit(&list, 1) == 1);
    CHECK(syscall(333, context, 1L, 1L, &found, NULL, &mask) == 1 && found.obj == (unsigned long)&b);
    CHECK(syscall(SYS_io_cancel, context, &b, &found) == -1 && errno == EINVAL);
}

/* Another thread takes completions, and its blocks are used again at once. */
enum { ROUNDS = 20000 };
static block *turn[8];
static int fd_of_turns, busy[8];

static void *reaper(void *unused) {
    event found[8];
    for (long total = 0; total < ROUNDS;) {
        int n = reap(found, 1, 8);
        CHECK(n > 0);
        if (n <= 0) break;
        for (int i = 0; i < n; i++) {
            block *b = (block *)found[i].obj;
            CHECK(found[i].data < 8 && b == turn[found[i].data] && found[i].res == 1 + (long)found[i].data);
            CHECK(b->aio_fildes == fd_of_turns && b->aio_lio_opcode == IOCB_CMD_PWRITE);
            memset(b, 0xee, sizeof *b);
            __atomic_store_n(&busy[found[i].data], 0, __ATOMIC_RELEASE);
        }
        total += n;
    }
    return NULL;
}

static void threads(int fd) {
    static block blocks[8];
    pthread_t thread;
    fd_of_turns = fd;
    for (int i = 0; i < 8; i++) turn[i] = &blocks[i];
    pthread_create(&thread, NULL, reaper, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        block *b = turn[i % 8], *list = b;
        while (__atomic_load_n(&busy[i % 8], __ATOMIC_ACQUIRE)) sched_yield();
        *b = request(IOCB_CMD_PWRITE, fd, "12345678", 1 + i % 8, i % 4096);
        b->aio_data = i % 8;
        busy[i % 8] = 1;
        CHECK(submit(&list, 1) == 1);
    }
    pthread_join(thread, NULL);
}

/* A child has no contexts of its parent's, and can make its own. */
static void forked(int fd) {
    pid_t child = fork();
    if (child == 0) {
        block b = request(IOCB_CMD_PWRITE, fd, "child", 5, 0), *list = &b;
        CHECK(submit(&list, 1) == -1 && errno == EINVAL);
        context = 0;
        CHECK(!syscall(SYS_io_setup, 8, &context));
        CHECK(one(b) == 5 && holds(fd, 0, "child"));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(one(request(IOCB_CMD_PWRITE, fd, "parent", 6, 0)) == 6 && holds(fd, 0, "parent"));
}

int main(void) {
    int host = open(HOST, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(host >= 0 && !unlink(HOST));
    CHECK(!syscall(SYS_io_setup, DEPTH, &context));
    int fd = file_with("file", "hello");
    kinds(fd);
    errors(fd);
    mixed(fd, host);
    told_and_read_in_the_ring(fd);
    waiting_with_a_mask(fd);
    threads(fd);
    forked(fd);
    CHECK(!syscall(SYS_io_destroy, context));
    return failures;
}
