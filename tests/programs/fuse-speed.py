#!/usr/bin/env python3
"""How fast a mounted pool is beside libfuse's passthrough_ll over tmpfs, with the same settings: nothing is cached.

    tests/programs/fuse-speed.py [--rounds N] [--calls N]

Needs /dev/fuse, and of Debian's packages gcc, pkg-config and libfuse3-dev, which brings passthrough_ll as an example.
Both take turns, round by round; shown are medians of microseconds for each call.
"""

import argparse
import contextlib
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
EXAMPLE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
PAGE, PAGES = 4096, 16384


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def timed(call, arguments):
    """Microseconds for each call."""
    begin = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - begin) / len(arguments) * 1e6


def one_round(folder, calls):
    """Each operation's microseconds in a folder, which is left as it was."""
    big, page = os.open(f"{folder}/big", os.O_RDWR), os.urandom(PAGE)
    places = [random.randrange(PAGES) * PAGE for _ in range(calls)]
    names = [f"{folder}/name{number}" for number in range(calls)]
    found = {
        "pread 4 KiB, random": timed(lambda at: os.pread(big, PAGE, at), places),
        "pwrite 4 KiB, random": timed(lambda at: os.pwrite(big, page, at), places),
        "create and close": timed(create, names),
        "stat": timed(os.stat, random.sample(names, calls)),
        "unlink": timed(os.unlink, names),
    }
    os.close(big)
    return found


@contextlib.contextmanager
def mounted(command, folder, end):
    folder.mkdir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    try:
        with open(folder / "big", "wb") as big:
            big.write(bytes(PAGE * PAGES))
        yield folder
    finally:
        subprocess.run([*end, folder], check=True)


def measure(scratch, rounds, calls):
    server, tree, pool = scratch / "passthrough_ll", scratch / "tree", scratch / "a.pool"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run(["gcc", "-O2", "-o", server, EXAMPLE, *flags.stdout.split()], check=True)
    tree.mkdir()
    subprocess.run([NACRE, "create", "--size", "512M", pool], check=True, stdout=subprocess.DEVNULL)
    theirs, ours = scratch / "theirs", scratch / "ours"
    through = [server, "-o", f"source={tree},cache=never,timeout=0", theirs]
    with mounted(through, theirs, ["fusermount3", "-u"]), mounted([NACRE, "mount", pool, ours], ours, [NACRE, "umount"]):
        return [[one_round(folder, calls) for folder in (theirs, ours)] for _ in range(rounds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    asked = parser.parse_args()
    if not os.path.exists(EXAMPLE):
        sys.exit(f"{EXAMPLE} is missing: install libfuse3-dev")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        rounds = measure(pathlib.Path(scratch), asked.rounds, asked.calls)
    print("| | pool | passthrough_ll | passthrough_ll / pool |\n|---|---:|---:|---:|")
    for row in rounds[0][0]:
        theirs, ours = (statistics.median(each[side][row] for each in rounds) for side in (0, 1))
        print(f"| {row} | {ours:.1f} us | {theirs:.1f} us | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
