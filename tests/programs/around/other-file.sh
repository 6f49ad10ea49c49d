# The name of a pool leads elsewhere while programs use it: it is said, and nobody is led to another pool.
. "$PROGRAMS/expect.sh"

said=$SCRATCH/said

# by NAME: waits until what was said has this in it
by() {
    for ((turn = 0; turn < 300; turn++)); do
        ! grep -q "$1" "$said" || return 0
        sleep 0.1
    done
    fail "nobody said '$1': $(cat "$said")"
}
export -f by fail
export said

make() {
    "$NACRE" create --size 64M --mode "$MODE" "$1" >/dev/null
    echo "$2" >"$SCRATCH/name"
    "$NACRE" cp "$SCRATCH/name" "$1:/name"
}

other() {
    note "another pool gets the name"
    make "$1/a.pool" first
    make "$1/b.pool" second
    "$NACRE" run --pool "$1/a.pool" --mount "$MOUNT" -- bash -c '
        cd "$0" && read -r before <"$1/name" && mv a.pool old.pool && by "another name now"
        mv b.pool a.pool && by "another file has this name"
        read -r after <"$1/name"; echo "$before $after" >seen
        cat "$1/name" >later 2>refused; echo $? >>seen
        "$2" ls -l "$1" >>later 2>>refused
        mv a.pool b.pool; mv old.pool a.pool
        cat "$1/name" >>seen; echo kept >"$1/kept"' "$1" "$MOUNT" "${BUSYBOX:-busybox}" 2>"$said" || fail "$(cat "$said")"
    same "who runs has the first, who comes is refused" "first first 1 first" "$(xargs <"$1/seen")"
    same "nobody saw the second" "" "$(cat "$1/later")"
    contains "why" "another pool is there" "$(cat "$1/refused")"
    gives "what was stored" kept "$NACRE" cat "$1/a.pool:/kept"
    gives "the second is as it was" name "$NACRE" ls "$1/b.pool"
}

copied() {
    note "a copy of the pool gets the name"
    make "$1/c.pool" first
    cp "$1/c.pool" "$1/d.pool"
    "$NACRE" run --pool "$1/c.pool" --mount "$MOUNT" -- bash -c '
        cd "$0" && mv d.pool c.pool && by "another file has this name"
        ! cat "$1/name" 2>refused' "$1" "$MOUNT" 2>"$said" || fail "$(cat "$said")"
    contains "why" "another pool is there" "$(cat "$1/refused")"
}

lost() {
    note "removed, cut"
    make "$1/e.pool" first
    "$NACRE" run --pool "$1/e.pool" --mount "$MOUNT" -- bash -c '
        rm "$0/e.pool" && by "was removed"' "$1" 2>"$said" || fail "$(cat "$said")"
    make "$1/f.pool" first
    "$NACRE" run --pool "$1/f.pool" --mount "$MOUNT" -- bash -c '
        dd if=/dev/zero of="$0/f.pool" bs=1M count=64 conv=notrunc status=none && by "written over"' "$1" 2>"$said" || fail "$(cat "$said")"
    [[ $MODE == cached ]] || return 0
    note "what was written over, or cut, takes nothing that is synced"
    make "$1/i.pool" first
    "$NACRE" run --pool "$1/i.pool" --mount "$MOUNT" -- python3 -c '
import os, sys
disk, kept = sys.argv[1], os.open(sys.argv[2] + "/kept", os.O_RDWR | os.O_CREAT)
def synced(what):
    os.write(kept, what)
    try: os.fsync(kept)
    except OSError: return False
    return True
assert synced(b"first "), "to the device"
before = open(disk, "rb").read()
os.truncate(disk, 32 << 20)
assert not synced(b"second "), "to half a device"
open(disk, "wb").write(before)
assert synced(b"third "), "to the device, back"
before, other = open(disk, "rb").read(), bytes(len(before))
open(disk, "r+b").write(other)
assert not synced(b"fourth "), "to another one"
assert open(disk, "rb").read() == other, "what is there now was written to"
open(disk, "r+b").write(before)
assert synced(b"fifth\n"), "to the device, back again"
' "$1/i.pool" "$MOUNT" 2>"$said" || fail "$(cat "$said")"
    gives "what was synced" "first second third fourth fifth" "$NACRE" cat "$1/i.pool:/kept"
}

# Nothing is said of a pool whose name leads to it, also by its second device.
quiet() {
    note "nothing to say"
    "$NACRE" create --size 32M "$1/g.pool" "$1/h.pool" >/dev/null
    "$NACRE" run --quiet --pool "$1/h.pool" --mount "$MOUNT" -- bash -c 'echo x >"$0/x"; sleep 2.5; cat "$0/x"' "$MOUNT" >"$SCRATCH/seen" 2>"$said"
    same "seen and said" "x " "$(cat "$SCRATCH/seen") $(cat "$said")"
}

for folder in "$SCRATCH" "$DISK_FOLDER/other-file-$$"; do
    mkdir -p "$folder"
    other "$folder"
    copied "$folder"
    lost "$folder"
    quiet "$folder"
done
rm -rf "$DISK_FOLDER/other-file-$$"
