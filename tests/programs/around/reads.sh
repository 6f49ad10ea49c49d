# Programs that read much of what is sealed read all copies, and none that is damaged.
. "$PROGRAMS/expect.sh"

nacre() { "$NACRE" "$@"; }
a=$SCRATCH/a b=$SCRATCH/b
# Where the data of a device begins.
data=$((2 << 20))

fresh() {
    rm -f "$a" "$b"
    nacre create --copies 2 --size 96M "$a" "$b" >/dev/null
    nacre run -q --pool "$a" -- sh -c 'seq 3000000 >/nacre/numbers'
    seq 3000000 >"$SCRATCH/numbers"
}

# Turns a byte of the line `$2` of the file of numbers, as it lies on the device $1.
spoil() {
    local at
    at=$(grep -abo -m1 "^$2\$" "$1" | cut -d: -f1)
    [[ -n $at ]] || fail "no line $2 in $1"
    printf x | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
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
