#!/usr/bin/env python3
"""Makes crates/nacre-preload/start-order.txt: the functions that a start executes, for the linker to put together.

    tests/programs/start-order.py [--check] [NACRE...]

Steps through short programs under `nacre run` of each build (its library beside it, with symbols) and writes the names of
the functions of the library that ran, those of the shortest program first, without what differs from build to build.
`--check` only says how many pages of text each program touches, and how many lie side by side would do.
"""

import bisect
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NACRE = pathlib.Path(os.environ.get("NACRE", TARGET / "release/nacre"))
ORDER = ROOT / "crates/nacre-preload/start-order.txt"
PAGE = 4096
# Bytes of functions that do not run, which may lie between those that do.
FEW = 1024


def functions(library):
    """Start, size and name of each, in order."""
    lines = subprocess.run(["nm", "-S", library], capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return sorted((int(f[0], 16), int(f[1], 16), f[3]) for f in fields if len(f) == 4 and f[2] in "tTwW")


def pattern(name):
    """A name without hashes; None for what no section is named after."""
    name = re.sub(r"\.llvm\.\d+$", "", name)
    if name.startswith("_ZN"):
        return re.sub(r"17h[0-9a-f]{16}E$", "17h*", name)
    return re.sub(r"Cs[0-9A-Za-z]{8,13}_", "Cs*_", name) + "*" if name.startswith("_R") else None


def built(library):
    """Functions of a build: their starts, in order, and for each its size and its pattern; of each pattern, all sizes."""
    known = [(start, size, pattern(name)) for start, size, name in functions(library)]
    sizes = collections.defaultdict(int)
    for _, size, name in known:
        sizes[name] += size
    return known, sizes


def main():
    builds = [pathlib.Path(path) for path in sys.argv[1:] if path != "--check"] or [NACRE]
    # What a generic function is made for does not stand in all names: patterns of few bytes that run among many come last.
    own_patterns, shared_patterns = {}, {}
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="start-order-") as folder:
        step, start, pool, output = (f"{folder}/{name}" for name in ("step", "start", "pool", "output"))
        for program, source in ((step, "start-order.c"), (start, "start-cost.c")):
            subprocess.run(["gcc", "-O1", "-o", program, ROOT / "tests/programs" / source], check=True)
        subprocess.run([builds[0], "create", "--size", "64M", pool], check=True, stdout=subprocess.DEVNULL)
        below = ["run", "-q", "--pool", pool, "--mount", "/nacre", "--"]
        subprocess.run([builds[0]] + below + ["bash", "-c", "echo text > /nacre/f"], check=True)
        known = {build: built(build.parent / "libnacre_preload.so") for build in builds}
        child, user = {"CHILD": "1"}, {"TOUCH": "/nacre/f"}
        fork = [start, "1", "fork"]
        # What a forked child executes is the least, and all of it is a page fault again.
        for more, command in ((child, fork), (child | user, fork), ({}, ["/bin/true"]), ({}, fork), (user, fork),
                              ({}, [start, "1", "/bin/true"]), ({}, ["/bin/cat", "/nacre/f"])):
            for build in builds:
                subprocess.run([build] + below + [step, output] + command, check=True, stdout=subprocess.DEVNULL,
                               env=os.environ | more)
                all_functions, sizes = known[build]
                starts = [start for start, _, _ in all_functions]
                end = starts[-1] + all_functions[-1][1]
                ran = [int(line, 16) for line in pathlib.Path(output).read_text().split()]
                ran = [at for at in ran if starts[0] <= at < end]
                found = sorted({all_functions[bisect.bisect(starts, at) - 1] for at in ran})
                pages, size = len({at // PAGE for at in ran}), sum(size for _, size, _ in found)
                print(f"{build} {' '.join([*more, *command])}: {len(found)} functions, {pages} pages, {-(-size // PAGE)} would do",
                      file=sys.stderr)
                own = collections.Counter()
                for _, size, name in found:
                    own[name] += size
                for name in filter(None, own):
                    is_shared = sizes[name] > max(2 * own[name], FEW)
                    (shared_patterns if is_shared else own_patterns)[name] = None
    if "--check" not in sys.argv[1:]:
        ORDER.write_text("\n".join(own_patterns | shared_patterns) + "\n")


if __name__ == "__main__":
    main()
