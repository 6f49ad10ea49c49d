#!/usr/bin/env python3
"""How fast copies are compared and rebuilt, beside what memory does by itself.

    tests/programs/copies-speed.py [--rounds N] [--size MIB] [--folder DIR]

Takes turns, round by round, on two copies of a pool in DIR (memory: /dev/shm) that are nearly full: `nacre scrub`; `nacre
device replace` of a lost copy, until it has everything; `cp` of a device to a fresh file; and a copy within memory that is
touched already. `back` is `nacre device rebuild` of a copy that was away while three quarters of it were overwritten, so that
its pages are there. GB of one device for each second, medians. A random read of 4 KiB by another process, alone and beside
a scrub that begins again and again, says what a program loses.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
MIB = 1 << 20
READER = """
import os, random, sys, time
file, chance, count = os.open("/nacre/file", os.O_RDONLY), random.Random(1), 200000
places = [chance.randrange(os.fstat(file).st_size // 4096) * 4096 for _ in range(count)]
begin = time.monotonic()
for place in places:
    os.pread(file, 4096, place)
print((time.monotonic() - begin) / count)
"""


def nacre(*words):
    done = subprocess.run([NACRE, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout


def taken(*command):
    begin = time.monotonic()
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def in_memory(source, target):
    begin = time.monotonic()
    target[:] = source
    return time.monotonic() - begin


def read_time(pool):
    return float(nacre("run", "-q", "--pool", pool, "--", sys.executable, "-c", READER))


def read_time_beside_scrub(pool):
    is_over = threading.Event()

    def scrubs():
        while not is_over.is_set():
            nacre("scrub", pool)

    beside = threading.Thread(target=scrubs)
    beside.start()
    try:
        return read_time(pool)
    finally:
        is_over.set()
        beside.join()


def rebuilt_once_it_is_back(pool, other, size):
    """Seconds for three quarters of the device."""
    away = other.with_suffix(".away")
    other.rename(away)
    change = f"head -c {size * 3 // 4}M /dev/urandom | dd of=/nacre/file bs=1M iflag=fullblock conv=notrunc status=none"
    nacre("run", "-q", "--pool", pool, "--", "sh", "-c", change)
    away.rename(other)
    return taken(NACRE, "device", "rebuild", pool)


def measure(folder, size, rounds):
    a, b, c = (folder / name for name in "abc")
    nacre("create", "--copies", 2, "--size", f"{size}M", a, b)
    fill = f"head -c {size * 3 // 4}M /dev/urandom >/nacre/file"
    nacre("run", "-q", "--pool", a, "--", "sh", "-c", fill)
    source, target = bytearray(os.urandom(MIB)) * size, bytearray(size * MIB)
    in_memory(source, target)
    nacre("scrub", a)
    seconds = {"scrub": [], "rebuild": [], "back": [], "cp": [], "memory": []}
    reads = {"alone": [], "beside a scrub": []}
    for _ in range(rounds):
        seconds["scrub"].append(json.loads(nacre("scrub", "--json", a))["seconds"])
        b.unlink()
        seconds["rebuild"].append(taken(NACRE, "device", "replace", a, b, c))
        b, c = c, b
        seconds["back"].append(rebuilt_once_it_is_back(a, b, size) * 4 / 3)
        nacre("scrub", a)
        seconds["cp"].append(taken("cp", "--sparse=never", a, folder / "copy"))
        (folder / "copy").unlink()
        seconds["memory"].append(in_memory(source, target))
        reads["alone"].append(read_time(a))
        reads["beside a scrub"].append(read_time_beside_scrub(a))
    for name, found in seconds.items():
        print(f"{name:16} {size * MIB / 1e9 / statistics.median(found):6.2f} GB/s")
    for name, found in reads.items():
        print(f"read 4 KiB {name}: {statistics.median(found) * 1e9:.0f} ns")
    nacre("delete", "--force", a)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024, help="MiB of each device")
    parser.add_argument("--folder", default="/dev/shm")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="copies-speed-") as folder:
        measure(pathlib.Path(folder), given.size, given.rounds)


if __name__ == "__main__":
    main()
