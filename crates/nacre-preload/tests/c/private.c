/* Private mappings: what the process stores is its own, what the file loses never shows another file. Argument: a
   library that this source makes with -DLIBRARY. Every check holds on tmpfs, too. */
#include "fault.h"
#include <dlfcn.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

/* 1 MiB of constants, and pointers that the dynamic linker relocates. */
#define ROW(n) n, n + 1, n + 2, n + 3
#define ROWS(n) ROW(n), ROW(n + 4), ROW(n + 8), ROW(n + 12)
const int constants[1 << 18] = {ROWS(1), [65536] = ROWS(7), [262140] = ROW(9)};
int variables[1 << 14] = {1, 2, 3};
const int *const pointers[8192] = {constants, variables, [4000] = constants + 5, [8191] = variables + 2};
#ifdef LIBRARY
int sum(void) { return constants[65537] + *pointers[4000] + *pointers[8191] + variables[1]++; }
#else

#define PAGES 256
#define SIZE (PAGES * PAGE)

/* A file of 1 MiB full of a letter. */
static int full_of(const char *name, char letter) {
    static char block[SIZE];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    memset(block, letter, SIZE);
    CHECK(fd >= 0 && write(fd, block, SIZE) == SIZE);
    return fd;
}

static char *mapped(int fd, size_t len, int protection) {
    char *map = mmap(0, len, protection, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED);
    return map;
}

static const int both = PROT_READ | PROT_WRITE;

/* Other files take what is free, full of '!': none of it may be seen in `map`. */
static void shows_nothing_else(volatile char *map, size_t len) {
    int others[16], seen = 0;
    for (int i = 0; i < 16; i++) {
        char name[] = {'o', 'a' + i, 0};
        others[i] = full_of(name, '!');
        unlink(name);
    }
    for (size_t at = 0; at < len; at += PAGE) seen += load(map + at) == 0 && map[at] == '!';
    CHECK(seen == 0);
    for (int i = 0; i < 16; i++) close(others[i]);
}

static void stores_are_its_own(void) {
    int fd = full_of("own", 'a');
    char *map = mapped(fd, SIZE, both), *other = mapped(fd, SIZE, PROT_READ);
    map[5 * PAGE] = 'S';
    CHECK(map[5 * PAGE + 1] == 'a' && other[5 * PAGE] == 'a' && holds(fd, 5 * PAGE, "a"));
    CHECK(pwrite(fd, "new", 3, 5 * PAGE) == 3 && map[5 * PAGE] == 'S' && map[5 * PAGE + 1] == 'a');
    /* Pages that were not stored to are the file's. */
    CHECK(pwrite(fd, "new", 3, 7 * PAGE) == 3 && !memcmp(map + 7 * PAGE, "new", 3));
    CHECK(!msync(map, SIZE, MS_SYNC) && holds(fd, 5 * PAGE, "new"));
    CHECK(pread(fd, map + 9 * PAGE, 2 * PAGE, 7 * PAGE) == 2 * PAGE && !memcmp(map + 9 * PAGE, "new", 3));
    CHECK(holds(fd, 9 * PAGE, "aaa") && pwrite(fd, map + 5 * PAGE, 2, 0) == 2 && holds(fd, 0, "Sa"));
    CHECK(!madvise(map, SIZE, MADV_DONTNEED) && !memcmp(map + 5 * PAGE, "new", 3) && map[9 * PAGE] == 'a');
    CHECK(!mprotect(map + PAGE, PAGE, PROT_NONE) && load(map + PAGE) == SIGSEGV && load(map) == 0);
    CHECK(!mprotect(map + PAGE, PAGE, PROT_READ) && map[PAGE] == 'a' && store(map + PAGE, 'x') == SIGSEGV);
    CHECK(store(other, 'x') == SIGSEGV && !mprotect(other, SIZE, both) && store(other, 'x') == 0);
    CHECK(holds(fd, 0, "Sa"));
    CHECK(!munmap(map + 2 * PAGE, PAGE) && load(map + 2 * PAGE) == SIGSEGV && map[3 * PAGE] == 'a');
    CHECK(!munmap(map, SIZE) && load(map) == SIGSEGV && !munmap(other, SIZE));
    close(fd);
    fd = open("own", O_RDONLY);
    map = mapped(fd, SIZE, both);
    CHECK(!close(fd) && store(map, 'x') == 0 && map[0] == 'x' && map[PAGE] == 'a');
    CHECK(remap_file_pages(map, PAGE, 0, 3, 0) == -1 && errno == EINVAL && !munmap(map, SIZE));
}

static void ends(void) {
    int fd = full_of("ends", 'e');
    CHECK(!ftruncate(fd, 40 * PAGE + 10));
    char *map = mapped(fd, 64 * PAGE, both);
    CHECK(map[40 * PAGE + 9] == 'e' && map[40 * PAGE + 10] == 0 && map[40 * PAGE + 4000] == 0);
    CHECK(load(map + 41 * PAGE) == SIGBUS && store(map + 60 * PAGE, 'x') == SIGBUS);
    map[40 * PAGE] = 'S';
    CHECK(!madvise(map, 64 * PAGE, MADV_DONTNEED) && map[40 * PAGE] == 'e' && map[40 * PAGE + 10] == 0);
    CHECK(pwrite(fd, "grown", 5, 50 * PAGE) == 5 && load(map + 50 * PAGE) == 0 && map[50 * PAGE] == 'g');
    CHECK(map[45 * PAGE] == 0 && store(map + 45 * PAGE, 'x') == 0 && load(map + 51 * PAGE) == SIGBUS);
    CHECK(!munmap(map, 64 * PAGE) && !close(fd));
}

static void holes(void) {
    int fd = open("holes", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(!ftruncate(fd, 8L << 30) && pwrite(fd, "mid", 3, 4L << 30) == 3);
    char *map = mmap(0, 8L << 30, both, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    CHECK(map != MAP_FAILED && map[1L << 30] == 0 && !memcmp(map + (4L << 30), "mid", 3));
    map[2L << 30] = 'x', map[4L << 30] = 'M';
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_blocks <= 64 && holds(fd, 4L << 30, "mid"));
    CHECK(!madvise(map, 8L << 30, MADV_DONTNEED) && map[2L << 30] == 0 && map[4L << 30] == 'm');
    CHECK(!munmap(map, 8L << 30) && !close(fd));
}

static void cut(void) {
    int fd = full_of("cut", 'c');
    char *map = mapped(fd, SIZE, both);
    map[3 * PAGE] = 'S';
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE / 2));
    shows_nothing_else(map, SIZE);
    CHECK(map[3 * PAGE] == 'S' && map[PAGE] == 0 && map[SIZE / 2] == 'c');
    CHECK(!ftruncate(fd, PAGE));
    shows_nothing_else(map, SIZE);
    CHECK(!ftruncate(fd, SIZE) && holds(fd, SIZE - 1, "\0"));
    shows_nothing_else(map, SIZE);
    CHECK(!unlink("cut") && !close(fd));
    shows_nothing_else(map, SIZE);
    CHECK(!munmap(map, SIZE));
}

/* Half of a pool, so that what is gone is taken again. */
static void given_back(void) {
    struct statfs before, meanwhile, after;
    int fd = full_of("back", 'b');
    statfs(".", &before);
    char *map = mapped(fd, SIZE, PROT_READ);
    CHECK(!unlink("back") && !close(fd) && !statfs(".", &meanwhile) && map[SIZE - 1] == 'b');
    CHECK(!munmap(map, SIZE) && !statfs(".", &after));
    CHECK(meanwhile.f_bfree < before.f_bfree + PAGES / 2 && after.f_bfree >= before.f_bfree + PAGES / 2);
}

static void children(void) {
    int fd = full_of("child", 'f'), out[2], in[2];
    char *map = mapped(fd, SIZE, both), byte;
    map[PAGE] = 'P';
    CHECK(!pipe(out) && !pipe(in));
    pid_t child = fork();
    if (child == 0) {
        map[0] = 'C';
        if (read(in[0], &byte, 1) != 1) _exit(1);
        shows_nothing_else(map, SIZE);
        CHECK(map[PAGE] == 'P' && map[0] == 'C' && map[9 * PAGE] == 'f');
        _exit(failures);
    }
    CHECK(map[0] == 'f' && !munmap(map, SIZE) && !unlink("child") && !close(fd));
    CHECK(write(in[1], "x", 1) == 1 && status_of(child) == 0);
}

static void moves(void) {
    int fd = full_of("move", 'm');
    char *map = mapped(fd, SIZE, both), *place = mapped(fd, SIZE, PROT_READ);
    map[PAGE] = 'S';
    map = mremap(map, SIZE, SIZE - PAGE, 0);
    CHECK(map != MAP_FAILED && map[PAGE] == 'S' && load(map + SIZE - PAGE) != 0);
    char *moved = mremap(map, SIZE - PAGE, SIZE - PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place && moved[PAGE] == 'S' && moved[2 * PAGE] == 'm' && load(map) == SIGSEGV);
    CHECK(moved[SIZE - 1] == 'm');
    char *grown = mremap(moved, SIZE - PAGE, 2 * SIZE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && grown[PAGE] == 'S' && grown[2 * PAGE] == 'm');
    shows_nothing_else(grown, 2 * SIZE);
    CHECK(store(grown, 'x') == 0 && holds(fd, 0, "m") && holds(fd, PAGE, "m"));
    CHECK(!munmap(grown, 2 * SIZE) && !close(fd));
}

/* Two files share their units: what one of them is given is not the other's. */
static void clones(void) {
    int fd = full_of("first", 'k'), copy = open("second", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ioctl(copy, FICLONE, fd) != 0) return;
    char *map = mapped(fd, SIZE, both);
    for (int i = 0; i < PAGES; i++) CHECK(pwrite(fd, "new", 3, i * PAGE) == 3);
    for (int i = 0; i < PAGES; i++) CHECK(pwrite(copy, "!!!", 3, i * PAGE) == 3);
    shows_nothing_else(map, SIZE);
    CHECK(!munmap(map, SIZE) && !close(fd) && !close(copy));
}

static void libraries(const char *source) {
    char command[4096];
    snprintf(command, sizeof command, "cp %s lib.so && cp %s other.so", source, source);
    CHECK(!system(command));
    void *library = dlopen("./lib.so", RTLD_NOW);
    CHECK(library != 0);
    if (!library) return;
    int (*sum)(void) = dlsym(library, "sum");
    CHECK(sum() == 8 + 6 + 3 + 2 && sum() == 8 + 6 + 3 + 3);
    pid_t child = fork();
    if (child == 0) _exit(sum() != 21);
    CHECK(status_of(child) == 0 && sum() == 21);
    /* Another process puts a new one in its place. */
    CHECK(!system("cmp lib.so other.so && cp other.so new.so && mv new.so lib.so && rm other.so"));
    int *constants = dlsym(library, "constants");
    shows_nothing_else((char *)constants, 1 << 20);
    CHECK(sum() == 22 && constants[65536] == 7 && constants[262143] == 12);
    /* By another name, as the one above is known. */
    void *again = dlopen("././lib.so", RTLD_NOW);
    CHECK(again && again != library && ((int (*)(void))dlsym(again, "sum"))() == 19 && sum() == 23);
    CHECK(!dlclose(library) && !dlclose(again));
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    stores_are_its_own();
    ends();
    holes();
    cut();
    given_back();
    children();
    moves();
    clones();
    libraries(arguments[1]);
    return failures;
}
#endif
