# The story of docs/volumes.md: a database runs on a pool with two copies while dd damages one
# device, first a part of its contents, then all of it. It is noticed, repaired and rebuilt, and
# nothing is lost.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

a=$SCRATCH/a b=$SCRATCH/b c=$SCRATCH/c
size=$((64 << 20))

state_of_b() { nacre device list --json "$a" | sed -n 's/.*"state": "\(.*\)",/\1/p' | tail -1; }

until_failed() {
    for _ in $(seq 300); do
        [[ $(state_of_b) != failed ]] || return 0
        sleep 0.1
    done
    fail "nobody notices that the device is gone: $(state_of_b)"
}

note a mirrored pool with something old in it
nacre create --copies 2 --size $size "$a" "$b" >/dev/null
nacre run -q --pool "$a" -- sh -c 'seq 2000000 >/nacre/old'
nacre scrub "$a" >/dev/null

note a database begins
begin_database
goes_on "at the start"

note "dd over 256 KiB of what is old, on one device"
wreck_old "$b"
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
end_database

note nothing is lost, on either
cmp -i $data -n $((size - 2 * data)) "$a" "$c" || fail "the copies differ"
all_rows "$a"
mv "$a" "$SCRATCH/away"
all_rows "$c"
"$NACRE" run -q --pool "$c" -- sh -c 'seq 2000000 | cmp - /nacre/old' 2>/dev/null || fail old
contains "check" clean "$(nacre check "$c" 2>/dev/null)"
