# The story of docs/volumes.md: a database runs on a pool with two copies while dd damages one
# device, first a part of its contents, then all of it. It is noticed, repaired and rebuilt, and
# nothing is lost.
. "$PROGRAMS/expect.sh"

nacre() { "$NACRE" "$@"; }
a=$SCRATCH/a b=$SCRATCH/b c=$SCRATCH/c
size=$((64 << 20)) data=$((2 << 20))
rows=$SCRATCH/rows

# What the shell in the pool does: rows until it is told to stop; each one that was acknowledged is
# noted outside of the pool.
database() {
    sqlite3 /nacre/db "create table t (n integer)"
    : >"$rows"
    while [[ ! -e $SCRATCH/stop ]]; do
        n=$(($(wc -l <"$rows") + 1))
        sqlite3 /nacre/db "insert into t values ($n)" || exit 9
        echo "$n" >>"$rows"
    done
}

# Waits until so many rows more are there: the database goes on.
goes_on() {
    local before
    before=$(wc -l <"$rows")
    for _ in $(seq 600); do
        (($(wc -l <"$rows") < before + 10)) || return 0
        sleep 0.1
    done
    fail "the database stands still: $1"
}

state_of_b() { nacre device list --json "$a" | sed -n 's/.*"state": "\(.*\)",/\1/p' | tail -1; }

until_failed() {
    for _ in $(seq 300); do
        [[ $(state_of_b) != failed ]] || return 0
        sleep 0.1
    done
    fail "nobody notices that the device is gone: $(state_of_b)"
}

# All rows that were acknowledged, in order, and one more if it was under way.
all_rows() { # $1: the device that is named
    local said
    said=$("$NACRE" run -q --pool "$1" -- sqlite3 /nacre/db \
        "select count(*), sum(n) from t where n <= $(wc -l <"$rows"); pragma integrity_check" 2>/dev/null)
    local n
    n=$(wc -l <"$rows")
    same "rows" "$n|$((n * (n + 1) / 2)) ok" "$(xargs <<<"$said")"
}

note a mirrored pool with something old in it
nacre create --copies 2 --size $size "$a" "$b" >/dev/null
nacre run -q --pool "$a" -- sh -c 'seq 2000000 >/nacre/old'
nacre scrub "$a" >/dev/null

note a database begins
: >"$rows"
export SCRATCH rows
"$NACRE" run -q --pool "$a" -- bash -c "$(declare -f database); database" 2>"$SCRATCH/said" &
database=$!
goes_on "at the start"

note "dd over 256 KiB of what is old, on one device"
at=$(grep -abo -m1 '^1000000$' "$b" | cut -d: -f1)
dd if=/dev/urandom of="$b" bs=4096 seek=$((at / 4096)) count=64 conv=notrunc status=none
goes_on "with a damaged device"
said=$(nacre scrub "$a") || fail "scrub: $said"
contains "named" "/old, from byte" "$said"
contains "repaired" "repaired on $b (by checksum)" "$said"
contains "silence" " 0 B repaired, 0 B left" "$(nacre scrub "$a")"

note "dd over the whole device"
dd if=/dev/urandom of="$b" bs=1M count=$((size >> 20)) conv=notrunc status=none
until_failed
goes_on "without a device"

note replaced while the database runs
refuses "the same device, which programs have" "in use by running programs" \
    nacre device replace --force "$a" "$b" "$b"
nacre device replace "$a" "$b" "$c" >"$SCRATCH/log" 2>&1 || fail "$(cat "$SCRATCH/log")"
same "state" current "$(state_of_b)"
goes_on "with both"
touch "$SCRATCH/stop"
wait $database || fail "the database: $? $(cat "$SCRATCH/said")"

note nothing is lost, on either
cmp -i $data -n $((size - 2 * data)) "$a" "$c" || fail "the copies differ"
all_rows "$a"
mv "$a" "$SCRATCH/away"
all_rows "$c"
"$NACRE" run -q --pool "$c" -- sh -c 'seq 2000000 | cmp - /nacre/old' 2>/dev/null || fail old
contains "check" clean "$(nacre check "$c" 2>/dev/null)"
