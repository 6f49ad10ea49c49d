"""A cluster of PostgreSQL that loses power.

    postgres.py verify LOG     what was committed is there, nothing else
    postgres.py work   LOG     commits rows for ever

The server runs and is found through PGHOST and the like. Row n is a function of n. LOG, outside of the pool, holds the
number of the last row that was committed.
"""
import subprocess
import sys

from acknowledged import committed, remember

CONTENTS = "repeat(md5({0}::text), {0} * 7919 % 150)"
PSQL = ["psql", "-qAt", "-v", "ON_ERROR_STOP=1"]


def ask(question):
    done = subprocess.run([*PSQL, "-c", question], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def verify(log):
    ask("set client_min_messages = warning; create table if not exists rows (number int primary key, bytes text)")
    known = committed(log)
    # Both ways: through the index and past it.
    for how in ("on", "off"):
        answer = ask(f"set enable_seqscan = {how}; set enable_indexscan = on; select count(*), coalesce(min(number), 1),"
                     " coalesce(max(number), 0) from (select number from rows order by number) as all_rows")
        count, first, last = map(int, answer.split("|"))
        assert first == 1 and count == last, f"rows are missing: {answer}"
    assert known <= count <= known + 1, f"{count} rows where {known} were committed"
    wrong = ask(f"select count(*) from rows where bytes <> {CONTENTS.format('number')}")
    assert wrong == "0", f"{wrong} rows are not what was written"
    remember(log, count)
    print("postgres:", count, "rows")


def work(log):
    number = committed(log)
    session = subprocess.Popen(PSQL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    while True:
        number += 1
        session.stdin.write(f"insert into rows values ({number}, {CONTENTS.format(number)}) returning number;\n")
        session.stdin.flush()
        assert int(session.stdout.readline()) == number
        remember(log, number)
        if number % 100 == 0:
            session.stdin.write("checkpoint;\n")


if sys.argv[1] == "verify":
    verify(sys.argv[2])
else:
    work(sys.argv[2])
