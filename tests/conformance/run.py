#!/usr/bin/python3
"""Runs pjdfstest and fsx (other people's tests, from crates.io) on a pool.

    tests/conformance/run.py              both
    tests/conformance/run.py pjdfstest    one of them
    BASELINE=1 tests/conformance/run.py   the same on plain tmpfs
    FUSE=1 tests/conformance/run.py       the same on a pool that is mounted with FUSE
    FUSE=2 tests/conformance/run.py fsx   programs of both kinds: every second one through FUSE
    DISK=1 tests/conformance/run.py       the same on a pool on the disk of the target folder, cached, of which memory
                                          holds 1 MiB: the files of fsx have up to 4
    COPIES=2 tests/conformance/run.py     the same on a pool with two copies, which must be alike in the end
    STRIPE=3 tests/conformance/run.py     the same on three devices, round which the pages of a file go

Environment: NACRE (binary), CARGO_TARGET_DIR, MODE (direct or atomic), FSX_OPERATIONS (of each of the 18 runs of fsx,
ten times as many of each of two writers of one file).
The ratchet is expected-failures.txt: cases may only leave it.
"""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
TOOLS = TARGET / "conformance"
BASELINE = bool(os.environ.get("BASELINE"))
# 0: under `nacre run`; 1: through a mount; 2: both in turn.
FUSE = int(os.environ.get("FUSE", 0))
BASE = pathlib.Path(f"/dev/shm/nacre-conformance-{os.getpid()}")
SECOND = pathlib.Path(f"/tmp/nacre-conformance-{os.getpid()}")
DISK = bool(os.environ.get("DISK"))
COPIES = int(os.environ.get("COPIES", 1))
STRIPE = int(os.environ.get("STRIPE", 1))
MOUNT = BASE / "mount" if BASELINE or FUSE else pathlib.Path("/nacre")
VERSIONS = ["pjdfstest@0.2.2", "fsx@0.3.2"]

# What fsx does, by configuration: weights of operations; each runs with each seed.
FSX_OPERATIONS = int(os.environ.get("FSX_OPERATIONS", 12000))
FSX_SEEDS = [1, 7, 42]
FSX = {
    "plain": "flen = 1048576\n[weights]\nmapread = 0\nmapwrite = 0\nclose_open = 1\nfsync = 1\n",
    "mmap": "[weights]\ninvalidate = 1\nclose_open = 1\nfsync = 1\nfdatasync = 1\n",
    "holes": "[weights]\nmapread = 2\nmapwrite = 2\npunch_hole = 10\nposix_fallocate = 5\nclose_open = 1\n",
    "copies": "[weights]\nmapread = 1\nmapwrite = 1\ncopy_file_range = 10\nsendfile = 10\nposix_fadvise = 1\n",
    "aligned": "flen = 4194304\n[opsize]\nalign = 4096\nmax = 262144\n[weights]\npunch_hole = 3\n",
}


def install():
    """Builds the pinned versions once."""
    if all((TOOLS / "bin" / v.split("@")[0]).exists() for v in VERSIONS):
        return
    subprocess.run(
        ["cargo", "install", "--quiet", "--locked", "--root", str(TOOLS), *VERSIONS],
        check=True,
        env=os.environ | {"CARGO_NET_RETRY": "5"},
    )


def pool():
    return (TARGET / BASE.name if DISK else BASE) / "conformance.pool"


def devices():
    """All devices of the pool."""
    return [str(pool()), *(f"{pool()}.{number}" for number in range(2, max(COPIES, STRIPE) + 1))]


def prepare():
    BASE.mkdir()
    SECOND.mkdir()
    SECOND.chmod(0o1777)
    if BASELINE:
        MOUNT.mkdir()
        return
    pool().parent.mkdir(exist_ok=True)
    mode = os.environ.get("MODE", "cached" if DISK else "direct")
    cache = ["--cache", "1M"] if DISK else []
    size = "400M" if STRIPE > 1 else "1G"
    spread = ["--copies", str(COPIES)] if COPIES > 1 else ["--stripe", "4K"] if STRIPE > 1 else []
    subprocess.run([NACRE, "create", "--size", size, *cache, *spread, "--mode", mode, *devices()], check=True)
    if FUSE:
        MOUNT.mkdir()
        subprocess.run([NACRE, "mount", "--allow-other", str(pool()), str(MOUNT)], check=True)


turns = 0


def inside(command, seconds):
    """Output and status of a command that runs under test."""
    global turns
    turns += 1
    through_kernel = BASELINE or FUSE == 1 or FUSE == 2 and turns % 2
    cover = ["--cover", "--no-fuse"] if FUSE else []
    prefix = [] if through_kernel else [NACRE, "run", "--quiet", "--pool", str(pool()), "--mount", str(MOUNT), *cover, "--"]
    command = ["timeout", "-k", "5", str(seconds), *prefix, *map(str, command)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=SECOND, text=True, errors="replace")
    return done.stdout, done.returncode


def consistent():
    """Whether the pool is in order after all that."""
    if BASELINE:
        return True
    # pjdfstest leaves programs that sleep for ten seconds. As long as they see the pool the kernel shows it, if it has been
    # asked to (mount, unshare), and it is in use.
    patience = time.monotonic() + 60
    done = checked()
    while done.returncode and "in use by process" in done.stdout and time.monotonic() < patience:
        time.sleep(0.2)
        done = checked()
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0 and alike()


def checked():
    return subprocess.run([NACRE, "check", str(pool())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# Where the data of a device begins, and the length of the label at its end, which tells devices apart.
DATA, LABEL = 2 << 20, 4096


def alike():
    """Whether all copies of the pool hold the same."""
    first, *others = devices() if COPIES > 1 else [None]
    return all(same(first, other) for other in others)


def canary_of_copies():
    """Whether a byte is noticed that only one copy has."""
    last = devices()[-1]
    with open(last, "r+b") as file:
        file.seek(os.path.getsize(last) // 2)
        was = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([was ^ 1]))
    return not alike()


def same(one, other):
    step, end = 1 << 20, os.path.getsize(one) - LABEL
    with open(one, "rb") as left, open(other, "rb") as right:
        for at in range(DATA, end, step):
            pieces = [os.pread(file.fileno(), min(step, end - at), at) for file in (left, right)]
            if pieces[0] != pieces[1]:
                print(f"{one} and {other} differ behind byte {at}")
                return False
    return True


def expectations():
    """Lists of (pattern, reason) by kind."""
    lists = {"fail": [], "skip": []}
    for line in (HERE / "expected-failures.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        kind, rest = line.split(" ", 1)
        case, reason = rest.split(": ", 1)
        assert reason.strip(), f"no reason: {line}"
        lists[kind].append((case, reason))
    if BASELINE or FUSE:
        # The kernel does what the preload cannot.
        lists["fail"] = []
    return lists


def undocumented(lists):
    """Entries that docs/semantics.md does not show with their reason."""
    shown = (ROOT / "docs/semantics.md").read_text()
    entries = [entry for kind in lists.values() for entry in kind]
    return [f"docs/semantics.md lacks {case}: {reason}" for case, reason in entries if f"`{case}`" not in shown or reason not in shown]


def outcomes(output):
    """Outcome of each case, and the message of each that failed."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    found, messages = {}, {}
    case = None
    for line in plain.splitlines():
        match = re.match(r"^(\S+::\S+)\s+(ok|FAILED|skipped)$", line)
        if match:
            case = match[1]
            found[case] = match[2]
        elif case and line.strip():
            messages.setdefault(case, line.strip())
    finished = re.search(r"(\d+) total", plain)
    return found, messages, finished and int(finished[1]) == len(found)


def judge(output, lists):
    """What is not as the lists say."""
    found, messages, finished = outcomes(output)
    wrong = []
    if not finished:
        wrong.append("pjdfstest did not come to its end: " + output[-300:])
    expected = {case for case, _ in lists["fail"]}
    for case, outcome in sorted(found.items()):
        may_skip = any(fnmatch.fnmatchcase(case, p) for p, _ in lists["skip"])
        if outcome == "FAILED" and case not in expected:
            wrong.append(f"{case} fails: {messages.get(case, '')}")
        if outcome == "ok" and (case in expected):
            wrong.append(f"{case} passes now: remove it from expected-failures.txt")
        if outcome == "skipped" and not may_skip:
            wrong.append(f"{case} is skipped: {messages.get(case, '')}")
        if outcome != "skipped" and any(case == p for p, _ in lists["skip"]):
            wrong.append(f"{case} is not skipped any more: remove it from expected-failures.txt")
    wrong += [f"{case} does not exist" for case in sorted(expected - found.keys())]
    wrong += [f"no case matches {p}" for p, _ in lists["skip"] if not fnmatch.filter(found, p)]
    return wrong, found


def pjdfstest():
    config = HERE / "pjdfstest.toml"
    arguments = [TOOLS / "bin/pjdfstest", "-c", config, "-p", MOUNT, "-s", SECOND]
    output, status = inside(arguments, 300)
    (TARGET / "pjdfstest.log").write_text(output)
    lists = expectations()
    wrong, found = judge(output, lists)
    wrong += undocumented(lists)
    # Canaries: a failure that nobody expects, and an expected one that passes.
    passing = next((case for case, outcome in found.items() if outcome == "ok"), None)
    if passing:
        planted = output.replace(f"{passing}", "canary::planted", 1)
        planted = re.sub(r"(canary::planted\S*\s+(?:\x1b\[[0-9;]*m)*)ok", r"\1FAILED", planted)
        unexpected = {**lists, "fail": lists["fail"] + [(passing, "planted")]}
        if not any("canary" in w for w in judge(planted, lists)[0]) or not any("passes now" in w for w in judge(output, unexpected)[0]):
            wrong.append("a canary was not caught: this harness cannot be trusted")
    count = lambda outcome: sum(1 for o in found.values() if o == outcome)
    print(f"pjdfstest: {count('ok')} ok, {count('FAILED')} failed, {count('skipped')} skipped, exit status {status}")
    return wrong, count("ok")


def fsx_pair(path):
    """Two processes at the same time, each on its own file of one folder of the pool, mapped and written."""
    pair = []
    for seed in (3, 4):
        command = [TOOLS / "bin/fsx", "-q", "-f", path, "-N", FSX_OPERATIONS, "-S", seed, "-P", SECOND, MOUNT / f"fsx-pair-{seed}"]
        pair.append(threading.Thread(target=lambda c=command: outcome.append(inside(c, 120 + FSX_OPERATIONS // 100))))
    outcome = []
    for one in pair:
        one.start()
    for one in pair:
        one.join()
    return [f"fsx pair: status {status}: {output.strip().splitlines()[-1:]}" for output, status in outcome if status]


# Reads and maps a file over and over; SIGBUS behind an EOF that moved ends one round of it.
WATCHER = """
import mmap, os, random, sys
for _ in range(300):
    fd = os.open(sys.argv[1], os.O_RDWR)
    size = os.fstat(fd).st_size
    if size:
        with mmap.mmap(fd, size) as mapped:
            for _ in range(20):
                at = random.randrange(size)
                os.pread(fd, 5000, at)
                mapped[at]
    os.close(fd)
"""


def fsx_watched(path):
    """fsx on a file that another process reads and maps all the time."""
    name, stop = MOUNT / "fsx-watched", SECOND / "stop"
    (SECOND / "watcher.py").write_text(WATCHER)
    loop = f"until [[ -e {stop} ]]; do python3 {SECOND}/watcher.py {name}; done 2>{SECOND}/watcher.log"
    seconds = 120 + FSX_OPERATIONS // 100
    watcher = threading.Thread(target=inside, args=(["bash", "-c", loop], seconds))
    watcher.start()
    command = [TOOLS / "bin/fsx", "-q", "-f", path, "-N", FSX_OPERATIONS, "-S", 5, "-P", SECOND, name]
    output, status = inside(command, seconds)
    stop.touch()
    watcher.join()
    return [f"fsx watched: status {status}: {output.strip().splitlines()[-1:]}"] if status else []


def writers(file, options):
    """Several processes that write one file, each its own stripes of it: what is wrong. fsx wants a file for itself."""
    program, name, outcome = SECOND / "writers", MOUNT / file, []
    subprocess.run(["gcc", "-O1", "-o", program, HERE / "writers.c"], check=True)
    threads = [threading.Thread(target=lambda o=o: outcome.append(inside([program, name, *o], 120 + FSX_OPERATIONS // 100))) for o in options]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return [f"two writers of one file: status {status}: {output.strip().splitlines()[-1:]}" for output, status in outcome if status]


def fsx():
    wrong, passed = [], 0
    for name, config in FSX.items():
        path = SECOND / f"{name}.toml"
        path.write_text(config)
        for seed in FSX_SEEDS:
            command = [TOOLS / "bin/fsx", "-q", "-f", path, "-N", FSX_OPERATIONS, "-S", seed, "-P", SECOND, MOUNT / f"fsx-{name}"]
            output, status = inside(command, 120 + FSX_OPERATIONS // 100)
            if status:
                log = TARGET / f"fsx-{name}-{seed}.log"
                log.write_text(output)
                wrong.append(f"fsx {name} seed {seed}: status {status}: {log}: {output.strip().splitlines()[-1:]}")
            else:
                passed += 1
    pair = fsx_pair(SECOND / "mmap.toml")
    watched = fsx_watched(SECOND / "mmap.toml")
    # Through a mount pages of mapped files go to the pool whole, with what neighbours wrote before: docs/fuse.md.
    shared = [] if FUSE else writers("fsx-writers", [[number, 2, 10 * FSX_OPERATIONS, 6 + number] for number in (0, 1)])
    wrong, passed = wrong + pair + watched + shared, passed + (3 if FUSE else 5) - len(pair) - len(watched) - len(shared)
    # Canary: a write that is left out must be noticed (step 104 of seed 1 is one that matters).
    canary = ["-q", "-N", 2000, "-S", 1, "--inject", 104, "-P", SECOND, MOUNT / "fsx-canary"]
    if inside([TOOLS / "bin/fsx", *canary], 60)[1] == 0:
        wrong.append("fsx missed an injected error: this harness cannot be trusted")
    if not FUSE and "wrote" not in str(writers("fsx-liar", [[0, 1, 2000, 3, "lie"]])):
        wrong.append("writers of one file missed a write that was left out: this harness cannot be trusted")
    print(f"fsx: {passed} runs of {FSX_OPERATIONS} operations ok")
    return wrong, passed


def main():
    chosen = sys.argv[1:] or ["pjdfstest", "fsx"]
    if "pjdfstest" in chosen and os.geteuid() != 0:
        print("pjdfstest: needs root, left out")
        chosen.remove("pjdfstest")
    if FUSE and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("conformance: /dev/fuse cannot be used, left out")
        return 0
    install()
    wrong, passed = [], 0
    try:
        prepare()
        for suite in chosen:
            more, good = {"pjdfstest": pjdfstest, "fsx": fsx}[suite]()
            wrong, passed = wrong + more, passed + good
        if FUSE:
            subprocess.run([NACRE, "umount", str(MOUNT)], check=True)
        if not consistent():
            wrong.append("nacre check finds problems, or copies differ")
        if COPIES > 1 and not canary_of_copies():
            wrong.append("a byte that one copy lacks was not noticed: this harness cannot be trusted")
    finally:
        if os.path.ismount(MOUNT):
            subprocess.run(["umount", "--lazy", str(MOUNT)], check=False)
        if pool().exists():
            subprocess.run([NACRE, "delete", "--force", str(pool())], stdout=subprocess.DEVNULL, check=False)
        if DISK:
            shutil.rmtree(pool().parent, ignore_errors=True)
        shutil.rmtree(BASE, ignore_errors=True)
        shutil.rmtree(SECOND, ignore_errors=True)
    for line in wrong:
        print(f"FAILED: {line}")
    print(f"conformance: {passed} passed, {len(wrong)} failed")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
