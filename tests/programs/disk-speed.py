#!/usr/bin/env python3
"""How fast a pool on a disk is beside ext4 on the same disk, with the same guarantees.

    tests/programs/disk-speed.py [--rounds N] [--calls N] [--disk DIR] [ROW...]

Places take turns, round by round; shown are medians. An ext4 without a journal promises less and is faster; the first
line says so. `raw` is an O_DIRECT | O_DSYNC write of 8 KiB, the length of a
journal record of 4 KiB of data, to a preallocated file. Only the calls are timed. Bytes of the device are those of the
whole disk (/sys/dev/block) during the calls, divided by those that the program wrote; so nothing else may use it then.
What is written later (the last checkpoint, the kernel's write-back) is not in them: take many calls.
"""

import argparse
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
PAGE, RECORD, TRANSACTION, LARGE = 4096, 8192, 200, 1 << 20


def transactions(folder, mode, count):
    """Microseconds for each synced transaction of sqlite."""
    database = sqlite3.connect(f"{folder}/{mode}.db", isolation_level=None)
    database.execute(f"pragma journal_mode = {mode}")
    database.execute("pragma synchronous = full")
    database.execute("create table t (a integer primary key, b blob)")
    before, begin = written(), time.perf_counter()
    for _ in range(count):
        database.execute("insert into t (b) values (?)", (bytes(TRANSACTION),))
    print((time.perf_counter() - begin) / count * 1e6, written() - before)


# For each row what the program does, its last argument, and bytes that one call of all processes writes.
ROWS = {
    "write 4 KiB + fsync": (["overwrite"], 1, PAGE),
    "the same, 8 processes": (["overwrite"], 8, 8 * PAGE),
    "write 4 KiB + fsync beside a writer of 1 GiB": (["busy"], 1024, PAGE),
    "create, write 4 KiB, fsync, close": (["create"], 1, PAGE),
    "overwrite 1 MiB + fsync": (["large"], 0, LARGE),
    "cut, write 1 MiB, fsync": (["large"], 1, LARGE),
    "sqlite, WAL, full": (["wal"], 1, TRANSACTION),
    "sqlite, rollback, full": (["delete"], 1, TRANSACTION),
}


def written():
    """Bytes that the disk has written so far."""
    return int(pathlib.Path(os.environ["STAT"]).read_text().split()[6]) * 512


def has_journal():
    """Whether the file system of $STAT keeps a journal, as ext4 does unless it was made without one."""
    name = pathlib.Path(os.path.realpath(pathlib.Path(os.environ["STAT"]).parent)).name
    return any(pathlib.Path("/proc/fs/jbd2").glob(f"{name}-*"))


def run(command, bytes_of_all):
    """Microseconds for each call; bytes of the device for each of the program."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    each, device = done.stdout.split()
    return float(each), int(device) / bytes_of_all


def one_round(row, stage, calls, results):
    what, number, size = ROWS[row]
    for place in ("nacre", "ext4"):
        folder, prefix = pathlib.Path("/nacre"), []
        if place == "nacre":
            pool = stage / "pool"
            bytes_of_pool = "4G" if what[0] == "busy" else "512M"
            create = [NACRE, "create", "--force", "--size", bytes_of_pool, pool]
            subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
            prefix = [NACRE, "run", "--quiet", "--pool", pool, "--"]
        else:
            folder = stage / "ext4"
            folder.mkdir()
        program = [stage / "disk-speed", *what, folder, str(calls), str(number)]
        if what[0] in ("wal", "delete"):
            program = [sys.executable, __file__, "--transactions", what[0], folder, str(calls)]
        results.setdefault(place, []).append(run([*prefix, *program], calls * size))
        shutil.rmtree(stage / "ext4", ignore_errors=True)
    raw = run([stage / "disk-speed", "raw", stage / "raw", str(calls), str(RECORD)], calls * RECORD)
    results.setdefault("raw", []).append(raw)


def show(row, results):
    median = {place: statistics.median(time for time, _ in runs) for place, runs in results.items()}
    device = {place: statistics.median(ratio for _, ratio in runs) for place, runs in results.items()}
    print(f"| {row} | {median['nacre']:.0f} | {median['ext4']:.0f} | {median['raw']:.0f} |"
          f" {median['ext4'] / median['nacre']:.2f} | {median['nacre'] / median['raw']:.2f} |"
          f" {device['nacre']:.2f} | {device['ext4']:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--disk", default=TARGET, type=pathlib.Path, help="a folder on ext4")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    arguments = parser.parse_args()
    stage = pathlib.Path(tempfile.mkdtemp(prefix="nacre-disk-speed-", dir=arguments.disk))
    number = os.stat(stage).st_dev
    os.environ["STAT"] = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat"
    try:
        subprocess.run(["gcc", "-O2", "-o", stage / "disk-speed", HERE / "disk-speed.c"], check=True)
        if not has_journal():
            print("ext4 has no journal here\n")
        print("| us for each call | nacre | ext4 | raw 8 KiB | ext4 / nacre | nacre / raw | device bytes, nacre | ext4 |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for row in arguments.rows or ROWS:
            results = {}
            for _ in range(arguments.rounds):
                one_round(row, stage, arguments.calls, results)
            show(row, results)
    finally:
        if (stage / "pool").exists():
            subprocess.run([NACRE, "delete", "--force", stage / "pool"], stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(stage, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--transactions"]:
        transactions(sys.argv[3], sys.argv[2], int(sys.argv[4]))
    else:
        main()
