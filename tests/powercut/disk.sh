# Runs in the virtual machine: brings a pool on a disk up (a file of ext4), compares it with what was synced, then changes
# it until somebody pulls the plug; then the disk loses what was not flushed. SEED, WORKERS and LAST (look only) stand in
# front, put there by `cargo xtask powercut --disk`.
set -u
export PATH=/tmp/share/bin:$PATH XDG_CACHE_HOME=/tmp/share/cache
LOGS=/tmp/share/models
POOL=/mnt/e/pool

stop() { echo "CUT-FAILED $*"; exit 1; }
inside() { nacre run --quiet --pool "$POOL" -- "$@"; }

[[ -e /tmp/share/made ]] || mkfs.ext4 -q -F -b 4096 /dev/vda || stop mkfs
mkdir -p /mnt/e && mount /dev/vda /mnt/e || stop mount
if [[ ! -e /tmp/share/made ]]; then
    nacre create --size 128M "$POOL" || stop create
    mkdir -p $LOGS $XDG_CACHE_HOME
    inside mkdir /nacre/t /nacre/t/0 /nacre/t/1 /nacre/db || stop mkdir
    sync
    touch /tmp/share/made
fi
nacre check "$POOL" || stop check
inside synced verify /nacre/t $LOGS "$WORKERS" lost || stop verify
inside python3 /tmp/share/bin/database.py verify /nacre/db $LOGS/database || stop verify database
[[ -z ${LAST:-} ]] || { echo CUT-LAST; exit 0; }
touch /tmp/share/verified
for ((worker = 0; worker < WORKERS; worker++)); do
    inside synced work /nacre/t $LOGS "$WORKERS" $worker "$SEED" &
done
inside python3 /tmp/share/bin/database.py work /nacre/db $LOGS/database "$SEED" &
for log in $(seq 0 $((WORKERS - 1))) database; do
    until [[ $LOGS/$log -nt /tmp/share/verified ]]; do sleep 0.1; done
done
echo CUT-READY
wait -n
stop "a worker ended by itself"
