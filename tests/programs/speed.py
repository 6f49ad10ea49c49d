#!/usr/bin/env python3
"""How fast real programs are on a pool, beside tmpfs and ext4.

    tests/programs/speed.py [--rounds N] [--scale F] [--ext4 DIR] [--disk] [--json FILE] [WORKLOAD...]

Places take turns, round by round; shown are medians. Only the program itself is timed: neither the
start of `nacre run` nor what is prepared and checked. A run with a wrong result counts as failed.
`nacre` is a pool in a tmpfs of pages of 2 MiB, which is mounted for it as by `nacre bench`; `small pages` is
another one in /dev/shm, where tmpfs is measured, too. With --disk a pool on the disk of DIR is measured beside ext4
there, and nothing else.
"""

import argparse
import io
import json
import os
import pathlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

__file__ = os.path.abspath(__file__)
ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
MOUNT = "/nacre"
# The first of those that are measured is compared with the last two.
PLACES = ["nacre", "on disk", "small pages", "tmpfs", "ext4"]


class Missing(Exception):
    """A program is not installed."""


def program(name):
    found = shutil.which(name)
    if not found:
        raise Missing(name)
    return found


def timed(command, **options):
    """Seconds that a command takes; it must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)
    return time.perf_counter() - begin


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def fio(folder, scale, kind):
    """Random 4 KiB by one job: operations in a second."""
    size = int(256 * scale) or 1
    common = [program("fio"), "--name=x", f"--filename={folder}/fio", f"--size={size}M",
              "--bs=4k", "--ioengine=psync", "--allow_file_create=1", "--output-format=json"]
    subprocess.run(common + ["--rw=write"], check=True, stdout=subprocess.DEVNULL)
    loops = ["--time_based", f"--runtime={max(1, int(4 * scale))}"]
    done = subprocess.run(common + loops + [f"--rw={kind}"], check=True, capture_output=True, text=True)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    check(job["error"] == 0, "fio failed")
    return job["read" if kind == "randread" else "write"]["iops"]


def fio_randwrite(folder, scale):
    return fio(folder, scale, "randwrite")


def fio_randread(folder, scale):
    return fio(folder, scale, "randread")


def sqlite(folder, scale):
    """Single-row transactions, WAL, synchronous=full: seconds."""
    rows = int(100_000 * scale)
    script = "pragma journal_mode=wal; pragma synchronous=full; create table t(a integer primary key, b text);\n"
    script += "".join(f"insert into t values({row}, 'value of row {row}');\n" for row in range(rows))
    path = f"{folder}/speed.db"
    seconds = timed([program("sqlite3"), "-batch", path], input=script, text=True)
    count = sqlite3.connect(path).execute("select count(*), max(length(b)) from t").fetchone()
    check(count[0] == rows, f"{count[0]} rows of {rows}")
    return seconds


def git(folder, scale):
    """add and commit of 5000 files: seconds."""
    files = int(5000 * scale)
    repository = pathlib.Path(folder, "repository")
    repository.mkdir()
    for number in range(files):
        place = repository / f"d{number % 50}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}").write_text(f"contents of file {number}\n" * (number % 60 + 1))
    call = [program("git"), "-C", str(repository), "-c", "user.name=n", "-c", "user.email=n@example.org"]
    subprocess.run(call + ["init", "-q"], check=True)
    seconds = timed(call + ["add", "."]) + timed(call + ["commit", "-qm", "all"])
    listed = subprocess.run(call + ["ls-files"], check=True, capture_output=True, text=True).stdout
    check(len(listed.splitlines()) == files, "files are missing from the commit")
    return seconds


def untar(folder, scale):
    """tar -x of 20 000 files: seconds."""
    files = int(20_000 * scale)
    archive = pathlib.Path(tempfile.gettempdir(), f"nacre-speed-{files}.tar")
    if not archive.exists():
        with tarfile.open(archive, "w") as tar:
            for number in range(files):
                data = bytes((number + at) % 251 for at in range(512 + number % 7 * 1024))
                entry = tarfile.TarInfo(f"d{number % 200}/f{number}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    seconds = timed([program("tar"), "-xf", str(archive), "-C", folder])
    found = sum(len(names) for _, _, names in os.walk(folder))
    check(found == files, f"{found} files of {files}")
    return seconds


def postmark(folder, scale):
    """Transactions in a second, small files."""
    transactions = int(200_000 * scale)
    pathlib.Path(folder, "mail").mkdir()
    script = (f"set location {folder}/mail\nset number 5000\nset transactions {transactions}\n"
              "set size 500 10000\nset buffering false\nset subdirectories 50\nrun\nquit\n")
    # Whole seconds are all that postmark prints, so it is timed from outside.
    seconds = timed([program("postmark")], input=script, text=True)
    return transactions / seconds


def rocksdb(folder, scale, benchmark):
    """Random keys, values of 100 bytes: operations in a second."""
    operations = int(200_000 * scale)
    done = subprocess.run([program("db_bench"), f"--benchmarks={benchmark}", f"--db={folder}/rocks",
                           f"--num={operations}", "--threads=1", "--compression_type=none"],
                          check=True, capture_output=True, text=True)
    figures = re.search(rf"^{benchmark}\s*:.* (\d+) ops/sec", done.stdout, re.MULTILINE)
    check(figures, f"db_bench said {done.stdout}")
    return int(figures[1])


def rocksdb_fill(folder, scale):
    return rocksdb(folder, scale, "fillrandom")


def rocksdb_fill_sync(folder, scale):
    return rocksdb(folder, scale / 4, "fillsync")


def small_files(folder, scale):
    """cp -a, du, find, rm -r of 5000 files: seconds."""
    files = int(5000 * scale)
    source = pathlib.Path(folder, "source")
    for number in range(files):
        place = source / f"d{number % 50}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}").write_bytes(b"x" * (number % 4096))
    copy = f"{folder}/copy"
    seconds = timed(["cp", "-a", str(source), copy])
    seconds += timed(["find", copy, "-type", "f", "-size", "+1"])
    seconds += timed(["du", "-s", copy])
    seconds += timed(["diff", "-r", str(source), copy])
    return seconds + timed(["rm", "-r", copy])


def build(folder, scale):
    """make -j2 of 200 C files that include the C library's headers, linked: seconds."""
    files = int(200 * scale) or 1
    headers = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string", "unistd", "pthread", "math"))
    for number in range(files):
        text = f'{headers}int f{number}(int a) {{ return printf("%d", a) + {number}; }}\n'
        pathlib.Path(folder, f"f{number}.c").write_text(text)
    declared = "".join(f"int f{number}(int);\n" for number in range(files))
    called = " + ".join(f"f{number}(0)" for number in range(files))
    pathlib.Path(folder, "main.c").write_text(f"{declared}int main(void) {{ return ({called}) == 0; }}\n")
    pathlib.Path(folder, "Makefile").write_text(
        "all: $(patsubst %.c,%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n%.o: %.c\n\t$(CC) -O1 -c -o $@ $<\n")
    seconds = timed([program("make"), "-s", "-j2", "-C", folder])
    check(pathlib.Path(folder, "all").stat().st_size > 0, "nothing was linked")
    return seconds


def pgbench(folder, scale):
    """8 clients of PostgreSQL, synced commits: transactions in a second."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise Missing("postgresql")
    transactions = int(500 * scale) or 1
    sockets = tempfile.mkdtemp(prefix="nacre-speed-pg-")
    shutil.chown(sockets, "postgres") if os.geteuid() == 0 else None
    data = f"{folder}/data"
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")
    call = lambda name, *rest: as_user + [str(found[-1] / name), *rest]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run(call("initdb", "-U", "postgres", "-A", "trust", "-D", data), **quiet)
    options = f"-c listen_addresses= -c unix_socket_directories={sockets} -p 54331"
    subprocess.run(call("pg_ctl", "-w", "-D", data, "-l", f"{folder}/log", "-o", options, "start"), **quiet)
    reach = ["-h", sockets, "-p", "54331", "-U", "postgres"]
    try:
        subprocess.run(call("pgbench", *reach, "-i", "-s", "4", "-q", "postgres"), **quiet)
        done = subprocess.run(call("pgbench", *reach, "-n", "-c", "8", "-j", "2", "-t", str(transactions), "postgres"),
                              check=True, capture_output=True, text=True, cwd="/")
    finally:
        subprocess.run(call("pg_ctl", "-w", "-D", data, "-m", "fast", "stop"), **quiet)
        shutil.rmtree(sockets, ignore_errors=True)
    figures = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    check(figures and f"{8 * transactions}/{8 * transactions}" in done.stdout, f"pgbench said {done.stdout}")
    return float(figures[1])


# Unit, and whether more is better.
WORKLOADS = {
    "fio randwrite": (fio_randwrite, "IOPS", True),
    "fio randread": (fio_randread, "IOPS", True),
    "sqlite": (sqlite, "s", False),
    "git add+commit": (git, "s", False),
    "untar": (untar, "s", False),
    "postmark": (postmark, "transactions/s", True),
    "rocksdb fill": (rocksdb_fill, "operations/s", True),
    "rocksdb fill, synced": (rocksdb_fill_sync, "operations/s", True),
    "cp, find, du, diff, rm": (small_files, "s", False),
    "build of 200 C files": (build, "s", False),
    "pgbench, 8 clients": (pgbench, "transactions/s", True),
}


def inside(name, folder, scale):
    """In the place itself: does the work in a fresh folder and prints its figure."""
    work = tempfile.mkdtemp(prefix="speed-", dir=folder)
    try:
        print(json.dumps(WORKLOADS[name][0](work, scale)))
    finally:
        shutil.rmtree(work)


class Failed(Exception):
    """A workload did not do what it should."""


def another_user(name):
    """PostgreSQL refuses root."""
    is_other = name.startswith("pgbench") and os.geteuid() == 0
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if is_other else []


def place_of_other(folder, user):
    """A folder of the other user, with a pool if it is to be one."""
    place = f"{folder}/other"
    if not os.path.exists(place):
        os.chmod(folder, 0o755)
        os.mkdir(place)
        shutil.chown(place, "postgres")
        subprocess.run(user + [NACRE, "create", "--size", "2G", f"{place}/pool"], check=True, stdout=subprocess.DEVNULL)
    return place


def measure(name, place, folder, arguments):
    user, pool = another_user(name), arguments.pools.get(place)
    python = sys.executable
    if user:
        # The one of root may lie where others may not look.
        python = shutil.which("python3", path="/usr/bin:/bin") or python
        other = place_of_other(os.path.dirname(pool) if pool else folder, user)
        folder, pool = (folder, f"{other}/pool") if pool else (other, None)
    command = [python, __file__, "--inside", folder, "--scale", str(arguments.scale), name]
    if pool:
        command = [NACRE, "run", "--quiet", "--pool", pool, "--"] + command
    done = subprocess.run(user + command, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise Failed(f"{name} on {place} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def ratio(values, ours, place, is_more_better):
    if place not in values or ours not in values:
        return "-"
    ours, theirs = values[ours], values[place]
    return f"{ours / theirs if is_more_better else theirs / ours:.2f} x"


def report(results):
    places = [place for place in PLACES if any(place in values for values in results.values())]
    if not places:
        return
    ours = places[0]
    beside = [place for place in ("tmpfs", "ext4") if place in places]
    heads = "".join(f"{place:>14}" for place in places)
    print(f"{'':<26}{heads}  {'':<15}" + "".join(f"{'vs ' + place:>10}" for place in beside))
    for name, values in results.items():
        _, unit, is_more_better = WORKLOADS[name]
        digits = 0 if is_more_better else 2
        cells = "".join(f"{values[place]:>14.{digits}f}" if place in values else f"{'-':>14}" for place in places)
        ratios = "".join(f"{ratio(values, ours, place, is_more_better):>10}" for place in beside)
        print(f"{name:<26}{cells}  {unit:<15}{ratios}")


def rounds(names, places, arguments):
    found = {name: {place: [] for place in places} for name in names}
    for turn in range(arguments.rounds):
        for index, name in enumerate(names):
            order = list(places)
            shift = (turn + index) % len(order)
            for place in order[shift:] + order[:shift]:
                try:
                    found[name][place].append(measure(name, place, places[place], arguments))
                except Failed as failed:
                    print(failed, file=sys.stderr)
                    arguments.failed = True
    medians = lambda row: {place: statistics.median(list_) for place, list_ in row.items() if list_}
    return {name: medians(row) for name, row in found.items()}


def make_pool(path, fills):
    subprocess.run([NACRE, "create", "--size", "2G", path], check=True, stdout=subprocess.DEVNULL)
    if not fills:
        return
    # Memory that the kernel must find first would be counted against the pool only.
    with open(path, "r+b") as pool:
        os.posix_fallocate(pool.fileno(), 0, 2 << 30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full amount of work")
    parser.add_argument("--ext4", default="/var/tmp", help="folder on ext4")
    parser.add_argument("--disk", action="store_true", help="a pool on that disk beside its file system, nothing else")
    parser.add_argument("--json", help="write the medians to this file")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; there are: {', '.join(WORKLOADS)}")
    if arguments.inside:
        try:
            return inside(arguments.names[0], arguments.inside, arguments.scale)
        except Missing as missing:
            sys.exit(f"{missing} is not installed (apt-get install {missing})")
    arguments.failed = False
    base = tempfile.mkdtemp(prefix="nacre-speed-", dir="/dev/shm")
    disk = tempfile.mkdtemp(prefix="nacre-speed-", dir=arguments.ext4)
    large = tempfile.mkdtemp(prefix="nacre-speed-")
    has_large = not arguments.disk and subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=always,size=3G", "nacre-speed", large]).returncode == 0
    arguments.pools = {"nacre": f"{large}/pool", "small pages": f"{base}/pool"}
    if arguments.disk:
        arguments.pools = {"on disk": f"{disk}/pool"}
    elif not has_large:
        print("No tmpfs of large pages can be mounted: `nacre` is a pool of small pages.", file=sys.stderr)
        arguments.pools = {"nacre": f"{base}/pool"}
    try:
        for pool in arguments.pools.values():
            make_pool(pool, fills=not arguments.disk)
        places = {**dict.fromkeys(arguments.pools, MOUNT), "ext4": disk}
        if not arguments.disk:
            places["tmpfs"] = base
        results = rounds(arguments.names or list(WORKLOADS), places, arguments)
        report(results)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")
    finally:
        for pool in arguments.pools.values():
            subprocess.run([NACRE, "delete", "--force", pool], stdout=subprocess.DEVNULL)
        if has_large:
            subprocess.run(["umount", large])
        for folder in (base, disk, large):
            shutil.rmtree(folder)
    if arguments.failed:
        sys.exit("some of it failed, see above")


if __name__ == "__main__":
    main()
