# redis with an append-only file: kill, restart, compare; rewrite; snapshot.
. "$PROGRAMS/expect.sh"
SOCKET=$SCRATCH/redis.sock
cli() { redis-cli -s "$SOCKET" "$@"; }

start() {
    mkdir -p "$MOUNT/redis"
    (cd "$MOUNT/redis" && exec redis-server --port 0 --unixsocket "$SOCKET" --appendonly yes --appendfsync always \
        --save '' --dir "$MOUNT/redis" --logfile "$SCRATCH/redis.log") &
    server=$!
    wait_for 20 "redis" redis-cli -s "$SOCKET" ping
    wait_for 20 "redis to load" bash -c "[[ \$(redis-cli -s '$SOCKET' ping) == PONG ]]"
}

part_write() {
    start
    for i in $(seq 2000); do echo "set key:$i value-$i"; done | cli >/dev/null
    for i in $(seq 500); do echo "rpush list $i"; done | cli >/dev/null
    cli incrby counter 41 >/dev/null
    cli incr counter >/dev/null
    digest=$(cli debug digest 2>/dev/null || true)
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    start
    gives "keys after a kill" 2002 cli dbsize
    gives "value" value-1234 cli get key:1234
    gives "counter" 42 cli get counter
    gives "list" 500 cli llen list
    [[ $digest != [0-9a-f]* ]] || gives "digest" "$digest" cli debug digest

    note rewrite and snapshot, both by a forked child
    cli bgrewriteaof >/dev/null
    wait_for 20 "the rewrite" bash -c "redis-cli -s '$SOCKET' info persistence | grep -q 'aof_rewrite_in_progress:0'"
    for i in $(seq 100); do echo "set more:$i $i"; done | cli >/dev/null
    cli save >/dev/null
    [[ -s $MOUNT/redis/dump.rdb ]] || fail "snapshot"
    redis-check-rdb "$MOUNT/redis/dump.rdb" >"$SCRATCH/rdb" || fail "snapshot: $(cat "$SCRATCH/rdb")"
    cli shutdown nosave >/dev/null 2>&1 || true
    wait "$server" || true
    redis-check-aof "$MOUNT"/redis/appendonlydir/*.manifest >"$SCRATCH/aof" || fail "append-only file: $(cat "$SCRATCH/aof")"
}

part_read() {
    start
    gives "keys after a new attach" 2102 cli dbsize
    gives "value" value-1 cli get key:1
    redis-benchmark -s "$SOCKET" -n 5000 -c 20 -q -t set,get,lpush >"$SCRATCH/bench" || fail "benchmark"
    cli shutdown >/dev/null 2>&1 || true
    wait "$server" || true
}

main() {
    part write
    part read
}

run_parts "$@"
