/* Loads a library as another user: in effect only, or in all ids. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int user = atoi(arguments[2]), other = count > 3 ? user : -1;
    if (setresuid(other, user, other)) {
        perror("setresuid");
        return 1;
    }
    if (!dlopen(arguments[1], RTLD_NOW)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return 0;
}
