# Sourced, behind expect.sh, by tests of what becomes of a pool's devices.

nacre() { "$NACRE" "$@"; }
# Where the data of a device begins.
data=$((2 << 20))

uuid_of() {
    nacre info --json "$1" 2>/dev/null | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])'
}

# lose_memory UUID: what a power cut takes; the devices stay, and nothing of what memory held
lose_memory() {
    [[ -n $1 ]] || fail "nothing is known of the pool whose memory is to go"
    rm -rf "${NACRE_SESSION_DIR:-/dev/shm}/nacre-$1-"*
}

# nobody_uses POOL: nor is anybody who was killed on the way out
nobody_uses() { [[ $(nacre info "$1" 2>/dev/null) == *nobody* ]]; }

states() { nacre device list --json "$1" | sed -n 's/.*"state": "\(.*\)",/\1/p' | xargs; }

# disks_for NAME: a, b and c are places on a disk, and gone with the test; fails for a baseline
disks_for() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return 1
    fi
    folder=$(mktemp -d "$DISK_FOLDER/$1-XXXXXX") || fail "no folder in $DISK_FOLDER"
    a=$folder/a b=$folder/b c=$folder/c
    trap leave EXIT
}

leave() {
    no_disks
    rm -rf "$folder"
}

# Whatever pool was on a, b and c, there is none.
no_disks() {
    local one
    for one in "$a" "$b" "$c"; do
        [[ ! -e $one ]] || nacre delete --force "$one" >/dev/null 2>&1 || true
        rm -f "$one"
    done
}

# spoil DEVICE NUMBER: turns a byte of that line of a file of numbers, as it lies on the device
spoil() {
    local at
    at=$(grep -abo -m1 "^$2\$" "$1" | cut -d: -f1)
    [[ -n $at ]] || fail "no line $2 in $1"
    printf x | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}

# spoil_both NUMBER: the line on a and b, in ways of their own
spoil_both() {
    spoil "$a" "$1"
    local at
    at=$(grep -abo -m1 "^$1\$" "$b" | cut -d: -f1)
    printf yy | dd of="$b" bs=1 seek="$at" conv=notrunc status=none
}

# behead DEVICE: zeros over all of the pool's header
behead() {
    dd if=/dev/zero of="$1" bs=4096 seek=$((data / 4096)) count=64 conv=notrunc status=none
}

# rows_survive POOL WHAT: sqlite commits 40 rows, WHAT happens in the middle; each row that was
# acknowledged is there at the end
rows_survive() {
    "$NACRE" run -q --pool "$1" -- bash -c '
        sqlite3 /nacre/db "drop table if exists t; create table t (n integer)" || exit 9
        for n in $(seq 40); do
            [[ $n != 10 ]] || eval "$1"
            sqlite3 /nacre/db "insert into t values ($n)" || exit 8
        done
        [[ $(sqlite3 /nacre/db "select count(*), sum(n) from t; pragma integrity_check" |
            xargs) == "40|820 ok" ]] || exit 7' bash "$2" 2>"$SCRATCH/said" || fail "$2: $? $(cat "$SCRATCH/said")"
}

# A database in a shell in the pool: rows until it is told to stop; each one that was acknowledged
# is noted outside of the pool, in $rows.
rows=$SCRATCH/rows
database() {
    sqlite3 /nacre/db "create table t (n integer)"
    while [[ ! -e $SCRATCH/stop ]]; do
        n=$(($(wc -l <"$rows") + 1))
        sqlite3 /nacre/db "insert into t values ($n)" || exit 9
        echo "$n" >>"$rows"
    done
}

begin_database() {
    : >"$rows"
    rm -f "$SCRATCH/stop"
    export SCRATCH rows
    "$NACRE" run -q --pool "$a" -- bash -c "$(declare -f database); database" 2>"$SCRATCH/said" &
    database=$!
}

end_database() {
    touch "$SCRATCH/stop"
    wait $database || fail "the database: $? $(cat "$SCRATCH/said")"
}

# goes_on WHAT: waits until there are ten rows more
goes_on() {
    local before
    before=$(wc -l <"$rows")
    more_rows() { (($(wc -l <"$rows") >= before + 10)); }
    wait_for 60 "rows, $1" more_rows
}

# all_rows DEVICE: those that were acknowledged are there, in order
all_rows() {
    local n found
    n=$(wc -l <"$rows")
    found=$(nacre run -q --pool "$1" -- sqlite3 /nacre/db "
        select count(*), sum(n) from t where n <= $n; pragma integrity_check" 2>"$SCRATCH/said" | xargs) || true
    same "rows of $1 ($(cat "$SCRATCH/said"))" "$n|$((n * (n + 1) / 2)) ok" "$found"
}

# wreck_old DEVICE: noise over 256 KiB of a file of numbers
wreck_old() {
    local at
    at=$(grep -abo -m1 '^1000000$' "$1" | cut -d: -f1)
    dd if=/dev/urandom of="$1" bs=4096 seek=$((at / 4096)) count=64 conv=notrunc status=none
}

# rebuilds_compare NUMBER: of a pool on a and b, what a rebuild copies is compared with its checksum
# (D111)
rebuilds_compare() {
    local said
    nacre scrub "$a" >/dev/null
    spoil "$a" "$1"
    said=$(nacre device replace "$a" "$b" "$c") || fail "not repaired: $said"
    contains "name" "/d/numbers, from byte" "$said"
    contains "device" "repaired on $a (by checksum)" "$said"
    numbers_are_right
    note "what no copy has as it was is told, and goes on to be told when that one is gone"
    rm -f "$b" "$c"
    spoil "$a" "$1"
    if said=$(nacre device replace "$a" "$c" "$b" 2>/dev/null); then fail "nothing told: $said"; fi
    contains "name" "/d/numbers, from byte" "$said"
    contains "lost" "all copies have lost what was there" "$said"
    contains "states" "current current" "$(states "$a")"
    rm -f "$a"
    if said=$(nacre scrub "$b" 2>/dev/null); then fail "the new copy vouches for it: $said"; fi
    contains "lost" "all copies have lost what was there" "$said"
}
