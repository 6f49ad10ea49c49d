/* Calls that programs and libraries make themselves, without libc. With -DLIBRARY this is such a library, else a program that
   also loads the libraries that its arguments name. */
#include "check.h"
#include <dlfcn.h>
#include <elf.h>

/* More often than libraries are remembered. */
#define AGAIN 300

#ifdef LARGE
/* Too much to be searched at each start. */
__asm__(".text\n .skip 100000, 0x90");
#endif

#define MARK 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05

static __attribute__((noinline)) long raw(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static __attribute__((noinline)) long raw_open(const char *path, long flags) {
    register long mode __asm__("r10") = 0644;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_openat), "D"((long)AT_FDCWD), "S"(path), "d"(flags), "r"(mode) : "rcx", "r11", "memory");
    return result;
}

#ifdef WIDE
/* A call as a function may make it that keeps something in wide registers. */
#define KEPT(number, a, b, c, d) ({ \
    register long r10 __asm__("r10") = (d); \
    long result; \
    __asm__ volatile("syscall\n test %%rax, %%rax" : "=a"(result) : "0"((long)(number)), "D"((long)(a)), "S"((long)(b)), "d"((long)(c)), "r"(r10) \
                     : "rcx", "r11", "cc", "memory"); \
    result; \
})

/* What was put there before the calls is there behind them. */
static __attribute__((noinline, target("avx2"))) void keeps_wide(const char *name) {
    static char bytes[64 << 10], back[64 << 10];
    long all[4][4], fd, wrote, read;
    memset(bytes, 'w', sizeof bytes);
    __asm__ volatile("vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n vpaddq %%ymm1, %%ymm1, %%ymm7\n vpaddq %%ymm7, %%ymm7, %%ymm9\n"
                     "vpaddq %%ymm9, %%ymm7, %%ymm15" ::: "xmm1", "xmm7", "xmm9", "xmm15");
    fd = KEPT(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    wrote = KEPT(SYS_write, fd, bytes, sizeof bytes, 0);
    read = KEPT(SYS_pread64, fd, back, sizeof back, 0);
    KEPT(SYS_unlinkat, AT_FDCWD, name, 0, 0);
    KEPT(SYS_getppid, 0, 0, 0, 0);
    __asm__ volatile("vmovdqu %%ymm1, (%0)\n vmovdqu %%ymm7, 32(%0)\n vmovdqu %%ymm9, 64(%0)\n vmovdqu %%ymm15, 96(%0)\n vzeroupper"
                     :: "r"(all) : "memory");
    CHECK(fd >= 0 && fcntl(fd, F_GETFL) >= 0 && KEPT(SYS_close, fd, 0, 0, 0) == 0);
    CHECK(wrote == sizeof bytes && read == sizeof back && !memcmp(bytes, back, sizeof back));
    CHECK(access(name, F_OK) == -1);
    for (int i = 0; i < 4; i++) CHECK(all[0][i] == -1 && all[1][i] == -2 && all[2][i] == -4 && all[3][i] == -6);
}
#endif

/* What looks like calls between the code is not touched. */
static __attribute__((noinline)) const unsigned char *table(void) {
    const unsigned char *found;
    __asm__ volatile("lea 1f(%%rip), %0\n jmp 2f\n 1: .byte 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05\n .balign 16\n 2:" : "=r"(found));
    return found;
}

/* Makes a file with raw calls only; its text is looked at through libc. */
int makes_file(const char *name) {
    struct stat attributes;
    char text[8] = {0};
    long fd = raw_open(name, O_RDWR | O_CREAT | O_EXCL);
    CHECK(fd >= 0);
    CHECK(raw(SYS_write, fd, (long)"raw", 3, 0) == 3);
    CHECK(raw(SYS_pread64, fd, (long)text, 7, 1) == 2 && strcmp(text, "aw") == 0);
    CHECK(raw(SYS_newfstatat, AT_FDCWD, (long)name, (long)&attributes, AT_SYMLINK_NOFOLLOW) == 0 && attributes.st_size == 3);
    CHECK(holds(fd, 0, "raw"));
    CHECK(raw(SYS_close, fd, 0, 0, 0) == 0 && fcntl(fd, F_GETFD) == -1);
    CHECK(raw_open("/nacre/d/missing", O_RDONLY) == -ENOENT);
    CHECK(raw(SYS_getpid, 0, 0, 0, 0) == getpid());
    CHECK(memcmp(table(), (unsigned char[]){MARK}, 8) == 0);
    return failures;
}

#ifdef LIBRARY
/* The first that a library does is intercepted, too. */
static __attribute__((constructor)) void start(void) {
    long fd = raw_open("/nacre/d/constructed", O_WRONLY | O_CREAT | O_APPEND);
    CHECK(fd >= 0 && raw(SYS_write, fd, (long)"c", 1, 0) == 1);
    CHECK(raw(SYS_close, fd, 0, 0, 0) == 0);
}
#else
static void *loads(void *path) {
    char name[64];
    void *library = dlopen(path, RTLD_NOW);
    if (!library) dprintf(2, "%s\n", dlerror());
    int (*makes)(const char *) = dlsym(library, "makes_file");
    snprintf(name, sizeof name, "/nacre/d/of-%d", gettid());
    failures += makes(name);
    CHECK(unlink(name) == 0 && dlclose(library) == 0);
    return NULL;
}

/* Somebody maps what will be a library while it is still being written. */
static void maps_a_part(const char *path) {
    static char part[8 << 20];
    int whole = open(path, O_RDONLY), copy = open("/nacre/d/part", O_CREAT | O_RDWR, 0700);
    long len = read(whole, part, sizeof part);
    Elf64_Ehdr *elf = (void *)part;
    for (Elf64_Phdr *h = (void *)(part + elf->e_phoff), *end = h + elf->e_phnum; h < end; h++)
        if (h->p_type == PT_LOAD && h->p_flags & PF_X) {
            long text = h->p_offset + h->p_filesz;
            CHECK(text < len && write(copy, part, text) == text);
            CHECK(mmap(0, h->p_filesz, PROT_READ | PROT_EXEC, MAP_PRIVATE, copy, h->p_offset & -PAGE) != MAP_FAILED);
        }
    close(whole), close(copy), unlink("/nacre/d/part");
}

int main(int argc, char **argv) {
    struct stat attributes;
#ifdef WIDE
    if (__builtin_cpu_supports("avx2")) keeps_wide("/nacre/d/wide");
    return failures;
#endif
    makes_file("/nacre/d/made");
    CHECK(!unlink("/nacre/d/constructed") || errno == ENOENT);
    CHECK(access("/nacre/d/made", F_OK) == 0);
    for (int i = 1; i < argc; i++) {
        pthread_t thread;
        maps_a_part(argv[i]);
        pthread_create(&thread, NULL, loads, argv[i]);
        pthread_join(thread, NULL);
        for (int again = 0; again < AGAIN; again++) loads(argv[i]);
    }
    CHECK(argc == 1 || stat("/nacre/d/constructed", &attributes) == 0 && attributes.st_size == (1 + AGAIN) * (argc - 1));
    CHECK(!unlink("/nacre/d/made"));
    return failures;
}
#endif
