# Runs in the virtual machine: brings a pool on a disk up (a file of ext4), compares it with what was synced, then changes
# it until somebody pulls the plug; then the disk loses what was not flushed. SEED, WORKERS and LAST (look only) stand in
# front, put there by `cargo xtask powercut --disk`.
set -u
export PATH=/tmp/share/bin:$PATH XDG_CACHE_HOME=/tmp/share/cache
LOGS=/tmp/share/models
POOL=/mnt/e/pool
bin=$(echo /usr/lib/postgresql/*/bin | awk '{print $NF}')
export PGHOST=/tmp/pg PGDATABASE=postgres PGUSER=postgres

stop() { echo "CUT-FAILED $*"; exit 1; }
inside() { nacre run --quiet --pool "$POOL" -- "$@"; }
as_postgres() { XDG_CACHE_HOME=/tmp/pg PATH=$PATH:$bin setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
of_postgres() { as_postgres nacre run --quiet --pool /mnt/e/postgres/pool -- "$@"; }
has_postgres() { [[ $HONESTY != lie ]]; }

make_postgres() {
    mkdir /mnt/e/postgres && chown postgres /mnt/e/postgres || stop folder
    as_postgres nacre create --size 192M /mnt/e/postgres/pool || stop create
    of_postgres initdb -U postgres --data-checksums --wal-segsize=1 --no-locale -A trust /nacre/data >/dev/null ||
        stop initdb
}

start_postgres() {
    # Its process number may be somebody else's after a boot.
    of_postgres rm -f /nacre/data/postmaster.pid || stop "verify postgres"
    of_postgres postgres -D /nacre/data -c listen_addresses= -c unix_socket_directories=/tmp/pg -c shared_buffers=16MB \
        -c max_connections=10 -c max_wal_size=16MB -c min_wal_size=4MB >/tmp/share/postgres.log 2>&1 &
    local server=$!
    until "$bin/pg_isready" -q; do
        kill -0 $server || stop "verify postgres: $(tail -n 5 /tmp/share/postgres.log)"
        sleep 0.3
    done
}

[[ -e /tmp/share/made ]] || mkfs.ext4 -q -F -b 4096 /dev/vda || stop mkfs
mkdir -p /mnt/e && mount /dev/vda /mnt/e || stop mount
mkdir -p /tmp/pg && chown postgres /tmp/pg || stop folder
if [[ ! -e /tmp/share/made ]]; then
    nacre create --size 128M "$POOL" || stop create
    mkdir -p $LOGS $XDG_CACHE_HOME
    inside mkdir /nacre/t /nacre/t/0 /nacre/t/1 /nacre/db || stop mkdir
    ! has_postgres || make_postgres
    sync
    touch /tmp/share/made
fi
nacre check "$POOL" || stop check
inside synced verify /nacre/t $LOGS "$WORKERS" lost || stop verify
inside python3 /tmp/share/bin/database.py verify /nacre/db $LOGS/database || stop verify database
if has_postgres; then
    as_postgres nacre check /mnt/e/postgres/pool || stop check
    start_postgres
    python3 /tmp/share/bin/postgres.py verify $LOGS/postgres || stop verify postgres
fi
[[ -z ${LAST:-} ]] || { echo CUT-LAST; exit 0; }
touch /tmp/share/verified
for ((worker = 0; worker < WORKERS; worker++)); do
    inside synced work /nacre/t $LOGS "$WORKERS" $worker "$SEED" &
done
inside python3 /tmp/share/bin/database.py work /nacre/db $LOGS/database "$SEED" &
! has_postgres || python3 /tmp/share/bin/postgres.py work $LOGS/postgres &
for log in $(seq 0 $((WORKERS - 1))) database $(! has_postgres || echo postgres); do
    until [[ $LOGS/$log -nt /tmp/share/verified ]]; do sleep 0.1; done
done
echo CUT-READY
wait -n
stop "a worker ended by itself"
