# Programs under Valgrind, and those linked with the shared libraries of AddressSanitizer and
# ThreadSanitizer; what they find.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
cat >"$SCRATCH/work.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char text[16] = {0}, *block = malloc(10);
    FILE *out = fopen(arguments[1], "w");
    if (!out || fputs("checked\n", out) < 0 || fclose(out)) return 1;
    int fd = open(arguments[1], O_RDONLY);
    if (read(fd, text, 15) != 8) return 2;
    block[count == 3 ? 10 : 9] = text[0];
    printf("%s%c\n", text, block[9]);
    free(block);
    return close(fd);
}
C

note valgrind
gcc -g -w -o "$SCRATCH/plain" "$SCRATCH/work.c"
gives "without a tool" $'checked\nc' valgrind -q --tool=none "$SCRATCH/plain" a
gives "memcheck" $'checked\nc' valgrind -q --error-exitcode=9 "$SCRATCH/plain" b
refuses "memcheck finds" "Invalid write" valgrind -q --error-exitcode=9 "$SCRATCH/plain" c bad
if [[ -w /dev/fuse ]]; then
    cp "$SCRATCH/plain" plain
    gives "a program in the pool" $'checked\nc' valgrind -q --error-exitcode=9 ./plain f
fi

note a shared libasan
gcc -g -w -fsanitize=address -o "$SCRATCH/asan" "$SCRATCH/work.c"
gives "asan" $'checked\nc' "$SCRATCH/asan" d
refuses "asan finds" "heap-buffer-overflow" "$SCRATCH/asan" e bad

note a shared libtsan
cat >"$SCRATCH/threads.c" <<'C'
#include <pthread.h>
#include <stdio.h>

static int shared;

static void *writes(void *name) {
    FILE *out = fopen(name, "w");
    for (int i = 0; out && i < 1000; i++) fprintf(out, "%d\n", i);
    return out ? (void *)(long)fclose(out) : name;
}

static void *races(void *none) {
    for (int i = 0; i < 1000; i++) shared++;
    return none;
}

int main(int count, char **arguments) {
    pthread_t threads[8];
    char names[8][16];
    for (int i = 0; i < 8; i++) {
        snprintf(names[i], sizeof names[i], "thread-%d", i);
        pthread_create(&threads[i], 0, count > 1 ? races : writes, names[i]);
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
}
C
gcc -g -w -fsanitize=thread -o "$SCRATCH/tsan" "$SCRATCH/threads.c" -pthread
gives "tsan" "" "$SCRATCH/tsan"
refuses "tsan finds" "data race" "$SCRATCH/tsan" bad
gives "what the threads wrote" 8000 bash -c 'cat thread-* | wc -l'
for file in a b c d e; do gives "$file" checked cat $file; done
