"""Files of a pool that are synced each in a way of its own, and one that is not; then this process and its parent are killed.

    synced.py COUNT WAY...     the ways are below

Each file is called like its way and holds that name COUNT times. On a disk the last way syncs all that was there before.
"""
import mmap
import os
import signal
import sys


def put(name, flags=0):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags)
    os.write(fd, name.encode() * COUNT)
    return fd


def mapped(name):
    fd = put(name)
    os.ftruncate(fd, 8192)
    memory = mmap.mmap(fd, 8192)
    memory[5000:5005] = b"there"
    memory.flush()


def renamed(name):
    os.system("echo in a child >child; sync child")
    os.rename("child", name)
    os.sync()


WAYS = {
    "fsync": lambda name: os.fsync(put(name)),
    "fdatasync": lambda name: os.fdatasync(put(name)),
    "dsync": lambda name: put(name, os.O_DSYNC),
    "sync-flag": lambda name: put(name, os.O_SYNC),
    "rwf": lambda name: os.pwritev(put(name), [name.encode() * COUNT], 0, os.RWF_DSYNC),
    "msync": mapped,
    "syncfs": lambda name: (put(name), os.system(f"sync -f {name}")),
    "renamed": renamed,
}
COUNT = int(sys.argv[1])
os.chdir("/nacre")
put("first")
# What the disk needs stays open and mapped.
os.closerange(3, 4096)
for way in sys.argv[2:]:
    WAYS[way](way)
put("unsynced")
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
