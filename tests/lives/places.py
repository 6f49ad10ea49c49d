"""Where the devices of a life's pool are: files in a folder, or loop devices. For pool.py."""

import os
import shutil
import stat
import subprocess
import time

# Others take the first ones that are free.
FIRST_LOOP = 32
MIB = 1 << 20
# Where the pool's header is on a device, in MiB.
DATA_START = 2


def call(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class Files:
    """A device is a file in the pool's folder."""

    # Devices can go while somebody has them open.
    go_in_use = True

    def __init__(self, pool):
        self.pool = pool

    def new(self, name):
        return os.path.join(self.pool.home, name)

    def size_words(self):
        return ["--size", self.pool.size]

    def is_there(self, device):
        return os.path.exists(device)

    def hide(self, device):
        os.rename(device, f"{device}.away")

    def show(self, device):
        os.rename(f"{device}.away", device)

    def forget(self, device):
        for path in (device, f"{device}.away"):
            if os.path.exists(path):
                os.unlink(path)

    def copy(self, device, path):
        call("cp", "--sparse=always", device, path)

    def exchange(self, device, path):
        """A device gets what is in a file, which gets what was there."""
        os.rename(device, f"{device}.newer")
        os.rename(path, device)
        os.rename(f"{device}.newer", path)

    def lose(self, device, chance):
        """It fails, or something else is there; answers what happened."""
        how = chance.choice(["removed", "emptied", "cut", "written over"])
        if how == "removed":
            os.unlink(device)
        elif how == "emptied":
            os.truncate(device, 0)
        elif how == "cut":
            os.truncate(device, chance.randrange(MIB, os.path.getsize(device) - MIB))
        else:
            call("dd", "if=/dev/zero", f"of={device}", "bs=1M", "conv=notrunc", f"count={os.path.getsize(device) // MIB}",
                 "status=none")
        return how

    def write_over(self, device, source, mib):
        """The pool's header and some MiB of what follows become something else; the label stays."""
        call("dd", f"if={source}", f"of={device}", "bs=1M", f"seek={DATA_START}", f"count={mib}", "conv=notrunc,fsync",
             "status=none")

    def move(self):
        """All get another folder."""
        folder = os.path.join(os.path.dirname(self.pool.home), f"moved.{self.pool.number}")
        os.mkdir(folder)
        moved = {path: os.path.join(folder, os.path.basename(path)) for path in self.pool.devices}
        for old, new in moved.items():
            for end in ("", ".away"):
                if os.path.exists(old + end):
                    os.rename(old + end, new + end)
        os.rmdir(self.pool.home)
        self.pool.home = folder
        return moved

    def begin_copy(self):
        """From now on the pool is a copy of its files, where they were."""
        home, aside = self.pool.home, self.pool.home + ".aside"
        self.pool.copy_to(os.path.join(aside, "copy"))
        os.rename(home, os.path.join(aside, "original"))
        os.rename(os.path.join(aside, "copy"), home)

    def end_copy(self):
        home, aside = self.pool.home, self.pool.home + ".aside"
        shutil.rmtree(home)
        os.rename(os.path.join(aside, "original"), home)
        os.rmdir(aside)

    def close(self):
        shutil.rmtree(f"{self.pool.home}.aside", ignore_errors=True)


class Loops(Files):
    """A device is a block device that shows a file in the pool's folder."""

    go_in_use = False

    def __init__(self, pool):
        super().__init__(pool)
        self.files, self.originals, self.shown, self.nodes = {}, [], [], []

    def new(self, name):
        file = os.path.join(self.pool.home, f"{name}.img")
        with open(file, "wb") as made:
            made.truncate(int(self.pool.size[:-1]) * MIB)
        return self.attach(file)

    def size_words(self):
        return []

    def attach(self, file):
        for number in range(FIRST_LOOP, 256):
            device = f"/dev/loop{number}"
            if device not in self.files and self.shows(file, device):
                return device
        raise OSError("no loop device is free")

    def shows(self, file, device):
        if not os.path.exists(device):
            try:
                os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(7, int(device.removeprefix("/dev/loop"))))
                self.nodes.append(device)
            except FileExistsError:
                pass
        done = subprocess.run(["losetup", device, file], check=False, stderr=subprocess.DEVNULL).returncode == 0
        if done:
            os.chown(device, 0, 0)
            self.files[device] = file
        return done

    def hide(self, device):
        call("losetup", "-d", device)
        # It goes when the last who has it open does.
        while self.is_there(device):
            time.sleep(0.005)

    def show(self, device):
        while not self.shows(self.files[device], device):
            time.sleep(0.005)

    def is_there(self, device):
        if device not in self.files:
            return super().is_there(device)
        return os.path.exists(f"/sys/block/{os.path.basename(device)}/loop/backing_file")

    def forget(self, device):
        if device not in self.files:
            return
        if self.is_there(device):
            self.hide(device)
        os.unlink(self.files.pop(device))

    def exchange(self, device, path):
        call("cp", "--sparse=always", device, f"{path}.newer")
        call("dd", f"if={path}", f"of={device}", "bs=1M", "oflag=direct", "conv=fsync", "status=none")
        os.rename(f"{path}.newer", path)

    def lose(self, device, chance):
        call("dd", "if=/dev/zero", f"of={device}", "bs=1M", "oflag=direct",
             f"count={os.path.getsize(self.files[device]) // MIB}", "status=none")
        return "written over"

    def move(self):
        """The only one gets another number, several those of each other: where they all are nobody could tell."""
        there, files = self.pool.devices, dict(self.files)
        for device in there:
            self.hide(device)
            del self.files[device]
        if len(there) == 1:
            return {there[0]: self.attach(files[there[0]])}
        moved = dict(zip(there, [*there[1:], there[0]]))
        for old, new in moved.items():
            self.files[new] = files[old]
            self.show(new)
        return moved

    def begin_copy(self):
        """The copy is in files; the devices are away."""
        folder = self.pool.home + ".aside"
        self.pool.copy_to(folder)
        self.originals = self.pool.devices
        self.shown = list(filter(self.is_there, self.originals))
        for device in self.shown:
            self.hide(device)
        self.pool.devices = [os.path.join(folder, os.path.basename(device)) for device in self.shown]

    def end_copy(self):
        shutil.rmtree(self.pool.home + ".aside")
        self.pool.devices = self.originals
        for device in self.shown:
            self.show(device)

    def close(self):
        super().close()
        for device in filter(self.is_there, self.files):
            self.hide(device)
        for device in self.nodes:
            os.unlink(device)
