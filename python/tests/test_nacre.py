"""The package does what docs/objects.md says."""

import ast
import inspect
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import nacre

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
KILLED = """
import nacre, os, signal, sys
pool = nacre.Pool.open(sys.argv[1])
with pool.transaction() as t:
    t.write("c", "by child", b"durable")
t = pool.transaction()
t.write("c", "never", b"lost")
os.kill(os.getpid(), signal.SIGKILL)
"""

ENDS_WITH_THREADS = """
import nacre, sys, threading, time
pool = nacre.Pool.open(sys.argv[1])
def work(number):
    while True:
        with pool.transaction() as t:
            t.write("c", f"{number}", b"x" * 100000)
        pool.read("c", f"{number}")
for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep(0.05)
"""


class Objects(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.path = os.path.join(self.folder.name, "my.pool")
        self.pool = nacre.Pool.create(self.path, 64 << 20)
        with self.pool.transaction() as t:
            t.create_collection("c")

    def tearDown(self):
        self.pool.close()
        self.folder.cleanup()

    def test_ten_lines(self):
        with self.pool.transaction() as t:
            t.create_collection("accounts")
            t.write("accounts", "anna", b"90")
            t.write("accounts", "ben", b"110")
        self.assertEqual(self.pool.read("accounts", "anna"), b"90")
        self.assertEqual(self.pool.objects("accounts"), [b"anna", b"ben"])

    def test_all_operations(self):
        pool = self.pool
        with pool.transaction() as t:
            t.create("c", "one")
            t.write("c", "one", b"hello world")
            t.zero("c", "one", 5, 1)
            t.truncate("c", "one", 8)
            t.set_attribute("c", "one", "owner", "anna")
            t.set_omap("c", "one", b"\x00\xff", bytearray(b"1"))
            t.set_omap("c", "one", "b", memoryview(b"22")[1:])
            t.set_omap_header("c", "one", b"head")
            t.clone("c", "one", "two")
            t.remove_omap_range("c", "two", b"a", b"z")
            t.remove_attributes("c", "two")
            t.clone_range("c", "one", 0, 5, "three", 3)
            t.create_collection("d")
            t.rename("c", "three", "d", "3333")
            self.assertEqual(len(t), 14)
        self.assertEqual(pool.read("c", "one"), b"hello\0wo")
        self.assertEqual(pool.read("c", "one", 6, 1), b"w")
        self.assertEqual(pool.attributes("c", "one"), {b"owner": b"anna"})
        self.assertEqual(pool.omap("c", "one"), {b"\x00\xff": b"1", b"b": b"2"})
        self.assertEqual(list(pool.omap("c", "one", start="b")), [b"b"])
        self.assertEqual(list(pool.omap_back("c", "one")), [b"b", b"\x00\xff"])
        self.assertEqual(pool.omap_back("c", "one", limit=1), {b"b": b"2"})
        self.assertEqual(list(pool.omap_back("c", "one", end="b")), [b"\x00\xff"])
        self.assertEqual(pool.omap("c", "two"), {b"\x00\xff": b"1"})
        self.assertEqual(pool.omap_header("c", "two"), b"head")
        self.assertEqual(pool.read("d", "3333"), b"\0\0\0hello")
        self.assertEqual(pool.attribute("c", "one", "owner"), b"anna")
        stat = pool.stat("c", "one")
        self.assertEqual((stat.size, stat.attributes, stat.has_omap), (8, 1, True))
        with pool.transaction() as t:
            t.remove_attribute("c", "one", "owner")
            t.remove_omap("c", "one", "b")
            t.clear_omap("c", "two")
            t.touch("c", "two")
            t.remove("c", "two")
            t.split("d", "c", 0, 32, 0x33333333)
            t.remove_collection("d")
        self.assertEqual(pool.objects("c"), [b"3333", b"one"])
        with pool.transaction() as t:
            t.create_collection("e")
            t.merge("c", "e")
        self.assertEqual(pool.collections(), [b"e"])
        total, free = pool.usage()
        self.assertTrue(0 < free < total <= 64 << 20)

    def test_buffers(self):
        data = os.urandom(3 << 20)
        with self.pool.transaction() as t:
            t.write("c", "big", data)
            t.set_omap("c", "big", "value", data)
        self.assertEqual(self.pool.read("c", "big"), data)
        self.assertEqual(self.pool.omap_get("c", "big", "value"), data)
        buffer = bytearray(len(data) + 10)
        self.assertEqual(self.pool.readinto("c", "big", buffer), len(data))
        self.assertEqual(bytes(buffer[: len(data)]), data)
        with self.assertRaises(BufferError):
            self.pool.readinto("c", "big", b"not to be written")

    def test_a_buffer_that_memory_cannot_hold_twice_is_an_error(self):
        size = 1 << 40
        limits = resource.getrlimit(resource.RLIMIT_AS)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_AS, limits)
        with tempfile.TemporaryFile(dir=FOLDER) as file:
            file.truncate(size)
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as buffer:
                resource.setrlimit(resource.RLIMIT_AS, (size * 3 // 2, limits[1]))
                with self.assertRaises(MemoryError), self.pool.transaction() as t:
                    t.write("c", "big", buffer)
        self.assertFalse(self.pool.exists("c", "big"))

    def test_an_exception_leaves_nothing(self):
        with self.assertRaises(ZeroDivisionError):
            with self.pool.transaction() as t:
                t.touch("c", "x")
                1 // 0
        self.assertFalse(self.pool.exists("c", "x"))
        with self.assertRaisesRegex(nacre.Exists, "operation 1 "):
            with self.pool.transaction() as t:
                t.touch("c", "x")
                t.create_collection("c")
        self.assertFalse(self.pool.exists("c", "x"))
        with self.assertRaises(nacre.Error):
            t.touch("c", "x")

    def test_what_does_not_exist_is_left_alone_if_told(self):
        with self.pool.transaction() as t:
            with self.assertRaises(nacre.Error):
                t.if_exists()
            t.remove("c", "none")
            t.if_exists()
            t.write("c", "none", b"bytes")
            t.if_exists()
            t.touch("c", "there")
            t.write("c", "there", b"bytes", 9000)
            t.if_exists()
        self.assertEqual(self.pool.objects("c"), [b"there"])
        self.assertEqual(self.pool.extents("c", "there"), [(8192, 813)])
        self.assertEqual(self.pool.extents("c", "there", length=8192), [])

    def test_a_pool_that_nothing_names_is_left(self):
        for _ in range(3):
            other = nacre.Pool.open(self.path)
            other.transaction().touch("c", "never")
            del other
        self.pool.close()
        # It is nobody's: a check finds out.
        self.assertEqual(nacre.Pool.check(self.path), [])

    def test_a_child_leaves_the_pool_of_its_parent_alone(self):
        pid = os.fork()
        if pid == 0:
            try:
                with self.pool, self.assertRaisesRegex(nacre.Error, "open it again"):
                    with self.pool.transaction() as t:
                        t.touch("c", "never")
                with nacre.Pool.open(self.path) as own, own.transaction() as t:
                    t.touch("c", "by child")
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        with nacre.Pool.open(self.path) as other:
            for number in range(200):
                with (self.pool if number % 2 else other).transaction() as t:
                    t.touch("c", f"{number}")
            self.assertEqual(len(self.pool.objects("c")), 201)
        self.pool.close()
        self.assertEqual(nacre.Pool.check(self.path), [])

    def test_errors(self):
        with self.assertRaises(nacre.NotFound):
            self.pool.read("c", "none")
        with self.assertRaises(nacre.NotFound):
            self.pool.objects("none")
        with self.assertRaises(nacre.NotFound):
            self.pool.omap_get("c", "none", "k")
        with self.assertRaises(TypeError):
            self.pool.exists("c", 7)
        with self.pool.transaction() as t:
            t.touch("c", "o")
        for ask in (self.pool.attribute, self.pool.omap_get):
            with self.assertRaises(nacre.NotFound):
                ask("c", "o", "none")
            for key in ("", "n" * 70000):
                with self.assertRaises(nacre.Error) as refused:
                    ask("c", "o", key)
                self.assertNotIsInstance(refused.exception, nacre.NotFound)
        with self.assertRaises(nacre.Error):
            nacre.Pool.open("/nowhere/at/all")
        self.assertFalse(self.pool.has_collection("none"))
        self.pool.close()
        with self.assertRaisesRegex(nacre.Error, "closed"):
            self.pool.collections()

    def test_threads(self):
        def work(number):
            for step in range(50):
                with self.pool.transaction() as t:
                    t.write("c", f"{number}.{step}", b"x" * 5000)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.pool.objects("c")), 200)

    def test_what_is_expected(self):
        with self.pool.transaction() as t:
            t.expect_omap("c", "o", "k", None)
            t.touch("c", "o")
            t.set_omap("c", "o", "k", b"1")
            t.set_attribute("c", "o", "a", b"2" * 40000)
        with self.pool.transaction() as t:
            t.expect_omap("c", "o", "k", bytearray(b"1"))
            t.expect_attribute("c", "o", "a", b"2" * 40000)
            t.expect_attribute("c", "o", "b", None)
        for expect, value in (("expect_omap", b"0"), ("expect_attribute", b"2"), ("expect_omap", None)):
            with self.assertRaisesRegex(nacre.Changed, "operation 1 "):
                with self.pool.transaction() as t:
                    t.write("c", "o", b"never")
                    getattr(t, expect)("c", "o", "k" if expect == "expect_omap" else "a", value)
        self.assertEqual(self.pool.stat("c", "o").size, 0)

    def test_counting_as_told(self):
        with open(os.path.join(ROOT, "docs", "objects.md"), encoding="utf-8") as page:
            _, _, code = page.read().partition("def add(pool")
        names = {"nacre": nacre}
        exec("def add(pool" + code.split("```")[0], names)

        def work():
            for _ in range(100):
                names["add"](self.pool, 2)

        with self.pool.transaction() as t:
            t.create_collection("accounts")
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.pool.omap_get("accounts", "anna", "coins"), b"600")

    def test_a_read_is_of_one_moment_whatever_size_the_object_gets(self):
        sizes = {b"a"[0]: 3 << 19, b"b"[0]: 5 << 19}
        over = threading.Event()

        def work():
            while not over.is_set():
                for byte, size in sizes.items():
                    with self.pool.transaction() as t:
                        t.write("c", "o", bytes([byte]) * size)
                        t.truncate("c", "o", size)

        with self.pool.transaction() as t:
            t.touch("c", "o")
        writer = threading.Thread(target=work)
        writer.start()
        buffer = bytearray(3 << 20)
        try:
            for _ in range(200):
                read = self.pool.read("c", "o")
                length = self.pool.readinto("c", "o", buffer)
                for found in (read, bytes(buffer[:length])):
                    self.assertEqual(found.count(found[:1]), len(found) if found else 1)
                    self.assertEqual(len(found), sizes[found[0]] if found else 0)
        finally:
            over.set()
            writer.join()

    def test_a_process_that_is_killed(self):
        child = subprocess.run([sys.executable, "-c", KILLED, self.path], check=False)
        self.assertEqual(child.returncode, -signal.SIGKILL)
        self.assertEqual(self.pool.read("c", "by child"), b"durable")
        self.assertFalse(self.pool.exists("c", "never"))
        with nacre.Pool.open(self.path) as again:
            self.assertEqual(again.objects("c"), [b"by child"])

    def test_the_stub_says_what_the_module_takes(self):
        with open(os.path.join(os.path.dirname(nacre.__file__), "_nacre.pyi")) as stub:
            tree = ast.parse(stub.read())
        told = {c.name: c for c in tree.body if isinstance(c, ast.ClassDef)}
        for name in ("Pool", "Transaction"):
            methods = {m.name: m.args for m in told[name].body}
            there = {m for m in vars(getattr(nacre, name)) if not m.startswith("_")}
            self.assertEqual(there, {m for m in methods if not m.startswith("_")})
            for method in there:
                self.assertTrue(getattr(getattr(nacre, name), method).__doc__, method)
                real = inspect.signature(getattr(getattr(nacre, name), method)).parameters
                args = methods[method]
                self.assertEqual(list(real), [a.arg for a in args.args], method)
                defaults = [p.default for p in real.values() if p.default is not p.empty]
                self.assertEqual(defaults, [ast.literal_eval(d) for d in args.defaults], method)

    def test_a_program_ends_while_its_threads_are_in_calls(self):
        for _ in range(20):
            child = subprocess.run([sys.executable, "-c", ENDS_WITH_THREADS, self.path], check=False)
            self.assertEqual(child.returncode, 0)

    def lend(self, each, *values):
        """As pmemkv gives buffers: what they hold is another thing behind the call."""
        lent = [bytearray(value) for value in values]
        each(*lent)
        for value in lent:
            value[:] = bytes(len(value))

    def test_moving_from_pmemkv_as_told(self):
        with open(os.path.join(ROOT, "docs", "objects.md"), encoding="utf-8") as page:
            before, _, code = page.read().partition("from pmemkv import Database")
        code = code.split("```")[0]
        pairs = [(b"k%06d" % n, b"v%d" % n) for n in range(7001)]
        old = mock.Mock()
        old.get_all = lambda each: [self.lend(each, *pair) for pair in pairs]
        code = code.replace("/mnt/new.pool", os.path.join(self.folder.name, "new.pool"))
        self.assertIn(self.folder.name, code)
        names = {"nacre": nacre, "Database": lambda *_: old}
        self.assertTrue(before.endswith("```python\nimport nacre\n"))
        exec(code, names)
        self.assertEqual(list(names["pool"].omap("data", "map").items()), pairs)
        names["pool"].close()

    def test_the_example_beside_sqlite(self):
        example = os.path.join(ROOT, "python", "examples", "beside_sqlite.py")
        done = subprocess.run(
            [sys.executable, example, self.folder.name, "20"], check=True, capture_output=True
        )
        self.assertEqual(len(done.stdout.splitlines()), 4)


if __name__ == "__main__":
    unittest.main()
