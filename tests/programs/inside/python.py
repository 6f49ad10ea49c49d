"""Checks of the standard library, each in a folder of its own under the current one."""

import array
import ctypes
import dbm.dumb
import errno
import fcntl
import glob
import io
import json
import mmap
import multiprocessing
import os
import pathlib
import pickle
import select
import shelve
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import zipfile

BASE = os.getcwd()


def locked_elsewhere(path, kind):
    """Whether another process is refused a lock."""
    code = (
        "import fcntl,sys\n"
        "f=open(sys.argv[1],'r+')\n"
        "try: (fcntl.lockf if sys.argv[2]=='posix' else fcntl.flock)(f, fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
        "except OSError: sys.exit(7)\n"
    )
    return subprocess.run([sys.executable, "-c", code, path, kind]).returncode == 7


def add_one(arguments):
    path, times = arguments
    for _ in range(times):
        with open(path, "r+") as f:
            fcntl.lockf(f, fcntl.LOCK_EX)
            n = int(f.read())
            f.seek(0)
            f.write(str(n + 1))
            f.flush()
    return os.getpid()


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=BASE)
        os.chdir(self.folder)

    def tearDown(self):
        os.chdir(BASE)
        shutil.rmtree(self.folder)
        self.assertFalse(os.path.exists(self.folder))

    def test_text_and_bytes(self):
        text = "".join(f"line {i} ü\n" for i in range(10000))
        with open("t", "w", encoding="utf-8") as f:
            f.write(text)
        with open("t", encoding="utf-8") as f:
            self.assertEqual(f.read(), text)
        with open("t", "rb", buffering=0) as f:
            f.seek(-3, os.SEEK_END)
            self.assertEqual(f.read(), "ü\n".encode())
        with open("t", "r+b") as f:
            f.seek(5)
            f.write(b"X")
            f.truncate(10)
        self.assertEqual(open("t", "rb").read(), b"line X \xc3\xbc\n"[:10])
        with self.assertRaises(FileExistsError):
            open("t", "x")
        with self.assertRaises(FileNotFoundError):
            open("missing")
        with self.assertRaises(io.UnsupportedOperation):
            open("t").write("x")

    def test_positions_and_vectors(self):
        fd = os.open("v", os.O_RDWR | os.O_CREAT, 0o600)
        self.assertEqual(os.writev(fd, [b"abc", b"", b"defg"]), 7)
        self.assertEqual(os.pwritev(fd, [b"12", b"3"], 10), 3)
        self.assertEqual(os.pread(fd, 100, 0), b"abcdefg\0\0\x00123")
        a, b = bytearray(4), bytearray(20)
        self.assertEqual(os.preadv(fd, [a, b], 1), 12)
        self.assertEqual((bytes(a), bytes(b[:8])), (b"bcde", b"fg\0\0\x00123"))
        self.assertEqual(os.lseek(fd, 0, os.SEEK_CUR), 7)
        copy = os.dup(fd)
        os.lseek(copy, 3, os.SEEK_SET)
        self.assertEqual(os.read(fd, 2), b"de")
        os.close(copy)
        other = os.open("v", os.O_WRONLY | os.O_APPEND)
        os.write(other, b"!")
        self.assertEqual(os.fstat(fd).st_size, 14)
        with self.assertRaises(OSError) as e:
            os.read(other, 1)
        self.assertEqual(e.exception.errno, errno.EBADF)
        os.close(other)
        os.close(fd)

    def test_sparse(self):
        with open("s", "wb") as f:
            f.seek(1 << 30)
            f.write(b"end")
        self.assertEqual(os.stat("s").st_size, (1 << 30) + 3)
        self.assertLess(os.stat("s").st_blocks, 64)
        fd = os.open("s", os.O_RDWR)
        self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 1 << 30)
        self.assertEqual(os.lseek(fd, 0, os.SEEK_HOLE), 0)
        os.posix_fallocate(fd, 0, 100000)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 100000)
        self.assertEqual(os.pread(fd, 10, 5), bytes(10))
        os.ftruncate(fd, 10)
        with self.assertRaises(OSError) as e:
            os.lseek(fd, 10, os.SEEK_DATA)
        self.assertEqual(e.exception.errno, errno.ENXIO)
        os.close(fd)

    def test_tempfile(self):
        with tempfile.TemporaryFile(dir=".") as f:
            f.write(b"x" * 100000)
            f.seek(0)
            self.assertEqual(len(f.read()), 100000)
            self.assertEqual(os.listdir("."), [])
        with tempfile.NamedTemporaryFile(dir=".", mode="w+") as f:
            f.write("named")
            f.flush()
            self.assertEqual(open(f.name).read(), "named")
        with tempfile.TemporaryDirectory(dir=".") as d:
            pathlib.Path(d, "a", "b").mkdir(parents=True)
            pathlib.Path(d, "a", "b", "c").write_text("deep")
        with tempfile.SpooledTemporaryFile(max_size=10, dir=".") as f:
            f.write(b"x" * 100)
            f.seek(0)
            self.assertEqual(f.read(), b"x" * 100)
        self.assertEqual(os.listdir("."), [])

    def test_o_tmpfile(self):
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
        os.write(fd, b"linked later")
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"appeared", 0x400), 0)
        os.close(fd)
        self.assertEqual(open("appeared").read(), "linked later")

    def test_unlinked_but_open(self):
        f = open("gone", "w+")
        f.write("still here")
        os.unlink("gone")
        f.seek(0)
        self.assertEqual(f.read(), "still here")
        self.assertEqual(os.fstat(f.fileno()).st_nlink, 0)
        f.close()

    def test_shutil(self):
        for i in range(50):
            path = pathlib.Path("tree", str(i % 5), str(i))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(i * 997))
        os.symlink("0/5", "tree/link")
        shutil.copytree("tree", "copy", symlinks=True)
        listing = lambda top: sorted(
            (str(p.relative_to(top)), p.is_symlink() or p.is_dir() or p.read_bytes())
            for p in pathlib.Path(top).rglob("*")
        )
        self.assertEqual(listing("tree"), listing("copy"))
        shutil.move("copy", "moved")
        with tempfile.TemporaryDirectory(dir="/tmp") as outside:
            shutil.copytree("tree", outside + "/o", symlinks=True)
            self.assertEqual(listing("tree"), listing(outside + "/o"))
            shutil.move(outside + "/o", "from-outside")
        self.assertEqual(listing("tree"), listing("from-outside"))
        name = shutil.make_archive("archive", "gztar", "tree")
        shutil.unpack_archive(name, "unpacked")
        self.assertEqual(listing("tree"), listing("unpacked"))
        usage = shutil.disk_usage(".")
        self.assertGreater(usage.free, 0)
        self.assertGreaterEqual(usage.total, usage.free)

    def test_zip_and_tar(self):
        data = os.urandom(200000)
        with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("x/y", data)
            z.writestr("text", "t" * 10000)
        with zipfile.ZipFile("a.zip", "a") as z:
            z.writestr("more", b"m")
        with zipfile.ZipFile("a.zip") as z:
            self.assertIsNone(z.testzip())
            self.assertEqual(z.read("x/y"), data)
            self.assertEqual(len(z.namelist()), 3)
        with tarfile.open("a.tar.gz", "w:gz") as t:
            t.add("a.zip")
        with tarfile.open("a.tar.gz") as t:
            self.assertEqual(t.extractfile("a.zip").read(), open("a.zip", "rb").read())

    def test_mmap_shared(self):
        with open("m", "w+b") as f:
            f.truncate(3 * 4096 + 100)
            with mmap.mmap(f.fileno(), 0) as m:
                m[0:5] = b"hello"
                m[3 * 4096 + 95 : 3 * 4096 + 100] = b"world"
                self.assertEqual(os.pread(f.fileno(), 5, 0), b"hello")
                os.pwrite(f.fileno(), b"HELLO", 4096)
                self.assertEqual(m[4096:4101], b"HELLO")
                child = os.fork()
                if child == 0:
                    m[8192:8197] = b"child"
                    os._exit(0)
                os.waitpid(child, 0)
                self.assertEqual(m[8192:8197], b"child")
                self.assertEqual(m.find(b"world"), 3 * 4096 + 95)
                m.flush()
            f.seek(0, os.SEEK_END)
            self.assertEqual(f.tell(), 3 * 4096 + 100)
        self.assertEqual(open("m", "rb").read()[8192:8197], b"child")

    def test_mmap_private_and_read_only(self):
        with open("p", "wb") as f:
            f.write(b"original" * 1000)
        with open("p", "r+b") as f:
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
                m[0:8] = b"private!"
                self.assertEqual(m[0:8], b"private!")
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
                self.assertEqual(m[0:8], b"original")
                with self.assertRaises(TypeError):
                    m[0:1] = b"x"
            with mmap.mmap(f.fileno(), 0) as m:
                m.resize(100000)
                m[99999] = 1
            self.assertEqual(os.fstat(f.fileno()).st_size, 100000)
        m = None
        with open("p", "r+b") as f:
            m = mmap.mmap(f.fileno(), 0)
        os.unlink("p")
        m[0:4] = b"dead"
        self.assertEqual(m[0:4], b"dead")
        m.close()

    def test_sqlite(self):
        for mode in ("delete", "wal"):
            db = sqlite3.connect(mode + ".db")
            self.assertEqual(db.execute(f"pragma journal_mode={mode}").fetchone()[0], mode)
            db.execute("create table t(a, b)")
            with db:
                db.executemany("insert into t values(?, ?)", ((i, os.urandom(100)) for i in range(2000)))
            with self.assertRaises(ZeroDivisionError), db:
                db.execute("delete from t")
                1 / 0
            self.assertEqual(db.execute("select count(*) from t").fetchone()[0], 2000)
            self.assertEqual(db.execute("pragma integrity_check").fetchone()[0], "ok")
            db.close()

    def test_multiprocessing(self):
        with open("n", "w") as f:
            f.write("0")
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(4) as pool:
                pool.map(add_one, [(os.path.abspath("n"), 50)] * 4, chunksize=1)
        self.assertEqual(open("n").read(), "600")

    def test_threads_share_a_file(self):
        fd = os.open("threads", os.O_RDWR | os.O_CREAT, 0o600)

        def work(k):
            for i in range(200):
                os.pwrite(fd, bytes([k]) * 100, (i * 8 + k) * 100)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        data = os.pread(fd, 160000, 0)
        os.close(fd)
        self.assertEqual(data, b"".join(bytes([k]) * 100 for _ in range(200) for k in range(8)))

    def test_subprocess(self):
        with open("out", "w") as out:
            subprocess.run(["sh", "-c", "echo one; echo two >&2"], stdout=out, stderr=subprocess.STDOUT, check=True)
            subprocess.run(["echo", "three"], stdout=out, check=True)
        self.assertEqual(open("out").read(), "one\ntwo\nthree\n")
        with open("out") as inp:
            done = subprocess.run(["wc", "-l"], stdin=inp, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "3")
        os.mkdir("there")
        done = subprocess.run(["pwd", "-P"], cwd="there", capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), os.path.realpath("there"))
        fd = os.open("passed", os.O_RDWR | os.O_CREAT, 0o600)
        subprocess.run(["sh", "-c", f"echo passed >&{fd}"], pass_fds=[fd], check=True)
        self.assertEqual(os.pread(fd, 100, 0), b"passed\n")
        os.close(fd)
        pipeline = subprocess.run("seq 1000 > seq; sort -n < seq | tail -n1", shell=True, capture_output=True)
        self.assertEqual(pipeline.stdout, b"1000\n")
        pid = os.posix_spawn(
            "/bin/echo",
            ["echo", "spawned"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, "spawned", os.O_WRONLY | os.O_CREAT, 0o600)],
        )
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(open("spawned").read(), "spawned\n")

    def test_close_on_exec(self):
        fd = os.open("cloexec", os.O_RDWR | os.O_CREAT)
        self.assertFalse(os.get_inheritable(fd))
        done = subprocess.run(["sh", "-c", f": >&{fd}"], close_fds=False, stderr=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        os.set_inheritable(fd, True)
        done = subprocess.run(["sh", "-c", f"echo x >&{fd}"], close_fds=False)
        self.assertEqual((done.returncode, os.pread(fd, 9, 0)), (0, b"x\n"))
        os.close(fd)

    def test_sendfile_and_copies(self):
        data = os.urandom(300000)
        pathlib.Path("from").write_bytes(data)
        with open("from", "rb") as a, open("to", "wb") as b:
            done = 0
            while n := os.sendfile(b.fileno(), a.fileno(), done, 1 << 20):
                done += n
        self.assertEqual(pathlib.Path("to").read_bytes(), data)
        left, right = socket.socketpair()
        with open("from", "rb") as a:
            sender = threading.Thread(target=lambda: (left.sendfile(a), left.close()))
            sender.start()
            got = b""
            while piece := right.recv(65536):
                got += piece
            sender.join()
        self.assertEqual(got, data)
        with open("from", "rb") as a, open("range", "wb") as b:
            done = 0
            while n := os.copy_file_range(a.fileno(), b.fileno(), 100000, done, done):
                done += n
        self.assertEqual(pathlib.Path("range").read_bytes(), data)
        r, w = os.pipe()
        with open("from", "rb") as a, open("spliced", "wb") as b:
            moved = os.splice(a.fileno(), w, 4096, offset_src=10)
            self.assertEqual(os.splice(r, b.fileno(), moved), moved)
        self.assertEqual(pathlib.Path("spliced").read_bytes(), data[10 : 10 + moved])
        with tempfile.TemporaryFile(dir="/tmp") as host, open("from", "rb") as a:
            done = 0
            while n := os.sendfile(host.fileno(), a.fileno(), done, 1 << 20):
                done += n
            host.seek(0)
            self.assertEqual(host.read(), data)

    def test_descriptor_passing(self):
        left, right = socket.socketpair(socket.AF_UNIX)
        child = os.fork()
        if child == 0:
            _, fds, _, _ = socket.recv_fds(right, 10, 1)
            os.write(fds[0], b"from the child")
            os._exit(0)
        fd = os.open("passed", os.O_RDWR | os.O_CREAT, 0o600)
        socket.send_fds(left, [b"x"], [fd])
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(os.pread(fd, 100, 0), b"from the child")
        self.assertEqual(os.lseek(fd, 0, os.SEEK_CUR), 14)
        os.close(fd)

    def test_posix_locks(self):
        with open("lock", "w") as f:
            fcntl.lockf(f, fcntl.LOCK_EX)
            self.assertTrue(locked_elsewhere("lock", "posix"))
            self.assertFalse(locked_elsewhere("lock", "flock"))
            fcntl.lockf(f, fcntl.LOCK_UN)
            self.assertFalse(locked_elsewhere("lock", "posix"))
            fcntl.lockf(f, fcntl.LOCK_EX)
            open("lock").close()
            self.assertFalse(locked_elsewhere("lock", "posix"))

    def test_flock(self):
        f = open("lock", "w")
        fcntl.flock(f, fcntl.LOCK_EX)
        self.assertTrue(locked_elsewhere("lock", "flock"))
        g = open("lock")
        with self.assertRaises(BlockingIOError):
            fcntl.flock(g, fcntl.LOCK_SH | fcntl.LOCK_NB)
        child = os.fork()
        if child == 0:
            signal.pause()
        f.close()
        self.assertTrue(locked_elsewhere("lock", "flock"))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        fcntl.flock(g, fcntl.LOCK_EX)
        g.close()

    def test_lock_wakes_waiter(self):
        f = open("lock", "w")
        fcntl.lockf(f, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            with open("lock", "r+") as g:
                fcntl.lockf(g, fcntl.LOCK_EX)
                g.write("got it")
            os._exit(0)
        time.sleep(0.2)
        self.assertEqual(os.waitpid(child, os.WNOHANG), (0, 0))
        fcntl.lockf(f, fcntl.LOCK_UN)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(open("lock").read(), "got it")

    def test_stat_family(self):
        pathlib.Path("f").write_text("12345")
        os.symlink("f", "l")
        s = os.stat("f")
        self.assertTrue(stat.S_ISREG(s.st_mode) and stat.S_ISLNK(os.lstat("l").st_mode))
        self.assertEqual((s.st_size, s.st_nlink, os.stat("l").st_ino), (5, 1, s.st_ino))
        os.utime("f", ns=(1234567890123456789, 987654321987654321))
        s = os.stat("f")
        self.assertEqual((s.st_atime_ns, s.st_mtime_ns), (1234567890123456789, 987654321987654321))
        fd = os.open("f", os.O_RDONLY)
        self.assertEqual(os.fstat(fd).st_ino, s.st_ino)
        self.assertEqual(os.stat(fd).st_ino, s.st_ino)
        self.assertEqual(os.readlink(f"/proc/self/fd/{fd}"), os.path.realpath("f"))
        self.assertEqual(os.stat(f"/proc/self/fd/{fd}").st_ino, s.st_ino)
        self.assertEqual(open(f"/proc/self/fd/{fd}").read(), "12345")
        os.close(fd)
        os.chmod("f", 0o4711)
        self.assertEqual(stat.S_IMODE(os.stat("f").st_mode), 0o4711)
        self.assertTrue(os.path.samefile("f", "l"))
        self.assertTrue(os.access("f", os.X_OK))
        self.assertEqual(os.statvfs(".").f_namemax, 255)
        self.assertEqual(os.pathconf(".", "PC_NAME_MAX"), 255)
        self.assertEqual(os.stat(".").st_dev, os.stat("f").st_dev)
        self.assertNotEqual(os.stat(".").st_dev, os.stat("/").st_dev)

    def test_folders(self):
        os.makedirs("a/b/c")
        for i in range(300):
            pathlib.Path("a", f"f{i:03}").touch()
        with os.scandir("a") as entries:
            kinds = {e.name: (e.is_dir(), e.inode()) for e in entries}
        self.assertEqual(len(kinds), 301)
        self.assertEqual([n for n, (d, _) in kinds.items() if d], ["b"])
        self.assertEqual(kinds["f007"][1], os.stat("a/f007").st_ino)
        self.assertEqual(len(glob.glob("a/**", recursive=True)), 303)
        self.assertEqual(sum(len(f) for _, _, f in os.walk("a")), 300)
        fd = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
        self.assertEqual(len(os.listdir(fd)), 301)
        os.rename("f000", "g", src_dir_fd=fd, dst_dir_fd=fd)
        os.mkdir("new", dir_fd=fd)
        self.assertTrue(os.stat("g", dir_fd=fd).st_size == 0)
        self.assertEqual(len(list(os.fwalk(dir_fd=fd))), 4)
        os.fchdir(fd)
        self.assertEqual(os.getcwd(), os.path.realpath(os.path.join(self.folder, "a")))
        os.chdir("..")
        os.close(fd)
        with self.assertRaises(OSError) as e:
            os.rmdir("a")
        self.assertEqual(e.exception.errno, errno.ENOTEMPTY)
        os.removedirs("a/b/c")
        self.assertEqual(len(os.listdir("a")), 301)
        with self.assertRaises(NotADirectoryError):
            os.listdir("a/g")
        os.chdir("a")
        shutil.rmtree(os.path.join(self.folder, "a"))
        with self.assertRaises(FileNotFoundError):
            os.getcwd()
        os.chdir(self.folder)

    def test_rename(self):
        pathlib.Path("a").write_text("a")
        pathlib.Path("b").write_text("b")
        os.replace("a", "b")
        self.assertEqual((os.path.exists("a"), open("b").read()), (False, "a"))
        os.makedirs("d/e")
        with self.assertRaises(OSError):
            os.rename("d", "d/e/f")
        with self.assertRaises(IsADirectoryError):
            os.rename("b", "d")
        libc = ctypes.CDLL(None, use_errno=True)
        pathlib.Path("x").write_text("x")
        self.assertEqual(libc.renameat2(-100, b"b", -100, b"x", 1), -1)
        self.assertEqual(ctypes.get_errno(), errno.EEXIST)
        self.assertEqual(libc.renameat2(-100, b"b", -100, b"x", 2), 0)
        self.assertEqual((open("b").read(), open("x").read()), ("x", "a"))

    def test_xattr(self):
        pathlib.Path("f").touch()
        try:
            os.setxattr("f", "user.small", b"value")
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP and os.environ.get("BASELINE"):
                self.skipTest("tmpfs of this kernel has no user attributes")
            raise
        os.setxattr("f", "user.big", b"B" * 4000)
        self.assertEqual(os.getxattr("f", "user.small"), b"value")
        self.assertEqual(sorted(os.listxattr("f")), ["user.big", "user.small"])
        with self.assertRaises(FileExistsError):
            os.setxattr("f", "user.small", b"", os.XATTR_CREATE)
        os.removexattr("f", "user.small")
        with self.assertRaises(OSError) as e:
            os.getxattr("f", "user.small")
        self.assertEqual(e.exception.errno, errno.ENODATA)
        shutil.copy2("f", "g")
        self.assertEqual(len(os.getxattr("g", "user.big")), 4000)

    def test_polling(self):
        with open("f", "w+") as f:
            f.write("x")
            f.flush()
            f.seek(0)
            self.assertEqual([len(x) for x in select.select([f], [f], [], 5)], [1, 1, 0])
            p = select.poll()
            p.register(f, select.POLLIN | select.POLLOUT)
            self.assertEqual(p.poll(5000)[0][1], select.POLLIN | select.POLLOUT)
            with self.assertRaises(PermissionError):
                select.epoll().register(f)

    def test_formats(self):
        with open("j", "w") as f:
            json.dump({"k": list(range(1000))}, f)
        self.assertEqual(json.load(open("j"))["k"][999], 999)
        with open("p", "wb") as f:
            pickle.dump(array.array("d", range(10000)), f)
        self.assertEqual(pickle.load(open("p", "rb"))[9999], 9999)
        with shelve.Shelf(dbm.dumb.open("shelf", "c")) as s:
            s.update((str(i), i) for i in range(200))
        with shelve.Shelf(dbm.dumb.open("shelf", "r")) as s:
            self.assertEqual(s["199"], 199)

    def test_unix_socket_and_fifo(self):
        server = socket.socket(socket.AF_UNIX)
        server.bind("sock")
        server.listen()
        self.assertTrue(stat.S_ISSOCK(os.stat("sock").st_mode))
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.path.abspath("sock"))
        peer, _ = server.accept()
        client.send(b"ping")
        self.assertEqual(peer.recv(10), b"ping")
        for s in (server, client, peer):
            s.close()
        os.mkfifo("fifo")
        child = os.fork()
        if child == 0:
            with open("fifo", "w") as f:
                f.write("through")
            os._exit(0)
        self.assertEqual(open("fifo").read(), "through")
        os.waitpid(child, 0)

    def test_attributes_of_an_open_fifo(self):
        os.mkfifo("fifo")
        fd = os.open("fifo", os.O_RDWR)
        self.assertEqual(os.fstat(fd), os.stat("fifo"))
        os.fchmod(fd, 0o640)
        os.utime(fd, (1, 2))
        if os.geteuid() == 0:
            os.fchown(fd, 5, 6)
        found = os.stat("fifo")
        self.assertEqual((stat.S_IMODE(found.st_mode), found.st_mtime), (0o640, 2))
        self.assertEqual(found.st_uid, 5 if os.geteuid() == 0 else os.geteuid())
        copy = os.dup(fd)
        self.assertEqual(os.fstat(copy), found)
        os.rename("fifo", "moved")
        self.assertEqual(os.fstat(copy).st_ino, found.st_ino)
        os.write(fd, b"x")
        self.assertEqual(os.read(copy, 9), b"x")
        # Others are as before.
        there, back = os.pipe()
        self.assertNotEqual(os.fstat(there).st_ino, found.st_ino)
        os.unlink("moved")
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        for one in (fd, copy, there, back):
            os.close(one)

    def test_permissions(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        os.chmod(self.folder, 0o755)
        os.chmod(BASE, 0o755)
        pathlib.Path("secret").write_text("s")
        os.chmod("secret", 0o600)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                open("secret")
            except PermissionError:
                os._exit(5)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
