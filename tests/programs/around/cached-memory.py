"""Small changes of the same places, synced now and then: FOLDER KINDS ROUNDS SYNC_EVERY.

KINDS, separated by commas, are of overwrites, appends, attributes, and entries (new files that take
the place of older ones).
"""
import os
import sys

folder, kinds, rounds, sync_every = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
os.chdir(folder)
table = os.open("table", os.O_RDWR | os.O_CREAT)
os.ftruncate(table, 1 << 20)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def overwrites(number):
    os.pwrite(table, b"%08d" % number * 16, number * 7919 % 64 * 512)


def appends(number):
    os.write(log, b"line %010d\n" % number)


def attributes(number):
    os.utime("log", (number, number))


def entries(number):
    with open("new", "w") as new:
        new.write("x" * 300)
    os.rename("new", "entry%d" % (number % 16))


for number in range(rounds):
    for kind in kinds:
        globals()[kind](number)
    if (number + 1) % sync_every == 0:
        os.fsync(table)
