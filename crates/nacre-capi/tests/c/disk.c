/* A disk that refuses what is written gives -EIO, until it takes it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ok.h"

static nacre_pool *pool;

static int touch(const char *object) {
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_touch(t, S("c"), S(object));
    return nacre_commit(pool, t);
}

/* The pool's file takes no bytes, or all of them again. */
static void refuse(const char *path, int refused) {
    static int writable[1024];
    char link[64], file[4096];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, file, sizeof file - 1);
        file[len < 0 ? 0 : len] = 0;
        if (refused && strcmp(file, path) == 0) {
            int reads = open(path, O_RDONLY);
            writable[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 1024);
            IS(reads >= 0 && writable[fd] >= 0 && dup2(reads, fd) == fd && close(reads) == 0);
        } else if (!refused && writable[fd] > 0) {
            IS(dup2(writable[fd], fd) == fd && close(writable[fd]) == 0);
        }
    }
}

int main(int argc, char **argv) {
    struct statfs around;
    struct rlimit files = {2048, 2048};
    if (argc < 2) return fprintf(stderr, "usage: disk POOL\n"), 2;
    IS(setrlimit(RLIMIT_NOFILE, &files) == 0);
    IS(nacre_pool_create(argv[1], 64 << 20, &pool) == 0);
    IS(statfs(argv[1], &around) == 0);
    nacre_tx *t = nacre_tx_begin();
    nacre_tx_create_collection(t, S("c"));
    IS(nacre_commit(pool, t) == 0);
    refuse(argv[1], 1);
    /* Memory needs no file to be written. */
    IS(touch("refused") == (around.f_type == TMPFS_MAGIC ? 0 : -EIO));
    if (around.f_type != TMPFS_MAGIC) IS(strstr(nacre_error_message(), "the disk failed") != NULL);
    refuse(argv[1], 0);
    IS(touch("taken") == 0);
    IS(nacre_object_exists(pool, S("c"), S("taken")) == 0);
    IS(nacre_pool_close(pool) == 0);
    puts("told");
    return 0;
}
