/* Linked statically, so the library cannot be in it: stays until it is killed. */
#include <unistd.h>

int main(void) {
    for (;;) pause();
}
