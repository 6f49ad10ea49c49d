"""Durable transactions of 1 KiB with attributes, in a pool and in SQLite, in turns.

    python beside_sqlite.py [FOLDER [COUNT]]

FOLDER is /dev/shm unless told, COUNT 5000 of each in a round. Each transaction overwrites 1 KiB of an object and sets two
attributes and two keys of a map, one of which is new; it removes an old key. SQLite keeps a write
ahead log and syncs at each commit (synchronous=FULL), which costs next to nothing in memory.
"""

import os
import random
import sqlite3
import sys
import tempfile
import time

import nacre

OBJECTS, SIZE, LOG, ROUNDS = 32, 256 << 10, 300, 3


def changes(first, count):
    """Transactions: number, object, offset and all bytes."""
    dice = random.Random(first)
    for number in range(first, first + count):
        noise = dice.randbytes(1024 + 293 + 35 + 234 + 186)
        at = dice.randrange(SIZE // 1024) * 1024
        yield number, f"o{dice.randrange(OBJECTS)}", at, noise


def in_pool(pool, changes):
    for number, name, at, noise in changes:
        with pool.transaction() as t:
            t.write("c", name, noise[:1024], at)
            t.set_attribute("c", name, "_", noise[1024:1317])
            t.set_attribute("c", name, "snapset", noise[1317:1352])
            t.set_omap("c", "meta", f"log.{number:08}", noise[1352:1586])
            t.set_omap("c", "meta", "_fastinfo", noise[1586:])
            t.remove_omap("c", "meta", f"log.{number - LOG:08}")


def in_sqlite(db, changes):
    for number, name, at, noise in changes:
        with db:
            put = "insert or replace into {} values (?, ?, ?)".format
            db.execute(put("data"), (name, at, noise[:1024]))
            db.execute(put("attributes"), (name, "_", noise[1024:1317]))
            db.execute(put("attributes"), (name, "snapset", noise[1317:1352]))
            db.execute(put("omap"), ("meta", f"log.{number:08}", noise[1352:1586]))
            db.execute(put("omap"), ("meta", "_fastinfo", noise[1586:]))
            old = ("meta", f"log.{number - LOG:08}")
            db.execute("delete from omap where object = ? and key = ?", old)


def new_pool(folder):
    pool = nacre.Pool.create(os.path.join(folder, "pool"), 256 << 20)
    with pool.transaction() as t:
        t.create_collection("c")
        t.touch("c", "meta")
        for number in range(OBJECTS):
            t.write("c", f"o{number}", bytes(SIZE))
    return pool


def new_sqlite(folder):
    db = sqlite3.connect(os.path.join(folder, "sqlite"))
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    for table in ("data", "attributes", "omap"):
        db.execute(
            f"create table {table} (object, key, value, primary key (object, key)) without rowid"
        )
    with db:
        rows = ((f"o{o}", at, bytes(1024)) for o in range(OBJECTS) for at in range(0, SIZE, 1024))
        db.executemany("insert into data values (?, ?, ?)", rows)
    return db


def timed(work, store, changes):
    begin = time.perf_counter()
    work(store, changes)
    return (time.perf_counter() - begin) / len(changes) * 1e6


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    with tempfile.TemporaryDirectory(dir=base) as folder:
        with new_pool(folder) as pool:
            db = new_sqlite(folder)
            print("microseconds of a transaction     pool   SQLite")
            for round in range(ROUNDS):
                these = list(changes(round * count, count))
                took = timed(in_pool, pool, these), timed(in_sqlite, db, these)
                print("{:34}{:4.1f}   {:6.1f}".format("", *took))
            db.close()


main()
