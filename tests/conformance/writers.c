/* One of several processes that write one file at the same time, each only its own stripes of it, which share pages with
   those of the others: by calls and through a mapping, behind the end as well, with holes punched. Each knows what its stripes
   must hold and looks all the time.

   writers FILE OWN-NUMBER PROCESSES OPERATIONS SEED [lie]: with `lie`, a write is left out, which must be noticed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 1 << 18, STRIPE = 700 };

static const char *path;
static long self, processes, operations, done;
static unsigned char known[LENGTH], bytes[STRIPE];
static unsigned char *mapping;
static size_t mapped;
static int fd = -1;
static uint64_t state;

static uint64_t below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % limit;
}

static void fail(const char *what, long at) {
    printf("writer %ld, operation %ld: %s at %ld\n", self, done, what, at);
    exit(1);
}

static void reopen(void) {
    if (mapping && munmap(mapping, mapped)) fail("munmap", 0);
    mapping = NULL;
    if (fd >= 0 && close(fd)) fail("close", 0);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) fail("open", 0);
}

/* Whether bytes up to `end` can be reached through a mapping. The file never shrinks. */
static int map(size_t end) {
    struct stat stat;
    if (mapping && mapped >= end) return 1;
    if (fstat(fd, &stat)) fail("fstat", 0);
    if ((size_t)stat.st_size < end) return 0;
    if (mapping && munmap(mapping, mapped)) fail("munmap", 0);
    mapped = stat.st_size;
    mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) fail("mmap", 0);
    return 1;
}

static void compare(const unsigned char *found, long at, long len, const char *how) {
    for (long i = 0; i < len; i++)
        if (found[i] != known[at + i]) {
            printf("found %#x, wrote %#x: ", found[i], known[at + i]);
            fail(how, at + i);
        }
}

static void look(long at, long len) {
    ssize_t got = pread(fd, bytes, len, at);
    if (got < 0) fail("pread", at);
    /* What lies behind the end was never written. */
    memset(bytes + got, 0, len - got);
    compare(bytes, at, len, "pread");
}

static void change(long at, long len, int lie) {
    for (long i = 0; i < len; i++) known[at + i] = 1 + below(255);
    if (lie) return;
    if (below(2) && map(at + len)) {
        memcpy(mapping + at, known + at, len);
        if (below(16) == 0 && msync(mapping, mapped, MS_SYNC)) fail("msync", at);
    } else if (pwrite(fd, known + at, len, at) != len) {
        fail("pwrite", at);
    }
}

static void punch(long at, long len) {
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len)) fail("fallocate", at);
    memset(known + at, 0, len);
}

static void one(int lie) {
    long stripe = below(LENGTH / STRIPE / processes) * processes + self;
    long from = below(STRIPE), len = 1 + below(STRIPE - from), at = stripe * STRIPE + from;
    long kind = lie ? 0 : below(100);
    if (kind < 45) change(at, len, lie);
    else if (kind < 70) look(at, len);
    else if (kind < 92) {
        if (map(at + len)) compare(mapping + at, at, len, "mapping");
    } else if (kind < 97) punch(at, len);
    else if (kind < 99) reopen();
    else if (fsync(fd)) fail("fsync", 0);
}

int main(int count, char **words) {
    if (count < 6) return 2;
    path = words[1];
    self = atol(words[2]);
    processes = atol(words[3]);
    operations = atol(words[4]);
    state = atol(words[5]) * 0x9E3779B97F4A7C15u | 1;
    reopen();
    for (done = 0; done < operations; done++) one(count > 6 && done == operations / 2);
    for (long stripe = self; stripe < LENGTH / STRIPE; stripe += processes) look(stripe * STRIPE, STRIPE);
    return 0;
}
