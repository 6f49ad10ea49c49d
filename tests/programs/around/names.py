"""Changes names at random in one tree through two front ends, beside a tree on tmpfs that says what is right.

    names.py worker ROOT               does what its standard input says, below ROOT
    names.py model SEED STEPS A B C    A, B: commands that start workers on one tree; C: one on tmpfs
    names.py storm SEED STEPS A B      both at once, renaming alone: no file is lost or doubled

With CANARY=1 the first worker does not say the truth once in a while: the model must find it.
"""

import ctypes
import errno
import json
import os
import random
import shlex
import stat
import subprocess
import sys

NOREPLACE, EXCHANGE = 1, 2
AT_FDCWD = -100
LIBC = ctypes.CDLL(None, use_errno=True)
NAMES = ["a", "b", "c", "d", "e", "one", "two", "three", "a name with spaces", "é" * 60]
KINDS = ["create"] * 5 + ["mkdir"] * 4 + ["rename"] * 4 + ["noreplace"] * 4 + ["exchange"] * 3
KINDS += ["link", "link", "symlink", "write", "write", "chmod", "unlink", "rmdir"]


def renameat2(old, new, flags):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def create(path, text):
    with open(path, "x") as file:
        file.write(text)


def write(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with open(fd, "a") as file:
        file.write(text)


DOES = {
    "create": create,
    "write": write,
    "mkdir": lambda path, _: os.mkdir(path),
    "rmdir": lambda path, _: os.rmdir(path),
    "unlink": lambda path, _: os.unlink(path),
    "link": lambda old, new: os.link(old, new, follow_symlinks=False),
    "symlink": lambda path, text: os.symlink(text, path),
    "chmod": lambda path, text: os.chmod(path, 0o600 + len(text) % 64),
    "rename": os.rename,
    "noreplace": lambda old, new: renameat2(old, new, NOREPLACE),
    "exchange": lambda old, new: renameat2(old, new, EXCHANGE),
}


def seen(path):
    """What anybody can see of one name."""
    found = os.lstat(path)
    line = f"{stat.filemode(found.st_mode)} {found.st_nlink}"
    if stat.S_ISLNK(found.st_mode):
        return f"{line} -> {os.readlink(path)}"
    if stat.S_ISREG(found.st_mode):
        with open(path) as file:
            return f"{line} {found.st_size} {file.read()}"
    return line


def tree():
    """Each name with what can be seen of it."""
    found = {".": seen(".")}
    for folder, folders, files in os.walk("."):
        found |= {path: seen(path) for path in (os.path.join(folder, name) for name in folders + files)}
    return found


def outcome(kind, arguments, again=False):
    if kind == "tree":
        return tree()
    try:
        DOES[kind](*arguments)
    except OSError as error:
        if error.errno == errno.ESTALE and not again:
            return looked_up(kind, arguments)
        return errno.errorcode[error.errno]
    return "done"


def looked_up(kind, arguments):
    """The kernel refuses a rename that meets a folder which the other front end has moved, until somebody has
    looked it up (docs/fuse.md)."""
    for path in arguments:
        os.path.lexists(path)
    return outcome(kind, arguments, again=True)


def worker(root):
    lies = 0
    # Not the working directory of the front end: paths go through its root each time.
    os.chdir(root)
    for line in sys.stdin:
        kind, *arguments = json.loads(line)
        lies += kind == "rename"
        if os.environ.get("LIES") and lies == 50 and kind == "rename":
            found = "done"
        else:
            found = outcome(kind, arguments)
        print(json.dumps(found), flush=True)


class Worker:
    def __init__(self, command, lies=False):
        environment = dict(os.environ, LIES="1") if lies else None
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(shlex.split(command), stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else sys.exit("a worker has died")

    def does(self, *words):
        self.ask(*words)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("a worker has failed")


def some_path(rng, known):
    """Most of their folders, and half of them themselves, were there a moment ago."""
    if known and rng.randrange(2):
        return rng.choice(known)
    folders = [path for path in known if path.count("/") < 4]
    return os.path.join(rng.choice(folders or ["."]), rng.choice(NAMES))


def some_step(rng, step, known):
    kind = rng.choice(KINDS)
    if kind in ("rename", "noreplace", "exchange", "link"):
        return kind, some_path(rng, known), some_path(rng, known)
    return kind, some_path(rng, known), f"{step} " + "x" * rng.randrange(40)


def differs(step, what, expected, found):
    lines = [f"step {step}: {what}"]
    if isinstance(expected, dict):
        lines += [f"  right: {path} {shape}" for path, shape in expected.items() if found.get(path) != shape]
        lines += [f"  found: {path} {shape}" for path, shape in found.items() if expected.get(path) != shape]
    else:
        lines.append(f"  right: {expected}\n  found: {found}")
    sys.exit("\n".join(lines))


def model(seed, steps, *commands):
    rng = random.Random(seed)
    first, second, right = (Worker(command, lies) for command, lies in zip(commands, ("CANARY" in os.environ, 0, 0)))
    done, known = 0, []
    for step in range(steps):
        words = some_step(rng, step, known)
        who = rng.choice((first, second))
        expected, found = right.does(*words), who.does(*words)
        done += found == "done"
        if expected != found:
            differs(step, f"{'first' if who is first else 'second'} {words}", expected, found)
        if step % 25 == 24:
            expected = right.does("tree")
            known = sorted(path for path in expected if path != ".")
            for name, one in (("first", first), ("second", second)):
                if (found := one.does("tree")) != expected:
                    differs(step, f"the {name} sees", expected, found)
    for one in (first, second, right):
        one.end()
    print(f"{steps} steps, {done} succeeded, {len(expected)} names at the end")


def storm(seed, steps, *commands):
    rng = random.Random(seed)
    both = [Worker(command) for command in commands]
    folders = [f"s{number}" for number in range(3)]
    for folder in folders:
        both[0].does("mkdir", folder, "")
    names = [f"{folder}/{number}" for folder in folders for number in range(12)]
    made = sorted(f"file {number}" for number in range(20))
    for name, text in zip(names, made):
        both[0].does("create", name, text)
    done = 0
    for _ in range(steps):
        # Several at once in each pipe: the two front ends meet.
        for one in both:
            for _ in range(8):
                one.ask(rng.choice(("noreplace", "exchange")), rng.choice(names), rng.choice(names))
        done += sum(one.answer() == "done" for one in both for _ in range(8))
    trees = [one.does("tree") for one in both]
    if trees[0] != trees[1]:
        differs(steps, "the two front ends see different trees", *trees)
    left = sorted(shape.split(" ", 3)[3] for shape in trees[0].values() if shape.startswith("-"))
    if left != made:
        differs(steps, "files", made, left)
    for one in both:
        one.end()
    print(f"{done} of {16 * steps} renames succeeded")


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2])
    else:
        {"model": model, "storm": storm}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
