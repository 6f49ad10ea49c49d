/* A device that loses its bytes gives errors. Faults of the program's own are the program's. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include "ok.h"

static jmp_buf behind;

static void own_fault(int signal) {
    siglongjmp(behind, signal);
}

int main(int argc, char **argv) {
    enum { BYTES = 20 << 20 };
    char *bytes = malloc(BYTES);
    nacre_pool *pool;
    size_t len;
    if (argc < 2) return fprintf(stderr, "usage: failing POOL\n"), 2;
    signal(SIGSEGV, own_fault);
    IS(nacre_pool_create(argv[1], 64 << 20, &pool) == 0);
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, S("c"));
    memset(bytes, 'x', BYTES);
    nacre_tx_write_lent(t, S("c"), S("o"), 0, nacre_bytes(bytes, BYTES));
    IS(nacre_commit(pool, t) == 0);
    IS(truncate(argv[1], 12 << 20) == 0);
    IS(nacre_read(pool, S("c"), S("o"), 0, bytes, BYTES, &len) == -EIO);
    t = nacre_tx_begin();
    /* More than is left. */
    nacre_tx_write_lent(t, S("c"), S("new"), 0, nacre_bytes(bytes, BYTES));
    IS(nacre_commit(pool, t) == -EIO);
    IS(nacre_pool_close(pool) == -EIO);
    volatile char *volatile nowhere = (char *)64;
    if (sigsetjmp(behind, 1) == 0) {
        *nowhere = 1;
        IS(0);
    }
    puts("told");
    return 0;
}
