# sqlite3: rollback journal and WAL, two writing processes, rollback, vacuum, backup.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"

sql() { sqlite3 -batch -bail -cmd '.timeout 20000' "$@"; }

insert() { # DATABASE FROM TO: one transaction for each row
    local i
    for ((i = $2; i <= $3; i++)); do
        echo "insert into t values ($i, hex(randomblob(50)));"
    done | sql "$1"
}

for mode in delete truncate persist wal; do
    note "journal mode $mode"
    db=$mode.db
    gives "mode is accepted" "$mode" sql $db "pragma journal_mode=$mode;"
    sql $db "create table t(a integer primary key, b text); create index i on t(b);"
    insert $db 1 200
    insert $db 1001 1200 & one=$!
    insert $db 2001 2200 & two=$!
    wait $one && wait $two || fail "two writers"
    gives "nothing is lost" 600 sql $db "select count(*) from t;"
    gives "integrity" ok sql $db "pragma integrity_check;"
    sql $db "begin; delete from t; rollback;"
    gives "rollback" 600 sql $db "select count(*) from t;"
    sql $db "pragma synchronous=full; begin; with recursive c(x) as (select 10000 union all select x+1 from c where x<14999)
        insert into t select x, hex(randomblob(100)) from c; commit;"
    gives "5000 rows in one transaction" 5600 sql $db "select count(*) from t;"
    sql $db "delete from t where a % 2; vacuum;"
    gives "integrity after vacuum" ok sql $db "pragma integrity_check;"
done

note readers beside a writer in WAL mode
insert wal.db 20001 20100 & writer=$!
for i in $(seq 10); do
    [[ $(sql wal.db "pragma quick_check;") == ok ]] || fail "reader beside a writer"
done
wait $writer
sql wal.db "pragma wal_checkpoint(truncate);" >/dev/null
gives "after a checkpoint" 2900 sql wal.db "select count(*) from t;"

note killed writer
sql wal.db "create table k(a integer primary key);"
(for i in $(seq 100000); do echo "insert into k values ($i);"; done | exec sqlite3 -batch wal.db) & writer=$!
wait_for 10 "rows of the writer" bash -c '(($(sqlite3 -cmd ".timeout 5000" wal.db "select count(*) from k") > 20))'
pkill -KILL -P $writer || kill -KILL $writer
wait $writer 2>/dev/null || true
gives "integrity after a kill" ok sql wal.db "pragma integrity_check;"
rows=$(sql wal.db "select count(*) = max(a) from k;")
same "rows are a prefix" 1 "$rows"

note memory-mapped I/O, backup, attach
sql wal.db "pragma mmap_size=268435456; select sum(length(b)) from t;" >/dev/null
sql wal.db ".backup copy.db"
same "backup" "$(sql wal.db 'select count(*) from t')" "$(sql copy.db 'select count(*) from t')"
sql copy.db "attach 'delete.db' as d; begin; insert into d.t select a + 100000, b from t; commit;"
gives "transaction over two files" 5700 sql delete.db "select count(*) from t;"
sql delete.db .dump | sql restored.db
gives "dump and restore" 5700 sql restored.db "select count(*) from t;"
