/* Holes in shared mappings: nothing until somebody stores there, and the same for everybody. */
#include "fault.h"
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#define MB (1l << 20)
#define HUGE_FILE (4096 * MB)

static int sparse(const char *name, off_t size) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && !ftruncate(fd, size));
    return fd;
}

static char *mapped(int fd, size_t len, int protection) {
    char *map = mmap(0, len, protection, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    return map;
}

static long blocks(int fd) {
    struct stat stat;
    CHECK(!fstat(fd, &stat));
    return stat.st_blocks / 8;
}

static long free_units(void) {
    struct statfs found;
    CHECK(!statfs(".", &found));
    return found.f_bfree;
}

/* Far larger than the pool. */
static void costs_nothing(void) {
    int fd = sparse("huge", HUGE_FILE);
    long before = free_units();
    char *map = mapped(fd, HUGE_FILE, PROT_READ | PROT_WRITE);
    long sum = 0;
    for (off_t at = 0; at < HUGE_FILE; at += MB) sum += map[at];
    for (off_t at = 0; at < 32 * MB; at += PAGE) sum += map[at];
    CHECK(sum == 0 && blocks(fd) == 0);
    CHECK(before - free_units() < 16);
    map[3000 * MB + 5] = 'x';
    map[77] = 'y';
    CHECK(holds(fd, 3000 * MB + 5, "x") && holds(fd, 77, "y"));
    CHECK(map[3000 * MB + 6] == 0 && map[76] == 0 && map[3000 * MB + PAGE] == 0);
    CHECK(blocks(fd) >= 2 && blocks(fd) < 16);
    CHECK(!munmap(map, HUGE_FILE) && !close(fd) && !unlink("huge"));
    CHECK(before - free_units() < 16);
}

/* Who has seen zeros sees what comes. */
static void seen_by_others(void) {
    int fd = sparse("seen", 64 * MB);
    char *map = mapped(fd, 64 * MB, PROT_READ | PROT_WRITE);
    char *other = mapped(fd, 64 * MB, PROT_READ);
    CHECK(map[0] == 0 && other[0] == 0 && other[PAGE] == 0);
    map[1] = 'a';
    CHECK(other[1] == 'a' && other[PAGE] == 0);
    CHECK(pwrite(fd, "b", 1, PAGE + 1) == 1 && other[PAGE + 1] == 'b' && map[PAGE + 1] == 'b');
    CHECK(pwrite(fd, "c", 1, 9 * PAGE) == 1 && map[9 * PAGE] == 'c');
    int there[2], here[2];
    char go;
    CHECK(!pipe(there) && !pipe(here));
    pid_t child = fork();
    if (child == 0) {
        int own = open("seen", O_RDWR);
        char *mine = mapped(own, 64 * MB, PROT_READ | PROT_WRITE);
        for (int i = 20; i < 60; i++) CHECK(mine[i * PAGE] == 0 && other[i * PAGE] == 0);
        for (int i = 20; i < 60; i++) {
            CHECK(write(here[1], "", 1) == 1 && read(there[0], &go, 1) == 1);
            CHECK(mine[i * PAGE] == i && other[i * PAGE] == i && map[i * PAGE] == i);
            mine[i * PAGE + 40 * PAGE] = i;
            CHECK(pwrite(own, "w", 1, i * PAGE + 100 * PAGE) == 1);
            CHECK(write(here[1], "", 1) == 1 && read(there[0], &go, 1) == 1);
        }
        _exit(failures);
    }
    for (int i = 20; i < 60; i++) {
        CHECK(read(here[0], &go, 1) == 1);
        CHECK(map[i * PAGE + 40 * PAGE] == 0 && other[i * PAGE + 100 * PAGE] == 0);
        map[i * PAGE] = i;
        CHECK(write(there[1], "", 1) == 1 && read(here[0], &go, 1) == 1);
        CHECK(map[i * PAGE + 40 * PAGE] == i && other[i * PAGE + 100 * PAGE] == 'w');
        CHECK(write(there[1], "", 1) == 1);
    }
    CHECK(status_of(child) == 0);
    CHECK(!munmap(map, 64 * MB) && !munmap(other, 64 * MB) && !close(fd));
}

/* The kernel, and we, are given addresses in holes. */
static void system_calls(const char *host) {
    int fd = sparse("calls", 64 * MB), far = open(host, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *map = mapped(fd, 64 * MB, PROT_READ | PROT_WRITE), text[3 * PAGE], *at = map;
    int ends[2], sockets[2];
    memset(text, 't', sizeof text);
    CHECK(far >= 0 && !pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));

    CHECK(write(far, map + MB, 3 * PAGE) == 3 * PAGE && write(ends[1], map + MB, PAGE) == PAGE);
    CHECK(read(ends[0], text, PAGE) == PAGE && text[0] == 0 && blocks(fd) == 0);
    memset(text, 't', sizeof text);
    CHECK(pwrite(far, text, sizeof text, 0) == sizeof text);

    CHECK(pread(far, at += MB, 3 * PAGE - 100, 0) == 3 * PAGE - 100);
    CHECK(at[0] == 't' && at[3 * PAGE - 101] == 't' && at[3 * PAGE - 100] == 0);
    CHECK(lseek(far, 0, SEEK_SET) == 0 && read(far, at += MB + 5, PAGE) == PAGE && at[PAGE - 1] == 't');
    struct iovec *vector = (struct iovec *)(map + 40 * MB);
    vector[0] = (struct iovec){at += MB, 10};
    vector[1] = (struct iovec){at += MB, PAGE};
    CHECK(preadv(far, vector, 2, 0) == PAGE + 10 && at[PAGE - 1] == 't' && at[-MB + 9] == 't');
    CHECK(write(ends[1], "pipe", 5) == 5 && read(ends[0], at += MB, 5) == 5 && !strcmp(at, "pipe"));
    CHECK(send(sockets[0], "sock", 5, 0) == 5 && recv(sockets[1], at += MB, 5, 0) == 5);
    CHECK(!strcmp(at, "sock"));
    struct iovec one = {at += MB, 5};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
    CHECK(send(sockets[0], "mess", 5, 0) == 5 && recvmsg(sockets[1], &message, 0) == 5);
    CHECK(!strcmp(at, "mess"));
    CHECK(send(sockets[0], at + MB, 100, 0) == 100 && recv(sockets[1], text, 100, 0) == 100);
    CHECK(text[0] == 0 && text[99] == 0);

    int file = file_with("source", "from the pool");
    CHECK(pread(file, at += MB, 13, 0) == 13 && !memcmp(at, "from the pool", 13));
    CHECK(lseek(file, 0, SEEK_SET) == 0 && read(file, at += MB, 13) == 13 && at[12] == 'l');
    CHECK(pwrite(file, at += MB, 4, 0) == 4 && holds(file, 4, " the pool"));
    CHECK(pread(file, text, 4, 0) == 4 && !memcmp(text, "\0\0\0\0", 4));
    struct stat *stat = (struct stat *)(at += MB);
    CHECK(!fstat(file, stat) && stat->st_size == 13);
    stat = (struct stat *)(at += MB);
    CHECK(!fstat(far, stat) && stat->st_size == 3 * PAGE);
    CHECK(getcwd(at += MB, 100) == at && !strcmp(at, "/nacre/d"));
    CHECK(readlink("/proc/self/exe", at += MB, 200) > 0);
    CHECK(!madvise(map + 50 * MB, 4 * PAGE, MADV_POPULATE_WRITE) && !mlock(map + 51 * MB, PAGE));
    CHECK(write(far, (char *)8, 5) == -1 && errno == EFAULT);
    CHECK(pread(file, (char *)8, 5, 0) == -1 && errno == EFAULT);
    CHECK(!munmap(map, 64 * MB));
    CHECK(pread(far, text, 10, 0) == 10 && write(far, map, 5) == -1 && errno == EFAULT);
}

static void protections(void) {
    int fd = sparse("protected", MB);
    char *map = mapped(fd, MB, PROT_READ);
    CHECK(map[5] == 0 && store(map, 'x') == SIGSEGV && store(map + PAGE, 'x') == SIGSEGV);
    CHECK(!mprotect(map, 8 * PAGE, PROT_READ | PROT_WRITE));
    CHECK(store(map, 'x') == 0 && store(map + PAGE, 'y') == 0 && store(map + 8 * PAGE, 'z') == SIGSEGV);
    CHECK(map[8 * PAGE] == 0);
    CHECK(!mprotect(map, MB, PROT_NONE));
    CHECK(load(map) == SIGSEGV && load(map + 2 * PAGE) == SIGSEGV && load(map + 8 * PAGE) == SIGSEGV);
    CHECK(!mprotect(map, MB, PROT_READ) && map[0] == 'x' && map[2 * PAGE] == 0);
    CHECK(store(map, 'x') == SIGSEGV && store(map + 3 * PAGE, 'x') == SIGSEGV);
    CHECK(holds(fd, 0, "x") && blocks(fd) < 8);
    int reader = open("protected", O_RDONLY);
    char *only = mapped(reader, MB, PROT_READ);
    CHECK(only[0] == 'x' && only[100 * PAGE] == 0 && store(only + 100 * PAGE, 'x') == SIGSEGV);
    CHECK(mprotect(only, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    CHECK(pwrite(fd, "n", 1, 100 * PAGE) == 1 && only[100 * PAGE] == 'n');
    CHECK(!munmap(map, MB) && !munmap(only, MB));
}

static void moved_and_cut(void) {
    int fd = sparse("moved", 16 * PAGE);
    char *map = mapped(fd, 32 * PAGE, PROT_READ | PROT_WRITE);
    CHECK(map[8 * PAGE] == 0 && store(map + 16 * PAGE, 'x') == SIGBUS && load(map + 20 * PAGE) == SIGBUS);
    CHECK(!ftruncate(fd, 24 * PAGE));
    CHECK(load(map + 20 * PAGE) == 0 && store(map + 22 * PAGE, 'g') == 0 && holds(fd, 22 * PAGE, "g"));
    map[2 * PAGE] = 'm';
    map = mremap(map, 32 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    CHECK(map != MAP_FAILED && map[2 * PAGE] == 'm' && map[3 * PAGE] == 0 && map[22 * PAGE] == 'g');
    CHECK(!munmap(map + 4 * PAGE, 4 * PAGE));
    CHECK(store(map + 5 * PAGE, 'x') == SIGSEGV && store(map + 9 * PAGE, 'k') == 0);
    CHECK(holds(fd, 9 * PAGE, "k"));
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 9 * PAGE, PAGE));
    CHECK(map[9 * PAGE] == 0 && store(map + 9 * PAGE, 'K') == 0 && holds(fd, 9 * PAGE, "K"));
    CHECK(!ftruncate(fd, PAGE) && !ftruncate(fd, 24 * PAGE));
    CHECK(map[9 * PAGE] == 0 && map[12 * PAGE] == 0 && store(map + 12 * PAGE, 't') == 0);
    CHECK(holds(fd, 12 * PAGE, "t"));
    CHECK(!fallocate(fd, 0, 14 * PAGE, 2 * PAGE));
    CHECK(map[14 * PAGE] == 0 && store(map + 14 * PAGE, 'r') == 0 && holds(fd, 14 * PAGE, "r"));
    char *over = mmap(map + 16 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == map + 16 * PAGE && *over == 0 && store(over, 'x') == SIGSEGV);
    CHECK(!munmap(map, 64 * PAGE));
}

/* As a sparse file on tmpfs: SIGBUS, and room helps. */
static void full_pool(void) {
    int fd = sparse("full", 1024 * MB), filler = open("filler", O_RDWR | O_CREAT, 0644);
    char *map = mapped(fd, 1024 * MB, PROT_READ | PROT_WRITE);
    CHECK(load(map + 500 * MB) == 0);
    static char block[MB];
    while (write(filler, block, MB) > 0);
    while (write(filler, block, PAGE) > 0);
    int signal = 0;
    for (long at = 0; at < 8 * MB && !signal; at += PAGE) signal = store(map + at, 'f');
    CHECK(signal == SIGBUS);
    CHECK(read(open("/dev/zero", O_RDONLY), map + 600 * MB, PAGE) == -1 && errno == EFAULT);
    CHECK(load(map + 700 * MB) == 0 && map[500 * MB] == 0);
    CHECK(!ftruncate(filler, 0));
    CHECK(store(map + 600 * MB, 'n') == 0 && holds(fd, 600 * MB, "n"));
    CHECK(!munmap(map, 1024 * MB) && !unlink("full") && !unlink("filler"));
}

static char *together;

static void *storing(void *argument) {
    long me = (long)argument;
    for (long i = 0; i < 400; i++) {
        together[i * 3 * PAGE + me] = me + 1;
        if (i % 7 == me) (void)*(volatile char *)(together + 20 * MB + i * PAGE);
    }
    return 0;
}

static void threads(void) {
    int fd = sparse("threads", 64 * MB);
    together = mapped(fd, 64 * MB, PROT_READ | PROT_WRITE);
    pthread_t all[4];
    for (long i = 0; i < 4; i++) CHECK(!pthread_create(&all[i], 0, storing, (void *)i));
    pid_t child = fork();
    if (child == 0) {
        storing((void *)5);
        _exit(together[399 * 3 * PAGE + 5] != 6);
    }
    for (long i = 0; i < 4; i++) CHECK(!pthread_join(all[i], 0));
    CHECK(status_of(child) == 0);
    for (long i = 0; i < 400; i++)
        CHECK(!memcmp(together + i * 3 * PAGE, "\1\2\3\4\0\6", 6));
    CHECK(!munmap(together, 64 * MB));
}

/* All of a file, one page behind the other, and in disorder. */
static void many(void) {
    long size = 24 * MB;
    int fd = sparse("many", size);
    char *map = mapped(fd, size, PROT_READ | PROT_WRITE);
    for (long at = 0; at < size; at += PAGE) *(long *)(map + at) = at + 1;
    for (long at = 0; at < size; at += PAGE) CHECK(*(long *)(map + at) == at + 1);
    CHECK(!munmap(map, size) && !ftruncate(fd, 0) && !ftruncate(fd, size));
    map = mapped(fd, size, PROT_READ | PROT_WRITE);
    long pages = size / PAGE;
    for (long i = 0; i < pages; i++) *(long *)(map + i * 4099 % pages * PAGE) = i + 1;
    for (long i = 0; i < pages; i++) CHECK(*(long *)(map + i * 4099 % pages * PAGE) == i + 1);
    CHECK(!msync(map, size, MS_SYNC) && !munmap(map, size));
    long found;
    for (long i = 0; i < pages; i++)
        CHECK(pread(fd, &found, 8, i * 4099 % pages * PAGE) == 8 && found == i + 1);
    CHECK(!unlink("many"));
}

int main(int count, char **arguments) {
    static char alternate[16 << 10];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(!sigaltstack(&stack, 0));
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    costs_nothing();
    seen_by_others();
    system_calls(arguments[1]);
    protections();
    moved_and_cut();
    threads();
    many();
    full_pool();
    return failures;
}
