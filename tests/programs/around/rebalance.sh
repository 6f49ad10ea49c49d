# A device is added to a striped pool, and what was written before goes there, too.
. "$PROGRAMS/expect.sh"

. "$PROGRAMS/killed.sh"
# What is tried; the canary puts something idle in its place.
REBALANCE=(nacre device rebalance)
a=$SCRATCH/a b=$SCRATCH/b

# A pool of one device that is half full, and then has two.
grown() { # $1: stripe; more: options
    rm -f "$a" "$b"
    nacre create --size 128M "${@:2}" "$a" >/dev/null
    nacre run -q --pool "$a" -- bash -c '
        set -e
        seq 6000000 >/nacre/large; mkdir /nacre/d
        for n in $(seq 200); do seq $n $((n + 2000)) >/nacre/d/$n; done
        cp /nacre/large /nacre/shared; cp --reflink=always /nacre/shared /nacre/clone
        truncate -s 5M /nacre/shared /nacre/clone'
    nacre device add --size 128M --stripe "$1" "$a" "$b" >/dev/null
}

contents_are_right() {
    nacre run -q --pool "$a" -- bash -c '
        cmp <(seq 6000000) /nacre/large && cmp <(seq 6000000 | head -c 5M) /nacre/clone &&
        for n in $(seq 200); do cmp <(seq $n $((n + 2000))) /nacre/d/$n || exit 1; done' ||
        fail "contents differ"
    contains "check" clean "$(nacre check "$a")"
}

used() { # $1: which device
    nacre device list --json "$a" | python3 -c '
import json, sys
print(json.load(sys.stdin)["devices"][int(sys.argv[1])]["used_bytes"])' "$1"
}

both_have_a_share() {
    local first second
    first=$(used 0) second=$(used 1)
    ((second > 15 << 20)) || fail "$first and $second bytes are used"
}

moved() { nacre device rebalance --json "$a" | python3 -c '
import json, sys
print(json.load(sys.stdin)[sys.argv[1]])' "${1:-moved_bytes}"; }

simply() { # $1: stripe
    note "stripes of $1"
    grown "$1"
    (($(used 1) < 10 << 20)) || fail "data lies on the new device already: $(used 1)"
    contains "told" "moved 2" "$("${REBALANCE[@]}" "$a")"
    both_have_a_share
    contents_are_right
    same "a second time" 0 "$(moved)"
}

killed() {
    note "killed, again and again, while a database runs"
    grown 64K
    killed_beside_a_database "$a" 12 device rebalance "$a"
    nacre device rebalance "$a" >/dev/null
    same "nothing is left" 0 "$(moved left_bytes)"
    both_have_a_share
    contents_are_right
    contains "database" "1830" "$(nacre run -q --pool "$a" -- sqlite3 /nacre/db 'select sum(n) from t')"
}

mapped() {
    note "what is mapped stays"
    grown 64K
    nacre run -q --pool "$a" -- python3 -c '
import mmap, subprocess, sys
with open("/nacre/large", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
    print(subprocess.run([sys.argv[1], "device", "rebalance", sys.argv[2]], capture_output=True).stdout)
    assert view[:4] == b"1\n2\n"' "$NACRE" "$a" >"$SCRATCH/said"
    contains "told" "1 files in use or mapped were left" "$(<"$SCRATCH/said")"
    contents_are_right
    (($(moved) > 10 << 20)) || fail "the file stayed when it was free"
    both_have_a_share
    contents_are_right
}

by_speed() {
    note "a device that is a fifth as fast"
    grown 64K
    nacre calibrate --quick --model dram --model optane-100 "$a" >/dev/null
    contains "listed" " GB/s" "$(nacre device list "$a")"
    refuses "a model too many" "one for each" \
        nacre calibrate --model dram --model dram --model dram "$a"
    nacre device rebalance "$a" >/dev/null
    local first second
    first=$(used 0) second=$(used 1)
    ((second > 4 << 20 && first > 3 * second)) || fail "$first and $second bytes are used"
    contents_are_right
    nacre calibrate --quick --model dram "$a" >/dev/null
    nacre device rebalance "$a" >/dev/null
    both_have_a_share
    contents_are_right
}

refused() {
    note "what is refused"
    rm -f "$a" "$b"
    nacre create --size 32M "$a" >/dev/null
    refuses "one device" "data is not spread over several devices" nacre device rebalance "$a"
    rm -f "$a"
    nacre create --copies 2 --size 32M "$a" "$b" >/dev/null
    refuses "copies" "each device holds everything" nacre device rebalance "$a"
    refuses "labels of copies in use" "in use" \
        nacre run -q --pool "$a" -- "$NACRE" calibrate --quick --model dram "$a"
    nacre calibrate --quick --model dram "$a" >/dev/null
}

simply 2M
note "the canary: one that moves nothing is noticed"
idle() { echo "moved 20 MiB"; }
if said=$(REBALANCE=(idle) && simply 2M 2>&1); then fail "an idle one was not noticed"; fi
contains "noticed" "bytes are used" "$said"
simply 4K
killed
mapped
by_speed
refused
