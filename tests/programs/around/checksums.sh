# What a disk gives back is compared with checksums (D130): damage is an error where there is no
# copy, and comes from the other disk where there is one, at the first read and without a scrub.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

fresh() { # words for create...
    no_disks
    nacre create --size 300M --checksums "$checksums" "$@" >/dev/null
    nacre run -q --pool "$a" -- sh -c "seq 1500000 >/nacre/numbers && seq 100 >/nacre/other"
}

numbers() { nacre run -q --pool "$a" -- cat /nacre/numbers; }

alone() {
    note "a disk that is alone"
    fresh "$a"
    spoil "$a" 1345678
    local said
    if said=$(numbers 2>&1 >"$SCRATCH/read"); then fail "damage was read"; fi
    contains "told" "Input/output error" "$said"
    # All before the unit is right.
    cmp -n "$(stat -c %s "$SCRATCH/read")" <(seq 1500000) "$SCRATCH/read" || fail "something else"
    gives "what is not damaged" "$(seq 100)" nacre run -q --pool "$a" -- cat /nacre/other
    if said=$(nacre scrub "$a"); then fail "nothing was found: $said"; fi
    contains "name" "/numbers, from byte" "$said"
    contains "told" "does not hold what was written" "$said"
    contains "sum" "4.00 KiB damaged" "$said"
    refuses "nothing to repair it from" "pool without copies" nacre scrub --repair "$a"
    note "it is written again"
    nacre run -q --pool "$a" -- sh -c "seq 1500000 >/nacre/again && mv /nacre/again /nacre/numbers"
    numbers | cmp - <(seq 1500000) || fail "what was written again"
    contains "clean" " 0 B damaged" "$(nacre scrub "$a")"
    note "in use"
    nacre run -q --pool "$a" -- sh -c "sync; '$NACRE' scrub '$a'" | grep -q " 0 B damaged" ||
        fail "a scrub beside programs"
}

without() {
    note "without checksums it is read"
    checksums=no
    fresh "$a"
    spoil "$a" 1345678
    numbers | cmp -s - <(seq 1500000) && fail "nothing was damaged"
    numbers >/dev/null || fail "an error"
    refuses "nothing to compare" "without copies or checksums" nacre scrub "$a"
    checksums=yes
}

copies() {
    local device
    for device in "$a" "$b"; do
        note "two disks, $(basename "$device") is damaged"
        fresh --copies 2 "$a" "$b"
        spoil "$device" 1345678
        numbers | cmp - <(seq 1500000) || fail "damage was read"
        contains "repaired" "0 B left" "$(nacre scrub "$a")"
        cmp -i $data -n $((200 << 20)) "$a" "$b" || fail "the disks differ"
    done
    note "two disks, each damaged elsewhere"
    fresh --copies 2 "$a" "$b"
    spoil "$a" 1345678
    spoil "$b" 1045678
    numbers | cmp - <(seq 1500000) || fail "damage was read"
    note "two disks, one written over where nobody used them"
    fresh --copies 2 "$a" "$b"
    dd if=/dev/urandom of="$b" bs=1M seek=3 count=200 conv=notrunc status=none
    numbers | cmp - <(seq 1500000) || fail "damage was read"
    local said
    said=$(nacre scrub "$a") || fail "something is left: $said"
    cmp -i $data -n $((200 << 20)) "$a" "$b" || fail "the disks differ"
}

checksums=yes
disks_for checksums || exit 0
alone
without
copies
