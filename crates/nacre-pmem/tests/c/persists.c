/* Makes known bytes of a file durable by each function of libpmem; with CANARY, 8 bytes more than it says. */
#define _GNU_SOURCE
#include <libpmem.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 20)

int main(int argc, char **argv)
{
    size_t len;
    int is_pmem;
    char *base = pmem_map_file(argv[1], SIZE, PMEM_FILE_CREATE, 0600, &len, &is_pmem);
    if (argc != 3 || base == NULL || len != SIZE || !is_pmem)
        return 1;
    char bytes[4096];
    memset(bytes, 7, sizeof bytes);
    /* One page each: 64 bytes 14 times. */
    int page = 0;
#define AT (base + 4096 * page++)
    pmem_flush(AT, 64);
    pmem_drain();
    pmem_persist(AT, 64);
    pmem_msync(AT, 64);
    pmem_deep_flush(AT, 64);
    pmem_deep_persist(AT, 64);
    pmem_memcpy_persist(AT, bytes, 64);
    pmem_memcpy_nodrain(AT, bytes, 64);
    pmem_memmove_persist(AT, bytes, 64);
    pmem_memmove_nodrain(AT, bytes, 64);
    pmem_memset_persist(AT, 9, 64);
    pmem_memset_nodrain(AT, 9, 64);
    pmem_memcpy(AT, bytes, 64, PMEM_F_MEM_NODRAIN);
    pmem_memmove(AT, bytes, 64, 0);
    pmem_memset(AT, 5, 64, PMEM_F_MEM_WB);
    /* Nothing is flushed. */
    pmem_memset(AT, 5, 64, PMEM_F_MEM_NOFLUSH);
    /* Not a file: counts nothing, and does no harm. */
    pmem_persist(bytes, 64);
    /* The 16th page, by a child, over two pages: 4096 bytes. */
    if (fork() == 0) {
        pmem_memcpy_persist(base + 15 * 4096 + 2048, bytes, 4096);
        _exit(0);
    }
    int status;
    wait(&status);
    if (pmem_unmap(base, len) != 0)
        return 2;
    /* The same addresses, another file: its first page. */
    char *other = pmem_map_file(argv[2], SIZE, PMEM_FILE_CREATE, 0600, &len, &is_pmem);
    if (other != base && other != NULL) {
        char *moved = mremap(other, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, base);
        if (moved != base)
            return 3;
        other = moved;
    }
    pmem_persist(other, 64);
#ifdef CANARY
    pmem_persist(other, 8);
#endif
    return status;
}
