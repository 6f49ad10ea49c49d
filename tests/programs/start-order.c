/* Which instructions of the preload library a process executes, by single steps of its first thread:
   start-order OUTPUT PROGRAM ARGUMENT...   Writes their offsets in the library, one a line; with CHILD set those of its
   first child alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST (16UL << 20)

/* Where the library is mapped; 0 if it is not yet. */
static unsigned long library(pid_t pid) {
    char line[4096];
    unsigned long start = 0;
    snprintf(line, sizeof line, "/proc/%d/maps", pid);
    FILE *maps = fopen(line, "r");
    while (maps && !start && fgets(line, sizeof line, maps))
        if (strstr(line, "libnacre_preload.so")) sscanf(line, "%lx", &start);
    if (maps) fclose(maps);
    return start;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    pid_t pid = fork();
    if (!pid) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(arguments[2], arguments + 2);
        _exit(127);
    }
    unsigned char *seen = calloc(1, MOST);
    unsigned long start = 0;
    int status;
    waitpid(pid, &status, 0);
    if (getenv("CHILD")) ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE);
    for (unsigned steps = 0; WIFSTOPPED(status); steps++) {
        struct user_regs_struct registers;
        unsigned long child;
        if (status >> 16 && !ptrace(PTRACE_GETEVENTMSG, pid, 0, &child)) {
            ptrace(PTRACE_DETACH, pid, 0, 0);
            memset(seen, 0, MOST);
            waitpid(pid = child, &status, __WALL);
        }
        if (ptrace(PTRACE_GETREGS, pid, 0, &registers)) break;
        if (!start && steps % 1024 == 0) start = library(pid);
        if (start && registers.rip - start < MOST) seen[registers.rip - start] = 1;
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid) break;
    }
    FILE *output = fopen(arguments[1], "w");
    for (unsigned long at = 0; output && at < MOST; at++)
        if (seen[at]) fprintf(output, "%lx\n", at);
    return !output || fclose(output) || !WIFEXITED(status) || WEXITSTATUS(status);
}
