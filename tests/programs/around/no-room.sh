# The file system below a pool is full: who syncs is told, nothing that was stored is lost, and each
# command says what to do.
. "$PROGRAMS/expect.sh"

# A pool whose file has holes, on a file system that is full.
fill() {
    truncate -s 100M "$SCRATCH/image"
    mkfs.ext4 -q -m 0 "$SCRATCH/image"
    mkdir -p "$SCRATCH/small"
    mount -o loop "$SCRATCH/image" "$SCRATCH/small"
    pool=$SCRATCH/small/p.pool
    "$NACRE" create --size 64M "$SCRATCH/q.pool" --mode cached >/dev/null
    "$NACRE" cp "$SCRATCH/word" "$SCRATCH/q.pool:/word"
    "$NACRE" delete --force "$pool" >/dev/null 2>&1 || true
    cp --sparse=always "$SCRATCH/q.pool" "$pool"
    ! dd if=/dev/zero of="$SCRATCH/small/filler" bs=64K status=none 2>/dev/null || fail "it is not full"
}

part_all() {
    echo word >"$SCRATCH/word"
    fill
    note "full"
    "$NACRE" run --quiet --pool "$pool" --mount "$MOUNT" -- bash -c '
        head -c 20000000 /dev/urandom >"$0/big"; md5sum <"$0/big" >"$1/sum"
        ! sync "$0/big" 2>"$1/refused"' "$MOUNT" "$SCRATCH" 2>"$SCRATCH/said" || fail "sync said that it is durable"
    contains "what to do" "make room" "$(cat "$SCRATCH/said")"
    refuses "sync" "make room" "$NACRE" sync "$pool"
    refuses "check tells what is there, too" "2 entries" "$NACRE" check "$pool"
    refuses "check" "make room" "$NACRE" check "$pool"
    note "room again"
    rm "$SCRATCH/small/filler"
    "$NACRE" sync "$pool"
    contains "all is sound" clean "$("$NACRE" check "$pool")"
    same "what was stored" "$(cat "$SCRATCH/sum")" "$("$NACRE" cat "$pool:/big" | md5sum)"
    "$NACRE" delete --force "$pool" >/dev/null
}

if [[ ${1:-} == part_all ]]; then part_all; exit; fi
if ((EUID != 0)) || ! unshare --mount true 2>/dev/null || [[ ! -e /dev/loop-control ]]; then
    echo "skipped: nothing can be mounted here"
    exit 0
fi
unshare --mount --propagation private bash "${BASH_SOURCE[0]}" part_all
