"""Shared mappings of files in sys.argv[1]: contents, offsets, growth, fork."""
import mmap
import os
import sys

FOLDER = sys.argv[1]
CHUNK = 2 << 20


def pattern(count, seed=0):
    return bytes((i * 7 + seed) % 251 for i in range(count))


def whole_file():
    data = pattern(3 * CHUNK + 12345)
    with open(f"{FOLDER}/whole", "wb") as f:
        f.write(data)
    f = open(f"{FOLDER}/whole", "r+b")
    fd = f.fileno()
    m = mmap.mmap(fd, 0)
    assert m[:] == data
    m[5:10] = b"hello"
    m[CHUNK + 3 : CHUNK + 8] = b"world"
    assert os.pread(fd, 5, 5) == b"hello" and os.pread(fd, 5, CHUNK + 3) == b"world"
    os.pwrite(fd, b"XYZ", 2 * CHUNK + 1)
    assert m[2 * CHUNK + 1 : 2 * CHUNK + 4] == b"XYZ"
    m.flush()
    m.flush(mmap.PAGESIZE, mmap.PAGESIZE)
    part = mmap.mmap(fd, 8192, offset=CHUNK - 4096)
    assert part[4096 + 3 : 4096 + 8] == b"world"
    part[0:3] = b"abc"
    assert m[CHUNK - 4096 : CHUNK - 4093] == b"abc"
    for advice in (mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL, mmap.MADV_DONTNEED):
        m.madvise(advice)
    assert m[5:10] == b"hello"
    m.close()
    part[0:3] = b"def"
    assert os.pread(fd, 3, CHUNK - 4096) == b"def"
    return f


def growth(f):
    fd = f.fileno()
    os.ftruncate(fd, 5 * CHUNK)
    m = mmap.mmap(fd, 0)
    assert len(m) == 5 * CHUNK and m[4 * CHUNK : 4 * CHUNK + 100] == bytes(100)
    m.resize(7 * CHUNK + 4096)
    m[7 * CHUNK : 7 * CHUNK + 4] = b"tail"
    assert os.pread(fd, 4, 7 * CHUNK) == b"tail"
    m.resize(CHUNK)
    assert m[5:10] == b"hello" and os.fstat(fd).st_size == CHUNK
    m.close()
    os.ftruncate(fd, 0)
    os.ftruncate(fd, CHUNK)
    assert mmap.mmap(fd, 0)[:] == bytes(CHUNK)


def inherited():
    f = open(f"{FOLDER}/small", "w+b")
    f.write(b"x" * 100)
    f.flush()
    m = mmap.mmap(f.fileno(), 100)
    child = os.fork()
    if child == 0:
        m[10:15] = b"child"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert m[8:17] == b"xxchildxx"
    f.seek(0, 2)
    f.write(b"2" * 9000)
    f.flush()
    assert mmap.mmap(f.fileno(), 0)[90:120] == b"x" * 10 + b"2" * 20
    assert mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[99:101] == b"x2"


def many_small_files():
    for i in range(20):
        with open(f"{FOLDER}/s{i}", "w+b") as f:
            f.write(b"y" * (i * 1000 + 1))
            f.flush()
            m = mmap.mmap(f.fileno(), 0)
            m[0:1] = b"z"
            m.flush()
            m.close()
            assert os.pread(f.fileno(), 9, 0) == (b"z" + b"y" * (i * 1000))[:9]


growth(whole_file())
inherited()
many_small_files()
print("mappings ok")
