#!/usr/bin/env python3
"""What programs that use no pool pay for running under Nacre.

    tests/programs/host-cost.py [--rounds N] [--json FILE] [--canary] [PROGRAM...]

Each program works on files of the host alone, by turns without Nacre and under `nacre run`; shown are
medians over the turns. The start of `nacre run` is not timed; that each program starts later is, and is told by the
row `true`; `besides` is what the rest takes longer. `--canary` does half of the work once more, which must be seen.
"""

import argparse
import json
import math
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
HEADERS = ("stdio.h stdlib.h string.h unistd.h sys/stat.h sys/socket.h netinet/in.h pthread.h math.h time.h errno.h "
           "fcntl.h signal.h sys/mman.h sys/wait.h dirent.h locale.h wchar.h regex.h netdb.h").split()
MODULES = "json, http.client, email.mime.text, xml.dom.minidom, sqlite3, asyncio, unittest"
PROGRAMS = {
    "true": ["/bin/true"],
    "find": ["find", "/usr/lib", "/usr/share", "-xdev"],
    "du": ["du", "-s", "/usr/lib", "/usr/share"],
    "tar": ["tar", "cf", "-", "--exclude=*.so*", "/usr/share/doc", "/usr/share/perl", "/usr/include"],
    "grep -r": ["grep", "-rc", "define", "/usr/include"],
    "git status": ["git", "-C", str(ROOT), "status", "--short"],
    "gcc -c": ["gcc", "-O1", "-c", "{folder}/x.c", "-o", "{folder}/x.o"],
    "python3 imports": [sys.executable, "-c", f"import {MODULES}"],
}
EACH = 3


def inside(command, count):
    """Prints the seconds of each of some runs of a command."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    print(json.dumps(times))


def times(name, command, pool):
    environment = dict(os.environ, GIT_OPTIONAL_LOCKS="0")
    own = [sys.executable, __file__, "--inside", json.dumps(command)]
    if pool:
        own = [NACRE, "run", "--pool", pool, "--"] + own
    done = subprocess.run(own, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measure(name, commands, arguments):
    """Of the command as it is without Nacre, and under it. Seconds without, and how much more under Nacre in each turn: of neighbours in
    time, as the machine's pace changes."""
    without, more = [], []
    for turn in range(arguments.rounds + 1):
        found = [0, 0]
        for under in (0, 1) if turn % 2 else (1, 0):
            seconds = times(name, commands[under], arguments.pool if under else None)
            found[under] = statistics.median(seconds)
        # The first turn is for the page cache.
        if turn:
            without.append(found[0])
            more.append(found[1] - found[0])
    return statistics.median(without), sorted(more)


def interval(more):
    """Where the median of all possible turns lies, but for one time in twenty: between two of the differences, whatever their distribution."""
    aside = max(0, math.floor(len(more) / 2 - 1.96 * math.sqrt(len(more)) / 2))
    return more[aside], more[-1 - aside]


def report(results):
    late = statistics.median(results["true"][1])
    besides = {}
    print(f"{'':<18}{'without':>10}{'more under Nacre':>20}{'besides':>10}{'between':>18}")
    for name, (without, more) in results.items():
        middle = statistics.median(more)
        low, high = ((bound - late) / without for bound in interval(more))
        besides[name] = (middle - late) / without
        print(f"{name:<18}{without * 1e3:>7.1f} ms{middle * 1e3:>17.2f} ms{besides[name]:>+10.1%}{low:>+10.1%}{high:>+8.1%}")
    return besides


def chosen(names, folder):
    text = "".join(f"#include <{header}>\n" for header in HEADERS) + "int main(void) { return 0; }\n"
    pathlib.Path(folder, "x.c").write_text(text)
    return {name: [[word.format(folder=folder) for word in PROGRAMS[name]]] * 2 for name in ["true", *names]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the medians without Nacre and all differences, in seconds, to this file")
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(json.loads(arguments.inside), EACH)
    unknown = [name for name in arguments.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"unknown program {unknown[0]!r}; there are: {', '.join(PROGRAMS)}")
    names = arguments.names or [name for name in PROGRAMS if name != "true"]
    if arguments.canary:
        names = ["find"]
    folder = tempfile.mkdtemp(prefix="nacre-host-cost-")
    arguments.pool = f"{folder}/pool"
    try:
        subprocess.run([NACRE, "create", "--size", "64M", arguments.pool], check=True, stdout=subprocess.DEVNULL)
        commands = chosen(names, folder)
        if arguments.canary:
            commands["find"][1] = ["find", "/usr/lib", "/usr/share", "/usr/share", "-xdev"]
        results = {name: measure(name, both, arguments) for name, both in commands.items()}
        besides = report(results)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")
        if arguments.canary and besides["find"] < 0.2:
            sys.exit("canary: that half of the work was done once more was not seen")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
