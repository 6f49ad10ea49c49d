/* Threads open, cut and close files while another forks: forks COUNT. Every number that a child
   lists is one that works, also in a program that is executed among threads. */
#include "check.h"
#include <dirent.h>
#include <spawn.h>

enum { OPENERS = 4 };
static volatile int done, opened;

static void *opens(void *number) {
    for (long i = 0; !done; i++) {
        char name[32];
        snprintf(name, sizeof name, "o%ld-%ld", (long)number, i % 50);
        int fd = open(name, O_CREAT | O_RDWR | O_TRUNC | (i % 2 ? O_CLOEXEC : 0), 0600);
        CHECK(fd >= 0 && write(fd, name, 5) == 5);
        CHECK(open(name, O_CREAT | O_EXCL | O_RDWR, 0600) == -1 && errno == EEXIST);
        CHECK(!close(fd));
        opened++;
        if (i % 3 == 0) unlink(name);
    }
    return NULL;
}

/* How many of the numbers that are listed are none. */
static int false_numbers(void) {
    int found = 0;
    DIR *list = opendir("/proc/self/fd");
    CHECK(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd == dirfd(list)) continue;
        found += fcntl(fd, F_GETFL) == -1 || fcntl(fd, F_GETFD) == -1;
    }
    closedir(list);
    return found;
}

/* In a child: what was open before is, what it opens works, and nothing is left over. */
static int child(int kept) {
    char name[32];
    snprintf(name, sizeof name, "c%d", getpid());
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && holds(fd, 0, "x") && holds(kept, 0, "kept"));
    CHECK(!close(fd) && !unlink(name));
    CHECK(false_numbers() == 0);
    return failures;
}

/* Threads of its own work when it executes a program, too. */
static void exec_among_threads(char *program) {
    pthread_t thread;
    opened = 0;
    for (long i = 0; i < OPENERS; i++) CHECK(!pthread_create(&thread, 0, opens, (void *)(i + OPENERS)));
    while (opened < 50) sched_yield();
    execl("/proc/self/exe", program, NULL);
    _exit(1);
}

static void spawned(char *program) {
    char *arguments[] = {program, 0};
    pid_t pid;
    CHECK(!posix_spawn(&pid, program, 0, 0, arguments, environ) && status_of(pid) == 0);
}

int main(int argc, char **argv) {
    if (argc == 1) return false_numbers();
    pthread_t all[OPENERS];
    int kept = file_with("kept", "kept");
    for (long i = 0; i < OPENERS; i++) CHECK(!pthread_create(&all[i], 0, opens, (void *)i));
    for (int i = 0; i < atoi(argv[1]); i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child(kept));
        CHECK(status_of(pid) == 0);
        pid = fork();
        if (pid == 0) exec_among_threads(argv[0]);
        CHECK(status_of(pid) == 0);
        spawned(argv[0]);
    }
    done = 1;
    for (int i = 0; i < OPENERS; i++) CHECK(!pthread_join(all[i], 0));
    return failures > 255 ? 255 : failures;
}
