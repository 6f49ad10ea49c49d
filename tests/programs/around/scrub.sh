# Bytes that change behind the back of a pool with copies: scrub finds, names and repairs them.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

# What is tried; the canary puts something blind in its place.
SCRUB=(nacre scrub)
CAT=(nacre cat)
a=$SCRATCH/a b=$SCRATCH/b c=$SCRATCH/c

fresh() { # $1: copies
    rm -f "$a" "$b" "$c"
    local devices=("$a" "$b" "$c")
    nacre create --copies "$1" --size 96M "${devices[@]:0:$1}" >/dev/null
    nacre run -q --pool "$a" -- sh -c "mkdir /nacre/d && seq 3000000 >/nacre/d/numbers &&
        for n in \$(seq 300); do echo \$n >/nacre/d/\$n; done"
}

equal() {
    cmp -i $data -n $((88 << 20)) "$1" "$2" || fail "the copies $1 and $2 differ"
}

numbers_are_right() {
    nacre run -q --pool "$a" -- sh -c 'seq 3000000 | cmp - /nacre/d/numbers' || fail "numbers"
}

# Damage of what the scrub before has sealed is repaired, on either device.
sealed_is_mended() {
    fresh 2
    "${SCRUB[@]}" "$a" >/dev/null || fail "a sound pool"
    for device in "$a" "$b"; do
        spoil "$device" 2345678
        spoil "$device" 2500000
        local said
        said=$("${SCRUB[@]}" "$a") || fail "not repaired: $said"
        contains "name" "/d/numbers, from byte" "$said"
        contains "device" "repaired on $device (by checksum)" "$said"
        equal "$a" "$b"
        numbers_are_right
    done
    contains "silence" " 0 B repaired, 0 B left" "$("${SCRUB[@]}" "$a")"
}

# Nothing was sealed: metadata tells for itself, contents do not.
unsealed() {
    note unsealed contents
    fresh 2
    spoil "$b" 2345678
    local said
    if said=$(nacre scrub "$a"); then fail "took a copy: $said"; fi
    contains "told" "/d/numbers, from byte" "$said"
    contains "told" "nothing tells which one is right" "$said"
    said=$(nacre scrub --repair "$a") || fail "$said"
    contains "told" "$b held something else; all hold the same now, as asked" "$said"
    equal "$a" "$b"
    numbers_are_right
    note unsealed metadata
    fresh 2
    # Zeros over the folder's tree on the device that is read.
    local unit
    unit=$(grep -abo NTRE "$a" | cut -d: -f1 | head -1)
    dd if=/dev/zero of="$a" bs=4096 seek=$((unit / 4096)) count=1 conv=notrunc status=none
    said=$(nacre scrub "$a") || fail "$said"
    contains "told" "repaired on $a (by contents)" "$said"
    equal "$a" "$b"
    rm "$a"
    contains "check" clean "$(nacre check "$b" 2>/dev/null)"
}

# Where nothing tells, the device that was wrong elsewhere is not trusted, nor one that is not named.
blamed() {
    note a device that is known to lie
    local said
    fresh 2
    nacre scrub "$a" >/dev/null
    nacre run -q --pool "$a" -- sh -c 'seq 4000000 5000000 >/nacre/young'
    spoil "$a" 2345678
    spoil "$a" 4500000
    if said=$(nacre scrub "$a"); then fail "took a copy: $said"; fi
    contains "by the seal" "repaired on $a (by checksum)" "$said"
    contains "hint" "to take what $b holds there: nacre scrub --repair --from $b $a" "$said"
    spoil "$a" 2345678
    said=$(nacre scrub --repair "$a") || fail "$said"
    contains "told" "$a held something else" "$said"
    equal "$a" "$b"
    nacre run -q --pool "$a" -- sh -c 'seq 4000000 5000000 | cmp - /nacre/young' || fail young
    note a device that is named
    nacre run -q --pool "$a" -- sh -c 'seq 5000000 6000000 >/nacre/younger'
    spoil "$a" 5500000
    refuses "a stranger" "is no current copy" nacre scrub --repair --from "$c" "$a"
    said=$(nacre scrub --repair --from "$b" "$a") || fail "$said"
    equal "$a" "$b"
    nacre run -q --pool "$a" -- sh -c 'seq 5000000 6000000 | cmp - /nacre/younger' || fail younger
}

header() {
    local device
    for device in "$a" "$b"; do
        note "the header of $device"
        fresh 2
        behead "$device"
        contains "it is told" "$device: its copy of the pool's header differed and was repaired" \
            "$(nacre run -q --pool "$a" -- true 2>&1)"
        gives "and told once" "" bash -c "'$NACRE' run -q --pool '$a' -- true 2>&1"
        numbers_are_right
        equal "$a" "$b"
        note "the same while programs run, which are killed: nothing tells but checksums"
        setsid "$NACRE" run -q --pool "$a" -- bash -c '
            seq 100000 >/nacre/kept; eval "$1"; seq 9 >/nacre/last; kill -9 0' \
            bash "$(declare -f behead); data=$data; behead '$device'" || true
        "$NACRE" run -q --pool "$a" -- sh -c 'seq 100000 | cmp - /nacre/kept' || fail kept
        equal "$a" "$b"
        contains "check" clean "$(nacre check "$a" 2>/dev/null)"
    done
    note "the header of both"
    behead "$a"
    behead "$b"
    refuses "open" "no Nacre pool here" nacre scrub "$a"
}

three() {
    note of three copies two are right
    fresh 3
    spoil "$c" 2345678
    spoil "$a" 2500000
    contains "majority" "repaired on $c (by majority)" "$(nacre scrub "$a")"
    equal "$a" "$b"
    equal "$a" "$c"
    numbers_are_right
}

in_use() {
    note while programs run
    fresh 2
    nacre scrub "$a" >/dev/null
    nacre run -q --pool "$a" -- bash -c '
        for n in $(seq 40); do
            sqlite3 /nacre/db "create table if not exists t (n integer); insert into t values ($n)"
            [[ $n != 20 ]] || eval "$1"
        done
        [[ $(sqlite3 /nacre/db "select sum(n) from t; pragma integrity_check" | xargs) == "820 ok" ]]
        seq 3000000 | cmp - /nacre/d/numbers' bash "
            . '$PROGRAMS/expect.sh'; $(declare -f spoil); spoil '$b' 2345678; spoil '$a' 2500000
            '$NACRE' scrub '$a' >'$SCRATCH/said' || exit 5; '$NACRE' scrub '$a' >'$SCRATCH/again'" ||
        fail "in use: $? $(cat "$SCRATCH/said")"
    contains "one device" "repaired on $b (by checksum)" "$(cat "$SCRATCH/said")"
    contains "the other" "repaired on $a (by checksum)" "$(cat "$SCRATCH/said")"
    contains "silence" " 0 B repaired, 0 B left" "$(cat "$SCRATCH/again")"
    equal "$a" "$b"
}

# Whoever stays beside the programs scrubs by himself, one of them at a time, and says what he repaired.
by_itself() { # $1: how long after one scrub the next begins
    fresh 2
    nacre scrub "$a" >/dev/null
    nacre run -q --pool "$a" --scrub-every "$1" -- bash -c "
        . '$PROGRAMS/expect.sh'
        $(declare -f spoil equal); data=$data
        spoil '$b' 2345678
        wait_for $2 'a scrub by itself' cmp -s -i $data -n $((88 << 20)) '$a' '$b'
        seq 3000000 | cmp - /nacre/d/numbers" 2>"$SCRATCH/said"
}

supervised() {
    note "by itself"
    by_itself 100ms 60 || fail "not repaired: $(<"$SCRATCH/said")"
    contains "told" "/d/numbers, from byte" "$(<"$SCRATCH/said")"
    contains "told" "repaired on $b (by checksum)" "$(<"$SCRATCH/said")"
    numbers_are_right
    note "the canary: a pause that does not end in time"
    if by_itself 1h 2; then fail "repaired, though nobody scrubbed"; fi
    contains "told" "waited too long" "$(<"$SCRATCH/said")"
    if [[ -w /dev/fuse ]]; then
        note "by a mount"
        fresh 2
        nacre scrub "$a" >/dev/null
        mkdir -p "$SCRATCH/mounted"
        nacre mount --scrub-every 100ms "$a" "$SCRATCH/mounted" 2>/dev/null
        spoil "$b" 2345678
        wait_for 60 "a scrub by the mount" equal_now
        nacre umount "$SCRATCH/mounted"
    fi
}

# What is sealed is compared before it is printed; also while programs use the pool.
verified() {
    note "cat --verify"
    fresh 2
    local said out=$SCRATCH/out
    said=$("${CAT[@]}" --verify "$a:/d/numbers" 2>&1 >"$out") || fail "$said"
    contains "nothing is sealed" "/d/numbers: nothing vouches for 22888896 bytes" "$said"
    nacre scrub "$a" >/dev/null
    local device
    for device in "$a" "$b"; do
        said=$("${CAT[@]}" --verify "$a:/d/numbers" 2>&1 >"$out") || fail "$said"
        [[ $said != *repaired* ]] || fail "$said"
        spoil "$device" 2345678
        spoil "$device" 2500000
        said=$("${CAT[@]}" --verify "$a:/d/numbers" 2>&1 >"$out") || fail "$said"
        cmp <(seq 3000000) "$out" || fail "damage was printed"
        contains "name" "/d/numbers, from byte" "$said"
        contains "device" "repaired on $device (by checksum)" "$said"
        equal "$a" "$b"
    done
    note "in use, by cp"
    spoil "$a" 2345678
    nacre run -q --pool "$a" -- sh -c "seq 50000 >/nacre/young; head -c 4000 /nacre/d/numbers >/nacre/d/1
        '$NACRE' cp -r --verify '$a:/d' '$SCRATCH/copied' && '$NACRE' cat --verify '$a:/young'" \
        2>"$SCRATCH/said" >"$out" || fail "$(<"$SCRATCH/said")"
    contains "name" "/d/numbers, from byte" "$(<"$SCRATCH/said")"
    contains "device" "repaired on $a (by checksum)" "$(<"$SCRATCH/said")"
    contains "young" "/young: nothing vouches for" "$(<"$SCRATCH/said")"
    seq 3000000 | cmp - "$SCRATCH/copied/numbers" || fail "damage was copied"
    seq 50000 | cmp - "$out" || fail young
    note "lost on both"
    nacre scrub "$a" >/dev/null
    spoil_both 2345678
    if said=$("${CAT[@]}" --verify "$a:/d/numbers" 2>&1 >"$out"); then fail "took a copy"; fi
    contains "name" "/d/numbers: from byte" "$said"
    contains "why" "no copy holds what was there when it was sealed" "$said"
    cmp -n "$(stat -c %s "$out")" <(seq 3000000) "$out" || fail "damage was printed"
    (($(stat -c %s "$out") > 10000000)) || fail "what is sound was not printed"
}

equal_now() { cmp -s -i $data -n $((88 << 20)) "$a" "$b"; }

note sealed
sealed_is_mended
note "the canary: a scrub that compares nothing is noticed"
blind() { echo "0 B repaired"; }
if (SCRUB=(blind) && sealed_is_mended) >/dev/null 2>&1; then fail "a blind scrub was not noticed"; fi
verified
note "the canary: a cat that compares nothing is noticed"
plain() {
    nacre cat "${@:2}"
    echo "/d/numbers: nothing vouches for 22888896 bytes" >&2
}
if said=$(CAT=(plain) && verified 2>&1); then fail "a plain cat was not noticed"; fi
contains "noticed" "damage was printed" "$said"
unsealed
blamed
header
three
in_use
supervised
note "damage of the copy that is read is not copied by a rebuild"
fresh 2
rebuilds_compare 2345678
fresh 2
json=$(nacre scrub --json "$a")
contains "json" '"clean": true' "$json"
rm -f "$c"
nacre create --size 32M "$c" >/dev/null
refuses "one copy" "is a pool without copies" nacre scrub "$c"
nacre run -q --pool "$c" -- sh -c 'echo x >/nacre/x'
refuses "one copy" "its contents have no checksums" nacre cat --verify "$c:/x"
refuses "inwards" "is for what comes out of a pool" nacre cp --verify "$c" "$a:/"
