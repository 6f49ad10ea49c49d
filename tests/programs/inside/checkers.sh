# Programs under Valgrind, and those linked with the shared library of AddressSanitizer; what both find.
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

note a shared libasan
gcc -g -w -fsanitize=address -o "$SCRATCH/asan" "$SCRATCH/work.c"
gives "asan" $'checked\nc' "$SCRATCH/asan" d
refuses "asan finds" "heap-buffer-overflow" "$SCRATCH/asan" e bad
for file in a b c d e; do gives "$file" checked cat $file; done
