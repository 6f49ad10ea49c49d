"""Shared mappings of files that are larger than the pool's cache.

  make FILE MB                  fills FILE with bytes that tell where they belong
  oracle FILE MB SEED STEPS     loads, stores and syncs at random, forks, and compares with a model
  torn FILE MB LOG              stores for ever; notes in LOG, unbuffered, what was synced
  verify FILE MB LOG            after a kill: by read, what was stored and synced is there
  look FILE MB SEED             compares by read what `oracle` left, from its model FILE.SEED
"""
import ctypes, mmap, os, random, struct, sys, time

PAGE = 4096


def of_page(page, salt=0):
    return struct.pack("<QQ", page * 0x9E3779B97F4A7C15 % 2**64 ^ salt, page)


def make(path, size):
    with open(path, "wb") as file:
        for page in range(size // PAGE):
            file.write(of_page(page) * (PAGE // 16))
        os.fsync(file.fileno())


def mapped(path, write=True):
    fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    memory = mmap.mmap(fd, 0, mmap.MAP_SHARED, protection)
    return fd, memory


def check_all(memory, expected):
    for page in range(len(memory) // PAGE):
        at = page * PAGE + page * 16 % PAGE
        want = expected.get(page, 0)
        assert memory[at : at + 16] == of_page(page, want), f"page {page}"


def oracle(path, size, seed, steps):
    chance = random.Random(seed)
    fd, memory = mapped(path)
    stored, pages = {}, size // PAGE
    check_all(memory, stored)
    for step in range(1, steps + 1):
        what = chance.random()
        page = chance.randrange(pages)
        at = page * PAGE + page * 16 % PAGE
        if what < 0.5:
            memory[at : at + 16] = of_page(page, step)
            stored[page] = step
        elif what < 0.85:
            assert memory[at : at + 16] == of_page(page, stored.get(page, 0)), f"page {page}, step {step}"
        elif what < 0.92:
            assert os.pread(fd, 16, at) == of_page(page, stored.get(page, 0)), f"read {page}, step {step}"
        elif what < 0.99:
            os.pwrite(fd, of_page(page, step), at)
            stored[page] = step
        elif what < 0.995:
            memory.flush()
        elif what < 0.997:
            os.fsync(fd)
        elif what < 0.998:
            # A run of pages, and the kernel's own look at some.
            for one in range(page, min(page + 64, pages)):
                at = one * PAGE + one * 16 % PAGE
                memory[at : at + 16] = of_page(one, step)
                stored[one] = step
            out = os.open("/dev/null", os.O_WRONLY)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory, page * PAGE))
            assert ctypes.CDLL(None).write(out, ctypes.c_void_p(address), PAGE) == PAGE
            os.close(out)
        else:
            in_a_child(memory, stored, page, step)
    check_all(memory, stored)
    with open(f"{path}.{seed}", "w") as model:
        for page, step in stored.items():
            model.write(f"{page} {step}\n")
    os.fsync(fd)


def in_a_child(memory, stored, page, step):
    at = page * PAGE + page * 16 % PAGE
    child = os.fork()
    if child == 0:
        good = memory[at : at + 16] == of_page(page, stored.get(page, 0))
        memory[at : at + 16] = of_page(page, step)
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    stored[page] = step
    assert memory[at : at + 16] == of_page(page, step)


def look(path, size, seed):
    stored = dict(map(int, line.split()) for line in open(f"{path}.{seed}"))
    with open(path, "rb", buffering=0) as file:
        for page in range(size // PAGE):
            at = page * PAGE + page * 16 % PAGE
            assert os.pread(file.fileno(), 16, at) == of_page(page, stored.get(page, 0)), f"page {page}"


def torn(path, size, log):
    fd, memory = mapped(path)
    log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    chance, step = random.Random(os.getpid()), 0
    while True:
        step += 1
        page = chance.randrange(size // PAGE)
        at = page * PAGE + page * 16 % PAGE
        # Noted first: a store that is noted twice may be the old or the new one at the end.
        os.write(log, struct.pack("<QQ", page, step))
        memory[at : at + 16] = of_page(page, step)
        if step % 500 == 0:
            memory.flush()
            os.write(log, struct.pack("<QQ", 2**64 - 1, step))


def verify(path, size, log, synced_only):
    notes = open(log, "rb").read()
    notes = [struct.unpack_from("<QQ", notes, at) for at in range(0, len(notes) // 16 * 16, 16)]
    syncs = [step for page, step in notes if page == 2**64 - 1]
    last = notes[-1][1] if notes else 0
    surely = syncs[-1] if synced_only and syncs else 0 if synced_only else last - 1
    expected, later = {}, {}
    for page, step in notes:
        if page != 2**64 - 1:
            if step <= surely:
                expected[page] = step
            else:
                later.setdefault(page, []).append(step)
    with open(path, "rb", buffering=0) as file:
        for page in range(size // PAGE):
            found = os.pread(file.fileno(), 16, page * PAGE + page * 16 % PAGE)
            may = [expected.get(page, 0)] + later.get(page, [])
            assert found in [of_page(page, step) for step in may], f"page {page}: {found} not of {may}"
    print(len(syncs), "syncs", last, "stores")


what, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
if what == "make":
    make(path, size)
elif what == "oracle":
    oracle(path, size, int(sys.argv[4]), int(sys.argv[5]))
elif what == "look":
    look(path, size, int(sys.argv[4]))
elif what == "torn":
    torn(path, size, sys.argv[4])
elif what == "verify":
    verify(path, size, sys.argv[4], len(sys.argv) > 5)
