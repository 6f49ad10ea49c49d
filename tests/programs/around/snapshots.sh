# Clones of folders and snapshots, while a database runs and after the pool was left.
. "$PROGRAMS/expect.sh"

nacre() { "$NACRE" "$@"; }

with_plain_files() {
    note clone
    nacre create --size 64M "$SCRATCH/p" >/dev/null
    mkdir -p "$SCRATCH/golden/sub"
    seq 100000 >"$SCRATCH/golden/numbers"
    head -c 20000000 /dev/urandom >"$SCRATCH/golden/sub/random"
    ln -s sub/random "$SCRATCH/golden/link"
    nacre cp -rp "$SCRATCH/golden" "$SCRATCH/p:/"
    contains "clone" "2 folders, 3 files" "$(nacre clone "$SCRATCH/p:/golden" "$SCRATCH/p:/test-17")"
    # More of them than would fit if they were copied.
    for number in 1 2 3 4 5 6; do
        nacre clone "$SCRATCH/p:/golden" "$SCRATCH/p:/copy-$number" >/dev/null
    done
    refuses "taken" "file exists" nacre clone "$SCRATCH/p:/golden" "$SCRATCH/p:/"
    nacre create --size 32M --copies 2 "$SCRATCH/q" "$SCRATCH/q2" >/dev/null
    refuses "two pools" "not in the same pool" nacre clone "$SCRATCH/p:/golden" "$SCRATCH/q:/x"
    refuses "no pool" "no such file" nacre clone "$SCRATCH/p:/golden" "$SCRATCH/none:/x"
    nacre mkdir "$SCRATCH/q:/x"
    nacre clone "$SCRATCH/q2:/x" "$SCRATCH/q:/y" >/dev/null
    nacre mv "$SCRATCH/q:/y" "$SCRATCH/../${SCRATCH##*/}/q2:/z"
    gives "by each name of the pool" "x z" bash -c "'$NACRE' ls '$SCRATCH/q' | xargs"
    nacre cp -rp "$SCRATCH/p:/copy-6" "$SCRATCH/back"
    same_tree "a clone" "$SCRATCH/golden" "$SCRATCH/back"

    note snapshots
    refuses "no name" "take one as of a file" nacre snapshot "$SCRATCH/p:/golden" ../x
    contains "snapshot" "monday: 2 folders" "$(nacre snapshot "$SCRATCH/p:/golden" monday)"
    gives "list" monday bash -c "'$NACRE' snapshot list '$SCRATCH/p:/golden' | cut -d' ' -f1"
    nacre rm "$SCRATCH/p:/golden/numbers"
    "$NACRE" run -q --pool "$SCRATCH/p" -- sh -c '
        echo spoilt >/nacre/golden/sub/random
        ! echo x 2>/dev/null >/nacre/golden/.snapshots/monday/numbers || exit 9
        ! rm -rf /nacre/golden/.snapshots/monday 2>/dev/null || exit 8' || fail "inside: $?"
    refuses "a folder with a snapshot" "nacre snapshot delete $SCRATCH/p:/golden monday" nacre rm -r "$SCRATCH/p:/golden"
    gives "what a refused rm leaves" .snapshots,link,sub, bash -c "'$NACRE' ls '$SCRATCH/p:/golden' | tr '\n' ,"
    refuses "a snapshot" "nacre snapshot delete" nacre rm -r "$SCRATCH/p:/golden/.snapshots/monday"
    nacre snapshot restore "$SCRATCH/p:/golden" monday >/dev/null
    nacre snapshot delete "$SCRATCH/p:/golden" monday
    refuses "twice" "no such file" nacre snapshot delete "$SCRATCH/p:/golden" monday
    gives "list again" "no snapshots of this folder" nacre snapshot list "$SCRATCH/p:/golden"
    rm -r "$SCRATCH/back"
    nacre rm -r "$SCRATCH/p:/golden/.snapshots"
    nacre cp -rp "$SCRATCH/p:/golden" "$SCRATCH/back"
    same_tree "restored" "$SCRATCH/golden" "$SCRATCH/back"
    contains "check" clean "$(nacre check "$SCRATCH/p")"
}

# A snapshot shows one moment: a database that writes meanwhile is whole in each of them.
with_a_database() {
    note a database that runs
    nacre create --size 64M "$SCRATCH/d" >/dev/null
    "$NACRE" run -q --pool "$SCRATCH/d" -- sh -c '
        mkdir /nacre/db && cd /nacre/db
        /usr/bin/python3 - <<END
import sqlite3
db = sqlite3.connect("my.db")
db.execute("PRAGMA journal_mode=DELETE")
db.execute("CREATE TABLE t (a PRIMARY KEY, b)")
open("ready", "w")
import os
n = 0
while not os.path.exists("stop"):
    # However long the snapshots take, the pool is not filled.
    n = n % 1000 + 1
    with db:
        db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (n, "x" * 700))
        db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (-n, "y" * 700))
END
    ' &
    local writer=$! number
    until nacre ls "$SCRATCH/d:/db" 2>/dev/null | grep -q ready; do sleep 0.1; done
    for number in 1 2 3 4 5 6 7 8; do
        nacre snapshot "$SCRATCH/d:/db" "s$number" >/dev/null
    done
    "$NACRE" run -q --pool "$SCRATCH/d" -- touch /nacre/db/stop
    wait $writer || fail "the database's program failed"
    for number in 1 2 3 4 5 6 7 8; do
        # To write the journal back sqlite needs a folder that it may change.
        nacre clone "$SCRATCH/d:/db/.snapshots/s$number" "$SCRATCH/d:/c$number" >/dev/null
    done
    "$NACRE" run -q --pool "$SCRATCH/d" -- /usr/bin/python3 - <<'END' || fail "a snapshot is not whole"
import sqlite3
last = 0
for number in range(1, 9):
    db = sqlite3.connect(f"/nacre/c{number}/my.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    total, rows = db.execute("SELECT coalesce(sum(a), 0), count(*) FROM t").fetchone()
    assert total == 0 and rows >= last, (number, total, rows, last)
    last = rows
END
    contains "check" clean "$(nacre check "$SCRATCH/d")"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    with_plain_files
    with_a_database
}

main
