# No room where the session files lie: a clear refusal at the start, waiting later; never a dead program.
. "$PROGRAMS/expect.sh"

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    unshare -rm true 2>/dev/null || { note "needs a mount namespace of its own"; return; }
    local folder=$SCRATCH/sessions run="$NACRE run -q --pool $POOL --mount $MOUNT --"
    mkdir -p "$folder"
    export NACRE_SESSION_DIR=$folder
    note "from the start"
    refuses "a run" "find room" unshare -rm bash -c "mount -t tmpfs -o size=16k none $folder && exec $run true"
    refuses "a pool on a disk" "has 8 MiB in all" \
        unshare -rm bash -c "mount -t tmpfs -o size=8m none $folder && exec $NACRE create --size 64M $DISK_FOLDER/disk.pool"
    gives "what it left" "" find "$DISK_FOLDER" -maxdepth 1 -name disk.pool

    note "while a program works"
    cat >"$SCRATCH/fill" <<END
mount -t tmpfs -o size=64m none $folder
(
    until [[ -e $SCRATCH/works ]]; do sleep 0.05; done
    head -c 64M /dev/zero >$folder/filler
    touch $SCRATCH/full
    sleep 2
    rm $folder/filler
) 2>/dev/null &
$run bash -c '
    touch $SCRATCH/works
    until [[ -e $SCRATCH/full ]]; do sleep 0.05; done
    for i in {1..3000}; do echo \$i >$MOUNT/\$i; done
    cat $MOUNT/3000' 2>$SCRATCH/complaints
wait
END
    gives "a program that finds no room for a while" 3000 unshare -rm bash "$SCRATCH/fill"
    grep -q "no room for shared memory" "$SCRATCH/complaints" || fail "it did not say why it waited"
    unset NACRE_SESSION_DIR
    check_pool
    beside_an_image
}

# The image of a disk takes memory where sessions must find some.
beside_an_image() {
    note "the image of a disk leaves memory for the sessions"
    local disk
    disk=$(mktemp -d "$DISK_FOLDER/session-full-XXXXXX")
    "$NACRE" create --size 300M --cache 200M "$disk/pool" >/dev/null
    cat >"$SCRATCH/beside.py" <<'P'
import os, sys, time
folder = sys.argv[1]
def wait_for_free():
    for look in range(200):
        system = os.statvfs(folder)
        if system.f_bavail * system.f_frsize >= 1 << 20:
            return "free"
        time.sleep(0.1)
    return "full"
for n in range(100):
    with open(f"/nacre/{n}", "wb") as file:
        file.write(b"%d" % (n % 10) * (1 << 20))
found = [wait_for_free()]
# Others take what is left.
with open(folder + "/filler", "wb", buffering=0) as file:
    file.write(bytes(1 << 20))
    found.append(wait_for_free())
    file.write(bytes(1 << 20))
    found.append(wait_for_free())
whole = all(open(f"/nacre/{n}", "rb").read() == b"%d" % (n % 10) * (1 << 20) for n in range(100))
print(*found, whole)
P
    cat >"$SCRATCH/beside" <<END
mount -t tmpfs -o size=24m none $folder
export NACRE_SESSION_DIR=$folder
exec "$NACRE" run -q --pool "$disk/pool" -- /usr/bin/python3 "$SCRATCH/beside.py" $folder
END
    gives "memory" "free free free True" unshare -rm bash "$SCRATCH/beside"
    contains "the pool" clean "$("$NACRE" check "$disk/pool")"
    rm -rf "$disk"
}

run_parts "$@"
