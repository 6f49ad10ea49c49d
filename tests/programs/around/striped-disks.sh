# Disks that hold each a part, behind one image: what was synced is there after a power cut, what was
# not survives the programs, and a disk can be added.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

save_disks() {
    cp "$a" "$a.cut"
    cp "$b" "$b.cut"
}

# The disks are as they were saved, and memory is lost.
cut_power() {
    lose_memory "$1"
    mv "$a.cut" "$a"
    mv "$b.cut" "$b"
}

fresh() { # further words for create
    no_disks
    nacre create --stripe 4K --size 128M "$@" "$a" "$b" >/dev/null
}

used_on() { # number of the device
    nacre device list --json "$a" | /usr/bin/python3 -c "import json, sys; print(json.load(sys.stdin)['devices'][$1]['used_bytes'])"
}

cached() {
    note "what was synced is there after a power cut"
    contains "create" "mode cached" "$(nacre create --stripe 4K --size 128M "$a" "$b")"
    local uuid name
    uuid=$(uuid_of "$a")
    nacre run -q --pool "$b" -- /usr/bin/python3 "$PROGRAMS/around/synced.py" 20000 fsync dsync renamed || true
    save_disks
    note "what was not synced survives the programs"
    gives "unsynced" 160000 bash -c "'$NACRE' cat '$b:/unsynced' | wc -c"
    (($(used_on 0) > 200000 && $(used_on 1) > 200000)) || fail "all is on one disk"
    note "a power cut"
    cut_power "$uuid"
    contains "it is sound" clean "$(nacre check "$a")"
    for name in first fsync dsync; do
        gives "$name" "" cmp <(nacre cat "$b:/$name") <(yes $name | head -20000 | tr -d '\n')
    done
    gives "a name" "dsync first fsync renamed" bash -c "'$NACRE' ls '$a:/' | grep -v unsynced | xargs"
}

# sqlite commits rows on and on, and notes those that are durable outside.
cat >"$SCRATCH/rows.py" <<'P'
import os, sqlite3, sys
db = sqlite3.connect("/nacre/db")
# Full alone does not sync the folder that its journal is removed from: the last row may go.
db.execute("pragma synchronous = extra")
db.execute("create table if not exists t (n integer primary key, filling blob)")
noted = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.pwrite(noted, str(os.getpid()).encode().ljust(10), 10)
for n in range(int(sys.argv[2]), 100000):
    db.execute("insert into t values (?, ?)", (n, os.urandom(3000)))
    db.commit()
    os.pwrite(noted, str(n).encode().ljust(10), 0)
P

# The newest row that was told to be durable; none is 0.
noted() { head -c 10 "$SCRATCH/noted" | tr -d '\0 '; }

begun() { [[ -s $SCRATCH/noted && -n $(noted) && $(noted) -ge $1 ]]; }

# All rows up to the one at $1 are there, and the database is sound.
rows_are_there() {
    nacre cat "$b:/db" >"$SCRATCH/db"
    rm -f "$SCRATCH/db-journal"
    ! nacre cat "$b:/db-journal" >"$SCRATCH/db-journal" 2>/dev/null || [[ -s $SCRATCH/db-journal ]] ||
        rm -f "$SCRATCH/db-journal"
    local found
    found=$(sqlite3 "$SCRATCH/db" "select count(*), max(n) from t; pragma integrity_check" | xargs)
    [[ $found == *" ok" ]] || fail "the database: $found"
    last=${found#*|}
    last=${last% ok}
    [[ ${found%|*} == "$last" ]] || fail "rows are missing: $found"
    ((last >= $1)) || fail "row $1 was durable, and $last is the last one"
}

killed_beside_a_database() {
    note "everything is killed beside a database, again and again"
    fresh
    local round last=0
    for round in 1 2 3 4 5 6; do
        run_rows $((last + 1))
        wait_for 100 "rows" begun $((last + 7 * round))
        end_rows
        rows_are_there "$(noted)"
    done
}

run_rows() { # the first row
    rm -f "$SCRATCH/noted"
    "$NACRE" run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/rows.py" "$SCRATCH/noted" "$1" &
    supervisor=$!
}

writer() { tail -c +11 "$SCRATCH/noted" | tr -d ' '; }

end_rows() {
    kill -KILL $supervisor "$(writer)"
    wait $supervisor 2>/dev/null || true
    wait_for 100 "the end of the writer" is_gone "$(writer)"
}

is_gone() { ! kill -0 "$1" 2>/dev/null; }

power_cuts_beside_a_database() {
    note "the power goes beside a database, again and again"
    fresh
    local round uuid last=0 durable
    uuid=$(uuid_of "$a")
    for round in 1 2 3 4; do
        run_rows $((last + 1))
        wait_for 100 "rows" begun $((last + 9 * round))
        # Nobody writes while the disks are copied.
        kill -STOP "$(writer)" $supervisor
        durable=$(noted)
        save_disks
        end_rows
        cut_power "$uuid"
        rows_are_there "$durable"
        contains "it is sound" clean "$(nacre check "$a")"
    done
}

larger_than_memory() {
    note "a pool larger than its memory"
    fresh --cache 8M
    head -c 90000000 /dev/urandom >"$SCRATCH/large"
    nacre run -q --pool "$a" -- cp "$SCRATCH/large" /nacre/large
    gives "contents" "" nacre run -q --pool "$b" -- cmp "$SCRATCH/large" /nacre/large
    (($(used_on 0) > 30000000 && $(used_on 1) > 30000000)) || fail "all is on one disk"
    contains "it is sound" clean "$(nacre check "$b")"
}

another() {
    note "a disk gets a second one, and a third"
    fresh
    nacre delete --force "$a" >/dev/null
    nacre create --size 128M "$a" >/dev/null
    nacre run -q --pool "$a" -- cp "$SCRATCH/large" /nacre/large
    # What is in memory alone is not lost.
    nacre run -q --pool "$a" -- sh -c 'echo kept >/nacre/kept; kill -KILL $PPID $$' || true
    wait_for 100 "the end of its users" nobody_uses "$a"
    refuses "memory" "of the kind of its others" nacre device add --size 64M "$a" "$SCRATCH/more"
    nacre device add --size 128M "$a" "$b" >/dev/null
    gives "unsynced" kept nacre cat "$b:/kept"
    contains "its mode" "mode      cached" "$(nacre info "$b")"
    nacre run -q --pool "$b" -- sh -c 'echo more >/nacre/more; kill -KILL $PPID $$' || true
    wait_for 100 "the end of its users" nobody_uses "$b"
    nacre device add --size 128M "$b" "$c" >/dev/null
    nacre device rebalance "$c" >/dev/null
    gives "unsynced" more nacre cat "$a:/more"
    gives "contents" "" nacre run -q --pool "$c" -- cmp "$SCRATCH/large" /nacre/large
    (($(used_on 1) > 10000000 && $(used_on 2) > 10000000)) || fail "nothing moved"
    contains "it is sound" clean "$(nacre check "$b")"
    contains "remove" "$b: removed" "$(nacre device remove "$a" "$b")"
    gives "contents" "" nacre run -q --pool "$c" -- cmp "$SCRATCH/large" /nacre/large
}

direct() {
    note "mode direct: each call is durable when it returns"
    fresh --mode direct
    local uuid
    uuid=$(uuid_of "$a")
    nacre run -q --pool "$a" -- sh -c 'echo one >/nacre/f; mkdir /nacre/d; mv /nacre/f /nacre/d/g
        cp "$0" "$0.cut"; cp "$1" "$1.cut"' "$a" "$b"
    cut_power "$uuid"
    gives "what was written" one nacre cat "$a:/d/g"
    note "memory and a disk: as ever"
    contains "create" "mode direct" "$(nacre create --force --size 64M "$SCRATCH/memory" "$c")"
    nacre run -q --pool "$c" -- sh -c 'echo both >/nacre/f'
    gives "contents" both nacre cat "$SCRATCH/memory:/f"
    refuses "mode cached" "several disks" nacre create --force --mode cached "$SCRATCH/memory" "$c"
    nacre delete --force "$c" >/dev/null 2>&1 || true
}

refused() {
    note "without one of them it is refused"
    fresh
    mv "$b" "$b.away"
    refuses "missing" "is missing" nacre run -q --pool "$a" -- true
    mv "$b.away" "$b"
    mv "$a" "$a.away"
    refuses "missing" "is missing" nacre run -q --pool "$b" -- true
    nacre create --size 128M "$a" >/dev/null
    refuses "another pool" "belongs to pool" nacre run -q --pool "$b" -- true
    nacre delete --force "$a" >/dev/null
    mv "$a.away" "$a"
    nacre run -q --pool "$b" -- true
}

main() {
    disks_for striped || return 0
    cached
    killed_beside_a_database
    power_cuts_beside_a_database
    larger_than_memory
    another
    direct
    refused
}

main
