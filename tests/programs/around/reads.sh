# Programs that read much of what is sealed read all copies, and none that is damaged.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

a=$SCRATCH/a b=$SCRATCH/b

fresh() {
    rm -f "$a" "$b"
    nacre create --copies 2 --size 96M "$a" "$b" >/dev/null
    nacre run -q --pool "$a" -- sh -c 'seq 3000000 >/nacre/numbers'
    seq 3000000 >"$SCRATCH/numbers"
}

# Processes that read the file five times; what the last time gives must be right.
read_often() {
    local size reader readers=()
    size=$(stat -c %s "$SCRATCH/numbers")
    for _ in 1 2 3; do
        (cat /nacre/numbers{,,,,} | tail -c "$size" | cmp -s - "$SCRATCH/numbers") &
        readers+=($!)
    done
    for reader in "${readers[@]}"; do wait "$reader" || return 1; done
}

equal_now() { cmp -s -i $data -n $((88 << 20)) "$a" "$b"; }

# Reads with device $1 damaged, and waits until who stays beside has repaired it.
damaged() {
    nacre run -q --pool "$a" --scrub-every 1h -- bash -c "
        . '$PROGRAMS/expect.sh'
        $(declare -f spoil read_often equal_now); a='$a' b='$b' data=$data
        spoil '$1' 2345678
        read_often || exit 7
        wait_for 60 'a repair' equal_now
        read_often" 2>"$SCRATCH/said"
}

for device in "$a" "$b"; do
    note "$device is damaged"
    fresh
    nacre scrub "$a" >/dev/null
    damaged "$device" || fail "status $?: $(<"$SCRATCH/said")"
    contains "told" "/numbers, from byte" "$(<"$SCRATCH/said")"
    contains "told" "repaired on $device (by checksum)" "$(<"$SCRATCH/said")"
done
note "the canary: without a checksum the damage is read, and nobody finds it"
fresh
status=0
damaged "$a" || status=$?
same "what was read" 7 "$status"
same "what was said" "" "$(<"$SCRATCH/said")"

# Spoils the folder's tree on a device that nobody has scrubbed, then lists and changes it.
folder_damaged() { # $1: device
    fresh
    nacre run -q --pool "$a" -- sh -c 'mkdir /nacre/d && touch /nacre/d/1 /nacre/d/2'
    local unit
    for unit in $(grep -abo NTRE "$1" | cut -d: -f1); do
        dd if=/dev/zero of="$1" bs=1 seek=$((unit + 8)) count=64 conv=notrunc status=none
    done
    nacre run -q --pool "$a" -- sh -c 'ls /nacre/d && touch /nacre/d/4 && rm /nacre/d/1' \
        >"$SCRATCH/listed" 2>"$SCRATCH/said" || fail "status $?: $(<"$SCRATCH/said")"
}
note "metadata that is damaged on the copy that is read comes from the other one in the same call"
folder_damaged "$a"
same "the folder" "1 2" "$(xargs <"$SCRATCH/listed")"
contains "told" "repaired on $a (by contents)" "$(<"$SCRATCH/said")"
nacre check "$a" >/dev/null || fail "check: $(nacre check "$a")"
equal_now || fail "the copies differ"
