# A device's file that is cut while programs have its pool: what was there comes from another copy,
# or is an error, and never zeros.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

# A program that has the pool open while a file of it is cut to 20 MB. Then `how` comes: nothing, a
# synced write, or the file is longer again, as behind a write that was under way. It tells how often
# it read what was there, an error, or anything else.
cat >"$SCRATCH/reader.py" <<'END'
import collections, os, sys

device, how = sys.argv[1:]
SIZE, PART = 40 << 20, 1 << 20


def right(at):
    return b"".join(b"%015d\n" % line for line in range(at // 16, at // 16 + 256))


def look():
    seen = collections.Counter()
    for at in range(0, SIZE, PART):
        try:
            seen["right" if os.pread(big, 4096, at) == right(at) else "wrong"] += 1
        except OSError:
            seen["error"] += 1
    return seen


def store(number):
    try:
        os.pwrite(other, bytes([number]) * 300000, 0)
        os.fsync(other)
    except OSError:
        pass


big, other = os.open("/nacre/big", os.O_RDONLY), os.open("/nacre/other", os.O_RDWR | os.O_CREAT)
store(1)
# What was written is home, and the journal lies behind the cut.
os.truncate(device, 20_000_000)
if how == "write":
    store(2)
if how == "longer":
    os.truncate(device, 90_000_000)
seen = look()
store(3)
seen += look()
print(*(seen[what] for what in ("right", "error", "wrong")))
END

# cut DEVICE HOW WORDS...: the pool is made with these words; what was seen is in $seen
cut() {
    local device=$1 how=$2
    shift 2
    no_disks
    nacre create -q --size 96M "$@" >/dev/null
    nacre run -q --pool "$a" -- python3 -c '
with open("/nacre/big", "wb") as big:
    big.writelines(b"%015d\n" % line for line in range((40 << 20) // 16))'
    read -ra seen < <(nacre run -q --pool "$a" -- python3 "$SCRATCH/reader.py" "$device" "$how" 2>"$SCRATCH/said")
    [[ ${#seen[@]} == 3 ]] || fail "no answer: $(<"$SCRATCH/said")"
    note "$how, $*: ${seen[0]} right, ${seen[1]} errors, ${seen[2]} wrong"
}

main() {
    disks_for cut || return 0
    local how device
    for how in nothing write longer; do
        for device in "$a" "$b"; do
            cut "$device" $how --copies 2 "$a" "$b"
            same "copies, cut, $how" "80 0 0" "${seen[*]}"
            cut "$device" $how --copies metadata=2 "$a" "$b"
            same "wrong, metadata=2, $how" 0 "${seen[2]}"
            cut "$device" $how --stripe 64K "$a" "$b"
            same "wrong, stripes, $how" 0 "${seen[2]}"
        done
        cut "$a" $how "$a"
        same "wrong, alone, $how" 0 "${seen[2]}"
        ((seen[1] > 0)) || fail "nothing was cut that is read"
    done
    for how in nothing write; do
        cut "$a" $how --mode direct "$a"
        same "wrong, direct, $how" 0 "${seen[2]}"
    done
}

main
