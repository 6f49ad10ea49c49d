/* The library is used where a thread and the program end: destructors and handlers of exit(). */
#include <errno.h>
#include <pthread.h>

#include "ok.h"

static nacre_pool *pool;
static pthread_key_t key;

static void touch(const char *object) {
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_touch(t, S("c"), S(object));
    IS(nacre_commit(pool, t) == 0);
    IS(nacre_object_exists(pool, S("c"), S("none")) == -ENOENT);
    IS(strstr(nacre_error_message(), "no such object") != NULL);
}

static void at_end_of_thread(void *object) {
    touch(object);
}

static void *thread(void *object) {
    touch("by thread");
    pthread_setspecific(key, object);
    return NULL;
}

static void at_exit(void) {
    touch("at exit");
    IS(nacre_pool_close(pool) == 0);
    puts("closed");
}

int main(int argc, char **argv) {
    pthread_t id;
    if (argc < 2) return fprintf(stderr, "usage: ending POOL\n"), 2;
    atexit(at_exit);
    IS(nacre_pool_create(argv[1], 64 << 20, &pool) == 0);
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, S("c"));
    IS(nacre_commit(pool, t) == 0);
    touch("by main");
    IS(pthread_key_create(&key, at_end_of_thread) == 0);
    IS(pthread_create(&id, NULL, thread, "at end of thread") == 0 && pthread_join(id, NULL) == 0);
    IS(nacre_object_exists(pool, S("c"), S("at end of thread")) == 0);
    return 0;
}
