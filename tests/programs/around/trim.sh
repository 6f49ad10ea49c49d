# `nacre trim`: devices need not keep what is free. Nothing else is lost, also of memory behind it, by
# its death, or beside programs that write.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

# KiB that files take of their file system
room() { du -c -k "$@" | tail -n 1 | cut -f 1; }

free_in() {
    nacre info --json "$1" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["usage"]["free_bytes"])'
}

# Some files stay, others go.
used() {
    nacre run -q --pool "$1" -- bash -c 'for n in 1 2 3 4 5 6 7 8; do head -c 3000000 /dev/urandom >/nacre/$n; done
        sync; md5sum /nacre/[2468]; rm /nacre/[1357]; sync' >"$SCRATCH/sums"
}

is_as_it_was() {
    lose_memory "$(uuid_of "$1")"
    contains "the pool" clean "$(nacre check "$1")"
    nacre run -q --pool "$1" -- md5sum --quiet -c "$SCRATCH/sums" || fail "files differ"
}

# trimmed POOL FILE...: where the data lies
trimmed() {
    local before free
    used "$1"
    before=$(room "${@:2}") free=$(free_in "$1")
    contains "what it did" "trimmed" "$(nacre trim --punch "$1")"
    (($(room "${@:2}") < before / 2)) || fail "$(room "${@:2}") KiB of $before are left"
    is_as_it_was "$1"
    same "free bytes" "$free" "$(free_in "$1")"
}

# Each writer compares what it wrote with what it has.
writers='for w in 1 2 3; do
    for n in $(seq 12); do
        head -c 1500000 /dev/urandom >"/host/$w"; cp "/host/$w" "/nacre/w$w"; sync "/nacre/w$w"
        cmp "/host/$w" "/nacre/w$w" || exit 1
    done &
    all+=($!)
done
for one in "${all[@]}"; do wait "$one" || exit 1; done'

beside_programs() {
    local writing
    nacre run -q --pool "$1" -- bash -c "${writers//\/host/$SCRATCH}" &
    writing=$!
    while kill -0 "$writing" 2>/dev/null; do
        nacre trim --punch "$1" >"$SCRATCH/said"
    done
    wait "$writing" || fail "what was written beside it differs"
    lose_memory "$(uuid_of "$1")"
    for w in 1 2 3; do
        nacre cat "$1:/w$w" | cmp - "$SCRATCH/$w" || fail "what was synced beside it differs"
    done
    is_as_it_was "$1"
}

killed() {
    local free turn
    free=$(free_in "$1")
    for turn in 01 02 03 05 08; do
        timeout -s KILL "0.$turn" "$NACRE" trim --punch "$1" >"$SCRATCH/said" 2>&1 || true
    done
    is_as_it_was "$1"
    same "free bytes" "$free" "$(free_in "$1")"
}

part_all() {
    disks_for trim || return 0
    note "a file"
    nacre create --quiet --size 128M "$a"
    refuses "a file" "unless --punch" nacre trim "$a"
    trimmed "$a" "$a"
    beside_programs "$a"
    killed "$a"
    refuses "a pool in memory" "no disk" nacre trim "$POOL"
    no_disks
    note "two that hold the same"
    nacre create --quiet --copies 2 --size 96M "$a" "$b"
    contains "scrub" "0 B repaired, 0 B left" "$(nacre scrub "$a")"
    trimmed "$a" "$a" "$b"
    contains "scrub" "0 B repaired, 0 B left" "$(nacre scrub "$a")"
    refuses "files" "unless --punch" nacre trim "$a"
    same "what has no checksum behind that" "" "$(nacre cat --verify "$a:/2" 2>&1 >/dev/null)"
    beside_programs "$a"
    rm "$a"
    is_as_it_was "$b"
    no_disks
    note "two that hold a part each"
    nacre create --quiet --stripe 64K --size 96M "$a" "$b"
    trimmed "$a" "$a" "$b"
    beside_programs "$a"
    no_disks
    behind
    block_device
}

behind() {
    local device free room_before
    note "a disk behind memory"
    truncate -s 512M "$c"
    device=$(losetup -f --show "$c" 2>/dev/null) || { note "no loop devices here"; return 0; }
    nacre create --quiet --force --size 40M --behind "$device" "$SCRATCH/front"
    nacre run -q --pool "$SCRATCH/front" -- bash -c '
        for n in $(seq 20); do seq $((n * 100000)) $((n * 100000 + 600000)) >/nacre/$n; done
        rm /nacre/{2,4,6,8,10,12,14,16,18,20}'
    room_before=$(room "$c") free=$(free_in "$SCRATCH/front")
    contains "what it did" "trimmed" "$(nacre trim "$SCRATCH/front")"
    (($(room "$c") < room_before - 20000)) || fail "$(room "$c") KiB of $room_before are left"
    same "free bytes" "$free" "$(free_in "$SCRATCH/front")"
    contains "the pool" clean "$(nacre check "$SCRATCH/front")"
    nacre run -q --pool "$SCRATCH/front" -- bash -c 'for n in $(seq 1 2 19); do
        seq $((n * 100000)) $((n * 100000 + 600000)) | cmp - /nacre/$n || exit 1; done' || fail "files differ"
    losetup -d "$device"
    rm "$SCRATCH/front"
    no_disks
}

block_device() {
    local device
    truncate -s 128M "$c"
    device=$(losetup -f --show "$c" 2>/dev/null) || { note "no loop devices here"; return 0; }
    note "a block device"
    nacre create --quiet --force "$device"
    used "$device"
    room_before=$(room "$c")
    contains "what it did" "trimmed" "$(nacre trim "$device")"
    (($(room "$c") < room_before - 8000)) || fail "a block device keeps what is free"
    is_as_it_was "$device"
    losetup -d "$device"
}

part_all
