/* A child may not use a pool by its parent's handle, and does no harm when it closes that. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ok.h"

static int touch(nacre_pool *pool, const char *object) {
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_touch(t, S("c"), S(object));
    return nacre_commit(pool, t);
}

static int child(nacre_pool *pool, const char *path) {
    nacre_list *list;
    IS(nacre_collection_exists(pool, S("c")) == -EINVAL);
    IS(nacre_list_objects(pool, S("c"), S(""), 9, &list) == -EINVAL);
    IS(strstr(nacre_error_message(), "open it again") != NULL);
    IS(touch(pool, "never") == -EINVAL);
    IS(strstr(nacre_error_message(), "open it again") != NULL);
    IS(nacre_pool_close(pool) == 0);
    IS(nacre_pool_open(path, 0, &pool) == 0);
    IS(touch(pool, "by child") == 0);
    IS(nacre_pool_close(pool) == 0);
    return 0;
}

int main(int argc, char **argv) {
    nacre_pool *pool, *other;
    nacre_list *list;
    if (argc < 2) return fprintf(stderr, "usage: forked POOL\n"), 2;
    IS(nacre_pool_create(argv[1], 64 << 20, &pool) == 0);
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, S("c"));
    IS(nacre_commit(pool, t) == 0);
    pid_t pid = fork();
    if (pid == 0) return child(pool, argv[1]);
    int status;
    IS(waitpid(pid, &status, 0) == pid && status == 0);
    /* Both are in one session: each allocates what the other does not. */
    IS(nacre_pool_open(argv[1], 0, &other) == 0);
    for (int number = 0; number < 200; number++) {
        char name[32];
        snprintf(name, sizeof name, "%d", number);
        IS(touch(number % 2 ? pool : other, name) == 0);
    }
    IS(nacre_list_objects(pool, S("c"), S(""), 1000, &list) == 0 && nacre_list_len(list) == 201);
    nacre_list_drop(list);
    IS(nacre_pool_close(other) == 0 && nacre_pool_close(pool) == 0);
    IS(nacre_pool_check(argv[1], &list) == 0 && nacre_list_len(list) == 0);
    nacre_list_drop(list);
    puts("parent and child");
    return 0;
}
