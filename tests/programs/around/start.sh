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

debugged() {
    gdb -q -batch -ex run /bin/true 2>&1 </dev/null | grep -q 'exited normally' ||
        { note "no gdb that may trace: breakpoints are left out"; return 0; }
    note "breakpoints in libc"
    gives "set before it is patched" 1 run bash -c "true; gdb -q -batch -ex 'set breakpoint pending on' \
        -ex 'break setlocale' -ex run /bin/cat </dev/null 2>/dev/null | grep -c '^Breakpoint 1, .*setlocale'"
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
    debugged
    namespaces
    check_pool
}

main
