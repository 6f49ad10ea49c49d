#!/usr/bin/env python3
"""How fast a mounted pool is: alone, and used by another program, too, so that the kernel keeps nothing. Beside it
libfuse's passthrough_ll over tmpfs, where the kernel keeps nothing either, and a folder on a disk.

    tests/programs/fuse-speed.py [--rounds N] [--calls N] [--disk DIR]

Needs /dev/fuse, and of Debian's packages gcc, pkg-config and libfuse3-dev, which brings passthrough_ll as an example.
All take turns, round by round; shown are medians of microseconds for each call.
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
    page, path = os.urandom(PAGE), f"{folder}/deep/down/big"
    places = [random.randrange(PAGES) * PAGE for _ in range(calls)]
    names = [f"{folder}/deep/down/name{number}" for number in range(calls)]
    found = {}
    big = os.open(path, os.O_WRONLY)
    found["pwrite 4 KiB, random"] = timed(lambda at: os.pwrite(big, page, at), places)
    os.close(big)
    big = os.open(path, os.O_RDONLY)
    # As a program finds a file that it has read before.
    while os.read(big, 1 << 20):
        pass
    found["pread 4 KiB, random"] = timed(lambda at: os.pread(big, PAGE, at), places)
    os.close(big)
    found["open, read 4 KiB, close"] = timed(lambda _: read(path), places)
    found["create and close"] = timed(create, names)
    found["stat"] = timed(os.stat, random.sample(names, calls))
    found["stat, once more"] = timed(os.stat, random.sample(names, calls))
    found["stat of what is not there"] = timed(os.path.exists, [f"{name}-not" for name in names])
    found["unlink"] = timed(os.unlink, names)
    return found


def read(path):
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, PAGE)
    os.close(fd)


def prepare(folder):
    os.makedirs(folder / "deep/down")
    with open(folder / "deep/down/big", "wb") as big:
        big.write(bytes(PAGE * PAGES))
    return folder


@contextlib.contextmanager
def mounted(command, folder, end):
    folder.mkdir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    try:
        yield prepare(folder)
    finally:
        subprocess.run([*end, folder], check=True)


def pool_at(scratch, name):
    pool, folder = scratch / f"{name}.pool", scratch / name
    subprocess.run([NACRE, "create", "--quiet", "--size", "512M", pool], check=True)
    return pool, mounted([NACRE, "mount", pool, folder], folder, [NACRE, "umount"])


@contextlib.contextmanager
def user_of(pool):
    """A program that has something of the pool open."""
    command = [NACRE, "run", "--quiet", "--pool", pool, "--", "sh", "-c", "exec 3>/nacre/held; echo there; read end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        yield
        program.stdin.close()


def passthrough(scratch):
    server, tree, folder = scratch / "passthrough_ll", scratch / "tree", scratch / "theirs"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run(["gcc", "-O2", "-o", server, EXAMPLE, *flags.stdout.split()], check=True)
    tree.mkdir()
    return mounted([server, "-o", f"source={tree},cache=never,timeout=0", folder], folder, ["fusermount3", "-u"])


def measure(scratch, disk, rounds, calls):
    (_, alone), (pool, shared) = (pool_at(scratch, name) for name in ("alone", "shared"))
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(each) for each in (alone, shared, passthrough(scratch))]
        stack.enter_context(user_of(pool))
        folders.append(prepare(disk))
        return [[one_round(folder, calls) for folder in folders] for _ in range(rounds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--disk", default=TARGET, help="a folder on a disk")
    asked = parser.parse_args()
    if not os.path.exists(EXAMPLE):
        sys.exit(f"{EXAMPLE} is missing: install libfuse3-dev")
    temporary = tempfile.TemporaryDirectory
    with temporary(dir="/dev/shm") as scratch, temporary(dir=asked.disk) as disk:
        rounds = measure(pathlib.Path(scratch), pathlib.Path(disk), asked.rounds, asked.calls)
    print("| us | alone | shared | passthrough_ll | disk |\n|---|---:|---:|---:|---:|")
    for row in rounds[0][0]:
        medians = [statistics.median(each[side][row] for each in rounds) for side in range(4)]
        print(f"| {row} | " + " | ".join(f"{median:.1f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
