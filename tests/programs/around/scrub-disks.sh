# Bytes that change behind the back of a pool with copies on disks: scrub finds, names and repairs
# them while a database runs, and nothing that was acknowledged is lost (D78).
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

# What is tried; the canary puts something blind in its place.
SCRUB=(nacre scrub)

fresh() { # $1: copies
    no_disks
    local devices=("$a" "$b" "$c")
    nacre create --copies "${1:-2}" --size 96M "${devices[@]:0:${1:-2}}" >/dev/null
    nacre run -q --pool "$a" -- sh -c "mkdir /nacre/d && seq 2000000 >/nacre/d/numbers &&
        for n in \$(seq 300); do echo \$n >/nacre/d/\$n; done"
    # What is free between these files is taken: whoever leaves the pool last writes to the first free
    # unit, whose span has no checksum then.
    nacre run -q --pool "$a" -- sh -c "sync && mkdir /nacre/f && for n in \$(seq 64); do echo \$n >/nacre/f/\$n; done"
}

equal() { cmp -i $data -n $((80 << 20)) "$1" "$2" || fail "the copies $1 and $2 differ"; }

numbers_are_right() {
    nacre run -q --pool "$a" -- sh -c 'seq 2000000 | cmp - /nacre/d/numbers' || fail "numbers"
}

sealed_is_mended() {
    fresh
    "${SCRUB[@]}" "$a" >/dev/null || fail "a sound pool"
    local device said
    for device in "$a" "$b"; do
        spoil "$device" 1345678
        spoil "$device" 1500000
        said=$("${SCRUB[@]}" "$b") || fail "not repaired: $said"
        contains "name" "/d/numbers, from byte" "$said"
        contains "disk" "repaired on $device (by checksum)" "$said"
        equal "$a" "$b"
        numbers_are_right
    done
    contains "silence" " 0 B repaired, 0 B left" "$("${SCRUB[@]}" "$a")"
}

unsealed() {
    note "unsealed contents, and a disk that is named"
    fresh
    local said
    spoil "$b" 1345678
    if said=$(nacre scrub "$a"); then fail "took a copy: $said"; fi
    contains "told" "/d/numbers, from byte" "$said"
    contains "told" "nothing tells which one is right" "$said"
    refuses "a stranger" "is no current copy" nacre scrub --repair --from "$c" "$a"
    said=$(nacre scrub --repair --from "$a" "$a") || fail "$said"
    contains "told" "$b held something else; all hold the same now, as asked" "$said"
    equal "$a" "$b"
    numbers_are_right
    note "unsealed metadata"
    fresh
    local unit
    unit=$(grep -abo NTRE "$a" | cut -d: -f1 | head -1)
    dd if=/dev/zero of="$a" bs=4096 seek=$((unit / 4096)) count=1 conv=notrunc status=none
    said=$(nacre scrub "$b") || fail "$said"
    contains "told" "repaired on $a (by contents)" "$said"
    equal "$a" "$b"
    note "of three copies two are right"
    fresh 3
    spoil "$c" 1345678
    contains "majority" "repaired on $c (by majority)" "$(nacre scrub "$a")"
    equal "$a" "$c"
    numbers_are_right
}

reserved() {
    note "of three disks one came later: what is reserved and was never written is nothing to find"
    fresh 3
    nacre run -q --pool "$a" -- sh -c 'head -c 30000000 /dev/urandom >/nacre/x; sync; rm /nacre/x; sync; sync'
    nacre device replace "$a" "$c" "$folder/d" >/dev/null
    nacre run -q --pool "$a" -- fallocate -l 5000000 /nacre/reserved
    ! cmp -s -i $data -n $((80 << 20)) "$a" "$folder/d" || fail "the disks do not differ"
    contains "silence" " 0 B repaired, 0 B left" "$(nacre scrub "$a")"
    numbers_are_right
}

header() {
    local device
    for device in "$a" "$b"; do
        note "the header of $device"
        fresh
        behead "$device"
        contains "it is told" "$device: its copy of the pool's header differed and was repaired" \
            "$(nacre run -q --pool "$a" -- true 2>&1)"
        gives "and told once" "" bash -c "'$NACRE' run -q --pool '$a' -- true 2>&1"
        numbers_are_right
        equal "$a" "$b"
    done
}

# wreck_quiet DEVICE MIB [SOURCE]: all from there on is something else, and no program has the pool
wreck_quiet() {
    fresh
    nacre scrub "$a" >/dev/null
    lose_memory "$(uuid_of "$a")"
    dd if="${3:-/dev/urandom}" of="$1" bs=1M seek="$2" count=$((60 - $2)) conv=notrunc status=none
}

all_is_right() {
    nacre run -q --pool "$a" -- bash -c 'seq 2000000 | cmp - /nacre/d/numbers &&
        for n in $(seq 300); do [[ $(</nacre/d/$n) == $n ]] || exit 1; done' || fail "$1"
}

written_over() {
    local device said
    for device in "$a" "$b"; do
        note "most of $device, while nobody uses the pool"
        wreck_quiet "$device" 1
        all_is_right "read from the disk that was wrong"
        said=$(nacre scrub "$a") || fail "left: $said"
        contains "all of it" ", 0 B left" "$said"
        equal "$a" "$b"
        contains "sound" clean "$(nacre check "$a")"
        note "the same, but for the header, and a scrub first"
        wreck_quiet "$device" 4
        said=$(nacre scrub "$a") || fail "left: $said"
        contains "all of it" "repaired on $device (by checksum)" "$said"
        equal "$a" "$b"
        all_is_right "after the scrub"
    done
}

written_to() {
    local source=$1 device said
    for device in "$a" "$b"; do
        note "$source over most of $device, and programs write before a scrub comes by: nothing is asked"
        wreck_quiet "$device" 3 "$source"
        # All names are looked at: that meets damage. What is written home then had checksums.
        nacre run -q --pool "$a" --scrub-every 1h -- bash -ec '
            [[ $(ls -l /nacre/d | wc -l) == 302 ]]
            head -c 9000000 /dev/urandom >/nacre/new; sync; rm /nacre/new; sync
            for n in $(seq 14); do
                printf "%s" $n | dd of=/nacre/d/numbers bs=1 seek=$((n * 1000000)) conv=notrunc status=none
                sync
            done
            sync; sync' 2>"$SCRATCH/said" || fail "$(<"$SCRATCH/said")"
        said=$(nacre scrub "$a") || fail "left: $said"
        contains "all of it" ", 0 B left" "$said"
        equal "$a" "$b"
        nacre run -q --pool "$a" -- bash -c '
            seq 2000000 >"$1"
            for n in $(seq 14); do
                printf "%s" $n | dd of="$1" bs=1 seek=$((n * 1000000)) conv=notrunc status=none
            done
            cmp "$1" /nacre/d/numbers' bash "$SCRATCH/numbers" || fail "contents"
        contains "sound" clean "$(nacre check "$a")"
    done
}

metadata() {
    local device
    for device in "$a" "$b"; do
        note "nodes of the tree on $device alone"
        fresh
        lose_memory "$(uuid_of "$a")"
        grep -abo NTRE "$device" | cut -d: -f1 | while read -r at; do
            # Not in the journal.
            ((at >= data + (80 << 20))) ||
                printf spoilt | dd of="$device" bs=1 seek=$((at + 200)) conv=notrunc status=none
        done
        gives "all names are there" 301 nacre run -q --pool "$a" -- \
            bash -c 'ls /nacre/d | wc -l'
        nacre scrub "$a" >/dev/null || fail "left"
        equal "$a" "$b"
    done
}

beneath_a_database() {
    note "dd over 256 KiB of each disk while a database runs"
    fresh
    nacre scrub "$a" >/dev/null
    begin_database
    local device said
    goes_on "at the start"
    for device in "$a" "$b"; do
        wreck_old "$device"
        goes_on "with $device damaged"
        said=$(nacre scrub "$a") || fail "scrub: $said"
        contains "named" "/d/numbers, from byte" "$said"
        contains "repaired" "repaired on $device (by checksum)" "$said"
        contains "silence" " 0 B repaired, 0 B left" "$(nacre scrub "$b")"
    done
    goes_on "with both repaired"
    end_database
    all_rows "$a"
    numbers_are_right
    equal "$a" "$b"
    note "nothing is lost, on either"
    mv "$a" "$a.away"
    all_rows "$b"
    mv "$a.away" "$a"
}

power_cut() {
    note "what went home since is not taken for damage after a power cut"
    fresh
    nacre scrub "$a" >/dev/null
    local uuid round
    uuid=$(uuid_of "$a")
    for round in 1 2 3; do
        "$NACRE" run -q --pool "$a" -- bash -c '
            for n in $(seq 8); do
                seq $n 300000 >/nacre/d/$n; head -c 3000000 /dev/urandom >/nacre/new$n; sync; done
            kill -KILL $PPID $$' 2>/dev/null || true
        lose_memory "$uuid"
        contains "silence" " 0 B repaired, 0 B left" "$(nacre scrub "$a")"
    done
    numbers_are_right
    contains "sound" clean "$(nacre check "$b")"
    note "a repair finds out what is free as well"
    "$NACRE" run -q --pool "$a" -- bash -c 'seq 9 >/nacre/nine; kill -KILL $PPID $$' 2>/dev/null || true
    contains "sound" clean "$(nacre check --repair "$b" 2>&1)"
}

by_itself() { # $1: how long after one scrub the next begins, $2: so long is waited
    fresh
    nacre scrub "$a" >/dev/null
    nacre run -q --pool "$a" --scrub-every "$1" -- bash -c "
        . '$PROGRAMS/expect.sh'
        $(declare -f spoil equal); data=$data
        spoil '$b' 1345678
        wait_for $2 'a scrub by itself' cmp -s -i $data -n $((80 << 20)) '$a' '$b'
        seq 2000000 | cmp - /nacre/d/numbers" 2>"$SCRATCH/said"
}

supervised() {
    note "by itself"
    by_itself 100ms 60 || fail "not repaired: $(<"$SCRATCH/said")"
    contains "told" "repaired on $b (by checksum)" "$(<"$SCRATCH/said")"
    note "the canary: a pause that does not end in time"
    if by_itself 1h 2; then fail "repaired, though nobody scrubbed"; fi
    contains "told" "waited too long" "$(<"$SCRATCH/said")"
}

verified() {
    note "cat --verify"
    fresh
    local said out=$SCRATCH/out device
    said=$(nacre cat --verify "$a:/d/numbers" 2>&1 >"$out") || fail "$said"
    contains "nothing is sealed" "/d/numbers: nothing vouches for" "$said"
    nacre scrub "$a" >/dev/null
    for device in "$a" "$b"; do
        spoil "$device" 1345678
        said=$(nacre cat --verify "$a:/d/numbers" 2>&1 >"$out") || fail "$said"
        cmp <(seq 2000000) "$out" || fail "damage was printed"
        contains "disk" "repaired on $device (by checksum)" "$said"
        equal "$a" "$b"
    done
    note "lost on both"
    spoil_both 1345678
    if said=$(nacre cat --verify "$a:/d/numbers" 2>&1 >"$out"); then fail "took a copy"; fi
    contains "why" "no copy holds what was there when it was sealed" "$said"
}

main() {
    disks_for scrubbed || return 0
    note sealed
    sealed_is_mended
    note "the canary: a scrub that compares nothing is noticed"
    blind() { echo "0 B repaired"; }
    if (trap - EXIT; SCRUB=(blind) && sealed_is_mended) >/dev/null 2>&1; then fail "a blind scrub was not noticed"; fi
    unsealed
    reserved
    header
    written_over
    written_to /dev/urandom
    written_to /dev/zero
    metadata
    beneath_a_database
    power_cut
    supervised
    verified
    note "damage of the disk that is read is not copied by a rebuild"
    fresh
    rebuilds_compare 1345678
}

main
