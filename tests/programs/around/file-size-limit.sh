# A program that may write only small files (RLIMIT_FSIZE, `ulimit -f`) uses pools on disks, whose
# files are larger: it reads, writes, syncs and brings back what had gone from memory, and is not
# ended by SIGXFSZ. Its own files are limited as ever.
. "$PROGRAMS/expect.sh"

# What it does, with at most 100 KiB for a file.
part_limited() {
    ulimit -f 100
    cmp "$MOUNT/large" "$SCRATCH/large"
    head -c 90000 "$SCRATCH/large" >"$MOUNT/small"
    dd if="$SCRATCH/large" of="$MOUNT/large" bs=50000 count=2 conv=notrunc,fsync status=none skip=1
}

# The kernel's answer is ours: nothing beyond the limit, and SIGXFSZ.
part_refused() {
    ulimit -f 100
    if (head -c 200000 /dev/zero >"$MOUNT/longer") 2>/dev/null; then fail "the limit is none"; fi
    same "what the limit leaves" 102400 "$(stat -c %s "$MOUNT/longer")"
}

part_many() {
    ulimit -f 100
    local n
    for n in {1..200}; do
        dd if="$SCRATCH/large" of="$MOUNT/many.$n" bs=50000 skip="$n" count=1 conv=fsync status=none
    done
    sync -f "$MOUNT/many.1"
    for n in {1..200}; do
        cmp <(dd if="$SCRATCH/large" bs=50000 skip="$n" count=1 status=none) "$MOUNT/many.$n"
    done
}

# on WHAT DEVICE...: all of it on a pool of these options and devices
on() {
    note "$1"
    local POOL=${*: -1} what=$1 MOUNT=/nacre
    shift
    export MOUNT
    "$NACRE" create --size 256M "$@" >/dev/null
    run() { "$NACRE" run -q --cache 4M --pool "$POOL" -- bash "${BASH_SOURCE[0]}" "part_$1"; }
    "$NACRE" cp "$SCRATCH/large" "$POOL:/large"
    run many || fail "$what: status $? of many small files"
    run limited || fail "$what: status $? of a large file"
    run refused || fail "$what: status $?"
    contains "$what" clean "$("$NACRE" check "$POOL")"
    gives "$what: a file that was synced" 0 bash -c "'$NACRE' cat '$POOL:/many.7' | cmp - <(dd if='$SCRATCH/large' bs=50000 skip=7 count=1 status=none); echo \$?"
    "$NACRE" delete --force "$POOL" >/dev/null
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    disk=$DISK_FOLDER/nacre-file-size-$$
    trap 'rm -f "$disk".*' EXIT
    head -c 30000000 /dev/urandom >"$SCRATCH/large"
    on "a disk" "$disk.1"
    on "two copies" --copies 2 "$disk.1" "$disk.2"
    on "two disks" "$disk.1" "$disk.2"
    on "memory" "/dev/shm/nacre-file-size-$$"
}

run_parts "$@"
