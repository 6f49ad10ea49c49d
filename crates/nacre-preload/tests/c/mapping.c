/* Shared and private mappings, growth, the end of the file, parts of mappings. */
#include "fault.h"

static void shared(int fd) {
    char *map = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map, "hello", 5) == 0);
    map[1] = 'E';
    CHECK(holds(fd, 0, "hEllo"));
    CHECK(pwrite(fd, "L", 1, 2) == 1 && map[2] == 'L');
    CHECK(store(map + PAGE + 10, 'x') == SIGBUS);
    CHECK(!ftruncate(fd, 3 * PAGE));
    CHECK(store(map + PAGE + 10, 'x') == 0 && holds(fd, PAGE + 10, "x"));
    CHECK(store(map + 3 * PAGE, 'x') == SIGBUS);
    CHECK(!msync(map, PAGE, MS_SYNC));
    CHECK(!mprotect(map, PAGE, PROT_READ));
    CHECK(store(map, 'x') == SIGSEGV);
    CHECK(store(map + 2 * PAGE, 'y') == 0 && holds(fd, 2 * PAGE, "y"));
    CHECK(!munmap(map + PAGE, PAGE));
    CHECK(store(map + PAGE, 'x') == SIGSEGV);
    char *moved = mremap(map + 2 * PAGE, 2 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved[0] == 'y');
    CHECK(store(moved + 1, 'z') == 0 && holds(fd, 2 * PAGE, "yz"));
    CHECK(!munmap(moved, 8 * PAGE) && !munmap(map, PAGE));
}

/* What has one protection again is one mapping again, as mremap wants it. */
static void protected_page_by_page(int fd) {
    const size_t pages = 64;
    CHECK(!ftruncate(fd, 3 * PAGE));
    char *map = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (size_t page = 0; page < pages; page += 2)
        CHECK(!mprotect(map + page * PAGE, PAGE, PROT_READ));
    CHECK(store(map, 'x') == SIGSEGV && store(map + PAGE, 'p') == 0);
    CHECK(mremap(map, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    for (size_t page = pages; page > 0; page -= 2)
        CHECK(!mprotect(map + (page - 2) * PAGE, PAGE, PROT_READ | PROT_WRITE));
    map = mremap(map, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    CHECK(map != MAP_FAILED && map[PAGE] == 'p' && store(map + 3 * PAGE, 'x') == SIGBUS);
    CHECK(!ftruncate(fd, 4 * PAGE) && store(map + 3 * PAGE, 'q') == 0 && holds(fd, 3 * PAGE, "q"));
    CHECK(!munmap(map, 2 * pages * PAGE));
}

static void read_only(void) {
    int fd = open("file", O_RDONLY);
    CHECK(mmap(0, PAGE, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    char *map = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(mprotect(map, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    char *private = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(private != MAP_FAILED && private[1] == 'E');
    private[1] = 'Z';
    CHECK(holds(fd, 1, "E") && map[1] == 'E');
    CHECK(close(fd) == 0 && map[1] == 'E');
}

static void forked(int fd) {
    char *map = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pid_t child = fork();
    if (child == 0) {
        map[100] = 'c';
        _exit(store(map + PAGE - 1, 'e'));
    }
    CHECK(status_of(child) == 0 && map[100] == 'c' && map[PAGE - 1] == 'e');
    CHECK(madvise(map, PAGE, MADV_REMOVE) == -1 && map[100] == 'c');
    char *over = mmap(map, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == map && map[100] == 0 && holds(fd, 100, "c"));
}

/* The handler runs on a small stack of its own, where growing must work too. */
static void small_stack(int fd) {
    stack_t stack = {.ss_size = 6 << 10};
    stack.ss_sp = malloc(stack.ss_size);
    CHECK(!sigaltstack(&stack, 0));
    CHECK(!ftruncate(fd, PAGE));
    char *map = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(!ftruncate(fd, 2 * PAGE));
    CHECK(store(map + PAGE, 's') == 0 && holds(fd, PAGE, "s"));
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    int fd = file_with("file", "hello");
    shared(fd);
    protected_page_by_page(fd);
    read_only();
    forked(fd);
    small_stack(fd);
    return failures;
}
