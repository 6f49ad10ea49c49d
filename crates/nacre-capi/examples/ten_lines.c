/* A durable transaction in ten lines: both accounts change, or none. */
#include <nacre.h>
#include <stdio.h>

int main(int argc, char **argv) {
    nacre_pool *pool;
    if (argc < 2 || nacre_pool_create(argv[1], 64 << 20, &pool) < 0)
        return fprintf(stderr, "%s\n", argc < 2 ? "usage: ten_lines POOL" : nacre_error_message()), 1;
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, nacre_str("accounts"));
    nacre_tx_write(t, nacre_str("accounts"), nacre_str("anna"), 0, nacre_str("90"));
    nacre_tx_write(t, nacre_str("accounts"), nacre_str("ben"), 0, nacre_str("110"));
    if (nacre_commit(pool, t) < 0) fprintf(stderr, "%s\n", nacre_error_message());
    return nacre_pool_close(pool) < 0;
}
