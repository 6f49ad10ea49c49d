"""A database of sqlite that loses power.

    database.py verify FOLDER LOG          what was committed is there, nothing else
    database.py work   FOLDER LOG SEED     commits rows for ever

Row n is a function of n. LOG, outside of the pool, holds the number of the last row that was committed.
"""
import random
import sqlite3
import sys

from acknowledged import committed, remember


def contents(number):
    # A long one goes to its place while the journal is written, not into it.
    more = 0 if number % 16 else 200_000
    return random.Random(number).randbytes(number * 7919 % 6000 + more)


def connect(folder):
    database = sqlite3.connect(folder + "/rows", isolation_level=None)
    database.execute("create table if not exists rows (number integer primary key, bytes blob)")
    return database


def verify(folder, log):
    database, known = connect(folder), committed(log)
    (said,) = database.execute("pragma integrity_check").fetchone()
    assert said == "ok", said
    rows = database.execute("select number, bytes from rows order by number").fetchall()
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1)), "rows are missing"
    assert known <= len(rows) <= known + 1, f"{len(rows)} rows where {known} were committed"
    for number, found in rows:
        assert found == contents(number), f"row {number} is not what was written"
    remember(log, len(rows))
    print("database:", len(rows), "rows")


def work(folder, log, seed):
    database, number = connect(folder), committed(log)
    # Without `extra` sqlite may lose the last commit in this mode, as its page on atomic commit says.
    mode, synchronous = [("wal", "full"), ("delete", "extra")][seed % 2]
    database.execute(f"pragma journal_mode = {mode}")
    database.execute(f"pragma synchronous = {synchronous}")
    while True:
        number += 1
        database.execute("insert into rows values (?, ?)", (number, contents(number)))
        remember(log, number)


if sys.argv[1] == "verify":
    verify(sys.argv[2], sys.argv[3])
else:
    work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
