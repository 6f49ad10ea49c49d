# Shared memory as containers have it: 64 MB in /dev/shm, from which no program is executed.
. "$PROGRAMS/expect.sh"

PY=/usr/bin/python3

in_container() {
    unshare -m --propagation private sh -c 'mount -t tmpfs -o nosuid,nodev,noexec,size=64000k none /dev/shm && exec "$@"' sh "$@"
}

libraries() {
    note "$1: programs and libraries of the pool"
    cat >"$SCRATCH/library.c" <<<'int answer(void) { return 42; }'
    cat >"$SCRATCH/program.c" <<<'int answer(void); int main(void) { return answer(); }'
    gives "linked and run" 42 "${@:2}" bash -c 'cd /nacre && gcc -shared -fPIC -o libanswer.so "$1/library.c" &&
        gcc -o program "$1/program.c" -L. -lanswer -Wl,-rpath,/nacre && { ./program || echo $?; }' bash "$SCRATCH"
    # More than there is room for in shared memory.
    gives "a large library" 42 "${@:2}" bash -c 'cd /nacre && printf ".section .rodata\n.zero 80000000\n.section .note.GNU-stack,\"\",@progbits\n" >large.s &&
        gcc -shared -fPIC -o libanswer.so "$1/library.c" large.s && { ./program || echo $?; }' bash "$SCRATCH"
}

mapped() {
    note "more is mapped, written and read than there is shared memory"
    "${@}" $PY "$PROGRAMS/around/private-mappings.py" many /nacre 300
    "${@}" $PY "$PROGRAMS/around/private-mappings.py" oracle /nacre/p 4 "$SCRATCH/out"
    "${@}" $PY "$PROGRAMS/around/private-mappings.py" given /nacre/g
    gives "a file of 200 MB" 200000000 "${@}" sh -c 'head -c 200000000 /dev/zero >/nacre/f; wc -c </nacre/f'
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    # A copy outside of /dev/shm, which is another one in there.
    local bin pool
    bin=$(mktemp -d /tmp/nacre-test-XXXXXX)
    trap 'rm -rf "'"$bin"'"' EXIT
    cp "$NACRE" "$(dirname "$NACRE")"/libnacre_preload.so "$bin"
    if ! in_container true 2>/dev/null; then
        note "not here, mounting is not allowed"
        return
    fi
    pool=$DISK_FOLDER/container-$$.pool
    "$NACRE" create --size 1G "$pool" >/dev/null
    cp -r "$PROGRAMS" "$bin/programs"
    PROGRAMS=$bin/programs
    SCRATCH=$bin/scratch
    mkdir "$SCRATCH"
    libraries "a pool on a disk" in_container "$bin/nacre" run -q --pool "$pool" --
    mapped in_container "$bin/nacre" run -q --pool "$pool" --
    contains "check" clean "$("$NACRE" check "$pool")"
    "$NACRE" delete --force "$pool" >/dev/null
}

main
