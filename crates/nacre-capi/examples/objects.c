/* Everything that objects can do, by two processes and four threads. */
#include <errno.h>
#include <nacre.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) ok((call) >= 0, #call, __LINE__)
#define IS(condition) ok((condition), #condition, __LINE__)
#define S nacre_str

static void ok(int fine, const char *what, int line) {
    if (!fine) {
        fprintf(stderr, "line %d: %s: %s\n", line, what, nacre_error_message());
        exit(1);
    }
}

static int same(nacre_slice slice, const char *text) {
    return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

static void fill(nacre_pool *pool) {
    nacre_tx *t = nacre_tx_begin();
    OK(nacre_tx_create_collection(t, S("c")));
    OK(nacre_tx_create_collection(t, S("d")));
    OK(nacre_tx_create(t, S("c"), S("one")));
    OK(nacre_tx_write_lent(t, S("c"), S("one"), 0, S("hello world")));
    OK(nacre_tx_zero(t, S("c"), S("one"), 5, 1));
    OK(nacre_tx_truncate(t, S("c"), S("one"), 8));
    OK(nacre_tx_set_attribute(t, S("c"), S("one"), S("owner"), S("anna")));
    OK(nacre_tx_set_attribute(t, S("c"), S("one"), S("gone"), S("")));
    OK(nacre_tx_remove_attribute(t, S("c"), S("one"), S("gone")));
    OK(nacre_tx_set_omap(t, S("c"), S("one"), S("a"), S("1")));
    OK(nacre_tx_set_omap(t, S("c"), S("one"), S("b"), S("2")));
    OK(nacre_tx_set_omap(t, S("c"), S("one"), S("x"), S("3")));
    OK(nacre_tx_remove_omap(t, S("c"), S("one"), S("x")));
    OK(nacre_tx_set_omap_header(t, S("c"), S("one"), S("head")));
    OK(nacre_tx_clone(t, S("c"), S("one"), S("two")));
    OK(nacre_tx_remove_omap_range(t, S("c"), S("two"), S("a"), S("b")));
    OK(nacre_tx_remove_attributes(t, S("c"), S("two")));
    OK(nacre_tx_clone_range(t, S("c"), S("one"), S("three"), 0, 5, 3));
    OK(nacre_tx_rename(t, S("c"), S("three"), S("d"), S("3333")));
    OK(nacre_tx_touch(t, S("c"), S("four")));
    OK(nacre_tx_clear_omap(t, S("c"), S("four")));
    OK(nacre_tx_remove(t, S("c"), S("four")));
    OK(nacre_tx_remove(t, S("c"), S("four")));
    OK(nacre_tx_if_exists(t));
    OK(nacre_commit(pool, t));
}

/* What others may change, too, is changed only if it still is as it was read. */
static void expect(nacre_pool *pool) {
    const nacre_slice one = S("1"), other = S("7"), *none = NULL;
    nacre_tx *t = nacre_tx_begin();
    OK(nacre_tx_expect_omap(t, S("c"), S("one"), S("a"), &one));
    OK(nacre_tx_expect_omap(t, S("c"), S("one"), S("x"), none));
    OK(nacre_tx_expect_attribute(t, S("c"), S("nobody"), S("a"), none));
    OK(nacre_tx_set_omap(t, S("c"), S("one"), S("a"), S("1")));
    OK(nacre_commit(pool, t));
    const nacre_slice *wrong[] = {&other, none};
    for (int i = 0; i < 2; i++) {
        t = nacre_tx_begin_lent();
        OK(nacre_tx_set_omap(t, S("c"), S("one"), S("a"), S("2")));
        OK(nacre_tx_expect_attribute(t, S("c"), S("one"), S("owner"), wrong[i]));
        IS(nacre_commit(pool, t) == -ECANCELED);
        IS(strstr(nacre_error_message(), "operation 1 ") != NULL);
    }
}

static void look(nacre_pool *pool) {
    char buffer[64];
    size_t len;
    nacre_stat stat;
    nacre_list *list;
    OK(nacre_read(pool, S("c"), S("one"), 0, buffer, sizeof buffer, &len));
    IS(len == 8 && memcmp(buffer, "hello\0wo", 8) == 0);
    OK(nacre_object_stat(pool, S("c"), S("one"), &stat));
    IS(stat.size == 8 && stat.attributes == 1 && stat.has_omap == 1);
    IS(nacre_object_exists(pool, S("c"), S("one")) == 0 && nacre_object_exists(pool, S("c"), S("0")) == -ENOENT);
    nacre_extent extent[2];
    OK(nacre_extents(pool, S("c"), S("one"), 2, 100, extent, 2, &len));
    IS(len == 1 && extent[0].offset == 2 && extent[0].len == 6);
    OK(nacre_get_attribute(pool, S("c"), S("one"), S("owner"), buffer, sizeof buffer, &len));
    IS(same(nacre_bytes(buffer, len), "anna"));
    IS(nacre_get_attribute(pool, S("c"), S("one"), S("owner"), buffer, 2, &len) == -ERANGE && len == 4);
    IS(nacre_get_attribute(pool, S("c"), S("two"), S("owner"), buffer, 9, &len) == -ENODATA);
    OK(nacre_get_omap(pool, S("c"), S("two"), S("b"), buffer, sizeof buffer, &len));
    IS(same(nacre_bytes(buffer, len), "2"));
    IS(nacre_get_omap(pool, S("c"), S("two"), S("a"), buffer, sizeof buffer, &len) == -ENODATA);
    OK(nacre_get_omap_header(pool, S("c"), S("two"), buffer, sizeof buffer, &len));
    IS(same(nacre_bytes(buffer, len), "head"));
    OK(nacre_list_omap(pool, S("c"), S("one"), S("a"), 10, &list));
    IS(nacre_list_len(list) == 2 && same(nacre_list_key(list, 1), "b") && same(nacre_list_value(list, 1), "2"));
    nacre_list_drop(list);
    OK(nacre_list_omap_back(pool, S("c"), S("one"), S(""), 1, &list));
    IS(nacre_list_len(list) == 1 && same(nacre_list_key(list, 0), "b") && same(nacre_list_value(list, 0), "2"));
    nacre_list_drop(list);
    OK(nacre_list_omap_back(pool, S("c"), S("one"), S("b"), 10, &list));
    IS(nacre_list_len(list) == 1 && same(nacre_list_key(list, 0), "a"));
    nacre_list_drop(list);
    OK(nacre_list_attributes(pool, S("c"), S("one"), &list));
    IS(nacre_list_len(list) == 1 && same(nacre_list_value(list, 0), "anna"));
    nacre_list_drop(list);
    OK(nacre_list_objects(pool, S("c"), S("p"), 10, &list));
    IS(nacre_list_len(list) == 1 && same(nacre_list_key(list, 0), "two"));
    nacre_list_drop(list);
    OK(nacre_list_collections(pool, S(""), 1, &list));
    IS(nacre_list_len(list) == 1 && same(nacre_list_key(list, 0), "c"));
    nacre_list_drop(list);
}

static void refused(nacre_pool *pool) {
    nacre_pool *other;
    IS(nacre_pool_open("/nowhere/at/all", 0, &other) == -ENOENT);
    IS(nacre_collection_exists(pool, S("none")) == -ENOENT && nacre_collection_exists(pool, S("c")) == 0);
    nacre_tx *t = nacre_tx_begin();
    OK(nacre_tx_write(t, S("c"), S("one"), 0, S("XXXX")));
    OK(nacre_tx_create(t, S("c"), S("two")));
    IS(nacre_commit(pool, t) == -EEXIST);
    IS(strstr(nacre_error_message(), "operation 1 ") != NULL);
    t = nacre_tx_begin();
    OK(nacre_tx_remove_collection(t, S("c")));
    IS(nacre_commit(pool, t) == -ENOTEMPTY);
    nacre_tx_drop(nacre_tx_begin());
    IS(nacre_tx_touch(NULL, S("c"), S("x")) == -EINVAL && nacre_commit(pool, NULL) == -EINVAL);
    look(pool);
}

// What is lent may change after the commit, what is copied right away.
static void lent_and_copied(nacre_pool *pool) {
    char key[] = "lent", value[] = "1", buffer[8];
    size_t len;
    nacre_tx *t = nacre_tx_begin_lent();
    OK(nacre_tx_write(t, S("c"), S(key), 0, S(value)));
    OK(nacre_tx_set_omap(t, S("c"), S(key), S(key), S(value)));
    OK(nacre_commit(pool, t));
    memcpy(key, "copy", 4);
    value[0] = '2';
    t = nacre_tx_begin();
    OK(nacre_tx_set_omap(t, S("c"), S("lent"), S(key), S(value)));
    memset(key, 'x', 4);
    value[0] = 'x';
    OK(nacre_commit(pool, t));
    OK(nacre_get_omap(pool, S("c"), S("lent"), S("lent"), buffer, sizeof buffer, &len));
    IS(same(nacre_bytes(buffer, len), "1"));
    OK(nacre_get_omap(pool, S("c"), S("lent"), S("copy"), buffer, sizeof buffer, &len));
    IS(same(nacre_bytes(buffer, len), "2"));
    t = nacre_tx_begin();
    OK(nacre_tx_remove(t, S("c"), S("lent")));
    OK(nacre_commit(pool, t));
}

static void *count(void *pool) {
    for (int round = 0; round < 100; round++) {
        char key[64];
        snprintf(key, sizeof key, "%lx.%d.%d", (unsigned long)pthread_self(), getpid(), round);
        nacre_tx *t = nacre_tx_begin();
        OK(nacre_tx_touch(t, S("c"), S("counter")));
        OK(nacre_tx_set_omap(t, S("c"), S("counter"), S(key), S(key)));
        OK(nacre_tx_write(t, S("d"), S(key), 0, S(key)));
        OK(nacre_commit(pool, t));
    }
    return NULL;
}

static void threads(nacre_pool *pool) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) IS(pthread_create(&thread[i], NULL, count, pool) == 0);
    for (int i = 0; i < 4; i++) IS(pthread_join(thread[i], NULL) == 0);
}

static size_t objects_of(nacre_pool *pool, const char *collection) {
    nacre_list *list;
    OK(nacre_list_objects(pool, S(collection), S(""), 10000, &list));
    size_t len = nacre_list_len(list);
    nacre_list_drop(list);
    return len;
}

/* A second process works on the pool, and dies without a word. */
static void processes(const char *path) {
    nacre_pool *pool;
    pid_t child = fork();
    OK(nacre_pool_open(path, 0, &pool));
    threads(pool);
    if (child == 0) kill(getpid(), SIGKILL);
    int status;
    IS(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    IS(objects_of(pool, "d") == 801);
    nacre_tx *t = nacre_tx_begin();
    OK(nacre_tx_create_collection(t, S("e")));
    OK(nacre_tx_split(t, S("d"), S("e"), 0, 32, 0x33333333));
    OK(nacre_tx_merge(t, S("e"), S("c")));
    OK(nacre_commit(pool, t));
    IS(objects_of(pool, "d") == 800 && objects_of(pool, "c") == 4);
    OK(nacre_pool_close(pool));
}

int main(int argc, char **argv) {
    nacre_pool *pool;
    uint64_t total, left;
    if (argc < 2) return fprintf(stderr, "usage: objects POOL\n"), 2;
    OK(nacre_pool_create(argv[1], 64 << 20, &pool));
    fill(pool);
    expect(pool);
    look(pool);
    refused(pool);
    lent_and_copied(pool);
    OK(nacre_pool_usage(pool, &total, &left));
    IS(total <= 64 << 20 && left < total && nacre_version() > 0);
    OK(nacre_pool_close(pool));
    nacre_list *problems;
    OK(nacre_pool_check(argv[1], &problems));
    IS(nacre_list_len(problems) == 0);
    nacre_list_drop(problems);
    processes(argv[1]);
    OK(nacre_pool_open(argv[1], NACRE_READ_ONLY, &pool));
    IS(objects_of(pool, "d") == 800);
    nacre_tx *t = nacre_tx_begin();
    OK(nacre_tx_touch(t, S("c"), S("x")));
    IS(nacre_commit(pool, t) == -EROFS);
    OK(nacre_pool_close(pool));
    puts("all as it must be");
    return 0;
}
