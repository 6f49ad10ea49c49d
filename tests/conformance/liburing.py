#!/usr/bin/python3
"""Runs the tests of liburing (Debian's source package) in a folder of a pool.

    tests/conformance/liburing.py              all that apply
    tests/conformance/liburing.py read-write   some
    DISK=1 tests/conformance/liburing.py       the same in a pool on the disk of the target folder, of which memory
                                               holds 1 MiB: what would wait for the disk completes later

Environment: NACRE (binary), CARGO_TARGET_DIR. What is left out or fails, and why:
liburing-exceptions.txt. A test that fails, and is not listed, is run without Nacre, too: if it
fails there it says nothing about pools.
"""

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NACRE = os.environ.get("NACRE", str(TARGET / "release/nacre"))
TOOLS = TARGET / "conformance"
DISK = bool(os.environ.get("DISK"))
BASE = (TARGET if DISK else pathlib.Path("/dev/shm")) / f"nacre-liburing-{os.getpid()}"
VERSION = "2.3"
SOURCE = f"http://deb.debian.org/debian/pool/main/libu/liburing/liburing_{VERSION}.orig.tar.gz"
SHA256 = "2eac26f880125d83f75ba8641fde5d88226dd352d3cee95d45a9128758a8f1be"
TESTS = TOOLS / f"liburing-{VERSION}" / "test"
SECONDS = 20
PASSED, SKIPPED_ITSELF = 0, 77


def install():
    """Fetches and builds the tests once."""
    if (TESTS / "built").exists():
        return
    TOOLS.mkdir(parents=True, exist_ok=True)
    archive = TOOLS / "liburing.tar.gz"
    with urllib.request.urlopen(SOURCE, timeout=120) as answer:
        archive.write_bytes(answer.read())
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SHA256, f"{SOURCE} has another checksum: {found}"
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(TOOLS)], check=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["./configure"], cwd=TESTS.parent, check=True, **quiet)
    subprocess.run(["make", "-j2", "-C", "src"], cwd=TESTS.parent, check=True, **quiet)
    # Some do not compile with other headers of the kernel than theirs.
    subprocess.run(["make", "-j2", "-k", "-C", "test"], cwd=TESTS.parent, check=False, **quiet)
    assert len(list(TESTS.glob("*.t"))) > 100, "the tests of liburing were not built"
    (TESTS / "built").touch()


def exceptions():
    listed = {}
    for line in (HERE / "liburing-exceptions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, kind, reason = line.split(" ", 2)
            listed[name] = (kind, reason)
    return listed


def run(test, folder):
    """Its exit status; that of a killed one is not 0."""
    folder.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        [str(test)], cwd=folder, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        return child.wait(SECONDS)
    except subprocess.TimeoutExpired:
        return "still running"
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def inside(names):
    """Under `nacre run`: one line for each test."""
    for name in names:
        print(name, run(TESTS / f"{name}.t", pathlib.Path("/nacre/liburing")), flush=True)


def judge(results, listed):
    bad = 0
    count = {"passed": 0, "skipped itself": 0, "fails as listed": 0, "fails without Nacre": 0}
    for name, status in results.items():
        expected = listed.get(name, ("", ""))[0]
        if status == str(PASSED) and expected == "fails":
            print(f"{name}: passes, so it leaves liburing-exceptions.txt")
            bad += 1
        elif status == str(PASSED):
            count["passed"] += 1
        elif expected == "fails":
            count["fails as listed"] += 1
        elif status == str(SKIPPED_ITSELF):
            count["skipped itself"] += 1
        elif run(TESTS / f"{name}.t", BASE / "plain") == PASSED:
            print(f"{name}: {status} on a pool, and passes without Nacre")
            bad += 1
        else:
            count["fails without Nacre"] += 1
    counts = ", ".join(f"{many} {what}" for what, many in count.items())
    print(f"liburing: {counts}, {bad} findings")
    return bad == 0 and count["passed"] > 0


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2:])
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    disabled = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
    if release < (6, 10) or (disabled.exists() and disabled.read_text().strip() != "0"):
        print("liburing: skipped, this kernel has no rings that Nacre can serve (Linux 6.10)")
        return None
    install()
    listed = exceptions()
    names = sys.argv[1:] or sorted(test.stem for test in TESTS.glob("*.t"))
    names = [name for name in names if listed.get(name, ("",))[0] != "skipped"]
    BASE.mkdir(mode=0o755)
    pool = BASE / "pool"
    try:
        cache = ["--cache", "1M"] if DISK else []
        subprocess.run([NACRE, "create", "--size", "1G", *cache, str(pool)], check=True, stdout=subprocess.DEVNULL)
        command = [NACRE, "run", "--quiet", "--pool", str(pool), "--mount", "/nacre", "--"]
        command += [sys.executable, str(HERE / "liburing.py"), "--inside", *names]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1500).stdout
        results = dict(line.split(" ", 1) for line in told.splitlines())
        assert list(results) == names, "some tests were not run"
        subprocess.run([NACRE, "check", str(pool)], check=True, stdout=subprocess.DEVNULL)
        print("canary:")
        assert not judge({"nop": "1", "timeout": "0"}, {}), "a failure on a pool alone was not noticed"
        sys.exit(0 if judge(results, listed) else 1)
    finally:
        subprocess.run([NACRE, "delete", "--force", str(pool)], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(BASE, ignore_errors=True)


main()
