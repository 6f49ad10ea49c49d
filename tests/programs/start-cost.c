/* What processes cost that do next to nothing: for each of COUNT, microseconds of processor time that it
   and its parent take, and its page faults.  start-cost COUNT fork | start-cost COUNT PROGRAM ARGUMENT... */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static double taken(struct rusage *usage) {
    struct timeval *user = &usage->ru_utime, *system = &usage->ru_stime;
    return (user->tv_sec + system->tv_sec) * 1e6 + user->tv_usec + system->tv_usec;
}

static double own(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return taken(&usage);
}

static pid_t start(char **command, posix_spawn_file_actions_t *quiet) {
    pid_t child;
    if (!strcmp(command[0], "fork")) {
        child = fork();
        if (!child) _exit(0);
    } else if (posix_spawnp(&child, command[0], quiet, NULL, command, environ)) {
        child = -1;
    }
    return child;
}

int main(int count, char **arguments) {
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    /* A parent that uses the pool, if it has one. */
    if (getenv("TOUCH") && access(getenv("TOUCH"), R_OK)) return 1;
    for (int i = atoi(arguments[1]); i > 0; i--) {
        struct rusage usage;
        int status;
        double begin = own();
        pid_t child = start(arguments + 2, &quiet);
        if (child < 0 || wait4(child, &status, 0, &usage) != child || status) return 1;
        printf("%.1f %ld\n", own() - begin + taken(&usage), usage.ru_minflt);
    }
    return 0;
}
