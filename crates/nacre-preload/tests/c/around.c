/* Calls that reach memory or files without open and mmap: none of them may show another part of the pool, or keep a
   part of it that the file no longer has. */
#include "fault.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/uio.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* A file of six pages, each full of its own letter. */
static int letters(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char page[PAGE];
    for (int i = 0; i < 6; i++) {
        memset(page, 'a' + i, PAGE);
        CHECK(pwrite(fd, page, PAGE, i * PAGE) == PAGE);
    }
    return fd;
}

static char *mapped(int fd, size_t pages, int protection) {
    char *map = mmap(0, pages * PAGE, protection, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    return map;
}

/* Pages of the file in another order, as the kernel does it. */
static void remapped(void) {
    int fd = letters("order");
    char *map = mapped(fd, 4, PROT_READ | PROT_WRITE);
    CHECK(remap_file_pages(map + PAGE, PAGE, 0, 5, 0) == 0);
    CHECK(map[0] == 'a' && map[PAGE] == 'f' && map[2 * PAGE] == 'c');
    map[PAGE] = 'F';
    CHECK(holds(fd, 5 * PAGE, "F") && holds(fd, PAGE, "b"));
    CHECK(remap_file_pages(map, PAGE, PROT_READ, 1, 0) == -1 && errno == EINVAL);
    CHECK(remap_file_pages(map, 0, 0, 1, 0) == -1 && errno == EINVAL);
    /* Behind the end of the file there is nothing. */
    CHECK(remap_file_pages(map, PAGE, 0, 100, 0) == 0 && store(map, 'x') == SIGBUS);
    char *private = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(remap_file_pages(private, PAGE, 0, 1, 0) == -1 && errno == EINVAL);
    CHECK(!munmap(map, 4 * PAGE) && !munmap(private, PAGE) && !close(fd));
}

/* A second mapping of the same pages (old size 0), and one that stays where it was. */
static void duplicated(void) {
    int fd = letters("twice");
    char *map = mapped(fd, 2, PROT_READ | PROT_WRITE);
    char *twice = mremap(map, 0, 2 * PAGE, MREMAP_MAYMOVE);
    CHECK(twice != MAP_FAILED && twice != map);
    twice[PAGE] = 'X';
    CHECK(map[PAGE] == 'X');
    char *longer = mremap(map + PAGE, 0, 64 * PAGE, MREMAP_MAYMOVE);
    CHECK(longer != MAP_FAILED && longer[0] == 'X' && longer[PAGE] == 'c');
    CHECK(store(longer + 5 * PAGE, 'x') == SIGBUS);
    CHECK(!munmap(map, 2 * PAGE));
    /* The duplicates keep the pages from other files. */
    CHECK(!close(fd) && !unlink("twice"));
    int other = letters("other");
    CHECK(twice[0] == 'a' && twice[PAGE] == 'X' && longer[4 * PAGE] == 'f');
    memset(twice, 'z', 2 * PAGE);
    char page[PAGE];
    for (int i = 0; i < 6; i++) {
        CHECK(pread(other, page, PAGE, i * PAGE) == PAGE);
        CHECK(page[0] == 'a' + i && page[PAGE - 1] == 'a' + i);
    }
    CHECK(!munmap(twice, 2 * PAGE) && !munmap(longer, 64 * PAGE) && !close(other));
    fd = letters("stays");
    map = mapped(fd, 2, PROT_READ | PROT_WRITE);
    char *moved = mremap(map, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    CHECK(moved != MAP_FAILED && moved[0] == 'a' && map[0] == 'a');
    CHECK(mremap(map, 2 * PAGE, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(map, 2 * PAGE, PAGE, 64) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(map, 2 * PAGE, 2 * PAGE, MREMAP_FIXED, moved) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(map, 2 * PAGE, 2 * PAGE, MREMAP_FIXED | MREMAP_MAYMOVE, map + PAGE) == MAP_FAILED);
    CHECK(errno == EINVAL && map[0] == 'a' && map[PAGE] == 'b');
    CHECK(!munmap(map, 2 * PAGE) && !munmap(moved, 2 * PAGE) && !close(fd));
}

/* Rights of pages by keys are rights, too. */
static void keys(void) {
    int fd = letters("rights"), reader = open("rights", O_RDONLY);
    char *map = mapped(reader, 1, PROT_READ);
    CHECK(syscall(SYS_pkey_mprotect, map, PAGE, PROT_READ | PROT_WRITE, -1) == -1 && errno == EACCES);
    CHECK(store(map, 'x') == SIGSEGV && holds(fd, 0, "a"));
    CHECK(!munmap(map, PAGE) && !close(fd) && !close(reader));
}

/* Sealed memory could not be unmapped, while its pages come to belong to others. */
static void sealed(void) {
    int fd = letters("sealed");
    char *map = mapped(fd, 1, PROT_READ);
    CHECK(syscall(SYS_mseal, map, PAGE, 0) == -1 && (errno == EPERM || errno == ENOSYS));
    CHECK(!munmap(map, PAGE) && !close(fd));
}

/* Advice by a pidfd is advice. */
static void advised(void) {
    int fd = letters("advised"), me = syscall(SYS_pidfd_open, getpid(), 0);
    char *map = mapped(fd, 2, PROT_READ | PROT_WRITE);
    struct iovec range = {map, PAGE};
    syscall(SYS_process_madvise, me, &range, 1, MADV_REMOVE, 0);
    CHECK(map[0] == 'a' && holds(fd, 0, "a"));
    CHECK(madvise(map, 2 * PAGE, MADV_REMOVE) == -1 && holds(fd, PAGE, "b"));
    CHECK(!munmap(map, 2 * PAGE) && !close(fd) && !close(me));
}

/* Pages in a pipe stay what they were when their file has given them away. */
static void piped(void) {
    int fd = letters("piped"), ends[2];
    CHECK(!pipe(ends));
    char *map = mapped(fd, 2, PROT_READ | PROT_WRITE);
    struct iovec range[2] = {{map, 10}, {map + PAGE, 5}};
    CHECK(vmsplice(ends[1], range, 2, 0) == 15);
    memset(map, 'z', 2 * PAGE);
    char found[16] = {0};
    CHECK(read(ends[0], found, 15) == 15 && !strcmp(found, "aaaaaaaaaabbbbb"));
    CHECK(vmsplice(fd, range, 2, 0) == -1 && errno == EBADF);
    CHECK(!munmap(map, 2 * PAGE) && !close(fd) && !close(ends[0]) && !close(ends[1]));
}

/* System V memory over a mapping takes its place. */
static void over(void) {
    int fd = letters("over"), id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
    char *map = mapped(fd, 2, PROT_READ | PROT_WRITE);
    CHECK(shmat(id, map, SHM_REMAP) == map && map[0] == 0);
    map[0] = 'q';
    CHECK(holds(fd, 0, "a") && map[PAGE] == 'b');
    /* The first page no longer belongs to the file: msync does not concern it, and it can go. */
    CHECK(!shmdt(map) && !shmctl(id, IPC_RMID, 0));
    CHECK(store(map, 'x') == SIGSEGV && !munmap(map + PAGE, PAGE) && !close(fd));
}

/* Other ways to the same bytes end at the mapping. */
static void other_ways(void) {
    int fd = letters("ways"), reader = open("ways", O_RDONLY);
    char *map = mapped(fd, 2, PROT_READ | PROT_WRITE), *plain = mapped(reader, 1, PROT_READ);
    int memory = open("/proc/self/mem", O_RDWR);
    CHECK(pwrite(memory, "M", 1, (off_t)(map + 1)) == 1 && holds(fd, 1, "M"));
    CHECK(pwrite(memory, "M", 1, (off_t)plain) == -1 && holds(fd, 0, "a"));
    struct iovec from = {"V", 1}, to = {map + 2, 1};
    CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1 && holds(fd, 2, "V"));
    to.iov_base = plain;
    CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == -1 && holds(fd, 0, "a"));
    char name[80];
    sprintf(name, "/proc/self/map_files/%lx-%lx", (long)plain, (long)plain + PAGE);
    CHECK(open(name, O_RDWR) == -1 && errno == EPERM);
    CHECK(truncate(name, 0) == -1 && errno == EPERM);
    CHECK(!close(memory) && !munmap(map, 2 * PAGE) && !munmap(plain, PAGE) && !close(fd) && !close(reader));
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    remapped();
    duplicated();
    keys();
    sealed();
    advised();
    piped();
    over();
    other_ways();
    return failures;
}
