"""What the test of `nacre top` needs: a program that works when told, and who looks at the reports."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

CREATED = 300
SYNCED = 20
READ = 4 << 20


def work(pipe):
    """Makes and removes files, syncs and reads, once for each line."""
    answers = open(pipe + ".done", "w")
    lines = open(pipe)
    # Who uses nothing of a pool yet is none of its programs.
    open("/nacre/file", "w").close()
    print("ready", file=answers, flush=True)
    for _ in lines:
        for number in range(CREATED):
            open(f"/nacre/new-{number}", "w").close()
            os.unlink(f"/nacre/new-{number}")
        file = os.open("/nacre/file", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, os.urandom(READ), 0)
        for number in range(SYNCED):
            os.pwrite(file, b"x" * 4096, number * 4096)
            os.fsync(file)
        for place in range(0, READ, 1 << 16):
            os.pread(file, 1 << 16, place)
        os.close(file)
        print("done", file=answers, flush=True)


class Reports:
    """Reports of `nacre top`, one after the other."""

    def __init__(self, nacre, *pools):
        command = [nacre, "top", "--json", "--every", "200ms", *pools]
        self.commit_ms = 0
        self.top = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def next(self):
        line = self.top.stdout.readline()
        return json.loads(line) if line else sys.exit("FAILED: no report")

    def end(self):
        self.top.kill()
        self.top.wait()


def check(what, holds, report):
    if not holds:
        sys.exit(f"FAILED: {what}: {json.dumps(report)}")
    print("--", what)


def watch(nacre, memory, disk, *pipes):
    to_memory, memory_done, to_disk, disk_done = map(int, pipes)
    reports = Reports(nacre, memory, disk)
    try:
        told(reports, (memory, disk), ((to_memory, memory_done), (to_disk, disk_done)))
    finally:
        reports.end()


def told(reports, paths, pipes):
    reports.next()
    quiet = reports.next()
    for pool, path in zip(quiet["pools"], paths):
        check("it is named as it was", pool["pool"] == path, pool)
        check("nothing is done, nothing is told", pool["per_second"]["changes"] == 0, pool)
        check("its program is known", "python3" in [one["command"] for one in pool["programs"]], pool)
        check("who looks is none", all(one["pid"] != reports.top.pid for one in pool["programs"]), pool)
    for number, (to, done) in enumerate(pipes):
        busy = while_working(reports, number, to, done)
        check("changes", busy["changes"] >= 2 * CREATED, busy)
        if number == 1:
            check("commits", busy["commits"] >= SYNCED, busy)
            check("what a commit took", reports.commit_ms > 0, busy)
            check("journal", busy["journal_bytes"] >= SYNCED * 4096, busy)
            check("reads", busy["read_bytes"] >= READ, busy)
        else:
            check("no disk, no commits", "commits" not in busy, busy)


def while_working(reports, number, to, done):
    """What all reports told of one pool, from before the work to after it."""
    os.write(to, b"go\n")
    sums, ready = {}, False
    while not ready:
        # Looked at first: the report that follows has all of it.
        ready = bool(select.select([done], [], [], 0)[0])
        for _ in range(1 + ready):
            report = reports.next()
            rates = report["pools"][number]["per_second"]
            reports.commit_ms = (rates["disk"] or {}).get("commit_ms") or reports.commit_ms
            for name, rate in [*rates.items(), *(rates["disk"] or {}).items()]:
                if isinstance(rate, float):
                    sums[name] = sums.get(name, 0) + rate * report["seconds"]
    os.read(done, 100)
    return {name: round(sum) for name, sum in sums.items()}


def screen(disk):
    """Looks at the first picture, types q, and finds the terminal as it was."""
    terminal, inner = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    before = termios.tcgetattr(terminal)
    command, surroundings = [os.environ["NACRE"], "top", "--every", "100ms", disk], {**os.environ, "TERM": "xterm"}
    top = subprocess.Popen(command, stdin=inner, stdout=inner, env=surroundings)
    seen, end = b"", time.monotonic() + 60
    while not (b"commits/s" in seen and b"python3" in seen):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            top.kill()
            sys.exit(f"FAILED: waited in vain for a picture; seen: {seen!r}")
        seen += os.read(terminal, 65536)
    check("its own mode while it shows something", termios.tcgetattr(terminal) != before, "as before")
    os.write(terminal, b"q")
    while top.poll() is None and time.monotonic() < end + 60:
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 65536)
    if top.poll() != 0:
        sys.exit(f"FAILED: q: status {top.poll()}")
    if termios.tcgetattr(terminal) != before:
        sys.exit("FAILED: the terminal is not as it was")
    print("-- a picture, and q")


if __name__ == "__main__":
    {"work": work, "watch": watch, "screen": screen}[sys.argv[1]](*sys.argv[2:])
