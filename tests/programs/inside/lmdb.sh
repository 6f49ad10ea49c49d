# LMDB maps far more than the pool has; what it does not use costs nothing.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
/usr/bin/python3 -W ignore - <<'PY'
import lmdb, os, subprocess, sys

SIZE = 10 << 30
READ = """
import lmdb, sys
env = lmdb.open("db", map_size=10 << 30, readonly=True)
with env.begin() as tx:
    print(tx.stat()["entries"], tx.get(b"key-00000017").decode())
"""


def told():
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", READ], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.split()


for writemap in True, False:
    env = lmdb.open("db", map_size=SIZE, writemap=writemap, map_async=False)
    for part in range(20):
        with env.begin(write=True) as tx:
            for i in range(part * 500, (part + 1) * 500):
                tx.put(b"key-%08d" % i, b"value-%d-%d" % (i, writemap))
        assert told() == [str((part + 1) * 500) if writemap else "10000", "value-17-%d" % writemap]
    with env.begin() as tx:
        assert sum(1 for _ in tx.cursor()) == 10000
    env.close()
used = os.stat("db/data.mdb").st_blocks * 512
assert used < 16 << 20, used
PY
rm -r db
