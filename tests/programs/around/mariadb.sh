# MariaDB with native AIO (libaio, or io_uring where it is built so): load, kill -9, recovery, check of all tables.
. "$PROGRAMS/expect.sh"
SOCKET=$SCRATCH/mariadb.sock
sql() { mariadb --no-defaults --batch --skip-column-names --socket="$SOCKET" test -e "$1"; }

settings=(--no-defaults --user=root --datadir="$MOUNT/mariadb" --innodb_buffer_pool_size=16M
    --innodb_log_file_size=16M --innodb_use_native_aio=1 --innodb_flush_method=O_DIRECT
    --innodb_flush_log_at_trx_commit=1)

start() {
    mariadbd "${settings[@]}" --socket="$SOCKET" --skip-networking --skip-grant-tables \
        --pid-file="$SCRATCH/mariadb.pid" --log-error="$SCRATCH/mariadb.log" &
    server=$!
    wait_for 60 "MariaDB" mariadb-admin --no-defaults --socket="$SOCKET" ping
    grep -q "Using \(Linux native AIO\|io_uring\)" "$SCRATCH/mariadb.log" ||
        fail "no native AIO: $(tail -n 30 "$SCRATCH/mariadb.log")"
}

part_load() {
    mariadb-install-db "${settings[@]}" --auth-root-authentication-method=normal --skip-test-db \
        >"$SCRATCH/install" 2>&1 || fail "$(tail -n 20 "$SCRATCH/install")"
    mkdir "$MOUNT/mariadb/test"
    start
    sql "create table t (id int primary key, v varchar(200), key (v)) engine=innodb;
        insert into t select seq, concat(repeat(md5(seq), 5), seq) from seq_1_to_30000"
    sql "update t set v = concat('new', v) where id % 7 = 0; delete from t where id % 11 = 0"
    gives "sum" "27273 4285" sql "select concat(count(*), ' ', (select count(*) from seq_1_to_30000 where seq % 7 = 0)) from t"
    sql "checksum table t" >"$SCRATCH/checksum"
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

part_recover() {
    start
    same "contents after a kill" "$(<"$SCRATCH/checksum")" "$(sql "checksum table t")"
    contains "checked" "OK" "$(sql "check table t extended")"
    sql "insert into t values (1000000, 'after')"
    gives "goes on" 27274 sql "select count(*) from t"
    mariadb-admin --no-defaults --socket="$SOCKET" shutdown
    wait "$server"
}

main() {
    part load
    part recover
}

run_parts "$@"
