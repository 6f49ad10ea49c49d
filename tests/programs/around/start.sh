# How processes start: the text of libc that one process has patched is mapped by the others, unless somebody
# looks on who would be misled; debuggers and children in other namespaces find what they expect.
. "$PROGRAMS/expect.sh"

if [[ -n ${BASELINE:-} ]]; then
    note "there is nothing to start on tmpfs"
    exit 0
fi

run() { "$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "$@"; }
# Segments of code in the process of the last command that are pages of the sealed file.
images='grep -c "r-xp.*memfd:nacre-plans" /proc/self/maps || :'

shared() {
    head -c 8 /proc/self/pagemap >"$SCRATCH/word" || { note "no pagemap: each process copies its text"; return 0; }
    note "one text for all processes"
    # Without the plans that a build keeps beside the library.
    local plain=$SCRATCH/plain
    mkdir "$plain"
    cp "$NACRE" "$(dirname "$NACRE")/libnacre_preload.so" "$plain"
    local NACRE=$plain/nacre
    # Of libc and of the dynamic linker, the text and the stubs.
    gives "the first process and a later one" $'4\n4' run bash -c "read -r -d '' maps </proc/self/maps
        [[ \$maps =~ nacre-plans ]] && grep -c 'r-xp.*memfd:nacre-plans' <<<\"\$maps\"; $images"
    gives "a child" 4 run bash -c "true; ($images)"
    gives "a program that uses the pool" $'hello\n4' run bash -c \
        "echo hello >'$MOUNT/f'; cat '$MOUNT/f'; cd '$MOUNT'; $images"
    gives "NACRE_PATCH=copy" 0 run bash -c "export NACRE_PATCH=copy; $images"
    gives "NACRE_PATCH=copy from the start" $'0\n0' env NACRE_PATCH=copy "$NACRE" run -q --pool "$POOL" -- \
        bash -c "$images; $images"
    gives "as gdb starts programs" 4 run bash -c "true; export LINES=24 COLUMNS=80; $images"
}

# What an installation keeps beside the library is used from the first process on, unless somebody else could change it.
installed() {
    head -c 8 /proc/self/pagemap >"$SCRATCH/word" || return 0
    note "one text for all runs"
    local place=$SCRATCH/installed count
    mkdir "$place"
    cp "$NACRE" "$(dirname "$NACRE")/libnacre_preload.so" "$place"
    # Segments of code from the plans beside the library, and from those that the first process has made.
    count='read -r -d "" maps </proc/self/maps; for file in "$0/nacre-plans" /memfd:nacre-plans; do
        grep -c "r-xp.*$file" <<<"$maps" || :; done'
    from() { "$place/nacre" run -q --pool "$POOL" --mount "$MOUNT" -- bash -c "$count" "$place"; }
    gives "nothing is kept" $'0\n4' from
    "$place/nacre" plans
    gives "the first process" $'4\n0' from
    gives "a program that uses the pool" hello "$place/nacre" run -q --pool "$POOL" --mount "$MOUNT" -- \
        bash -c 'echo hello >"$0/g"; cat "$0/g"' "$MOUNT"
    gives "NACRE_PATCH=copy" $'0\n0' env NACRE_PATCH=copy "$place/nacre" run -q --pool "$POOL" --mount "$MOUNT" -- \
        bash -c "$count" "$place"
    chmod o+w "$place/nacre-plans"
    gives "others may write it" $'0\n4' from
    chmod o-w "$place/nacre-plans"
    gives "they may no longer" $'4\n0' from
    # Which build made it stands behind the magic number and the key.
    printf x | dd of="$place/nacre-plans" bs=1 seek=40 conv=notrunc status=none
    gives "another build made it" $'0\n4' from
    "$place/nacre" plans
    gives "it is made again" $'4\n0' from
    printf nonsense >"$place/nacre-plans"
    gives "nonsense" $'0\n4' from
    "$place/nacre" plans --remove
    gives "removed" $'0\n4' from
    [[ ! -e $place/nacre-plans ]] || fail "it is still there"
}

debugged() {
    gdb -q -batch -ex run /bin/true 2>&1 </dev/null | grep -q 'exited normally' ||
        { note "no gdb that may trace: breakpoints are left out"; return 0; }
    note "breakpoints in libc"
    gives "set before it is patched" 1 run bash -c "true; gdb -q -batch -ex 'set breakpoint pending on' \
        -ex 'break setlocale' -ex run /bin/cat </dev/null 2>/dev/null | grep -c '^Breakpoint 1, .*setlocale'"
}

# A child in its parent's memory asks the kernel who it is once in each call.
spawned() {
    note "children in their parent's memory"
    cat >"$SCRATCH/spawned.c" <<'END'
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>
int main(void) {
    struct sigaction old;
    if (!vfork()) {
        for (int i = 0; i < 600; i++) sigaction(SIGUSR1, 0, &old);
        _exit(0);
    }
    return 0;
}
END
    gcc -O1 -o "$SCRATCH/spawned" "$SCRATCH/spawned.c"
    run strace -f -o "$SCRATCH/trace" -e trace=getpid,rt_sigaction "$SCRATCH/spawned" >"$SCRATCH/null" 2>&1 ||
        { note "no rights to trace: left out"; return 0; }
    local asked made
    asked=$(grep -c 'getpid(' "$SCRATCH/trace")
    made=$(grep -c 'rt_sigaction(' "$SCRATCH/trace")
    ((made > 500)) || fail "only $made calls were seen"
    ((asked < 2 * made)) || fail "the kernel was asked $asked times in some $made calls"
}

namespaces() {
    note "children in other pid namespaces"
    unshare --pid --fork true || { note "no rights to make namespaces"; return 0; }
    gives "a child that uses the pool" $'hello\nhello' run bash -c \
        "cat '$MOUNT/f'; unshare --pid --fork bash -c \"(cat '$MOUNT/f'); :\""
}

main() {
    inside sh -c "echo hello >'$MOUNT/f'"
    shared
    installed
    debugged
    spawned
    namespaces
    check_pool
}

main
