# Pools on file systems that are not ext4: what was synced is there without memory, a copy-on-write
# file system that is full is told of, and a pool on one that cannot be written is shown.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

# Whether the kernel has such file systems.
knows() {
    grep -qw "$1" /proc/filesystems || modprobe -q "$1" 2>/dev/null || { note "no $1 here"; return 1; }
}

# of_kind NAME COMMAND...: an empty file system, made by that command, in $place
of_kind() {
    local name=$1
    shift
    note "$name"
    image=$SCRATCH/$name
    truncate -s 400M "$image"
    "$@" "$image" >/dev/null 2>&1 || fail "$*"
    mount -o "loop${OPTIONS:-}" "$image" "$place"
}

# What a shell in a new pool syncs is there when memory is lost.
synced() {
    pool=$place/p.pool
    nacre create --quiet --size 128M "$pool"
    rows_survive "$pool" true
    nacre run -q --pool "$pool" -- bash -c 'head -c 9000000 /dev/urandom >/nacre/big; sync; md5sum </nacre/big' >"$SCRATCH/sum"
    lose_memory "$(uuid_of "$pool")"
    contains "the pool" clean "$(nacre check "$pool")"
    gives "rows" 40 nacre run -q --pool "$pool" -- sqlite3 /nacre/db "select count(*) from t"
    gives "contents" "$(cat "$SCRATCH/sum")" nacre run -q --pool "$pool" -- sh -c 'md5sum </nacre/big'
}

# It writes each time to another place: where there is none, nothing can be made durable.
full() {
    note "it is full"
    ! dd if=/dev/urandom of="$place/filler" bs=64K status=none 2>/dev/null || fail "it is not full"
    nacre run -q --pool "$pool" -- bash -c 'head -c 20000000 /dev/urandom >/nacre/late; ! sync /nacre/late' 2>"$SCRATCH/said" ||
        fail "sync said that it is durable"
    contains "what to do" "make room" "$(cat "$SCRATCH/said")"
    rm "$place/filler"
    nacre sync "$pool"
    lose_memory "$(uuid_of "$pool")"
    contains "the pool" clean "$(nacre check "$pool")"
    same "what was stored" 20000000 "$(nacre cat "$pool:/late" | wc -c)"
}

# A file system that has only what was put into it.
packed() {
    note "squashfs"
    mksquashfs "$pool" "$SCRATCH/packed" -quiet -no-progress >/dev/null
    umount "$place"
    mount -o loop "$SCRATCH/packed" "$place"
    refuses "a program that may write" "show it with --read-only" nacre run -q --pool "$pool" -- true
    gives "one that reads" 40 nacre run -q --read-only --pool "$pool" -- sqlite3 "file:/nacre/db?immutable=1" "select count(*) from t"
    contains "the pool" clean "$(nacre check "$pool")"
}

part_all() {
    place=$SCRATCH/place
    mkdir "$place"
    ! knows btrfs || on_btrfs
    ! knows xfs || on_xfs
}

on_btrfs() {
    OPTIONS=,compress=zstd of_kind btrfs mkfs.btrfs
    synced
    full
    nacre delete --force "$pool" >/dev/null
    umount "$place"
}

on_xfs() {
    of_kind xfs mkfs.xfs
    synced
    ! knows squashfs || packed
    umount "$place"
}

if [[ ${1:-} == part_all ]]; then part_all; exit; fi
if ((EUID != 0)) || ! unshare --mount true 2>/dev/null || [[ ! -e /dev/loop-control ]]; then
    echo "skipped: nothing can be mounted here"
    exit 0
fi
unshare --mount --propagation private bash "${BASH_SOURCE[0]}" part_all
