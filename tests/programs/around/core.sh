# A program that aborts under Nacre leaves a core that readelf and gdb can read. It holds the program's own memory and
# nothing of the pool, also where the user asks for all that is shared, or the pool's file is removed.
. "$PROGRAMS/expect.sh"

PATTERN=$(cat /proc/sys/kernel/core_pattern)

# Aborts with a word of its own in memory, while a file of the pool is open; of another one nothing was read.
part_abort() {
    ulimit -c unlimited
    cd "$SCRATCH/dumped"
    echo "$FILTER" >/proc/self/coredump_filter
    exec "$SCRATCH/aborts" "$MOUNT/opened" "${REMOVED:-}"
}

build() {
    cat >"$SCRATCH/aborts.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
char own[64];
int main(int count, char **arguments) {
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0600);
    if (count != 3 || fd < 0 || write(fd, "something", 9) != 9) return 1;
    if (arguments[2][0] && unlink(arguments[2])) return 1;
    /* In no file as it is in memory. */
    snprintf(own, sizeof own, "kept-in-memory-%d", 17 * 19);
    abort();
}
C
    gcc -g -O1 -o "$SCRATCH/aborts" "$SCRATCH/aborts.c"
}

# The core of a program that aborts: its path in CORE. dump WHAT FILTER [FILE TO REMOVE]
dump() {
    local what=$1 status=0 found
    rm -rf "$SCRATCH/dumped"
    mkdir "$SCRATCH/dumped"
    FILTER=$2 REMOVED=${3:-} part abort 2>"$SCRATCH/said" || status=$?
    same "$what: status" 134 "$status"
    found=("$SCRATCH"/dumped/*)
    [[ ${#found[@]} == 1 && -s ${found[0]} ]] || fail "$what: no core, but: ${found[*]}; $(cat "$SCRATCH/said")"
    CORE=${found[0]}
}

# How often a word stands in the core.
count() { grep -aoc "$1" "$CORE" || :; }

readable() {
    local what=$1 notes
    # Not what is in them: not every readelf can show that.
    notes=$(readelf -nW "$CORE" | cut -c 1-72)
    contains "$what: state of the processor" NT_PRSTATUS "$notes"
    contains "$what: names of mapped files" NT_FILE "$notes"
    contains "$what: segments" LOAD "$(readelf -lW "$CORE")"
    [[ $(count kept-in-memory-323) != 0 ]] || fail "$what: the program's own memory is missing"
    type gdb >/dev/null 2>&1 || { note "$what: no gdb"; return 0; }
    contains "$what: gdb" "main (count=" "$(gdb -q -batch -ex bt "$SCRATCH/aborts" "$CORE" 2>&1 </dev/null)"
}

without_the_pool() {
    local what=$1 len
    same "$what: words of the pool" 0 "$(count stored-in-the-pool)"
    len=$(stat -c %s "$CORE")
    ((len < 96 << 20)) || fail "$what: $len bytes, with a pool of 512 MiB"
}

main() {
    [[ $PATTERN != */* && $PATTERN != '|'* ]] || { note "cores go to $PATTERN: left out"; return 0; }
    [[ $(ulimit -Hc) == unlimited ]] || { note "no cores are allowed: left out"; return 0; }
    build
    inside sh -c "yes stored-in-the-pool | head -c 64M >'$MOUNT/stored'"
    dump "as usual" 0x33
    readable "as usual"
    without_the_pool "as usual"
    dump "all that is shared" 0x7f
    readable "all that is shared"
    [[ -n ${BASELINE:-} ]] || without_the_pool "all that is shared"
    check_pool
    [[ -z ${BASELINE:-} ]] || return 0
    dump "a pool that was removed" 0x7f "$POOL"
    without_the_pool "a pool that was removed"
}

run_parts "$@"
