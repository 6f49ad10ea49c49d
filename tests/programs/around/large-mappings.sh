# Mappings of files on a disk that are 16 times the cache.
. "$PROGRAMS/expect.sh"

PY=/usr/bin/python3
WORK=$PROGRAMS/around/large-mappings.py
PRIVATE=$PROGRAMS/around/private-mappings.py
MB=64

# What a power cut leaves is what the disk alone has.
fresh() { "$NACRE" create --force --size 256M --cache 4M "$1" >/dev/null; }
on() { "$NACRE" run -q --pool "$1" -- "${@:2}"; }

memory_of() {
    local uuid
    uuid=$("$NACRE" info --json "$1" | $PY -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
    du -sm "${NACRE_SESSION_DIR:-/dev/shm}/nacre-$uuid-"*/image | cut -f1
}

at_random() {
    note "loads, stores, calls, syncs and forks at random"
    fresh "$DISK/a"
    on "$DISK/a" $PY "$WORK" make /nacre/f $MB
    on "$DISK/a" $PY "$WORK" make /nacre/g $MB
    on "$DISK/a" bash -c "$(declare -f memory_of); PY=$PY NACRE='$NACRE'
        $PY '$WORK' oracle /nacre/f $MB 1 5000 &
        $PY '$WORK' oracle /nacre/g $MB 2 5000
        wait \$!
        memory_of '$DISK/a' >'$SCRATCH/memory'"
    (($(cat "$SCRATCH/memory") < 16)) || fail "memory: $(cat "$SCRATCH/memory") MiB"
    on "$DISK/a" $PY "$WORK" look /nacre/f $MB 1
    on "$DISK/a" $PY "$WORK" look /nacre/g $MB 2
    contains "check" clean "$("$NACRE" check "$DISK/a")"
}

one_killed() {
    note "a program is killed while it stores; others go on"
    fresh "$DISK/a"
    on "$DISK/a" $PY "$WORK" make /nacre/f $MB
    on "$DISK/a" bash -c "$PY '$WORK' torn /nacre/f $MB '$SCRATCH/log' & sleep 0.7
        kill -KILL \$!; wait \$! || true
        $PY '$WORK' verify /nacre/f $MB '$SCRATCH/log'" 2>/dev/null
    on "$DISK/a" $PY "$WORK" verify /nacre/f $MB "$SCRATCH/log"
}

all_killed() {
    note "all are killed: memory has everything, the disk what was synced"
    fresh "$DISK/a"
    on "$DISK/a" $PY "$WORK" make /nacre/f $MB
    cat >"$SCRATCH/killer.py" <<'P'
import os, signal, subprocess, sys, time
work = subprocess.Popen([sys.executable, *sys.argv[1:]])
time.sleep(0.7)
os.kill(os.getppid(), signal.SIGKILL)
work.kill()
os.kill(os.getpid(), signal.SIGKILL)
P
    on "$DISK/a" $PY "$SCRATCH/killer.py" "$WORK" torn /nacre/f $MB "$SCRATCH/log" || true
    sleep 0.2
    cp "$DISK/a" "$DISK/copy"
    on "$DISK/a" $PY "$WORK" verify /nacre/f $MB "$SCRATCH/log"
    on "$DISK/copy" $PY "$WORK" verify /nacre/f $MB "$SCRATCH/log" synced
    contains "check" clean "$("$NACRE" check "$DISK/a")"
    contains "check of the disk" clean "$("$NACRE" check "$DISK/copy")"
}

lmdb() {
    note "LMDB with a map of 25 times the cache"
    fresh "$DISK/a"
    cat >"$SCRATCH/database.py" <<'P'
import lmdb, os, random
os.makedirs("/nacre/db", exist_ok=True)
chance, model = random.Random(5), {}
for writemap in True, False:
    env = lmdb.open("/nacre/db", map_size=100 << 20, writemap=writemap, map_async=False)
    for part in range(16):
        with env.begin(write=True) as tx:
            for _ in range(500):
                key, value = b"key-%08d" % chance.randrange(30000), b"%d-" % chance.randrange(1 << 30) * 150
                tx.put(key, value)
                model[key] = value
        if part % 8 == 7:
            with env.begin() as tx:
                assert dict(tx.cursor()) == model
            child = os.fork()
            if child == 0:
                # The parent's stays open: closing it here would free the parent's slot.
                own = lmdb.open("/nacre/db", map_size=100 << 20, readonly=True)
                with own.begin() as tx:
                    os._exit(not all(tx.get(key) == value for key, value in model.items()))
            assert os.waitpid(child, 0)[1] == 0
    env.close()
assert os.stat("/nacre/db/data.mdb").st_blocks * 512 > 10 << 20
P
    on "$DISK/a" $PY -W ignore "$SCRATCH/database.py"
    contains "check" clean "$("$NACRE" check "$DISK/a")"
}

# A mapping for reading costs a sync nothing, until mprotect lets the program store.
allowed_later() {
    note "stores are allowed later, by a child, by who is killed then"
    fresh "$DISK/a"
    cat >"$SCRATCH/later.py" <<'P'
import ctypes, os, shutil, signal, sys
LEN, READ, WRITE, SHARED = 512 << 10, 1, 2, 1
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
device, copy = sys.argv[1:]


def nacre(*words):
    os.spawnlp(os.P_WAIT, os.environ["NACRE"], "nacre", *words) == 0 or sys.exit(f"failed: {words}")


def store(address, at, text):
    assert libc.mprotect(address + at // 4096 * 4096, 4096, READ | WRITE) == 0
    ctypes.memmove(address + at, text, len(text))


def assert_on_disk(at, text):
    shutil.copyfile(device, copy)
    nacre("cp", f"{copy}:/f", f"{copy}.f")
    with open(f"{copy}.f", "rb") as found:
        found.seek(at)
        found = found.read(len(text))
        assert found == text, (at, found)


fd = os.open("/nacre/f", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x" * LEN, 0)
os.fsync(fd)
address = libc.mmap(None, LEN, READ, SHARED, fd, 0)
store(address, 5000, b"parent")
os.fsync(fd)
assert_on_disk(5000, b"parent")
libc.munmap(address, LEN)
address = libc.mmap(None, LEN, READ, SHARED, fd, 0)
if os.fork() == 0:
    store(address, 90000, b"child")
    os._exit(0)
assert os.wait()[1] == 0
os.fsync(fd)
assert_on_disk(90000, b"child")
libc.munmap(address, LEN)
if os.fork() == 0:
    store(libc.mmap(None, LEN, READ, SHARED, fd, 0), 400000, b"killed")
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
os.fsync(fd)
assert_on_disk(400000, b"killed")
P
    NACRE=$NACRE on "$DISK/a" $PY "$SCRATCH/later.py" "$DISK/a" "$DISK/copy"
    rm -f "$DISK/copy" "$DISK/copy.f"
    contains "check" clean "$("$NACRE" check "$DISK/a")"
}

private_ones() {
    note "private mappings are copied as they are touched"
    fresh "$DISK/a"
    local seed
    for seed in 1 2 3; do on "$DISK/a" $PY "$PRIVATE" oracle /nacre/p "$seed" "$SCRATCH/out"; done
    on "$DISK/a" $PY "$PRIVATE" cut /nacre/p
    on "$DISK/a" $PY "$PRIVATE" paths /nacre/p
    on "$DISK/a" $PY "$WORK" make /nacre/f $MB
    gives "memory" "made read" on "$DISK/a" $PY "$PRIVATE" memory /nacre/f
    gives "copies, later" small on "$DISK/a" $PY "$PRIVATE" again /nacre/f
    contains "check" clean "$("$NACRE" check "$DISK/a")"
}

many_small() {
    note "many small files, mapped at once"
    fresh "$DISK/a"
    on "$DISK/a" bash -c "$(declare -f memory_of); PY=$PY NACRE='$NACRE'
        $PY '$PRIVATE' many /nacre 160 && memory_of '$DISK/a' >'$SCRATCH/memory'"
    (($(cat "$SCRATCH/memory") < 16)) || fail "memory: $(cat "$SCRATCH/memory") MiB"
    contains "check" clean "$("$NACRE" check "$DISK/a")"
}

leave() {
    "$NACRE" delete --force "$DISK/a" >/dev/null 2>&1 || true
    "$NACRE" delete --force "$DISK/copy" >/dev/null 2>&1 || true
    rm -rf "$DISK"
}

if [[ -n ${BASELINE:-} ]]; then
    note "nothing to compare on tmpfs"
else
    DISK=$(mktemp -d "$DISK_FOLDER/disk-XXXXXX")
    trap leave EXIT
    at_random
    one_killed
    all_killed
    lmdb
    allowed_later
    private_ones
    many_small
fi
