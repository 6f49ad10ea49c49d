// behind-speed FILE PAGES: what a write of 4 KiB with an fsync behind it takes, for behind-speed.py: for each page of a
// file that grows, and then for as many at random places. Nanoseconds of processor time: nobody waits for memory, and a
// busy machine does not count.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void put(int file, const char *page, uint64_t place) {
    if (pwrite(file, page, PAGE, place * PAGE) != PAGE || fsync(file) != 0) {
        perror("write");
        exit(1);
    }
}

int main(int argc, char **argv) {
    static char page[PAGE];
    uint64_t pages = argc == 3 ? strtoull(argv[2], NULL, 10) : 0, seed = 1;
    int file = pages ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644) : -1;
    if (file < 0) {
        fprintf(stderr, "behind-speed FILE PAGES\n");
        return 2;
    }
    memset(page, 'x', PAGE);
    double begin = now();
    for (uint64_t place = 0; place < pages; place++) put(file, page, place);
    double grown = now();
    for (uint64_t count = 0; count < pages; count++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        put(file, page, (seed >> 33) % pages);
    }
    printf("%.1f %.1f\n", (grown - begin) / pages, (now() - grown) / pages);
    return 0;
}
