#!/usr/bin/env python3
"""What starting processes costs under Nacre, and what programs made of short processes make of it.

    tests/programs/start-cost.py [--rounds N] [--count N] [--canary] [--against NACRE] [ROW...]

Each row is measured in turns without Nacre (in a folder of tmpfs) and under `nacre run` (in a pool); shown are medians
over all of one side: microseconds of processor time of the process and its parent, and its page faults. `--canary` starts each process twice, which must be seen.
With `--against` the other side is another build, its library beside it, in the same pool; rows of processes alone.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
# Name, what start-cost is told to start, whether the parent uses the pool, the target in microseconds more than
# without Nacre, and in page faults.
STARTS = [
    ("true, which uses no file of the pool", ["/bin/true"], False, (250, 60)),
    ("cat of a file of the pool", ["/bin/cat", "f"], False, (400, None)),
    ("fork and exit, parent uses no pool", ["fork"], False, (40, None)),
    ("fork and exit, parent uses the pool", ["fork"], True, (40, None)),
]
FUNCTION = "int f{i}(int x) {{ int s = 0; for (int k = 0; k < x; k++) s += k * {i}; return s; }}\n"
PREPARE_MAKE = "mkdir m; cd m; for i in $(seq 100); do printf '" + FUNCTION.replace("{i}", "'$i'").replace(
    "{{", "{").replace("}}", "}").replace("%", "%%").replace("\n", "\\n") + "' > f$i.c; done; " \
    "printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n%%.o: %%.c\\n\\tgcc -O1 -c $< -o $@\\n' > Makefile"
# Name, what is done before the clock runs, and what is timed.
WORK = [
    ("make of 100 compilations", PREPARE_MAKE, "cd m; make -s -j2; ls f100.o"),
    ("shell loop: 300 times a file, cat, wc, rm", "true",
     "for i in $(seq 300); do echo $i > x; cat x | wc -c > y; rm x; done; cat y"),
    ("git: 20 times write, add, commit, status", "git init -q g; cd g; git config user.email a@b; git config user.name a",
     "cd g; for i in $(seq 20); do echo $i > f$i; git add .; git commit -qm $i; git status -s; done; git log --oneline | wc -l"),
]


def under(command, pool, nacre=NACRE, **more):
    whole = [nacre, "run", "-q", "--pool", pool, "--mount", "/nacre", "--"] + command if pool else command
    done = subprocess.run(whole, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{whole} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def starts(arguments, program, folder, pool):
    for name, command, touch, (target, faults) in STARTS:
        if not wanted(arguments, name):
            continue
        found = [[], []]
        for turn in range(arguments.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                ours = side or arguments.against
                place = "/nacre" if ours else str(folder)
                command_here = [place + "/f" if part == "f" else part for part in command]
                environment = dict(os.environ, **({"TOUCH": place + "/f"} if touch else {}))
                count = str(arguments.count * (1 + (arguments.canary and side)))
                nacre = NACRE if side else arguments.against
                text = under([program, count] + command_here, pool if ours else None, nacre, env=environment)
                lines = [line.split() for line in text.splitlines()][arguments.count // 10:]
                factor = 1 + (arguments.canary and side)
                found[side] += [(float(a) * factor, int(b) * factor) for a, b in lines]
        (base, base_faults), (ours, our_faults) = [[statistics.median(x) for x in zip(*side)] for side in found]
        quickest = min(x for x, _ in found[1]) - min(x for x, _ in found[0])
        verdict = "met" if ours - base <= target else f"missed by {ours - base - target:.0f} us"
        if faults is not None and our_faults - base_faults > faults:
            verdict += f", by {our_faults - base_faults - faults:.0f} faults"
        print(f"| {name} | {base:.0f} us, {base_faults:.0f} faults | {ours:.0f} us, {our_faults:.0f} faults | "
              f"{ours - base:+.0f} us (quickest {quickest:+.0f}), {our_faults - base_faults:+.0f} faults | "
              f"{target} us | {verdict} |", flush=True)


def timed(script, folder, pool):
    begin = time.perf_counter()
    under(["bash", "-ec", f"cd {'/nacre' if pool else folder}; {script}"], pool)
    return time.perf_counter() - begin


def work(arguments, folder, pool):
    for name, before, script in WORK:
        if not wanted(arguments, name):
            continue
        found = [[], []]
        for turn in range(arguments.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                place = f"work{turn}-{side}"
                here = pool if side else None
                timed(f"mkdir {place}; cd {place}; {before}", folder, here)
                twice = f"{script}; " if arguments.canary and side else ""
                found[side].append(timed(f"cd {place}; ({twice}{script})", folder, here))
                timed(f"rm -r {place}", folder, here)
        base, ours = map(statistics.median, found)
        print(f"| {name} | {base:.2f} s | {ours:.2f} s | {ours / base:.2f} x | no slower | "
              f"{'met' if ours <= base else 'missed'} |", flush=True)


def runs(arguments, pool, cache):
    for name, cold, target in (("`nacre run true`, warm", False, 3), ("`nacre run true`, without kept plans", True, 8)):
        if not wanted(arguments, name):
            continue
        found = [[], []]
        environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
        for _ in range(arguments.rounds * 5):
            if cold:
                shutil.rmtree(cache, ignore_errors=True)
                cache.mkdir()
            for side in (0, 1):
                begin = time.perf_counter()
                under(["/bin/true"], pool if side else None, env=environment)
                found[side].append(time.perf_counter() - begin)
        base, ours = [statistics.median(side) * 1000 for side in found]
        verdict = "met" if ours <= target else f"missed by {ours - target:.1f} ms"
        print(f"| {name} | {base:.1f} ms | {ours:.1f} ms | {ours - base:+.1f} ms | {target} ms | {verdict} |", flush=True)


def wanted(arguments, name):
    return not arguments.row or any(text in name for text in arguments.row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--against")
    parser.add_argument("row", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="start-cost-") as name:
        folder = pathlib.Path(name)
        program, pool, cache = str(folder / "start-cost"), str(folder / "pool"), folder / "cache"
        cache.mkdir()
        subprocess.run(["gcc", "-O1", "-o", program, ROOT / "tests/programs/start-cost.c"], check=True)
        subprocess.run([NACRE, "create", "--size", "256M", pool], check=True, stdout=subprocess.DEVNULL)
        (folder / "f").write_text("text\n")
        under(["bash", "-c", "echo text > /nacre/f"], pool)
        print("| | without Nacre, tmpfs | under Nacre, pool | more | target | |\n|---|---:|---:|---:|---:|---|")
        try:
            starts(arguments, program, folder, pool)
            if not arguments.against:
                runs(arguments, pool, cache)
                work(arguments, folder, pool)
        finally:
            subprocess.run([NACRE, "delete", "--force", pool], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
