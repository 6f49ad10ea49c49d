# PostgreSQL: a cluster in the pool, pgbench, a crash of the server, recovery, dump and restore.
. "$PROGRAMS/expect.sh"
bin=$(echo /usr/lib/postgresql/*/bin | awk '{print $NF}')
export PATH=$bin:$PATH PGHOST=$SCRATCH PGPORT=54329 PGDATABASE=postgres PGUSER=postgres PGDATA=$MOUNT/data
LOG=$SCRATCH/server.log

launch() {
    pg_ctl -w -t 60 -l "$LOG" -o "-c listen_addresses= -c unix_socket_directories=$SCRATCH $*" start >/dev/null
}

start() {
    launch "$@" || fail "server does not start: $(tail -n 20 "$LOG")"
}

consistent() {
    # pgbench keeps these sums equal in every state that a transaction may leave
    gives "sums agree" t psql -Atc 'select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
        and (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)'
}

part_first() {
    initdb -U postgres --data-checksums -A trust >"$SCRATCH/initdb.log" || fail "initdb: $(cat "$SCRATCH/initdb.log")"
    trap 'pg_ctl -m immediate stop >/dev/null 2>&1' EXIT
    start
    pgbench -i -s 2 -q 2>/dev/null
    pgbench -c 4 -j 2 -t 250 -n >"$SCRATCH/bench" 2>&1 || fail "pgbench: $(cat "$SCRATCH/bench")"
    cat "$SCRATCH/bench"
    contains "all transactions are done" "1000/1000" "$(cat "$SCRATCH/bench")"
    gives "history" 1000 psql -Atc 'select count(*) from pgbench_history'
    consistent

    note crash of the server in the middle
    pgbench -c 4 -j 2 -T 60 -n >"$SCRATCH/killed" 2>&1 &
    local bench=$! done_before
    wait_for 30 "transactions" bash -c "(( \$(psql -Atc 'select count(*) from pgbench_history') > 1200 ))"
    done_before=$(psql -Atc 'select count(*) from pgbench_history')
    kill -KILL "$(head -n 1 "$PGDATA/postmaster.pid")"
    kill $bench 2>/dev/null || true
    wait $bench || true
    wait_for 30 "recovery" launch # refused as long as the old server's children live
    (($(psql -Atc 'select count(*) from pgbench_history') >= done_before)) || fail "committed transactions are lost"
    consistent
    psql -qAt -c 'vacuum full' -c 'reindex database postgres' -c checkpoint >/dev/null
    consistent
    pg_dump -Fc -f "$MOUNT/dump"
    createdb copy && pg_restore -d copy "$MOUNT/dump"
    same "restored" "$(psql -Atc 'select count(*), sum(delta) from pgbench_history')" \
        "$(psql -d copy -Atc 'select count(*), sum(delta) from pgbench_history')"
    psql -Atc 'select count(*), sum(delta) from pgbench_history' >"$SCRATCH/expected"
    pg_ctl -w -m fast stop >/dev/null
    pg_checksums --check >"$SCRATCH/checksums" || fail "checksums: $(cat "$SCRATCH/checksums")"
    trap - EXIT
}

part_second() {
    trap 'pg_ctl -m immediate stop >/dev/null 2>&1' EXIT
    start -c wal_sync_method=open_datasync -c shared_memory_type=sysv
    same "after a new attach" "$(cat "$SCRATCH/expected")" "$(psql -Atc 'select count(*), sum(delta) from pgbench_history')"
    consistent
    pg_ctl -w -m fast stop >/dev/null
    trap - EXIT
}

main() {
    if ((EUID == 0)); then
        chown postgres "$SCRATCH"
        [[ -n ${BASELINE:-} ]] || chown postgres "$POOL"*
        inside chown postgres "$MOUNT"
        AS=(runuser -u postgres --)
    fi
    part first
    part second
}

run_parts "$@"
