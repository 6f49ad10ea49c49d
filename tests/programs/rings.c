/* Requests in rings on a file that is not in memory: they complete later than the call that hands
   them in.

   rings make FILE     writes it
   rings check FILE    reads it in all ways, beside what else programs do meanwhile
   rings sync FILE     overwrites some of it, durably, and dies
   rings fail FILE DISK   cuts the disk, reads what it had; prints errors of a ring and a context */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 6144
#define DEPTH 32

static const char *path;
static int late;

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "rings.c:%d: %s (errno: %s)\n", __LINE__, #what, strerror(errno)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* What a page of the file holds. */
static void fill(char *page, uint64_t number) {
    for (int i = 0; i < PAGE / 8; i++) ((uint64_t *)page)[i] = number * 0x9e3779b97f4a7c15 + i;
}

static int is_page(const char *page, uint64_t number) {
    char wanted[PAGE];
    fill(wanted, number);
    return memcmp(page, wanted, PAGE) == 0;
}

static unsigned random_page(unsigned *seed) { return (*seed = *seed * 1103515245 + 12345) >> 8 & 0xfffffff; }

static int opened(int flags) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

static struct io_uring_sqe *request(struct io_uring *ring, uint64_t data) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    CHECK(sqe != NULL);
    sqe->user_data = data;
    return sqe;
}
#define PUT(ring, data, with, prepare)                          \
    do {                                                        \
        struct io_uring_sqe *sqe = request(ring, 0);            \
        prepare;                                                \
        sqe->user_data = data, sqe->flags |= with;              \
    } while (0)

/* The next completion: what it names, and its result. */
static uint64_t next(struct io_uring *ring, int *result) {
    struct io_uring_cqe *cqe;
    CHECK(io_uring_wait_cqe(ring, &cqe) == 0);
    uint64_t data = cqe->user_data;
    *result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return data;
}

/* Reads pages anywhere; the descriptor is closed while they are on their way. */
static void reads(unsigned seed, int rounds, int flags) {
    static __thread char room[DEPTH][PAGE] __attribute__((aligned(PAGE)));
    struct io_uring ring;
    CHECK(io_uring_queue_init(DEPTH, &ring, flags) == 0);
    for (int round = 0; round < rounds; round++) {
        int fd = opened(O_RDONLY | (round & 1 ? O_DIRECT : 0));
        unsigned page[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            page[i] = random_page(&seed) % PAGES;
            struct iovec part = {room[i], PAGE};
            if (i % 4) PUT(&ring, i, 0, io_uring_prep_read(sqe, fd, room[i], PAGE, (off_t)page[i] * PAGE));
            else {
                PUT(&ring, i, 0, io_uring_prep_readv(sqe, fd, &part, 1, (off_t)page[i] * PAGE));
                CHECK(io_uring_submit(&ring) == i % 4 + (i ? 4 : 1));
            }
        }
        CHECK(io_uring_submit(&ring) == 3);
        late += io_uring_cq_ready(&ring) < DEPTH;
        close(fd);
        int seen[DEPTH] = {0}, result;
        for (int i = 0; i < DEPTH; i++) {
            uint64_t which = next(&ring, &result);
            CHECK(which < DEPTH && !seen[which]++ && result == PAGE);
            CHECK(is_page(room[which], page[which]));
        }
    }
    io_uring_queue_exit(&ring);
}

static void *reading(void *seed) {
    reads((uintptr_t)seed, 20, 0);
    return NULL;
}

static void threads(void) {
    pthread_t all[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&all[i], NULL, reading, (void *)(100 + i)));
    for (int i = 0; i < 3; i++) CHECK(!pthread_join(all[i], NULL));
}

/* Errors, links, silence and drains keep their meaning. */
static void kinds(void) {
    static char room[4][PAGE];
    struct io_uring ring;
    int result, fd = opened(O_RDWR), synced = opened(O_RDWR | O_DSYNC);
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    PUT(&ring, 1, 0, io_uring_prep_read(sqe, fd, (void *)8, PAGE, 3000 * PAGE));
    CHECK(io_uring_submit(&ring) == 1 && next(&ring, &result) == 1 && result == -EFAULT);
    PUT(&ring, 2, 0, io_uring_prep_read(sqe, fd, room[0], PAGE, (off_t)PAGES * PAGE - 100));
    CHECK(io_uring_submit(&ring) == 1 && next(&ring, &result) == 2 && result == 100);
    /* A chain: each waits for the one before. */
    fill(room[0], 77);
    PUT(&ring, 3, IOSQE_IO_LINK, io_uring_prep_write(sqe, synced, room[0], PAGE, 77 * PAGE));
    PUT(&ring, 4, IOSQE_IO_LINK, io_uring_prep_fsync(sqe, fd, 0));
    PUT(&ring, 5, 0, io_uring_prep_read(sqe, fd, room[1], PAGE, 77 * PAGE));
    CHECK(io_uring_submit(&ring) == 3);
    for (int i = 3; i <= 5; i++) CHECK(next(&ring, &result) == i && result == (i == 4 ? 0 : PAGE));
    CHECK(is_page(room[1], 77));
    /* Success in silence. */
    PUT(&ring, 6, IOSQE_CQE_SKIP_SUCCESS, io_uring_prep_write(sqe, synced, room[0], PAGE, 77 * PAGE));
    PUT(&ring, 7, 0, io_uring_prep_write(sqe, synced, room[0], PAGE, 77 * PAGE));
    CHECK(io_uring_submit(&ring) == 2 && next(&ring, &result) == 7 && result == PAGE);
    /* The other one may come a moment later, but never completes. */
    CHECK(!fsync(fd) && io_uring_cq_ready(&ring) == 0);
    io_uring_queue_exit(&ring);
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++)
            PUT(&ring, i, 0, io_uring_prep_write(sqe, synced, room[0], PAGE, 77 * PAGE));
        PUT(&ring, 3, IOSQE_IO_DRAIN, io_uring_prep_nop(sqe));
        PUT(&ring, 4, 0, io_uring_prep_read(sqe, fd, room[1], PAGE, 77 * PAGE));
        CHECK(io_uring_submit(&ring) == 5);
        for (int i = 0; i < 5; i++) {
            uint64_t which = next(&ring, &result);
            CHECK(i < 3 ? which < 3 && result == PAGE : which == i && result == (i == 3 ? 0 : PAGE));
        }
    }
    io_uring_queue_exit(&ring);
    close(fd), close(synced);
}

/* Whoever closes a file loses its record locks; who reads it by a ring does not. */
static void locks(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int fd = opened(O_RDWR), status;
    CHECK(!fcntl(fd, F_SETLK, &lock));
    struct io_uring ring;
    int result;
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    PUT(&ring, 0, 0, io_uring_prep_fsync(sqe, fd, 0));
    CHECK(pwrite(fd, "x", 1, 5000 * PAGE) == 1 && io_uring_submit(&ring) == 1 && next(&ring, &result) == 0 && !result);
    pid_t child = fork();
    if (!child) {
        CHECK(!fcntl(fd, F_GETLK, &lock));
        _exit(lock.l_type == F_WRLCK && lock.l_pid == getppid() ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char page[PAGE];
    fill(page, 5000);
    CHECK(pwrite(fd, page, PAGE, 5000 * PAGE) == PAGE);
    io_uring_queue_exit(&ring);
    close(fd);
}

/* A ring that is closed with requests on their way, and another one that gets its number. */
static void successors(unsigned seed) {
    static char room[DEPTH][PAGE], other[PAGE];
    int fd = opened(O_RDONLY), result;
    for (int round = 0; round < 20; round++) {
        struct io_uring first, second;
        CHECK(io_uring_queue_init(DEPTH, &first, 0) == 0);
        for (int i = 0; i < DEPTH; i++) {
            off_t at = (off_t)(random_page(&seed) % PAGES) * PAGE;
            PUT(&first, i, 0, io_uring_prep_read(sqe, fd, room[i], PAGE, at));
        }
        CHECK(io_uring_submit(&first) == DEPTH);
        io_uring_queue_exit(&first);
        CHECK(io_uring_queue_init(DEPTH, &second, 0) == 0);
        unsigned page = random_page(&seed) % PAGES;
        PUT(&second, 1000, 0, io_uring_prep_read(sqe, fd, other, PAGE, (off_t)page * PAGE));
        CHECK(io_uring_submit(&second) == 1 && next(&second, &result) == 1000 && result == PAGE);
        CHECK(is_page(other, page));
        io_uring_queue_exit(&second);
    }
    close(fd);
}

/* Children, and a change of who the process is, while requests are on their way. */
static void changes(unsigned seed) {
    static char room[DEPTH][PAGE];
    int fd = opened(O_RDONLY), result, status;
    struct io_uring ring;
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    for (int round = 0; round < 10; round++) {
        unsigned page[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            page[i] = random_page(&seed) % PAGES;
            PUT(&ring, i, 0, io_uring_prep_read(sqe, fd, room[i], PAGE, (off_t)page[i] * PAGE));
        }
        CHECK(io_uring_submit(&ring) == DEPTH);
        pid_t child = fork();
        if (!child) {
            reads(seed, 2, 0);
            exit(0);
        }
        if (!getuid()) CHECK(!setegid(round % 2 ? 0 : 12));
        for (int i = 0; i < DEPTH; i++) {
            uint64_t which = next(&ring, &result);
            CHECK(which < DEPTH && result == PAGE && is_page(room[which], page[which]));
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    io_uring_queue_exit(&ring);
    close(fd);
}

static int gets(aio_context_t context, int least, int most, struct io_event *events) {
    int got;
    /* What is left to do for a ring that was closed may interrupt it. */
    do got = syscall(SYS_io_getevents, context, least, most, events, NULL);
    while (got < 0 && errno == EINTR);
    CHECK(got >= least);
    return got;
}

static void aio(unsigned seed, int rounds) {
    static char room[DEPTH][PAGE] __attribute__((aligned(PAGE)));
    struct iocb block[DEPTH], *list[DEPTH];
    struct io_event events[DEPTH];
    aio_context_t context = 0;
    int fd = opened(O_RDWR), behind = 0;
    CHECK(!syscall(SYS_io_setup, DEPTH, &context));
    for (int round = 0; round < rounds; round++) {
        unsigned page[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            page[i] = random_page(&seed) % PAGES;
            block[i] = (struct iocb){.aio_data = 1000 + i, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd,
                .aio_buf = (uintptr_t)room[i], .aio_nbytes = PAGE, .aio_offset = (off_t)page[i] * PAGE};
            list[i] = &block[i];
        }
        block[3].aio_lio_opcode = IOCB_CMD_FSYNC, block[3].aio_buf = block[3].aio_nbytes = block[3].aio_offset = 0;
        for (int done = 0; done < DEPTH;) {
            int taken = syscall(SYS_io_submit, context, DEPTH - done, list + done);
            CHECK(taken > 0);
            done += taken;
        }
        for (int came = 0; came < DEPTH;) {
            int got = gets(context, came || !round ? 1 : 0, DEPTH, events);
            behind += !came && got < DEPTH;
            came += got;
            for (int i = 0; i < got; i++) {
                int which = (struct iocb *)events[i].obj - block;
                CHECK(which >= 0 && which < DEPTH && events[i].data == 1000 + which);
                CHECK(events[i].res == (which == 3 ? 0 : PAGE));
                CHECK(which == 3 || is_page(room[which], page[which]));
            }
        }
    }
    late += behind;
    /* An address that nobody has: the completion says so, or the call. */
    block[0].aio_buf = 8;
    if (syscall(SYS_io_submit, context, 1, list) == 1) {
        gets(context, 1, DEPTH, events);
        CHECK((long)events[0].res < 0 && events[0].obj == (uintptr_t)&block[0]);
    }
    /* A context that goes waits for what is on its way. */
    block[0].aio_buf = (uintptr_t)room[0];
    CHECK(syscall(SYS_io_submit, context, DEPTH, list) > 0);
    CHECK(!syscall(SYS_io_destroy, context));
    close(fd);
}

/* Who does not want to wait is told so. */
static void unwilling(unsigned seed) {
    static char page[PAGE];
    struct iovec part = {page, PAGE};
    int fd = opened(O_RDONLY), refused = 0;
    for (int i = 0; i < 200; i++) {
        unsigned number = random_page(&seed) % PAGES;
        ssize_t got = preadv2(fd, &part, 1, (off_t)number * PAGE, RWF_NOWAIT);
        CHECK(got == PAGE ? is_page(page, number) : got == -1 && errno == EAGAIN);
        refused += got == -1;
        CHECK(preadv2(fd, &part, 1, (off_t)number * PAGE, 0) == PAGE && is_page(page, number));
    }
    CHECK(refused > 0);
    close(fd);
}

static int threads_there_are(void) {
    struct stat found;
    CHECK(!stat("/proc/self/task", &found));
    return found.st_nlink - 2;
}

/* A process that confines itself has no threads but its own. */
static void confined(unsigned seed) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    int status;
    pid_t child = fork();
    if (!child) {
        reads(seed, 5, 0);
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
        CHECK(threads_there_are() == 1);
        reads(seed + 1, 5, 0);
        CHECK(threads_there_are() == 1);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void check(void) {
    reads(1, 60, 0);
    reads(2, 20, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    CHECK(late > 0);
    late = 0;
    aio(3, 60);
    CHECK(late > 0);
    threads();
    kinds();
    locks();
    successors(4);
    changes(5);
    unwilling(7);
    confined(8);
    reads(6, 10, 0);
}

static void make(void) {
    char page[PAGE];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    for (int i = 0; i < PAGES; i++) {
        fill(page, i);
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    CHECK(!fsync(fd));
}

/* Pages 0 to 31 by synced writes, 32 to 63 by a write and a sync. */
static void synced(void) {
    static char room[PAGE];
    int fd = opened(O_RDWR), dsync = opened(O_RDWR | O_DSYNC), result;
    struct io_uring ring;
    CHECK(io_uring_queue_init(64, &ring, 0) == 0);
    memset(room, 's', PAGE);
    for (int i = 0; i < 64; i++) PUT(&ring, i, 0, io_uring_prep_write(sqe, i < 32 ? dsync : fd, room, PAGE, i * PAGE));
    CHECK(io_uring_submit(&ring) == 64);
    for (int i = 0; i < 64; i++) CHECK(next(&ring, &result) < 64 && result == PAGE);
    PUT(&ring, 64, 0, io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC));
    CHECK(io_uring_submit(&ring) == 1 && next(&ring, &result) == 64 && result == 0);
    printf("synced\n"), fflush(stdout);
    kill(getppid(), SIGKILL), kill(getpid(), SIGKILL);
}

static void fail(const char *disk) {
    static char room[PAGE];
    int fd = opened(O_RDONLY), result;
    /* Where its pages are is in memory then. */
    CHECK(pread(fd, room, 10, (off_t)(PAGES - 40) * PAGE) == 10 && pread(fd, room, 10, 0) == 10);
    CHECK(!truncate(disk, 8 << 20));
    aio_context_t context = 0;
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uintptr_t)room,
        .aio_nbytes = 10}, *list[] = {&block};
    struct io_event event;
    CHECK(!syscall(SYS_io_setup, DEPTH, &context) && syscall(SYS_io_submit, context, 1, list) == 1);
    CHECK(gets(context, 1, 1, &event) == 1 && event.res == 10);
    block.aio_offset = (off_t)(PAGES - 1) * PAGE;
    CHECK(syscall(SYS_io_submit, context, 1, list) == 1 && gets(context, 1, 1, &event) == 1);
    CHECK(event.obj == (uintptr_t)&block);
    struct io_uring ring;
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    PUT(&ring, 1, 0, io_uring_prep_read(sqe, fd, room, PAGE, (off_t)(PAGES - 1) * PAGE));
    CHECK(io_uring_submit(&ring) == 1 && next(&ring, &result) == 1);
    printf("%s %s\n", strerrorname_np(-result), strerrorname_np(-(long)event.res));
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    path = arguments[2];
    if (!strcmp(arguments[1], "make")) make();
    else if (!strcmp(arguments[1], "check")) check();
    else if (!strcmp(arguments[1], "sync")) synced();
    else if (!strcmp(arguments[1], "fail") && count == 4) fail(arguments[3]);
    else return 2;
    return 0;
}
