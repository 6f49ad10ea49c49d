/* Functions of the program that have names of the C library's: what Nacre calls for itself is not them. Sanitizers have such, which
 * must not be called before they have begun. */
#include "check.h"

static int closed;

int close(int fd) {
    closed++;
    return syscall(SYS_close, fd);
}

int main(void) {
    CHECK(closed == 0);
    int fd = file_with("file", "text");
    CHECK(holds(fd, 0, "text") && !rename("file", "renamed") && !access("renamed", R_OK));
    CHECK(closed == 0);
    CHECK(!close(fd) && closed == 1);
    return failures;
}
