"""Says what access control lists do in a folder: one transcript for all file systems to agree on.

    acl.py FOLDER    as root; the folder is empty, and others may search it
"""

import errno
import os
import random
import stat
import struct
import subprocess
import sys

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF
USERS, GROUPS = (3001, 3002, 3003), (4001, 4002, 4003)
# uid, gid, supplementary groups
CALLERS = [
    (0, 0, []),
    (3001, 9, []),
    (3001, 4001, []),
    (3002, 4001, []),
    (3002, 9, [4002]),
    (3003, 4002, [4001, 4003]),
    (3003, 9, []),
    (3004, 4003, []),
    (3004, 9, [4001, 4002, 4003]),
    (3004, 9, []),
]


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def text_of(value):
    entries = struct.iter_unpack("<HHI", value[4:])
    return " ".join(f"{tag}:{allowed}:{'' if who == NOBODY else who}" for tag, allowed, who in entries)


def some_acl(rng):
    entries = [(OWNER, rng.randrange(8), NOBODY)]
    entries += [(USER, rng.randrange(8), who) for who in sorted(rng.sample(USERS, rng.randrange(4)))]
    entries.append((GROUP_OBJ, rng.randrange(8), NOBODY))
    entries += [(GROUP, rng.randrange(8), who) for who in sorted(rng.sample(GROUPS, rng.randrange(4)))]
    if any(tag in (USER, GROUP) for tag, _, _ in entries) or rng.randrange(3) == 0:
        entries.append((MASK, rng.choice([0, 1, 4, 5, 6, 7]), NOBODY))
    return acl(*entries, (OTHER, rng.randrange(8), NOBODY))


def outcome(call, *args, **named):
    try:
        return call(*args, **named)
    except OSError as error:
        return errno.errorcode[error.errno]


def lists_of(path):
    """Of a path or of an open file."""
    named = {} if isinstance(path, int) else {"follow_symlinks": False}
    found = []
    for name in (ACCESS, DEFAULT):
        value = outcome(os.getxattr, path, name, **named)
        found.append(value if isinstance(value, str) else text_of(value))
    mode = os.stat(path, **named).st_mode
    names = outcome(os.listxattr, path, **named)
    return f"{stat.filemode(mode)} {' | '.join(found)} {sorted(names)}"


def as_caller(caller, do):
    """What `do` prints as somebody else."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        uid, gid, groups = caller
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        do()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def opens(path, flags):
    fd = outcome(os.open, path, flags)
    if isinstance(fd, str):
        return "-" if fd == "EACCES" else fd
    os.close(fd)
    return "+"


def file_rights(path):
    found = opens(path, os.O_RDONLY) + opens(path, os.O_WRONLY)
    for want in (os.R_OK, os.W_OK, os.X_OK, os.R_OK | os.X_OK):
        found += "+" if os.access(path, want) else "-"
    return found


def folder_rights(path):
    made = outcome(os.mkdir, f"{path}/new")
    found = [outcome(os.listdir, path), outcome(os.stat, f"{path}/in"), made]
    if made is None:
        os.rmdir(f"{path}/new")
    return "".join("-" if one == "EACCES" else one if isinstance(one, str) else "+" for one in found)


def decisions(rng, count):
    for number in range(count):
        file, folder = f"file{number}", f"folder{number}"
        owner, group = rng.choice([0, *USERS]), rng.choice([0, *GROUPS])
        open(file, "w").close()
        os.mkdir(folder)
        os.mkdir(f"{folder}/in")
        for path in (file, folder):
            os.chown(path, owner, group)
            os.chmod(path, rng.randrange(0o1000))
            if rng.randrange(6):
                os.setxattr(path, ACCESS, some_acl(rng))
            if rng.randrange(4) == 0:
                os.chmod(path, rng.randrange(0o1000))
            print(path, owner, group, lists_of(path))

    def rights():
        for number in range(count):
            print(number, file_rights(f"file{number}"), folder_rights(f"folder{number}"))

    for caller in CALLERS:
        print("caller", caller)
        as_caller(caller, rights)


def make_all(folder, mode, umask):
    os.umask(umask)
    os.close(os.open(f"{folder}/file", os.O_CREAT | os.O_WRONLY, mode))
    os.mkdir(f"{folder}/folder", mode)
    os.mkfifo(f"{folder}/fifo", mode)
    os.symlink("nowhere", f"{folder}/link")
    os.symlink("n" * 100, f"{folder}/long")
    unnamed = outcome(os.open, folder, os.O_TMPFILE | os.O_WRONLY, mode)
    if isinstance(unnamed, int):
        print("  unnamed", lists_of(unnamed))
        os.close(unnamed)
    os.umask(0o022)
    for name in sorted(os.listdir(folder)):
        print(" ", name, lists_of(f"{folder}/{name}"))


def inheritance(rng, count):
    for number in range(count):
        folder = f"heir{number}"
        os.mkdir(folder, 0o755)
        if rng.randrange(3) == 0:
            os.chmod(folder, 0o2775)
        if rng.randrange(8):
            os.setxattr(folder, DEFAULT, some_acl(rng))
        mode, umask = rng.choice([0o666, 0o777, 0o640, 0o2755, 0o000]), rng.choice([0, 0o022, 0o077])
        print(folder, lists_of(folder), f"{mode:o} {umask:o}")
        make_all(folder, mode, umask)


def refusals():
    open("plain", "w").close()
    os.mkdir("dir")
    os.symlink("plain", "sym")
    os.mkfifo("pipe")
    owner, group, other = (OWNER, 6, NOBODY), (GROUP_OBJ, 4, NOBODY), (OTHER, 4, NOBODY)
    values = {
        "nothing": b"",
        "short": b"\2\0\0",
        "no entries": acl(),
        "version": struct.pack("<I", 1) + acl(owner, group, other)[4:],
        "odd size": acl(owner, group, other) + b"x",
        "minimal": acl(owner, group, other),
        "with ids": acl((OWNER, 6, 7), (GROUP_OBJ, 0, 8), (OTHER, 1, 9)),
        "no owner": acl(group, other),
        "two owners": acl(owner, owner, group, other),
        "order": acl(group, owner, other),
        "no mask": acl(owner, (USER, 4, 3001), group, other),
        "mask alone": acl(owner, group, (MASK, 2, NOBODY), other),
        "two masks": acl(owner, group, (MASK, 2, NOBODY), (MASK, 2, NOBODY), other),
        "bits": acl((OWNER, 8, NOBODY), group, other),
        "tag": acl(owner, (64, 4, 1), group, other),
        "nobody": acl(owner, (USER, 4, NOBODY), group, (MASK, 2, NOBODY), other),
        "twice": acl(owner, (USER, 4, 3), (USER, 5, 3), group, (MASK, 7, NOBODY), other),
        "unsorted": acl(owner, (USER, 4, 9), (USER, 5, 3), group, (MASK, 7, NOBODY), other),
        "more": acl(owner, (USER, 4, 9), group, (GROUP, 7, 9), (MASK, 7, NOBODY), other),
    }
    for what, value in values.items():
        for path in ("plain", "dir", "sym", "pipe"):
            for name in (ACCESS, DEFAULT):
                for flags in (0, os.XATTR_CREATE, os.XATTR_REPLACE):
                    done = outcome(os.setxattr, path, name, value, flags, follow_symlinks=False)
                    print(what, path, name[17:], flags, done)
            print(" ", lists_of(path))
    for path in ("plain", "dir", "sym", "pipe"):
        for name in (ACCESS, DEFAULT, DEFAULT, "system.other"):
            print("remove", path, name, outcome(os.removexattr, path, name, follow_symlinks=False))
        print(" ", lists_of(path))
    strangers = [
        lambda: outcome(os.setxattr, "plain", ACCESS, values["more"]),
        lambda: outcome(os.setxattr, "dir", DEFAULT, values["more"]),
        lambda: outcome(os.removexattr, "plain", ACCESS),
        lambda: outcome(os.setxattr, "plain", DEFAULT, values["more"]),
        lambda: lists_of("plain"),
    ]
    as_caller((3001, 9, []), lambda: print([one() for one in strangers]))


def groups_of_others():
    """Who is not in the group loses its bit with the list, as with chmod."""
    for number, caller in enumerate([(3001, 9, []), (3001, 9, [4001]), (0, 0, [])]):
        path = f"setgid{number}"
        open(path, "w").close()
        os.chown(path, 3001, 4001)
        os.chmod(path, 0o2755)
        value = acl((OWNER, 7, NOBODY), (USER, 5, 9), (GROUP_OBJ, 5, NOBODY), (MASK, 5, NOBODY), (OTHER, 5, NOBODY))
        as_caller(caller, lambda: os.setxattr(path, ACCESS, value))
        print(path, caller, lists_of(path))


def tool(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    print("$", *command, done.returncode)
    print(done.stdout + done.stderr, end="")


def tree(folder):
    return "sh", "-c", f"find {folder} | LC_ALL=C sort | xargs getfacl -n"


def tools():
    open("report", "w").close()
    os.chmod("report", 0o640)
    os.mkdir("shared")
    listed = ("getfacl", "-n", "report", "shared")
    for command in [
        ("setfacl", "-m", "u:3001:rw,g:4001:r", "report"),
        listed,
        ("chmod", "g-w", "report"),
        listed,
        ("setfacl", "-m", "m::rwx", "report"),
        ("setfacl", "-x", "u:3001", "report"),
        listed,
        ("setfacl", "-d", "-m", "u:3002:rwx,g::rx,o::-", "shared"),
        ("mkdir", "shared/below"),
        ("touch", "shared/below/file"),
        tree("shared"),
        ("cp", "-a", "report", "shared/below/copy"),
        ("cp", "-a", "shared", "again"),
        ("mv", "again", "moved"),
        tree("moved"),
        ("tar", "-cf", "all.tar", "--acls", "shared"),
        ("rm", "-r", "shared"),
        ("tar", "-xf", "all.tar", "--acls"),
        tree("shared"),
        ("setfacl", "-R", "-b", "shared"),
        tree("shared"),
        ("setfacl", "-k", "moved"),
        ("getfacl", "-n", "-c", "moved"),
        ("ls", "-ln", "--time-style=+", "moved/below"),
        ("setfacl", "-m", "u:3001:z", "report"),
        ("setfacl", "-d", "-m", "u:3001:r", "report"),
    ]:
        tool(*command)
    tool("sh", "-c", "getfacl -n -R moved > lists; setfacl -R -b moved; setfacl --restore=lists")
    tool(*tree("moved"))


os.chdir(sys.argv[1])
os.umask(0o022)
rng = random.Random(int(os.environ.get("SEED", "1")))
decisions(rng, int(os.environ.get("COUNT", "60")))
inheritance(rng, int(os.environ.get("COUNT", "60")))
refusals()
groups_of_others()
tools()
