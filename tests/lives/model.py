"""What a folder of a pool must hold: the model of lives.py.

A tree is what a folder holds at one moment. An actor is a folder with the lines that a program was given to do there,
and the numbers of those that are surely there. The program is program.c, whose lines these are.
"""

import os
import stat

RECORD = 16
LARGEST = 150_000
MIXED = ("write", "punch")
MAPPED = ("mapped", "msync")
SYNCING = ("dsync", "osync", "rwf", "msync")
NAMES = [f"f{n}" for n in range(14)]
FOLDERS = [f"d{n}" for n in range(4)]


class Lost(Exception):
    """A pool does not hold what it must."""


def contents(at, size, tag):
    """What program.c writes: bytes that tell whose they are."""
    first, last = at // RECORD, (at + size) // RECORD + 1
    whole = b"".join(b"%08x%08x" % (tag, number) for number in range(first, last))
    return whole[at - first * RECORD :][:size]


class Node:
    """A file, folder or link; `time` is None where no call has set it last."""

    def __init__(self, kind, mode, data=b""):
        self.kind, self.mode, self.time, self.attributes, self.data = kind, mode, None, {}, bytearray(data)

    def copy(self):
        node = Node(self.kind, self.mode, self.data)
        node.time, node.attributes = self.time, dict(self.attributes)
        return node


class Tree:
    """What is below a folder, by path; two paths of one node are links."""

    def __init__(self):
        self.nodes = {}

    def copy(self):
        tree, of = Tree(), {}
        for path, node in self.nodes.items():
            if id(node) not in of:
                of[id(node)] = node.copy()
            tree.nodes[path] = of[id(node)]
        return tree

    def paths(self, kinds):
        return [path for path, node in self.nodes.items() if node.kind in kinds]

    def is_empty(self, folder):
        return not any(path.startswith(folder + "/") for path in self.nodes)

    def apply(self, line):
        """Does what a line says; ("become", tree) is what was found behind a half done one."""
        what, *rest = line
        if what == "become":
            self.nodes = rest[0].copy().nodes
            return
        getattr(self, "do_" + what)(*rest)

    def do_sync(self, path, how):
        pass

    def do_create(self, path, mode):
        self.nodes[path] = Node("f", int(mode, 8))

    def do_mkdir(self, path, mode):
        self.nodes[path] = Node("d", int(mode, 8))

    def do_symlink(self, path, target):
        self.nodes[path] = Node("l", 0o777, target.encode())

    def do_link(self, old, new):
        self.nodes[new] = self.nodes[old]

    def do_unlink(self, path):
        del self.nodes[path]

    do_rmdir = do_unlink

    def do_chmod(self, path, mode):
        self.nodes[path].mode = int(mode, 8)

    def do_time(self, path, seconds, nanoseconds):
        self.nodes[path].time = int(seconds) * 10**9 + int(nanoseconds)

    def do_set(self, path, name, value):
        self.nodes[path].attributes[name] = value

    def do_unset(self, path, name):
        del self.nodes[path].attributes[name]

    def do_rename(self, old, new):
        if self.nodes[old] is self.nodes.get(new):
            return
        for path in [path for path in self.nodes if path == old or path.startswith(old + "/")]:
            self.nodes[new + path[len(old) :]] = self.nodes.pop(path)

    def do_exchange(self, one, other):
        self.nodes[one], self.nodes[other] = self.nodes[other], self.nodes[one]

    def do_truncate(self, path, size):
        node, size = self.nodes[path], int(size)
        node.time = None
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))

    def do_write(self, path, at, size, tag, how):
        node, at, size = self.nodes[path], int(at), int(size)
        node.time = None
        node.data.extend(bytes(max(0, at - len(node.data))))
        node.data[at : at + size] = contents(at, size, int(tag))

    def do_punch(self, path, at, size):
        node, at = self.nodes[path], int(at)
        node.time = None
        end = min(at + int(size), len(node.data))
        if at < end:
            node.data[at:end] = bytes(end - at)

    def differs(self, found, but=None):
        """What `found` has otherwise, or None; `but` is a node whose bytes are not looked at."""
        missing, foreign = self.nodes.keys() - found.nodes.keys(), found.nodes.keys() - self.nodes.keys()
        if missing or foreign:
            return f"names: missing {sorted(missing)}, foreign {sorted(foreign)}"
        for path, node in self.nodes.items():
            told = differs(node, found.nodes[path], node is but)
            if told:
                return f"{path}: {told}"
        return self.links_differ(found)

    def links_differ(self, found):
        pairs = {(id(node), id(found.nodes[path])) for path, node in self.nodes.items()}
        if len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs):
            return None
        return "links: other names are of one file"

    def mixed(self, line, found, halves):
        """The tree in the middle of a line, if `found` is that. `halves`: what a write call that did not return may leave
        of bytes before and behind it. What is mapped or punched has none of it."""
        if line[0] not in MIXED:
            return None
        is_call = line[0] == "write" and line[-1] not in MAPPED
        is_half = halves if is_call else is_between
        after = self.copy()
        after.apply(line)
        path = line[1]
        if path not in found.nodes or self.differs(found, self.nodes[path]):
            return None
        if not is_half(found.nodes[path].data, self.nodes[path].data, after.nodes[path].data):
            return None
        after.nodes[path].data = bytearray(found.nodes[path].data)
        return after


def is_between(data, old, new):
    if not min(len(old), len(new)) <= len(data) <= max(len(old), len(new)):
        return False
    old, new = (bytes(one) + bytes(len(data)) for one in (old, new))
    return all(byte in (old[at], new[at]) for at, byte in enumerate(data))


def is_first_part(data, old, new):
    """What a call leaves that is done as a whole, but of fewer bytes: so many as there was room for."""
    done = next((at for at, byte in enumerate(data) if at >= len(new) or byte != new[at]), len(data))
    return data[done:] == old[done:]


def is_nothing(_data, _old, _new):
    return False


def differs(node, found, but_bytes):
    if (node.kind, node.mode) != (found.kind, found.mode):
        return f"is {found.kind} {found.mode:o}, not {node.kind} {node.mode:o}"
    if node.attributes != found.attributes:
        return f"attributes are {found.attributes}, not {node.attributes}"
    if but_bytes:
        return None
    if node.time is not None and node.time != found.time:
        return f"time is {found.time}, not {node.time}"
    if len(node.data) != len(found.data):
        return f"has {len(found.data)} bytes, not {len(node.data)}"
    if node.data == found.data:
        return None
    at = next(at for at, byte in enumerate(node.data) if byte != found.data[at])
    start = at - at % RECORD
    wrong, right = (bytes(one[start : start + RECORD]) for one in (found.data, node.data))
    return f"byte {at} of {len(node.data)}: {wrong} instead of {right}"


def read_dump(path):
    """What `lives dump` wrote: a tree of all that is there."""
    tree, inodes, kinds = Tree(), {}, {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}
    with open(path, "rb") as file:
        for line in file:
            name, mode, inode, _, time, size, *attributes = line.decode().rstrip("\n").split(" ")
            node = Node(kinds.get(stat.S_IFMT(int(mode, 8)), "?"), stat.S_IMODE(int(mode, 8)), file.read(int(size)))
            node.time = int(time)
            node.attributes = dict(one.split("=", 1) for one in attributes)
            tree.nodes[name] = inodes.setdefault(inode, node)
    return tree


def read_folder(root):
    """The same of a folder of the host, read by ourselves."""
    tree, inodes = Tree(), {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            tree.nodes[os.path.relpath(path, root)] = inodes.setdefault(found.st_ino, read_node(path, found))
    return tree


def read_node(path, found):
    if stat.S_ISLNK(found.st_mode):
        node = Node("l", 0o777, os.readlink(path).encode())
    elif stat.S_ISDIR(found.st_mode):
        node = Node("d", stat.S_IMODE(found.st_mode))
    else:
        with open(path, "rb") as file:
            node = Node("f", stat.S_IMODE(found.st_mode), file.read())
    node.time = found.st_mtime_ns
    node.attributes = {name: os.getxattr(path, name, follow_symlinks=False).decode()
                       for name in os.listxattr(path, follow_symlinks=False)}
    return node


class Script:
    """Lines for a program, each possible where the ones before have been done."""

    def __init__(self, chance, tree, attributes=True):
        self.chance, self.tree = chance, tree
        self.kinds = {"create": 12, "write": 34, "truncate": 8, "punch": 3, "rename": 8, "exchange": 2, "link": 3,
                      "symlink": 2, "unlink": 6, "mkdir": 4, "rmdir": 2, "chmod": 3, "time": 3, "set": 3, "unset": 1,
                      "sync": 8}
        if not attributes:
            del self.kinds["set"], self.kinds["unset"]

    def lines(self, count):
        done = []
        while len(done) < count:
            what, = self.chance.choices(list(self.kinds), self.kinds.values())
            line = getattr(self, "plan_" + what)()
            if line:
                line = (what, *map(str, line))
                self.tree.apply(line)
                done.append(line)
        return done

    def some(self, kinds):
        paths = self.tree.paths(kinds)
        return self.chance.choice(paths) if paths else None

    def new_name(self, names):
        folder = self.chance.choice(["", "", *self.tree.paths("d")])
        return os.path.join(folder, self.chance.choice(names))

    def unused(self, names):
        path = self.new_name(names)
        return None if path in self.tree.nodes or path.count("/") > 3 else path

    def mode(self):
        return f"{0o600 + self.chance.randrange(0o200):o}"

    def plan_create(self):
        path = self.unused(NAMES)
        return path and (path, self.mode())

    def plan_mkdir(self):
        path = self.unused(FOLDERS)
        return path and (path, f"{0o700 + self.chance.randrange(0o100):o}")

    def plan_symlink(self):
        path = self.unused(NAMES)
        return path and (path, f"to-{self.chance.randrange(10**self.chance.randrange(1, 40))}")

    def plan_write(self):
        path = self.some("f")
        if not path:
            return None
        has = len(self.tree.nodes[path].data)
        how = self.chance.choice(["plain"] * 8 + ["append"] * 4 + ["dsync", "osync", "rwf", "mapped", "msync"])
        at = has if how == "append" else self.chance.randrange(self.chance.choice([1, 5000, LARGEST]))
        size = self.chance.choice([1 + self.chance.randrange(300), 4096, 1 + self.chance.randrange(40_000)])
        if how in MAPPED:
            size = min(size, has - at)
        at = at - at % 4096 if self.chance.random() < 0.4 and how != "append" else at
        if size <= 0 or at + size > 2 * LARGEST:
            return None
        return path, at, size, self.chance.randrange(1 << 32), how

    def plan_truncate(self):
        path = self.some("f")
        return path and (path, self.chance.randrange(self.chance.choice([1, 5000, LARGEST])))

    def plan_punch(self):
        path = self.some("f")
        return path and (path, self.chance.randrange(LARGEST), 1 + self.chance.randrange(30_000))

    def plan_rename(self):
        old = self.some("fld")
        if not old:
            return None
        if self.tree.nodes[old].kind == "d":
            new = self.unused(FOLDERS)
            return None if not new or new.startswith(old + "/") or new.count("/") > 2 else (old, new)
        new = self.new_name(NAMES)
        return old, new

    def plan_exchange(self):
        one, other = self.some("fl"), self.some("fl")
        return (one, other) if one and one != other else None

    def plan_link(self):
        old, new = self.some("f"), self.unused(NAMES)
        return (old, new) if old and new else None

    def plan_unlink(self):
        path = self.some("fl")
        return path and (path,)

    def plan_rmdir(self):
        path = self.some("d")
        return (path,) if path and self.tree.is_empty(path) else None

    def plan_chmod(self):
        path = self.some("f")
        return path and (path, self.mode())

    def plan_time(self):
        path = self.some("f")
        return path and (path, self.chance.randrange(2 << 30), self.chance.randrange(10**9))

    def plan_set(self):
        path = self.some("fd")
        size = self.chance.choice([3, 3, 40, 1500])
        return path and (path, f"user.{self.chance.choice('abc')}", f"{self.chance.randrange(10**9):0{size}}")

    def plan_unset(self):
        path = self.some("fd")
        names = path and sorted(self.tree.nodes[path].attributes)
        return (path, self.chance.choice(names)) if names else None

    def plan_sync(self):
        how = self.chance.choice(["fsync"] * 4 + ["fdatasync", "syncfs", "sync"])
        return (self.some("f") if how == "fdatasync" else self.some("fd")) or ".", how


class Actor:
    """A folder that programs change: what it was when all of it was durable, and what was done since.

    `begun`, `kept` and `durable` are counts of lines: that may have been done, that surely are there where memory is
    kept, and where it is lost.
    """

    def __init__(self, tree=None):
        self.base, self.lines, self.begun, self.kept, self.durable = tree or Tree(), [], 0, 0, 0

    def now(self):
        tree = self.base.copy()
        for line in self.lines:
            tree.apply(line)
        return tree

    def settle(self, found, lost, halves):
        """Takes what was found for what is there, or raises Lost."""
        least, tree, first = self.durable if lost else self.kept, self.base.copy(), None
        for number in range(self.begun + 1):
            if number >= least:
                told = tree.differs(found)
                if not told:
                    return self.is_at(number)
                first = first or told
            if number == self.begun:
                break
            half = tree.mixed(self.lines[number], found, halves) if number >= least else None
            if half:
                self.lines[number] = ("become", half)
                return self.is_at(number + 1)
            tree.apply(self.lines[number])
        raise Lost(f"no state from {least} to {self.begun} is there; the first: {first}; the last: {told}")

    def is_at(self, number):
        del self.lines[number:]
        self.begun = self.kept = number
        self.durable = min(self.durable, number)

    def is_durable(self):
        self.base, self.lines, self.begun, self.kept, self.durable = self.now(), [], 0, 0, 0


class Within:
    """A tree of a moment while a program was at work: between a line that had returned and one that had begun."""

    def __init__(self, actor, kept, begun):
        self.actor = Actor(actor.base.copy())
        self.actor.lines, self.actor.kept, self.actor.begun = actor.lines[:begun], kept, begun

    def differs(self, found):
        """As that of a tree, which it is from then on."""
        try:
            self.actor.settle(found, False, is_nothing)
        except Lost as lost:
            return str(lost)
        return None

    def copy(self):
        return self.actor.now()


class Anything:
    """What a command that was killed left, whatever it is."""

    def differs(self, found):
        self.found = found
        return None

    def copy(self):
        return self.found


def write_folder(tree, root):
    """A tree as a folder of the host."""
    os.mkdir(root)
    for path, node in sorted(tree.nodes.items()):
        place = os.path.join(root, path)
        if node.kind == "d":
            os.mkdir(place)
        elif node.kind == "l":
            os.symlink(bytes(node.data), place)
        else:
            with open(place, "wb") as file:
                file.write(node.data)
        if node.kind != "l":
            os.chmod(place, node.mode)
