"""The pool of a life: how it is made, its files, and the processes that use it. For lives.py."""

import glob
import os
import select
import shutil
import signal
import subprocess
import time

from places import MIB, Files, Loops

# Nothing takes so long that does not hang.
HANG = 240
NACRE = os.environ.get("NACRE", "nacre")
MOUNT = os.environ.get("MOUNT", "/nacre")

# How `nacre create` makes a pool: where, how many files, with which words. `cached`: what is not synced is lost with
# memory. `whole`: of a write nothing or all is done. `loops`: the devices are block devices. `host`: MiB of a file system
# of their own, which may be full. `group`: MiB that all processes may use together.
KINDS = {
    "disk": {"devices": 1, "spread": True, "cached": True},
    "small-cache": {"devices": 1, "cached": True, "words": ["--cache", "1M"]},
    "disk-direct": {"devices": 1, "spread": True, "words": ["--mode", "direct"]},
    "disk-atomic": {"devices": 1, "words": ["--mode", "atomic"], "whole": True},
    "copies": {"devices": 2, "cached": True, "words": ["--copies", "2"], "copies": True},
    "metadata": {"devices": 2, "cached": True, "words": ["--copies", "metadata=2"]},
    "stripe": {"devices": 2, "spread": True, "cached": True, "words": ["--stripe", "64K"]},
    "stripe-three": {"devices": 3, "spread": True, "cached": True, "words": ["--stripe", "4K", "--cache", "2M"]},
    "loop": {"devices": 1, "spread": True, "cached": True, "loops": True},
    "loop-copies": {"devices": 2, "cached": True, "words": ["--copies", "2"], "copies": True, "loops": True},
    "loop-stripe": {"devices": 3, "spread": True, "cached": True, "words": ["--stripe", "16K"], "loops": True},
    "full-host": {"devices": 1, "cached": True, "host": 200},
    "full-host-stripe": {"devices": 2, "cached": True, "words": ["--stripe", "64K"], "host": 300},
    "small-group": {"devices": 1, "spread": True, "cached": True, "group": 64},
    "memory": {"devices": 1, "spread": True, "memory": True},
    "memory-atomic": {"devices": 1, "memory": True, "words": ["--mode", "atomic"], "whole": True},
    "memory-cached": {"devices": 1, "memory": True, "cached": True, "words": ["--mode", "cached"]},
    "memory-copies": {"devices": 2, "memory": True, "words": ["--copies", "2"], "copies": True},
    "memory-stripe": {"devices": 2, "spread": True, "memory": True, "words": ["--stripe", "4K"]},
    "behind": {"devices": 1, "memory": True, "words": ["--behind", "{home}/behind=64M"], "size": "24M"},
    "saved": {"devices": 1, "memory": True, "cached": True, "saved": True},
}


class Fault(Exception):
    """Something did not go as it must."""


def fault_unless(condition, text):
    if not condition:
        raise Fault(text)


class Pool:
    """Files of a pool, a session folder, and processes that carry a mark in their environment."""

    def __init__(self, kind, seed, options):
        self.kind = kind
        about = KINDS[kind]
        self.cached, self.whole = about.get("cached", False), about.get("whole", False)
        self.copies, self.saved = about.get("copies", False), about.get("saved", False)
        self.on_memory = about.get("memory", False)
        self.size = about.get("size", "64M")
        self.words, self.count = about.get("words", []), about["devices"]
        self.mark = f"{os.getpid()}-{seed}"
        self.memory = os.path.join(options.memory, f"lives-{self.mark}")
        self.disk = os.path.join(options.disk, f"lives-{self.mark}")
        self.number = 0
        for folder in (self.memory, self.disk, self.at("session"), self.at("guest"), self.at("mounted")):
            os.mkdir(folder)
        self.host = self.made_host(about["host"]) if "host" in about else None
        self.group = self.made_group(about["group"]) if "group" in about else None
        self.home = os.path.join(self.host or (self.memory if self.on_memory else self.disk), "home")
        os.mkdir(self.home)
        self.places = (Loops if about.get("loops") else Files)(self)
        self.devices = [self.places.new(name) for name in "abc"[: self.count]]
        self.spread = about.get("spread", False)
        # How often files were added, how often it grew, and the disks behind it.
        self.made = self.growths = 0
        self.behind = [f"{self.home}/behind"] if kind == "behind" else []
        self.started, self.known = [], {}

    def at(self, name):
        """A place outside of the pool."""
        return os.path.join(self.memory, name)

    def out(self):
        """Where a dump goes: whoever writes to memory has so much less of that of the group."""
        return os.path.join(self.disk, "dump") if self.group else self.at("dump")

    @property
    def name(self):
        """A device that is there."""
        return f"{self.disk}/saved" if self.saved else next(filter(self.places.is_there, self.devices), self.devices[0])

    def make(self):
        if self.saved:
            status = self.end_of(self.start(self.run("true", words=["--size", self.size])), "the first run")
            fault_unless(status == 0, f"the first run ends with {status}")
            return
        words = [word.format(home=self.home) for word in self.words]
        self.ok("create", "-q", *self.places.size_words(), *words, *self.devices)
        for device in self.devices if self.host else []:
            # With holes where nothing is.
            self.places.copy(device, f"{device}.sparse")
            os.rename(f"{device}.sparse", device)

    # ---- what is below it and around it

    def made_host(self, size):
        """A small file system."""
        image, folder = os.path.join(self.disk, "host.img"), os.path.join(self.disk, "host")
        with open(image, "wb") as file:
            file.truncate(size * MIB)
        os.mkdir(folder)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True)
        return folder

    def fill_host(self, spare):
        """But for so many bytes nothing more can be written to it."""
        filler = os.path.join(self.host, "filler")
        full = f"cat /dev/zero >{filler} 2>/dev/null; truncate -s -{spare} {filler}"
        subprocess.run(["/bin/sh", "-c", full], check=True)

    def make_room_on_host(self):
        os.unlink(os.path.join(self.host, "filler"))

    def made_group(self, size):
        """A control group whose processes have so much memory."""
        with open("/proc/self/cgroup") as file:
            own = next(line.rstrip("\n").split(":")[2] for line in file if ":memory:" in line)
        group = f"/sys/fs/cgroup/memory{own}/lives-{self.mark}"
        os.mkdir(group)
        with open(f"{group}/memory.limit_in_bytes", "w") as file:
            file.write(str(size * MIB))
        return group

    # ---- processes

    def environment(self, guest=False):
        session = self.at("guest" if guest else "session")
        return {**os.environ, "LIFE": self.mark, "NACRE_SESSION_DIR": session}

    def start(self, words, guest=False):
        self.number += 1
        said = self.at(f"said.{self.number}")
        if self.group:
            words = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', f"{self.group}/cgroup.procs", *words]
        with open(said, "w") as file:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                       env=self.environment(guest), start_new_session=True, cwd="/")
        process.said = said
        self.started.append(process)
        return process

    def end_of(self, process, what):
        try:
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            raise Fault(f"{what} hangs: {said_by(process)}{self.stacks()}") from None
        if process in self.started:
            self.started.remove(process)
        return process.returncode

    def nacre(self, *words, guest=False):
        """Status and output of a command."""
        process = self.start([NACRE, *words], guest)
        status = self.end_of(process, f"nacre {' '.join(words)}")
        said = said_by(process)
        fault_unless("panicked" not in said, f"nacre {' '.join(words)}: {said}")
        os.unlink(process.said)
        return status, said

    def ok(self, *words, guest=False):
        status, said = self.nacre(*words, guest=guest)
        fault_unless(status == 0, f"nacre {' '.join(words)}: status {status}: {said}")
        return said

    def refused(self, *words, because, guest=False):
        status, said = self.nacre(*words, guest=guest)
        fault_unless(status != 0, f"nacre {' '.join(words)} was not refused: {said}")
        fault_unless(because in said, f"nacre {' '.join(words)} was refused without '{because}': {said}")

    def run(self, *program, words=()):
        how = ["--save-to", self.name, "--every", "1h"] if self.saved else []
        name = self.devices[0] if self.saved else self.name
        return [NACRE, "run", "-q", "--pool", name, "--mount", MOUNT, *how, *words, "--", *program]

    def processes(self):
        """Pids with what they were started as; also those that only our processes started."""
        mark = f"\0LIFE={self.mark}\0".encode()
        found = {}
        for entry in glob.glob("/proc/[0-9]*"):
            try:
                with open(f"{entry}/environ", "rb") as file:
                    if mark not in b"\0" + file.read():
                        continue
                with open(f"{entry}/cmdline", "rb") as file:
                    found[int(entry[6:])] = file.read().replace(b"\0", b" ").decode()
                self.know(int(entry[6:]))
            except OSError:
                continue
        return found

    def know(self, pid):
        """Of who has lost its memory nothing tells any more whose it is; it may still hold files."""
        if pid not in self.known:
            self.known[pid] = os.pidfd_open(pid)

    def are_gone(self):
        """All processes that were seen, with all that they held."""
        for pid, fd in list(self.known.items()):
            if select.select([fd], [], [], 0)[0]:
                os.close(self.known.pop(pid))
        return not self.known and not self.processes()

    def kill(self, pids, number=signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill_all(self):
        """Nothing of this life runs behind it."""
        self.soon(lambda: not self.kill(self.processes()) and self.are_gone(), "the end of killed processes")
        for process in list(self.started):
            self.end_of(process, "a killed process")

    def soon(self, condition, what):
        end = time.monotonic() + HANG
        while not condition():
            fault_unless(time.monotonic() < end, f"waited too long for {what}: {self.processes()}{self.stacks()}")
            time.sleep(0.005)

    def stacks(self):
        lines = []
        for pid, words in self.processes().items():
            try:
                with open(f"/proc/{pid}/wchan") as file:
                    lines.append(f"\n    {pid} {words}: {file.read()}")
            except OSError:
                continue
        return "".join(lines)

    def nobody_is_left(self):
        self.soon(self.are_gone, "the end of all processes")

    # ---- what lies on devices and in memory

    def lose_memory(self, guest=False):
        folder = self.at("guest" if guest else "session")
        shutil.rmtree(folder)
        os.mkdir(folder)
        if self.saved:
            for path in self.devices:
                if os.path.lexists(path):
                    os.unlink(path)

    def left_in_memory(self):
        """But for plans of patches, which are no pool's."""
        return sorted(set(os.listdir(self.at("session"))) - {f"nacre-{os.geteuid()}"})

    def copy_to(self, folder):
        """Copies of all files, by their names."""
        os.makedirs(folder)
        for path in self.files():
            self.places.copy(path, folder)

    def files(self):
        return [self.name] if self.saved else [*filter(self.places.is_there, self.devices), *self.behind]

    def unmount(self):
        """Whatever became of who served it."""
        subprocess.run(["umount", "-l", self.at("mounted")], check=False, stderr=subprocess.DEVNULL)

    def leave(self, keep):
        self.kill_all()
        self.unmount()
        if self.group:
            os.rmdir(self.group)
        if keep:
            print(f"  left: {self.memory} {self.disk}", flush=True)
            return
        self.places.close()
        if self.host:
            subprocess.run(["umount", self.host], check=True)
        shutil.rmtree(self.memory)
        shutil.rmtree(self.disk)


def said_by(process):
    """What a process has told; it is forgotten."""
    try:
        with open(process.said, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
