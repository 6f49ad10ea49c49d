/* fork, vfork, posix_spawn, popen: who shares what, and what outlives whom. */
#include "check.h"
#include <spawn.h>

static void forked(int fd) {
    int copy = dup(fd);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    pid_t child = fork();
    if (child == 0) _exit(write(fd, "abc", 3) == 3 ? 0 : 1);
    CHECK(status_of(child) == 0 && lseek(copy, 0, SEEK_CUR) == 3 && holds(fd, 0, "abc"));
    close(copy);
}

static pid_t spawned(posix_spawn_file_actions_t *actions, char *command) {
    char *arguments[] = {"sh", "-c", command, 0};
    pid_t child;
    CHECK(!posix_spawn(&child, "/bin/sh", actions, 0, arguments, environ));
    return child;
}

static void spawn(void) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(status_of(spawned(&actions, "echo one; echo two")) == 0);
    int fd = open("spawned", O_RDONLY);
    CHECK(holds(fd, 0, "one\ntwo\n"));
    close(fd);
}

/* The parent closes at once what the child goes on using. */
static void left_to_the_child(void) {
    int fd = open("late", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    pid_t child = spawned(&actions, "sleep 0.2; echo late");
    close(fd);
    struct stat st;
    CHECK(status_of(child) == 0 && !stat("late", &st) && st.st_size == 5);
}

static void vforked(int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 77);
        close(fd);
        _exit(9);
    }
    CHECK(status_of(child) == 9);
    CHECK(pwrite(fd, "v", 1, 0) == 1);
    CHECK(fcntl(77, F_GETFD) == -1 && errno == EBADF);
}

static void pipes(void) {
    char line[16];
    FILE *cat = popen("cat late", "r");
    CHECK(cat && fgets(line, sizeof line, cat) && !strcmp(line, "late\n"));
    CHECK(pclose(cat) == 0);
}

static void *works(void *number) {
    char name[32];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "t%ld-%d", (long)number, i);
        int fd = file_with(name, name);
        pid_t child = i % 10 ? 0 : fork();
        if (i % 10 == 0 && child == 0) _exit(holds(fd, 0, name) ? 0 : 1);
        if (child) CHECK(status_of(child) == 0);
        CHECK(holds(fd, 0, name) && !close(fd) && !unlink(name));
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[6];
    for (long i = 0; i < 6; i++) CHECK(!pthread_create(&all[i], 0, works, (void *)i));
    for (long i = 0; i < 6; i++) CHECK(!pthread_join(all[i], 0));
}

static void *parts(void *unused) {
    CHECK(unshare(CLONE_FS) < 0 && errno == EPERM);
    CHECK(unshare(CLONE_FILES) < 0 && errno == EINVAL);
    return unused;
}

/* A thread that had a folder or descriptors of its own would be taken for the others here. */
static void parted(void) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, parts, 0) && !pthread_join(thread, 0));
    CHECK(unshare(CLONE_FS) < 0 && errno == EPERM);
    CHECK(!unshare(CLONE_FILES));
    int fd = file_with("own", "text");
    CHECK(holds(fd, 0, "text") && !close(fd));
}

int main(void) {
    parted();
    int fd = file_with("file", "hello");
    forked(fd);
    spawn();
    left_to_the_child();
    vforked(fd);
    pipes();
    threads();
    return failures;
}
