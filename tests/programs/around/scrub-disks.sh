# Bytes that change behind the back of a pool with copies on disks: scrub finds, names and repairs
# them while a database runs, and nothing that was acknowledged is lost (D78).
. "$PROGRAMS/expect.sh"

nacre() { "$NACRE" "$@"; }
# What is tried; the canary puts something blind in its place.
SCRUB=(nacre scrub)
# Where the data of a disk begins.
data=$((2 << 20))

uuid_of() {
    nacre info --json "$1" 2>/dev/null | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])'
}

# What a power cut leaves: the disks, and nothing of what memory held.
lose_memory() { rm -rf "${NACRE_SESSION_DIR:-/dev/shm}/nacre-$1-"*; }

fresh() { # $1: copies
    local one
    for one in "$a" "$b" "$c"; do
        [[ ! -e $one ]] || nacre delete --force "$one" >/dev/null 2>&1 || true
        rm -f "$one"
    done
    local devices=("$a" "$b" "$c")
    nacre create --copies "${1:-2}" --size 96M "${devices[@]:0:${1:-2}}" >/dev/null
    nacre run -q --pool "$a" -- sh -c "mkdir /nacre/d && seq 2000000 >/nacre/d/numbers &&
        for n in \$(seq 300); do echo \$n >/nacre/d/\$n; done"
}

# Turns a byte of the line `$2` of the file of numbers, as it lies on the disk $1.
spoil() {
    local at
    at=$(grep -abo -m1 "^$2\$" "$1" | cut -d: -f1)
    [[ -n $at ]] || fail "no line $2 in $1"
    printf x | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
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

header() {
    local device
    for device in "$a" "$b"; do
        note "the header of $device"
        fresh
        dd if=/dev/zero of="$device" bs=4096 seek=$((data / 4096)) count=64 conv=notrunc status=none
        contains "it is told" "$device: its copy of the pool's header differed and was repaired" \
            "$(nacre run -q --pool "$a" -- true 2>&1)"
        gives "and told once" "" bash -c "'$NACRE' run -q --pool '$a' -- true 2>&1"
        numbers_are_right
        equal "$a" "$b"
    done
}

# sqlite adds rows until it is told to stop; each one that was acknowledged is noted outside.
database() {
    sqlite3 /nacre/db "create table t (n integer)"
    while [[ ! -e $SCRATCH/stop ]]; do
        n=$(($(wc -l <"$rows") + 1))
        sqlite3 /nacre/db "insert into t values ($n)" || exit 9
        echo "$n" >>"$rows"
    done
}

goes_on() {
    local before
    before=$(wc -l <"$rows")
    more_rows() { (($(wc -l <"$rows") >= before + 5)); }
    wait_for 60 "rows" more_rows
}

all_rows() { # $1: the disk that is named
    local n
    n=$(wc -l <"$rows")
    gives "rows" "$n|$((n * (n + 1) / 2)) ok" bash -c "'$NACRE' run -q --pool '$1' -- sqlite3 /nacre/db \
        'select count(*), sum(n) from t where n <= $n; pragma integrity_check' 2>/dev/null | xargs"
}

beneath_a_database() {
    note "dd over 256 KiB of each disk while a database runs"
    fresh
    nacre scrub "$a" >/dev/null
    rows=$SCRATCH/rows
    : >"$rows"
    rm -f "$SCRATCH/stop"
    export SCRATCH rows
    "$NACRE" run -q --pool "$a" -- bash -c "$(declare -f database); database" 2>"$SCRATCH/said" &
    local runs=$! device at said
    goes_on
    for device in "$a" "$b"; do
        at=$(grep -abo -m1 '^1000000$' "$device" | cut -d: -f1)
        dd if=/dev/urandom of="$device" bs=4096 seek=$((at / 4096)) count=64 conv=notrunc status=none
        goes_on
        said=$(nacre scrub "$a") || fail "scrub: $said"
        contains "named" "/d/numbers, from byte" "$said"
        contains "repaired" "repaired on $device (by checksum)" "$said"
        contains "silence" " 0 B repaired, 0 B left" "$(nacre scrub "$b")"
    done
    goes_on
    touch "$SCRATCH/stop"
    wait $runs || fail "the database: $? $(cat "$SCRATCH/said")"
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
    spoil "$a" 1345678
    local at
    at=$(grep -abo -m1 "^1345678\$" "$b" | cut -d: -f1)
    printf yy | dd of="$b" bs=1 seek="$at" conv=notrunc status=none
    if said=$(nacre cat --verify "$a:/d/numbers" 2>&1 >"$out"); then fail "took a copy"; fi
    contains "why" "no copy holds what was there when it was sealed" "$said"
}

leave() {
    local one
    for one in "$a" "$b" "$c"; do
        nacre delete --force "$one" >/dev/null 2>&1 || true
    done
    rm -rf "$folder"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    folder=$(mktemp -d "$DISK_FOLDER/scrubbed-XXXXXX")
    a=$folder/a b=$folder/b c=$folder/c
    trap leave EXIT
    note sealed
    sealed_is_mended
    note "the canary: a scrub that compares nothing is noticed"
    blind() { echo "0 B repaired"; }
    if (trap - EXIT; SCRUB=(blind) && sealed_is_mended) >/dev/null 2>&1; then fail "a blind scrub was not noticed"; fi
    unsealed
    header
    beneath_a_database
    power_cut
    supervised
    verified
}

main
