/* Calls that cannot be are refused with an errno and a message; none ends the program. */
#include <errno.h>
#include <unistd.h>

#include "ok.h"

static const nacre_slice NOWHERE = {NULL, 5}, ENDLESS = {"x", (size_t)-1};
/* More than there is room for in the addresses of a program, so no memory is asked for in vain. */
static const nacre_slice HUGE = {"x", (size_t)1 << 47};

static int says(const char *text) {
    return strstr(nacre_error_message(), text) != NULL;
}

static void other_files(const char *path) {
    nacre_pool *pool;
    FILE *file = fopen(path, "w");
    IS(file && nacre_pool_open(path, 0, &pool) == -EINVAL && says("is empty") && !says("`nacre"));
    IS(fputs("text", file) > 0 && fclose(file) == 0);
    IS(nacre_pool_open(path, 0, &pool) == -EINVAL && says("something else") && !says("`nacre"));
    IS(nacre_pool_create(path, 64 << 20, &pool) == -EEXIST && says("holds data"));
    IS(unlink(path) == 0);
}

static void pools(const char *path) {
    nacre_pool *pool;
    IS(nacre_pool_create(path, 64 << 20, NULL) == -EINVAL && access(path, F_OK) != 0);
    IS(nacre_pool_create(path, 1ull << 62, &pool) == -ENOSPC && access(path, F_OK) != 0);
    IS(nacre_pool_create(path, (uint64_t)-1, &pool) == -EINVAL && access(path, F_OK) != 0);
    IS(nacre_pool_create(path, 1, &pool) == -EINVAL && access(path, F_OK) != 0);
    /* What this library calls it, not what the program nacre does. */
    IS(says("too small") && says(" bytes are enough") && !says("--size"));
    IS(nacre_pool_create("/dev/shm", 64 << 20, &pool) == -EISDIR);
    IS(nacre_pool_open("/dev/shm", 0, &pool) == -EISDIR);
    IS(nacre_pool_open("/dev/null", 0, &pool) == -EINVAL);
    char name[5000];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    IS(nacre_pool_open(name, 0, &pool) == -ENAMETOOLONG);
    IS(nacre_pool_open(path, 0, NULL) == -EINVAL);
}

static void slices(nacre_pool *pool) {
    nacre_list *list;
    IS(nacre_collection_exists(pool, NOWHERE) == -EINVAL && says("NULL"));
    IS(nacre_collection_exists(pool, ENDLESS) == -EINVAL && says("longer"));
    IS(nacre_list_collections(pool, NOWHERE, 9, &list) == -EINVAL);
    IS(nacre_list_objects(pool, S("c"), NOWHERE, 9, &list) == -EINVAL);
    IS(nacre_list_omap(pool, S("c"), S("o"), NOWHERE, 9, &list) == -EINVAL);
    IS(nacre_list_attributes(pool, S("c"), NOWHERE, &list) == -EINVAL);
    IS(nacre_object_exists(pool, S("c"), ENDLESS) == -EINVAL);
}

static void buffers(nacre_pool *pool) {
    size_t len = 0;
    char byte;
    nacre_slice c = S("c"), o = S("o");
    IS(nacre_read(pool, c, o, 0, NULL, 9, &len) == -EINVAL && says("buffer"));
    IS(nacre_read(pool, c, o, 0, NULL, 0, &len) == 0);
    IS(nacre_get_omap(pool, c, o, S("k"), NULL, 9, &len) == -EINVAL && len == 1);
    IS(nacre_get_omap(pool, c, o, S("k"), NULL, 0, &len) == -ERANGE && len == 1);
    IS(nacre_get_omap(pool, c, o, S("k"), &byte, 1, NULL) == 0 && byte == 'v');
    IS(nacre_extents(pool, c, o, 0, 9, NULL, 9, &len) == -EINVAL);
    IS(nacre_extents(pool, c, o, 0, 9, NULL, 0, &len) == 0 && len == 0);
}

/* Of names that nothing can have it is not said that nothing has them. */
static void names(nacre_pool *pool) {
    size_t len;
    char byte, text[300];
    memset(text, 'n', sizeof text);
    nacre_slice c = S("c"), o = S("o"), none = S(""), much = nacre_bytes(text, sizeof text);
    nacre_stat stat;
    IS(nacre_collection_exists(pool, none) == -EINVAL);
    IS(nacre_object_exists(pool, c, none) == -EINVAL);
    IS(nacre_object_stat(pool, c, none, &stat) == -EINVAL);
    IS(nacre_get_attribute(pool, c, o, none, &byte, 1, &len) == -EINVAL && says("1 to 255 bytes"));
    IS(nacre_get_attribute(pool, c, o, much, &byte, 1, &len) == -EINVAL);
    much.len = 255;
    IS(nacre_get_attribute(pool, c, o, much, &byte, 1, &len) == -ENODATA);
    IS(nacre_get_omap(pool, c, o, none, &byte, 1, &len) == -EINVAL && says("one byte"));
    IS(nacre_get_omap(pool, c, o, much, &byte, 1, &len) == -ENODATA);
}

/* What was not added is missed by the commit: the other operations alone are not what was meant. */
static void transactions(nacre_pool *pool) {
    nacre_tx *t = nacre_tx_begin();
    IS(nacre_tx_if_exists(t) == -EINVAL);
    IS(nacre_tx_touch(t, S("c"), S("first")) == 0);
    IS(nacre_tx_write(t, S("c"), S("o"), 0, NOWHERE) == -EINVAL);
    IS(nacre_tx_touch(t, S("c"), ENDLESS) == -EINVAL);
    IS(nacre_commit(pool, t) == -EINVAL && says("operation 1 ") && says("NULL"));
    t = nacre_tx_begin();
    IS(nacre_tx_write_lent(t, S("c"), S("first"), 0, NOWHERE) == -EINVAL);
    IS(nacre_commit(pool, t) == -EINVAL && says("operation 0 "));
    IS(nacre_object_exists(pool, S("c"), S("first")) == -ENOENT);
    t = nacre_tx_begin();
    IS(nacre_tx_write(t, S("c"), S("first"), 0, HUGE) == -ENOMEM);
    IS(nacre_commit(pool, t) == -ENOMEM && says("operation 0 ") && says("memory"));
    /* No object has such a name, so that it cannot exist either. */
    for (int operation = 0; operation < 4; operation++) {
        t = nacre_tx_begin();
        if (operation == 0) nacre_tx_remove(t, S("c"), S(""));
        if (operation == 1) nacre_tx_truncate(t, S("c"), S(""), 9);
        if (operation == 2) nacre_tx_set_attribute(t, S("c"), S(""), S("name"), S("value"));
        if (operation == 3) nacre_tx_remove_omap(t, S("c"), S(""), S("key"));
        nacre_tx_if_exists(t);
        IS(nacre_commit(pool, t) == -EINVAL && says("operation 0 ") && says("one byte"));
    }
    t = nacre_tx_begin();
    IS(nacre_tx_touch(t, S("c"), S("first")) == 0);
    for (int times = 0; times < 1000000; times++) nacre_tx_if_exists(t);
    IS(nacre_commit(pool, t) == 0);
    IS(nacre_object_exists(pool, S("c"), S("first")) == -ENOENT);
}

int main(int argc, char **argv) {
    nacre_pool *pool;
    if (argc < 2) return fprintf(stderr, "usage: refused POOL\n"), 2;
    other_files(argv[1]);
    pools(argv[1]);
    IS(nacre_pool_create(argv[1], 64 << 20, &pool) == 0);
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, S("c"));
    nacre_tx_write(t, S("c"), S("o"), 0, S("bytes"));
    nacre_tx_set_omap(t, S("c"), S("o"), S("k"), S("v"));
    IS(nacre_commit(pool, t) == 0);
    slices(pool);
    buffers(pool);
    names(pool);
    transactions(pool);
    IS(nacre_pool_close(pool) == 0);
    puts("all refused");
    return 0;
}
