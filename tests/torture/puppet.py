"""Does to files of a pool what it is told, line by line, and answers `ok ...` or the name of the error.

    open NAME | write FD BYTES | read FD | end FD | fsync FD | fdatasync FD | syncfs FD | dsync NAME BYTES
    beside FD: begins an fsync, and does not wait for it | pid
"""
import ctypes
import errno
import os
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)


def syncfs(fd):
    if libc.syncfs(fd):
        raise OSError(ctypes.get_errno(), "syncfs")


def dsync(name, text):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    try:
        return os.write(fd, text.encode() * 1000)
    finally:
        os.close(fd)


def beside(fd):
    threading.Thread(target=os.fsync, args=[int(fd)], daemon=True).start()


CALLS = {
    "open": lambda name: os.open(name, os.O_RDWR | os.O_CREAT),
    "write": lambda fd, text: os.pwrite(int(fd), text.encode() * 1000, 0),
    "read": lambda fd: os.pread(int(fd), 5, 0).decode(),
    "end": lambda fd: os.pread(int(fd), 5, os.fstat(int(fd)).st_size - 5).decode(),
    "fsync": lambda fd: os.fsync(int(fd)),
    "fdatasync": lambda fd: os.fdatasync(int(fd)),
    "syncfs": lambda fd: syncfs(int(fd)),
    "dsync": dsync,
    "beside": beside,
    "pid": os.getpid,
}

for line in sys.stdin:
    call, *arguments = line.split()
    try:
        print("ok", CALLS[call](*arguments), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
