#!/usr/bin/env python3
"""What a durable write costs in a pool with a disk behind it, beside the same memory without one, until the memory is full.

    tests/programs/behind-speed.py [--rounds N] [--size MIB] [--folder DIR] [--disk DIR]

Takes turns, round by round, on two pools of so much memory in DIR (/dev/shm), of which one has a disk behind it. In each
round a program appends 4 KiB with an fsync behind each, until what is cold would begin to move (an eighth is free), and
then writes as often at random places of that. Nanoseconds of processor time for each, medians, and their ratio: 1.1 is the
target. The first round of each pool is not counted. In the end it writes twice as much as the memory holds, which must be
seen: something lies behind, and before nothing did.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
ROWS = ("append 4 KiB + fsync", "write 4 KiB anywhere + fsync")


def nacre(*words):
    done = subprocess.run([NACRE, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout


def written(writer, pool, pages):
    said = nacre("run", "-q", "--pool", pool, "--", writer, "/nacre/file", pages)
    behind = used_behind(pool)
    nacre("rm", f"{pool}:/file")
    return [float(word) for word in said.split()], behind


def used_behind(pool):
    devices = json.loads(nacre("device", "list", "--json", pool))["devices"]
    return sum(one["used_bytes"] for one in devices if one["state"] == "behind")


def measure(folder, disk, size, rounds):
    alone, front = folder / "alone", folder / "front"
    writer = folder / "writer"
    subprocess.run(["cc", "-O2", "-o", writer, HERE / "behind-speed.c"], check=True)
    nacre("create", "--size", f"{size}M", alone)
    nacre("create", "--size", f"{size}M", "--behind", f"{disk / 'cold'}={4 * size}M", front)
    # A fresh pool keeps a few blocks for itself, and an eighth stays free.
    pages = (size * 7 // 8 - 24) * 256
    found = {pool: [] for pool in (alone, front)}
    for number in range(rounds + 1):
        for pool in (alone, front) if number % 2 else (front, alone):
            figures, behind = written(writer, pool, pages)
            if behind:
                raise SystemExit(f"{behind} bytes lie behind: the memory was full")
            found[pool].append(figures)
    medians = {pool: [statistics.median(column) for column in zip(*rows[1:])] for pool, rows in found.items()}
    full, behind = written(writer, front, size * 512)
    if not behind:
        raise SystemExit("twice as much as the memory holds was written, and nothing lies behind: what was measured?")
    for row, name in enumerate(ROWS):
        without, there = medians[alone][row], medians[front][row]
        print(f"{name:30} alone {without:6.0f} ns, with a disk behind {there:6.0f} ns, ratio {there / without:.3f};", end=" ")
        print(f"twice as much as the memory holds: {full[row]:.0f} ns")
    for pool in (alone, front):
        nacre("delete", "--force", pool)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=256, help="MiB of memory of each pool")
    parser.add_argument("--folder", default="/dev/shm", help="a folder in memory")
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a disk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="behind-speed-") as folder:
        with tempfile.TemporaryDirectory(dir=given.disk, prefix="behind-speed-") as disk:
            measure(pathlib.Path(folder), pathlib.Path(disk), given.size, given.rounds)


if __name__ == "__main__":
    main()
