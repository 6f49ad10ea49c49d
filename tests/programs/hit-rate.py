#!/usr/bin/env python3
"""How many reads the cache of a pool on a disk saves, beside the kernel's page cache of the same size.

    tests/programs/hit-rate.py [--cache MIB] [--disk DIR]

Reads of 4 KiB at random places, counted once the cache is full: of a file of twice the cache; and of one of four times
the cache, whose first fifth gets four reads of five. The kernel's part is a file in DIR, read by a process in a control
group of that much memory (root), whose reads of the disk are counted. Time plays no part.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
PAGE, MIB = 4096, 1 << 20
LOADS = {"random, twice the cache": (2, False), "four of five reads in a fifth, four times the cache": (4, True)}


def read(path, pages, count, skewed, seed):
    """Reads so many pages."""
    chance, file = random.Random(seed), os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    for _ in range(count):
        all_of_it = not skewed or chance.random() < 0.2
        page = chance.randrange(pages if all_of_it else pages // 5)
        assert len(os.pread(file, PAGE, page * PAGE)) == PAGE


def reader(path, cache, times, skewed, seed):
    """A command that reads three times as much as the cache holds."""
    pages = times * cache * MIB // PAGE
    words = [path, pages, 3 * cache * MIB // PAGE, int(skewed), seed]
    return [sys.executable, __file__, "--read", *map(str, words)]


def of_pool(pool, cache, load):
    """The share of reads that the pool's cache served; runs below `nacre run`."""
    def counts():
        told = subprocess.run([NACRE, "info", "--json", pool], check=True, stdout=subprocess.PIPE)
        told = json.loads(told.stdout)["cache"]
        return told["read_bytes"], told["missed_bytes"]

    subprocess.run(reader("/nacre/file", cache, *LOADS[load], 1), check=True)
    before = counts()
    subprocess.run(reader("/nacre/file", cache, *LOADS[load], 2), check=True)
    after = counts()
    return 1 - (after[1] - before[1]) / (after[0] - before[0])


class ControlGroup:
    """A control group of so much memory, of either version."""

    def __init__(self, cache):
        one, two = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
        limit, self.members = ("memory.limit_in_bytes", "tasks") if one.is_dir() else ("memory.max", "cgroup.procs")
        self.folder = (one if one.is_dir() else two) / f"nacre-hit-rate-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / limit).write_text(str(cache * MIB))

    def __enter__(self):
        return self.folder / self.members

    def __exit__(self, *_):
        self.folder.rmdir()


def of_kernel(path, cache, load):
    """The share of reads that the page cache served."""
    def fetched():
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512

    subprocess.run(reader(path, cache, *LOADS[load], 1), check=True)
    before = fetched()
    subprocess.run(reader(path, cache, *LOADS[load], 2), check=True)
    return 1 - (fetched() - before) / (3 * cache * MIB)


def told(command):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def compare(folder, cache, load):
    size = LOADS[load][0] * cache
    pool, file = f"{folder}/pool", f"{folder}/file"
    contents = os.urandom(MIB)
    with open(file, "wb") as out:
        for _ in range(size):
            out.write(contents)
    subprocess.run([NACRE, "create", "--force", "--size", f"{size + 128}M", "--cache", f"{cache}M", pool],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run([NACRE, "cp", file, f"{pool}:/file"], check=True)
    parts = [sys.executable, __file__, "--cache", str(cache)]
    ours = told([NACRE, "run", "-q", "--pool", pool, "--", *parts, "--pool", pool, load])
    with open(file, "rb") as known:
        os.fsync(known)
        os.posix_fadvise(known.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with ControlGroup(cache) as members:
        kernel = told([*parts, "--kernel", file, "--group", str(members), load])
    print(f"| {load} | {100 * ours:.1f} % | {100 * kernel:.1f} % |")


def main():
    if sys.argv[1:2] == ["--read"]:
        path, pages, count, skewed, seed = sys.argv[2:]
        return read(path, int(pages), int(count), skewed == "1", int(seed))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=int, default=64, metavar="MIB")
    parser.add_argument("--disk", default=str(TARGET), metavar="DIR")
    parser.add_argument("--pool", help=argparse.SUPPRESS)
    parser.add_argument("--kernel", help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    parser.add_argument("load", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pool:
        return print(of_pool(given.pool, given.cache, given.load))
    if given.kernel:
        pathlib.Path(given.group).write_text(str(os.getpid()))
        return print(of_kernel(given.kernel, given.cache, given.load))
    print("| reads of 4 KiB | pool | page cache |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory(dir=given.disk) as folder:
        for load in LOADS:
            compare(folder, given.cache, load)


if __name__ == "__main__":
    main()
