"""The steps of a life: what users do to a pool, and what happens to them. For lives.py."""

import copy
import errno
import mmap
import os
import random
import shutil
import signal
import struct

from devices import NOTHING_TO_TELL, Devices, step
from model import (Actor, Anything, Lost, Script, Tree, Within, is_between, is_first_part, is_nothing, read_dump,
                   read_folder, write_folder)
from pool import KINDS, MOUNT, Fault, Pool, fault_unless, said_by

FOLDERS = ("w0", "w1", "w2")
# A row of the log of program.c: begun, returned, error, whether to stay, and what is durable of each of four.
PLAYERS, ROW = 4, struct.Struct("<8Q")
SNAPSHOTS = ".snapshots"
LINES = 120


class Episode:
    """Programs at work, each in a folder of its own."""

    def __init__(self, life, names, mounted, lines):
        self.life, self.names, self.mounted, self.outlives = life, names, mounted, False
        life.pool.number += 1
        self.log = life.pool.at(f"log.{life.pool.number}")
        with open(self.log, "wb") as file:
            file.write(bytes(ROW.size * PLAYERS))
        self.file = open(self.log, "r+b")
        self.rows = mmap.mmap(self.file.fileno(), ROW.size * PLAYERS)
        self.before = {name: actor.kept for name, actor in life.actors.items()}
        self.planned = lines * len(names)
        self.scripts = [self.script(name, lines) for name in names]

    def script(self, name, count):
        actor = self.life.actors[name]
        lines = Script(self.life.chance, actor.now(), not self.mounted).lines(count)
        if self.mounted:
            lines = [through_kernel(line) for line in lines]
        actor.lines += lines
        path = f"{self.log}.{name}"
        with open(path, "w") as file:
            file.writelines(" ".join(line) + "\n" for line in lines)
        return path

    def words(self, number):
        root = self.life.pool.at("mounted") if self.mounted else MOUNT
        folder = os.path.join(root, self.names[number])
        return [self.life.program, "play", folder, self.scripts[number], self.log, str(len(self.names)), str(number)]

    def row(self, number):
        return ROW.unpack_from(self.rows, ROW.size * number)

    def stay(self, whether):
        """Whether the programs stay behind their last line."""
        for number in range(len(self.names)):
            struct.pack_into("<Q", self.rows, ROW.size * number + 24, whether)

    def all_began(self):
        return all(self.row(number)[0] for number in range(len(self.names)))

    def is_over(self):
        has_ended = all(process.poll() is not None for process in self.processes)
        return has_ended and not (self.outlives and self.life.pool.processes())

    def returned(self):
        return sum(self.row(number)[1] for number in range(len(self.names)))

    def close(self):
        """What was told goes to the actors."""
        rows = [self.row(number) for number in range(len(self.names))]
        synced = any(row[4 + number] for number, row in enumerate(rows))
        actors = self.life.actors
        for number, name in enumerate(self.names):
            actor, (begun, returned, error, *_) = actors[name], rows[number]
            allowed = error in self.life.errors or (self.mounted and not self.life.is_mounted)
            if error and not allowed:
                raise Fault(f"line {begun} of {name} fails with {os.strerror(error)}: {self.line(name, begun)}")
            actor.begun, actor.kept = self.before[name] + begun, self.before[name] + returned
            del actor.lines[actor.begun :]
        if synced and not self.life.pool.saved:
            for name, actor in actors.items():
                at = self.names.index(name) if name in self.names else None
                more = max(row[4 + at] for row in rows) if at is not None else 0
                actor.durable = max(actor.durable, self.before[name] + more)
        self.rows.close()
        self.file.close()
        for path in (self.log, *self.scripts):
            os.unlink(path)

    def line(self, name, begun):
        return " ".join(self.life.actors[name].lines[self.before[name] + begun - 1])


def through_kernel(line):
    """The kernel does not pass on what syncs a whole file system (docs/fuse.md)."""
    return (*line[:-1], "fsync") if line[0] == "sync" and line[-1].startswith("sync") else line


class Life(Devices):
    def __init__(self, program, seed, options, canary=None):
        self.chance = random.Random(seed)
        kind = options.kind or self.chance.choice(list(KINDS))
        self.pool = Pool(kind, seed, options)
        self.program, self.canary, self.options = program, canary, options
        self.actors = {name: Actor() for name in FOLDERS}
        # What lies beside the actors' folders, or is a snapshot of one: the trees that may be there, None for nothing.
        self.frozen = {}
        self.errors, self.told, self.lost, self.holder, self.is_mounted = (), [], False, None, False
        self.at_work, self.away, self.stale, self.ignored = None, None, None, set()
        # Whether memory may have something of files that are gone, for an hour.
        self.left_files = False
        # Whether something else is on a part of one copy.
        self.is_damaged = False

    # ---- the order of things

    def live(self):
        self.say("create")
        self.pool.make()
        for name in FOLDERS:
            self.pool.ok("mkdir", f"{self.pool.name}:/{name}")
        for number in range(self.options.steps):
            self.go_on()
            if self.canary and number == self.options.steps // 2:
                self.plant()
        self.end()

    def go_on(self):
        steps = [name for name in dir(self) if name.startswith("step_") and self.allows(name)]
        weights = [getattr(Life, name).weight for name in steps]
        name, = self.chance.choices(steps, weights)
        self.say(name.removeprefix("step_"))
        getattr(self, name)()

    def allows(self, name):
        only = self.options.only
        return (not only or name.removeprefix("step_") in only) and getattr(Life, name).needs(self)

    def say(self, text):
        self.told.append(text)
        if self.options.verbose:
            print(" ", text, flush=True)

    def add(self, text):
        self.told[-1] += f", {text}"
        if self.options.verbose:
            print("   ,", text, flush=True)

    def end(self):
        self.say("the end")
        self.no_holder()
        self.no_mount()
        if self.away:
            self.step_back()
        self.look()
        self.pool.nobody_is_left()
        self.check()
        self.pool.ok("delete", "--force", self.pool.name)
        left = self.pool.left_in_memory()
        fault_unless(not left or self.left_files, f"left in memory: {left}")

    def leave(self, keep):
        self.pool.leave(keep)

    def alone(self):
        return not self.holder and not self.is_mounted

    def nobody(self):
        return self.alone() and not self.at_work

    # ---- looking

    def look(self, guest=False):
        """Compares what is there with what must be."""
        out = self.pool.out()
        process = self.pool.start(self.pool.run(self.program, "dump", MOUNT, out), guest)
        status = self.pool.end_of(process, "a look")
        fault_unless(status == 0, f"a look ends with {status}: {said_by(process)}")
        if self.alone():
            self.pool.nobody_is_left()
        self.compare(read_dump(out), exact=False)
        os.unlink(out)
        if self.alone():
            self.is_durable()
            # What is free has no contents that could be compared, until somebody gets it.
            if not guest and self.chance.random() < 0.3:
                self.check()

    def compare(self, found, exact):
        found.nodes.pop(".", None)
        below = split(found, [*self.actors, *self.frozen])
        for name, actor in self.actors.items():
            self.settle(name, actor, below.pop(name), exact)
        for path, may in list(self.frozen.items()):
            self.settle_frozen(path, may, below.pop(path))
        strangers = sorted(path for path in below[None].nodes if path not in self.ignored)
        if strangers:
            raise Lost(f"foreign names {strangers}")
        self.lost = self.lost and exact

    def settle(self, name, actor, found, exact):
        if found is None:
            raise Lost(f"{name} is not there")
        try:
            if exact:
                told = actor.now().differs(found)
                if told:
                    raise Lost(told)
            else:
                actor.settle(found, self.lost, self.halves())
        except Lost as lost:
            raise Lost(f"{name} (memory was {'lost' if self.lost else 'kept'}): {lost}") from None

    def halves(self):
        if not self.pool.whole:
            return is_between
        return is_first_part if self.errors else is_nothing

    def settle_frozen(self, path, may, found):
        told = [found is not tree if None in (found, tree) else tree.differs(found) for tree in may]
        if all(told):
            raise Lost(f"{path} is none of {len(may)}: {told}")
        tree = may[[not one for one in told].index(True)]
        if tree:
            self.frozen[path] = [tree.copy()]
        else:
            del self.frozen[path]

    def is_durable(self):
        for actor in self.actors.values():
            actor.is_durable()

    def memory_is_lost(self):
        """What was not synced may be there or not."""
        if self.pool.cached:
            self.lost = True

    def commit(self):
        """Makes all durable that was acknowledged, where a program stays in the pool."""
        if not self.alone():
            self.pool.ok("sync", self.pool.name)
            self.is_durable()

    # ---- programs

    def begin(self, names, mounted=False, lines=LINES, stay=False, outlive=False):
        """Starts a program in each folder: under one supervisor, or one for each, or so that they outlive it."""
        episode = Episode(self, names, mounted, lines)
        episode.stay(stay)
        words = [episode.words(number) for number in range(len(names))]
        self.at_work = episode
        if mounted:
            self.add("by the mount")
            episode.processes = [self.pool.start(one) for one in words]
        elif outlive:
            episode.outlives = True
            all_of_them = " ".join(f"setsid {' '.join(one)} &" for one in words)
            episode.processes = [self.pool.start(self.pool.run("/bin/sh", "-c", all_of_them))]
        elif len(names) > 1 and self.chance.random() < 0.5:
            self.add("one supervisor")
            both = " & ".join(" ".join(one) for one in words)
            episode.processes = [self.pool.start(self.pool.run("/bin/sh", "-c", f"{both} & wait"))]
        else:
            episode.processes = [self.pool.start(self.pool.run(*one)) for one in words]
        return episode

    def await_lines(self, episode, count):
        """Each has begun, and together they have done so many, or all; or they have ended."""
        count = min(count, episode.planned)
        has_come = lambda: (episode.all_began() and episode.returned() >= count) or episode.is_over()
        self.pool.soon(has_come, f"{count} lines")

    def finish(self, episode, may_fail=False):
        episode.stay(False)
        for process in episode.processes:
            status = self.pool.end_of(process, "a program")
            fault_unless(status == 0 or may_fail or self.errors,
                         f"a program ends with {status}: {said_by(process)}")
        if not episode.mounted:
            self.pool.soon(lambda: not self.players(), "the end of programs")
        episode.close()
        self.at_work = None

    def players(self):
        return [pid for pid, words in self.pool.processes().items() if words.startswith(self.program + " play")]

    def some_folders(self):
        return self.chance.sample(FOLDERS, self.chance.choice([1, 1, 2]))

    @step(6)
    def step_play(self):
        names = self.some_folders()
        self.add(" and ".join(names))
        self.finish(self.begin(names, lines=self.chance.choice([10, 60, LINES])))
        self.look()

    @step(5)
    def step_beside(self):
        """Programs at work, and commands beside them."""
        names = self.some_folders()
        episode = self.begin(names, self.is_mounted and self.chance.random() < 0.5, stay=True)
        self.await_lines(episode, self.chance.randrange(1, 40))
        for _ in range(self.chance.randrange(1, 4)):
            self.something_beside()
        self.finish(episode)
        self.look()

    def something_beside(self):
        beside = [self.info, self.check, self.sync_beside, self.read_only, self.cp_out_beside]
        if not self.errors:
            beside.append(self.guest)
        if self.pool.copies:
            beside.append(self.scrub)
        if not self.errors:
            beside.append(self.trim)
        if not self.at_work.mounted:
            beside.append(self.snapshot_beside)
        chosen = self.chance.choice(beside)
        self.add(chosen.__name__)
        chosen()

    @step(14)
    def step_kill(self):
        """Some or all are killed in the middle, with commands before and behind."""
        names = self.some_folders()
        episode = self.begin(names, self.is_mounted and self.chance.random() < 0.5, stay=True)
        self.await_lines(episode, self.chance.randrange(1, LINES))
        if self.chance.random() < 0.5:
            self.something_beside()
        whom = self.chance.choice(["programs", "supervisors", "everybody", "everybody", "a stopped one"])
        self.add(f"killed at {episode.returned()}: {whom}")
        getattr(self, "kill_" + whom.split()[-1])(episode)
        self.finish(episode, may_fail=True)
        self.after_kill()

    def kill_programs(self, _):
        self.pool.kill(pid for pid, words in self.pool.processes().items() if words.startswith(self.program))

    def kill_supervisors(self, episode):
        self.pool.kill(process.pid for process in episode.processes)
        episode.stay(False)
        self.pool.soon(lambda: not any(words.startswith(self.program) for words in self.pool.processes().values()),
                       "the end of programs without a supervisor")
        if self.alone():
            self.pool.nobody_is_left()

    @step(6, lambda life: life.alone())
    def step_orphans(self):
        """Programs outlive their supervisor, and those who stand in for it die, too, while they are at work."""
        names = self.some_folders()
        episode = self.begin(names, stay=True, outlive=True)
        self.await_lines(episode, self.chance.randrange(1, 40))
        for _ in range(self.chance.randrange(1, 4)):
            standing_in = [pid for pid, words in self.pool.processes().items() if " sync " in words]
            self.add(f"{len(standing_in)} stand in at {episode.returned()}")
            self.pool.kill(standing_in)
            self.await_lines(episode, episode.returned() + self.chance.randrange(1, 30))
        if self.chance.random() < 0.5:
            self.something_beside()
        is_killed = self.chance.random() < 0.5
        if is_killed:
            self.add(f"killed at {episode.returned()}")
            self.pool.kill_all()
        self.finish(episode, may_fail=is_killed)
        self.pool.nobody_is_left()
        self.after_kill() if is_killed else self.look()

    @step(8, lambda life: life.pool.host and life.alone() and not life.errors)
    def step_full_host(self):
        """The file system below is full while programs are at work, and has room again: all that returned is there."""
        self.pool.ok("trim", "--punch", self.pool.name)
        self.pool.fill_host(self.chance.choice([0, 65536, 1 << 19, 1 << 21]))
        self.errors = (errno.ENOSPC, errno.EIO)
        episode = self.begin(self.some_folders(), lines=self.chance.choice([LINES, 400]), stay=True)
        self.await_lines(episode, self.chance.randrange(1, LINES))
        what = self.chance.choice(["room while they run", "they end", "killed", "killed and power cut"])
        self.add(f"{what} at {episode.returned()}")
        if what.startswith("room"):
            self.pool.make_room_on_host()
        if what.startswith("killed"):
            self.pool.kill_all()
        self.finish(episode, may_fail=True)
        if what.endswith("cut"):
            self.pool.lose_memory()
            self.memory_is_lost()
        if not what.startswith("room"):
            self.pool.nobody_is_left()
            # Whatever it says.
            self.pool.nacre("check", self.pool.name)
            self.pool.make_room_on_host()
        self.errors = ()
        self.look()

    def kill_everybody(self, _):
        self.holder, self.is_mounted = None, self.is_mounted and self.unmounted()
        self.pool.kill_all()

    def kill_one(self, episode):
        """One is stopped, others go on a little, and it dies like that."""
        pids = [pid for pid, words in self.pool.processes().items() if words.startswith(self.program)]
        if pids:
            stopped = self.chance.choice(sorted(pids))
            self.pool.kill([stopped], signal.SIGSTOP)
            self.info()
            self.pool.kill([stopped])
        self.kill_everybody(episode)

    def unmounted(self):
        self.pool.unmount()
        return False

    def after_kill(self):
        """Memory is kept or lost, before anybody looks. What a command did that was alone is durable."""
        if not self.alone():
            self.look()
            return
        self.pool.nobody_is_left()
        behind = self.chance.choice(["look", "look", "power cut", "power cut", "check", "guest", "copy", "moved"])
        self.add(f"then {behind}")
        if behind == "power cut":
            self.pool.lose_memory()
            self.memory_is_lost()
        elif behind == "check":
            self.check()
        elif behind == "guest":
            self.guest_afterwards()
        elif behind == "copy":
            self.copy_is_used()
        elif behind == "moved":
            self.move()
        self.look()

    def guest_afterwards(self):
        """Somebody of another session folder uses the pool; what memory held does not count any more."""
        self.memory_is_lost()
        self.look(guest=True)
        self.pool.lose_memory(guest=True)

    def copy_is_used(self):
        """A copy of the files shows what the disks have, and goes its own way; the pool is as it was."""
        if self.pool.saved:
            return
        self.pool.places.begin_copy()
        model = copy.deepcopy((self.actors, self.frozen, self.lost))
        self.memory_is_lost()
        self.look()
        self.finish(self.begin(["w2"]), may_fail=True)
        self.check()
        self.pool.ok("delete", "--force", self.pool.name)
        self.actors, self.frozen, self.lost = model
        self.pool.places.end_copy()

    def move(self):
        """All devices are somewhere else."""
        if self.pool.saved or self.pool.kind == "behind" or self.away:
            return
        moved = self.pool.places.move()
        if not self.pool.places.go_in_use:
            # What memory has is known by the number of the device.
            self.memory_is_lost()
            self.left_files = True
        self.stale = moved.get(self.stale)
        self.pool.devices = [moved[path] for path in self.pool.devices]

    # ---- commands

    def guest(self):
        """Who has another session folder is refused, and changes nothing."""
        name = self.pool.name
        chosen = self.chance.choice([["run", "-q", "--pool", name, "--", "true"], ["check", name], ["ls", f"{name}:/"],
                                     ["run", "-q", "--read-only", "--pool", name, "--", "true"],
                                     ["cp", "/etc/passwd", f"{name}:/stranger"], ["scrub", name], ["sync", name]])
        self.add(f"guest: {' '.join(chosen[:2])}")
        self.pool.refused(*chosen, because="session", guest=True)

    def info(self):
        self.pool.ok("info", "--json", self.pool.name)

    def check(self, *words):
        """Somebody who uses the pool keeps it off."""
        status, said = self.pool.nacre("check", *words, self.pool.name)
        clean, in_use = status == 0 and "clean" in said, status != 0 and "in use" in said
        # In a full pool nobody knows whether a program has ended.
        may_be = clean or in_use if self.at_work and self.errors else clean if self.nobody() else in_use
        fault_unless(may_be, f"check: status {status}: {said}")

    def sync_beside(self):
        self.pool.ok("sync", self.pool.name)

    def read_only(self):
        # Programs may remove what it is about to look at.
        words = ["--read-only", "--pool", self.pool.name, "--mount", MOUNT]
        self.pool.ok("run", "-q", *words, "--", "sh", "-c", f"ls {MOUNT} && ls -R {MOUNT} || [ $? = 1 ]")

    def cp_out_beside(self):
        out = self.pool.at("out")
        status, said = self.pool.nacre("cp", "-r", f"{self.pool.name}:/w0", out)
        fault_unless(status == 0 or "no such" in said.lower() or "stale" in said, f"cp: {said}")
        shutil.rmtree(out, ignore_errors=True)

    def scrub(self):
        # What every opening writes to has no checksum: there the copy is right that was wrong nowhere else.
        self.pool.ok("scrub", *(["--repair"] if self.is_damaged else []), self.pool.name)

    def trim(self):
        status, said = self.pool.nacre("trim", self.pool.name)
        fault_unless(status == 0 or any(one in said for one in NOTHING_TO_TELL), f"nacre trim: status {status}: {said}")

    @step(4)
    def step_command(self):
        chosen = self.chance.choice(["check", "info", "read_only", "sync_beside", "repair", "devices", "top"])
        self.add(chosen)
        getattr(self, chosen)()

    def repair(self):
        self.check("--repair")

    def devices(self):
        self.pool.ok("device", "list", self.pool.name)

    def top(self):
        self.pool.ok("list")

    # ---- holders and mounts

    @step(2, lambda life: not life.holder)
    def step_hold(self):
        self.holder = self.pool.start(self.pool.run("/bin/sleep", "1000"))
        sleeps = lambda: any(words.startswith("/bin/sleep") for words in self.pool.processes().values())
        self.pool.soon(sleeps, "a sleep")

    @step(2, lambda life: life.holder)
    def step_let_go(self):
        self.no_holder()
        self.look()

    def no_holder(self):
        if self.holder:
            how = self.chance.choice([signal.SIGTERM, signal.SIGKILL])
            self.add(f"holder ends by {how.name}")
            pids = [pid for pid, words in self.pool.processes().items() if words.startswith("/bin/sleep")]
            self.pool.kill([self.holder.pid] if how == signal.SIGTERM else pids, how)
            self.pool.end_of(self.holder, "the holder")
            self.holder = None

    @step(2, lambda life: not life.is_mounted and os.access("/dev/fuse", os.W_OK))
    def step_mount(self):
        self.pool.ok("mount", self.pool.name, self.pool.at("mounted"))
        self.is_mounted = True

    @step(2, lambda life: life.is_mounted)
    def step_look_by_mount(self):
        self.look_by_mount()

    def look_by_mount(self):
        out = self.pool.out()
        process = self.pool.start([self.program, "dump", self.pool.at("mounted"), out])
        status = self.pool.end_of(process, "a look by the mount")
        fault_unless(status == 0, f"a look by the mount: {said_by(process)}")
        self.compare(read_dump(out), exact=True)

    @step(2, lambda life: life.is_mounted)
    def step_unmount(self):
        self.no_mount()
        self.look()

    def no_mount(self):
        if not self.is_mounted:
            return
        self.is_mounted = False
        if self.chance.random() < 0.4:
            self.add("by kill -9")
            self.pool.kill(pid for pid, words in self.pool.processes().items() if self.pool.at("mounted") in words)
            self.unmounted()
        else:
            self.pool.ok("umount", self.pool.at("mounted"))

    # ---- what is shared

    def made(self, path, tree, *words):
        """Something new at a path by a command, which may be killed where nobody else is."""
        self.add(path)
        if self.alone() and self.chance.random() < 0.3:
            self.add("killed")
            succeeded = self.killed(*words)
            self.frozen[path] = [tree] if succeeded else [tree, None]
            self.after_kill()
        elif self.may("no space", *words):
            self.frozen[path] = [tree]
            self.commit()

    def may(self, because, *words):
        """Whether a command succeeds; in a full pool it may not."""
        status, said = self.pool.nacre(*words)
        refused = self.errors and because in said.lower()
        fault_unless(status == 0 or refused, f"nacre {' '.join(words)}: status {status}: {said}")
        return status == 0

    @step(2)
    def step_snapshot(self):
        name, number = self.chance.choice(FOLDERS), self.pool.number
        path = f"{name}/{SNAPSHOTS}/s{number}"
        self.made(path, self.actors[name].now(), "snapshot", f"{self.pool.name}:/{name}", f"s{number}")

    @step(1, lambda life: life.snapshots())
    def step_restore(self):
        path = self.chance.choice(self.snapshots())
        name, snapshot = path.split(f"/{SNAPSHOTS}/")
        self.add(path)
        words = ["snapshot", "restore", f"{self.pool.name}:/{name}", snapshot]
        actor = self.actors[name]
        actor.lines.append(("become", self.frozen[path][0]))
        actor.begun = len(actor.lines)
        if self.alone() and self.chance.random() < 0.3:
            self.add("killed")
            self.killed(*words)
            self.after_kill()
            return
        if self.may("no space", *words):
            actor.kept = actor.begun
        self.look()
        self.commit()

    @step(1, lambda life: life.snapshots())
    def step_forget_snapshot(self):
        path = self.chance.choice(self.snapshots())
        name, snapshot = path.split(f"/{SNAPSHOTS}/")
        self.add(path)
        self.pool.ok("snapshot", "delete", f"{self.pool.name}:/{name}", snapshot)
        del self.frozen[path]
        self.commit()

    def snapshots(self):
        return [path for path in self.frozen if SNAPSHOTS in path]

    def others(self):
        return [path for path in self.frozen if SNAPSHOTS not in path]

    @step(1, lambda life: len(life.frozen) < 5)
    def step_clone(self):
        name, path = self.chance.choice(FOLDERS), f"k{self.pool.number}"
        self.made(path, self.actors[name].now(), "clone", f"{self.pool.name}:/{name}", f"{self.pool.name}:/{path}")

    @step(1, lambda life: len(life.frozen) < 5)
    def step_cp_in(self):
        path, folder = f"c{self.pool.number}", self.pool.at("in")
        script = Script(self.chance, Tree(), attributes=False)
        del script.kinds["link"], script.kinds["time"]
        script.lines(60)
        write_folder(script.tree, folder)
        self.add(path)
        words = ["cp", "-rp", folder, f"{self.pool.name}:/{path}"]
        if self.alone() and self.chance.random() < 0.3:
            self.add("killed")
            succeeded = self.killed(*words)
            self.frozen[path] = [script.tree] if succeeded else [Anything(), None]
            self.after_kill()
        elif self.may("no space", *words):
            self.frozen[path] = [script.tree]
            self.commit()
        else:
            self.frozen[path] = [Anything(), None]
        shutil.rmtree(folder)

    def snapshot_beside(self):
        """Of a folder that a program changes meanwhile."""
        episode = self.at_work
        number = self.chance.randrange(len(episode.names))
        name = episode.names[number]
        path, before = f"{name}/{SNAPSHOTS}/s{self.pool.number}", episode.before[name]
        kept = before + episode.row(number)[1]
        if self.may("no space", "snapshot", f"{self.pool.name}:/{name}", path.rpartition("/")[2]):
            self.frozen[path] = [Within(self.actors[name], kept, before + episode.row(number)[0])]
            self.pool.ok("sync", self.pool.name)

    @step(2, lambda life: life.others())
    def step_remove(self):
        path = self.chance.choice(self.others())
        self.add(path)
        self.pool.ok("rm", "-r", f"{self.pool.name}:/{path}")
        del self.frozen[path]
        self.commit()

    @step(1)
    def step_cp_out(self):
        name = self.chance.choice(FOLDERS)
        out = self.pool.at("out")
        self.pool.ok("cp", "-rp", f"{self.pool.name}:/{name}", out)
        found = read_folder(out)
        found.nodes = {path: node for path, node in found.nodes.items() if not path.startswith(SNAPSHOTS)}
        told = self.actors[name].now().differs(found)
        if told and not told.startswith("links"):
            raise Lost(f"cp out of {name}: {told}")
        shutil.rmtree(out)

    # ---- a canary

    def plant(self):
        """Something goes wrong that the model does not know of."""
        self.say(f"canary: {self.canary}")
        self.holder = self.no_holder()
        self.no_mount()
        if self.errors:
            self.step_make_room()
        self.finish(self.begin(["w0"], lines=200))
        self.look()
        if self.canary == "over":
            # No copy is right any more.
            self.is_written_over(list(self.pool.devices))
        elif self.canary == "stale":
            self.actors["w0"].base = Tree()
        else:
            self.change_behind_the_model()
        self.look()

    def change_behind_the_model(self):
        path = f"{MOUNT}/w0/{self.actors['w0'].now().paths('f')[0]}"
        # Its time is as before: else that alone would tell.
        byte = f"time=$(mktemp); touch -r {path} $time; printf x >>{path}; touch -r $time {path}; rm $time"
        script = {"byte": byte, "file": f"rm {path}", "foreign": f": >{path}.foreign"}[self.canary]
        self.pool.end_of(self.pool.start(self.pool.run("/bin/sh", "-c", script)), "a canary")


def split(found, tops):
    """What was found below each of `tops`, the deepest first; the rest by None."""
    below = {top: None for top in tops} | {None: Tree()}
    for path, node in found.nodes.items():
        name = path.removeprefix("./")
        top = max((top for top in tops if name == top or name.startswith(top + "/")), key=len, default=None)
        if top is None:
            below[None].nodes[name] = node
            continue
        below[top] = below[top] or Tree()
        rest = name[len(top) + 1 :]
        if rest and rest != SNAPSHOTS:
            below[top].nodes[rest] = node
    return below
