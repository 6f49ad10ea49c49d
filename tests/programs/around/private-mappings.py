"""Private mappings of a file that is larger than the pool's cache.

  oracle FILE SEED OUT loads, stores, calls, forks, advice and moves at random, compared with a model
  memory FILE          what one that is only read takes of memory
  again FILE           what is dropped and stored again and again does not make later copies larger
  cut FILE             a page behind the end of a file that was cut is SIGBUS, what was touched stays
  paths FILE           paths of calls that lie in one that is only read, and that nobody has touched
  many FOLDER COUNT    many small files, of holes at first, are stored to through shared mappings
  given FILE           a call is given a shared mapping that is larger than shared memory
"""
import ctypes, mmap, os, random, resource, signal, sys

PAGE = 4096
MIB = 1 << 20


def anonymous_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def private(fd, write, size=0):
    return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))


def in_a_child(memory, model, write):
    child = os.fork()
    if child == 0:
        fits = memory[:] == model
        if write:
            memory[0:1] = b"!"
        os._exit(0 if fits else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory[:] == model


def through_a_call(memory, target, at, size):
    with memoryview(memory)[at : at + size] as view:
        return os.pwrite(target, view, 0)


def oracle(path, seed):
    chance = random.Random(seed)
    size = chance.choice([MIB, MIB + 5000, 7 * MIB, 20 * MIB + 123])
    data = chance.randbytes(size)
    with open(path, "wb") as file:
        file.write(data)
    fd, write = os.open(path, os.O_RDWR), chance.random() < 0.6
    targets = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in (path + ".out", sys.argv[4])]
    memory, model = private(fd, write), bytearray(data)
    for step in range(300):
        at = chance.randrange(size)
        length = min(size - at, chance.choice([1, 100, PAGE, 70000, MIB]))
        place, what = slice(at, at + length), chance.random()
        if what < 0.6:
            assert memory[place] == model[place], (step, at, length)
        elif what < 0.75 and write:
            memory[place] = model[place] = chance.randbytes(length)
        elif what < 0.85:
            target = chance.choice(targets)
            assert through_a_call(memory, target, at, length) == length
            assert os.pread(target, length, 0) == model[place], (step, at, length)
        elif what < 0.9 and write:
            with memoryview(memory)[place] as view:
                assert os.preadv(fd, [view], 0) == length
            model[place] = data[:length]
        elif what < 0.92:
            in_a_child(memory, model, write)
        elif what < 0.94:
            memory.madvise(mmap.MADV_DONTNEED)
            model = bytearray(data)
    assert memory[:] == model
    with open(path, "rb") as file:
        assert file.read() == data
    if write:
        # It moves; Python cuts the file as well.
        memory.resize(size // 2 // PAGE * PAGE)
        assert memory[:] == model[: len(memory)]


def memory(path):
    fd = os.open(path, os.O_RDONLY)
    before, size = anonymous_memory(), os.fstat(fd).st_size
    mapped = private(fd, False)
    made = anonymous_memory() - before
    for at in range(0, size, PAGE):
        assert mapped[at : at + 8] == os.pread(fd, 8, at)
    print("made" if made < MIB else f"made {made}", "read" if anonymous_memory() - before < size // 4 else "read it all")


def again(path):
    """What is dropped and stored again and again does not make later copies larger."""
    fd = os.open(path, os.O_RDONLY)
    mapped = private(fd, True)
    for _ in range(21000):
        mapped[5:6] = b"x"
        mapped.madvise(mmap.MADV_DONTNEED, 0, 16 << 10)
    before, size = anonymous_memory(), len(mapped)
    mapped[size // 2 : size // 2 + 1] = b"x"
    more = anonymous_memory() - before
    print("small" if more < MIB else more)


def cut(path):
    size = 4 * MIB
    with open(path, "wb") as file:
        file.write(b"x" * size)
    fd = os.open(path, os.O_RDWR)
    mapped = private(fd, True)
    mapped[size - 1 : size] = b"y"
    os.ftruncate(fd, 3 * MIB + 10)
    assert mapped[size - 1 : size] == b"y" and mapped[3 * MIB : 3 * MIB + 12] == b"x" * 10 + bytes(2)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _there_is_none = mapped[3 * MIB + MIB // 2]
        os._exit(0)
    assert os.waitpid(child, 0)[1] & 0x7F == signal.SIGBUS


def paths(path):
    """Of calls that do not come through functions of the C library that know a path."""
    host, count = b"/proc/self/auxv", 512
    with open(path, "wb") as file:
        for page in range(count):
            file.write([host, os.fsencode(path)][page % 2].ljust(PAGE, b"\0"))
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    fd = os.open(path, os.O_RDONLY)
    start = library.mmap(None, count * PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
    openat, here = 257, -100
    for page in range(0, count, 7):
        opened = library.syscall(openat, here, ctypes.c_void_p(start + page * PAGE), os.O_RDONLY)
        assert opened >= 0, (page, os.strerror(ctypes.get_errno()))
        os.close(opened)


def many(folder, count):
    files, size = [], 256 << 10
    for i in range(count):
        fd = os.open(f"{folder}/{i}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        files.append((fd, mmap.mmap(fd, size)))
    for _ in range(2):
        for i, (_, mapped) in enumerate(files):
            for at in range(0, size, PAGE):
                mapped[at : at + 8] = (i * size + at).to_bytes(8, "little")
    for i, (fd, mapped) in enumerate(files):
        for at in range(0, size, PAGE):
            expected = (i * size + at).to_bytes(8, "little")
            assert mapped[at : at + 8] == expected and os.pread(fd, 8, at) == expected, (i, at)


def given(path):
    size = 100 * MIB
    fd, source = os.open(path, os.O_RDWR | os.O_CREAT), os.open("/dev/urandom", os.O_RDONLY)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as mapped, memoryview(mapped) as view:
        done = os.preadv(source, [view], 0)
        assert 0 < done < size, done
        assert os.pread(fd, size, 0) == view and any(view[done - PAGE : done])
    # Others go on.
    for _ in range(3):
        with open(path + ".other", "wb") as file:
            file.write(b"x" * size)


what, path = sys.argv[1:3]
if what == "oracle":
    oracle(path, int(sys.argv[3]))
elif what == "memory":
    memory(path)
elif what == "again":
    again(path)
elif what == "cut":
    cut(path)
elif what == "paths":
    paths(path)
elif what == "many":
    many(path, int(sys.argv[3]))
elif what == "given":
    given(path)
else:
    sys.exit(__doc__)
