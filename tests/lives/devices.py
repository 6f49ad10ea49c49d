"""Steps of a life that are about the devices of its pool, for lives.py: they go, come back, are replaced and put back
from older copies; the pool grows; it is full."""

import copy
import errno
import os
import shutil
import subprocess
import time

from model import Lost
from pool import MOUNT, NACRE, fault_unless, said_by

# So often a command that is killed is called again, before it is let alone.
KILLS = 3
NOTHING_TO_TELL = ("none of its devices", "no disk is behind")
NO_DEVICE = ("has no such device", "is no device of this pool")


def step(weight, needs=lambda life: True):
    """A step, how often it is chosen, and when it can be done."""

    def mark(method):
        method.weight, method.needs = weight, needs
        return method

    return mark


def is_quiet(life):
    """Nobody uses the pool, and its devices are as they should be."""
    return life.alone() and not life.away and not life.stale


def holds_copies(life):
    return life.pool.copies and not life.away and not life.stale and len(life.pool.devices) > 1


def is_spread(life):
    return is_quiet(life) and life.pool.spread and life.pool.made < 10


def has_several(life):
    return life.pool.spread and len(life.pool.devices) > 1


def may_be_away(life):
    return holds_copies(life) and (life.pool.places.go_in_use or life.alone())


def may_be_lost(life):
    return holds_copies(life) and life.alone() and not life.pool.on_memory and life.pool.made < 10


def may_grow(life):
    pool = life.pool
    return is_quiet(life) and not pool.saved and pool.growths < 3 and not pool.made and pool.places.size_words()


def may_have_a_first_copy(life):
    return is_quiet(life) and life.pool.kind in ("disk", "disk-direct", "memory", "loop") and not life.pool.made


def may_be_filled(life):
    # What is in the pool must fit into the memory of who looks.
    return not (life.errors or life.frozen or life.away or life.stale or life.pool.group)


def may_have_more_behind(life):
    return is_quiet(life) and life.pool.kind == "behind" and not life.errors and life.pool.made < 5


class Devices:
    """What is done to devices. It is a part of a life."""

    def killed(self, *words):
        """Whether a command succeeded before it was killed."""
        process = self.pool.start([NACRE, *words])
        time.sleep(self.chance.random() ** 2 * 0.1)
        self.pool.kill([process.pid])
        return self.pool.end_of(process, f"nacre {' '.join(words)}") == 0

    def killed_and_again(self, *words, done=()):
        """Calls a command until it succeeds, killed some times before. One of `done` is said where it had been."""
        for _ in range(self.chance.randrange(KILLS)):
            self.add("killed")
            if self.killed(*words):
                return
            self.something_after_a_kill()
        status, said = self.pool.nacre(*words)
        fault_unless(status == 0 or any(one in said for one in done), f"nacre {' '.join(words)}: status {status}: {said}")

    def something_after_a_kill(self):
        if not self.alone():
            return
        self.pool.nobody_is_left()
        chosen = self.chance.choice(["nothing", "nothing", "look", "check", "power cut"])
        self.add(chosen)
        if chosen == "power cut":
            self.pool.lose_memory()
            self.memory_is_lost()
        if chosen in ("look", "power cut"):
            self.look()
        if chosen == "check":
            self.check()

    def new_file(self):
        self.pool.made += 1
        return self.pool.places.new(f"n{self.pool.made}")

    # ---- copies

    @step(2, may_be_away)
    def step_away(self):
        """A copy is missing from now on."""
        self.away = self.chance.choice(self.pool.devices)
        self.add(os.path.basename(self.away))
        self.pool.places.hide(self.away)
        if self.alone():
            self.look()

    @step(4, lambda life: life.away)
    def step_back(self):
        self.pool.places.show(self.away)
        self.stale, self.away = self.away, None
        if self.alone():
            self.look()

    @step(4, lambda life: life.stale and not life.away)
    def step_rebuild(self):
        self.killed_and_again("device", "rebuild", self.pool.name)
        if self.alone():
            self.look()
            self.alone_it_has_all(self.stale)
        self.stale = None

    def alone_it_has_all(self, device):
        """A copy of one device's file, without the others."""
        folder = os.path.join(self.pool.home, "one")
        os.mkdir(folder)
        self.pool.places.copy(device, folder)
        before = self.pool.devices
        for path in before:
            self.pool.places.hide(path)
        self.pool.devices = [os.path.join(folder, os.path.basename(device))]
        self.look()
        self.pool.ok("delete", "--force", self.pool.name)
        for path in before:
            self.pool.places.show(path)
        self.pool.devices = before
        shutil.rmtree(folder)

    @step(2, lambda life: holds_copies(life) and is_quiet(life))
    def step_replace(self):
        old, new = self.chance.choice(self.pool.devices), self.new_file()
        self.add(os.path.basename(old))
        if self.chance.random() < 0.5:
            self.add("lost")
            self.pool.places.hide(old)
        self.is_replaced(old, new)

    def is_replaced(self, old, new):
        # One that is not there yet is not taken for one that is.
        self.pool.devices = [path for path in self.pool.devices if path != old] + [new]
        self.killed_and_again("device", "replace", self.pool.name, old, new, done=NO_DEVICE)
        self.pool.ok("device", "rebuild", self.pool.name)
        self.pool.places.forget(old)
        self.look()
        self.alone_it_has_all(new)

    @step(4, may_be_lost)
    def step_lost(self):
        """A copy is lost while programs are at work. They go on, and it is replaced."""
        self.is_lost(self.chance.choice(self.pool.devices))

    def is_lost(self, old):
        new = self.new_file()
        episode = self.begin(self.some_folders(), stay=True)
        self.await_lines(episode, self.chance.randrange(1, 60))
        self.add(f"{os.path.basename(old)} {self.pool.places.lose(old, self.chance)} at {episode.returned()}")
        self.pool.devices = [path for path in self.pool.devices if path != old] + [old]
        self.await_lines(episode, episode.returned() + self.chance.randrange(1, 60))
        if self.chance.random() < 0.5:
            self.something_beside()
        is_killed = self.chance.random() < 0.5
        if is_killed:
            self.add("killed")
            self.pool.kill_all()
        self.finish(episode, may_fail=is_killed)
        if is_killed and self.chance.random() < 0.5:
            self.add("power cut")
            self.pool.lose_memory()
            self.memory_is_lost()
        self.look()
        self.is_replaced(old, new)

    @step(4, lambda life: may_be_lost(life) and is_quiet(life))
    def step_write_over(self):
        """One copy is written over in part while nobody uses the pool. Programs write before a scrub comes by."""
        self.is_written_over([self.chance.choice(self.pool.devices)])

    def is_written_over(self, devices):
        self.pool.ok("scrub", self.pool.name)
        source, mib = self.chance.choice(["/dev/zero", "/dev/urandom"]), self.chance.randrange(1, 40)
        self.add(f"{' '.join(map(os.path.basename, devices))} {mib} MiB of {source}")
        if self.chance.random() < 0.5:
            self.add("behind a power cut")
            self.pool.lose_memory()
            self.memory_is_lost()
        for device in devices:
            self.pool.places.write_over(device, source, mib)
        self.is_damaged = True
        episode = self.begin(self.some_folders(), stay=True)
        self.await_lines(episode, self.chance.randrange(1, 100))
        if self.chance.random() < 0.5:
            self.something_beside()
        is_killed = self.chance.random() < 0.3
        if is_killed:
            self.add("killed")
            self.pool.kill_all()
        # What is in doubt is so as long as there is an image: programs are at work, or were killed.
        self.scrub()
        self.is_damaged = False
        self.finish(episode, may_fail=is_killed)
        self.look()
        self.alone_it_has_all(devices[0])

    # ---- more devices, and less

    @step(2, lambda life: not life.errors)
    def step_trim(self):
        words = ["trim", *self.chance.choice([[], ["--punch"]]), self.pool.name]
        self.killed_and_again(*words, done=NOTHING_TO_TELL)
        if self.alone():
            self.look()

    @step(2, is_spread)
    def step_add_device(self):
        new = self.new_file()
        words = ["device", "add", *self.pool.places.size_words(), self.pool.name, new]
        self.killed_and_again(*words, done=("belongs to the pool already",))
        self.pool.devices.append(new)
        self.look()

    @step(2, lambda life: has_several(life))
    def step_rebalance(self):
        self.killed_and_again("device", "rebalance", self.pool.name)
        if self.alone():
            self.look()

    @step(2, lambda life: is_quiet(life) and has_several(life) and not life.errors)
    def step_remove_device(self):
        old = self.chance.choice(self.pool.devices)
        self.add(os.path.basename(old))
        others = [path for path in self.pool.devices if path != old]
        self.pool.devices = [*others, old]
        self.killed_and_again("device", "remove", self.pool.name, old, done=NO_DEVICE)
        self.pool.devices = others
        self.pool.places.forget(old)
        self.look()

    # ---- disks behind

    @step(3, may_have_more_behind)
    def step_add_behind(self):
        self.pool.made += 1
        new = os.path.join(self.pool.home, f"behind{self.pool.made}")
        words = ["device", "add", "--behind", "--size", "64M", self.pool.name, new]
        self.killed_and_again(*words, done=("belongs to the pool already",))
        self.pool.behind.append(new)
        self.look()

    @step(3, lambda life: may_have_more_behind(life) and len(life.pool.behind) > 1)
    def step_remove_behind(self):
        old = self.chance.choice(self.pool.behind)
        self.add(os.path.basename(old))
        self.killed_and_again("device", "remove", self.pool.name, old, done=NO_DEVICE)
        self.pool.behind.remove(old)
        self.pool.places.forget(old)
        self.look()

    @step(2, may_grow)
    def step_grow(self):
        self.pool.growths += 1
        size = f"{int(self.pool.size[:-1]) + 24 * self.pool.growths}M"
        if self.pool.kind == "behind":
            size = f"{64 + 24 * self.pool.growths}M"
        elif self.pool.count > 1 and not self.pool.copies:
            return
        self.killed_and_again("grow", "--size", size, self.pool.name, done=(f"has {int(size[:-1]) << 20} bytes",))
        self.look()

    @step(1, may_have_a_first_copy)
    def step_first_copy(self):
        new = self.new_file()
        self.killed_and_again("device", "add", "--copy", self.pool.name, new, done=("belongs to the pool already",))
        self.pool.ok("device", "rebuild", self.pool.name)
        self.pool.devices.append(new)
        self.pool.copies, self.pool.spread = True, False
        self.look()
        self.alone_it_has_all(new)

    # ---- older copies

    @step(2, lambda life: is_quiet(life) and len(life.pool.devices) > 1 and not life.pool.kind == "metadata")
    def step_one_is_older(self):
        """One device is put back from an older copy, and then as it was."""
        one = self.chance.choice(self.pool.devices)
        older = os.path.join(self.pool.home, "older")
        self.pool.places.copy(one, older)
        self.finish(self.begin(self.some_folders()))
        self.look()
        self.pool.places.exchange(one, older)
        if self.pool.copies:
            self.look()
            self.add("used")
            self.stale = one
        else:
            self.pool.refused("run", "-q", "--pool", self.pool.name, "--", "true", because=one)
            self.add("refused")
        self.pool.places.exchange(one, older)
        os.unlink(older)
        self.look()

    @step(2, lambda life: is_quiet(life) and not life.pool.saved)
    def step_all_are_older(self):
        """All files are put back from a backup, whatever memory holds of what was done since."""
        folder = os.path.join(self.pool.home, "backup")
        self.pool.copy_to(folder)
        model = copy.deepcopy((self.actors, self.frozen))
        episode = self.begin(self.some_folders())
        self.await_lines(episode, self.chance.randrange(1, 100))
        self.pool.kill_all()
        self.finish(episode, may_fail=True)
        in_place = self.chance.random() < 0.5 or not self.pool.places.go_in_use
        self.add("in place" if in_place else "new files")
        for path in self.pool.files():
            backup = os.path.join(folder, os.path.basename(path))
            if not self.pool.places.go_in_use:
                self.pool.places.exchange(path, backup)
            else:
                subprocess.run(["cp", backup, path] if in_place else ["mv", backup, path], check=True)
        shutil.rmtree(folder)
        self.left_files |= not in_place
        # If nothing reached the disk meanwhile it is the one that memory goes on from.
        if in_place and self.pool.cached and not any(actor.durable for actor in self.actors.values()):
            self.memory_is_lost()
        else:
            self.actors, self.frozen = model
        self.look()

    # ---- full

    @step(2, may_be_filled)
    def step_fill(self):
        """The pool is full, but for a little."""
        filler, spare = f"{MOUNT}/filler", self.chance.choice([0, 0, 100, 1000])
        process = self.pool.start(self.pool.run(
            "/bin/sh", "-c", f"cat /dev/zero >{filler} 2>/dev/null; truncate -s -{spare}K {filler}; true"))
        fault_unless(self.pool.end_of(process, "a filler") == 0, said_by(process))
        self.errors, self.ignored = (errno.ENOSPC,), {"filler"}
        self.look()

    @step(5, lambda life: life.errors)
    def step_make_room(self):
        self.pool.ok("rm", f"{self.pool.name}:/filler")
        self.errors, self.ignored = (), set()
        self.look()
