# Runs in the virtual machine: brings the pool up, checks it against what was acknowledged, then changes it until
# somebody pulls the plug. KIND (dax: a pool on a device-DAX device; file: on a file of ext4 with DAX), HONESTY of the
# first worker, SEED, WORKERS and LAST (check only) stand in front, put there by `cargo xtask powercut`.
set -u
export PATH=/tmp/share/bin:$PATH DURABLE_MODEL=1 XDG_CACHE_HOME=/tmp/share/cache
MODELS=/tmp/share/models
POOL=/dev/dax0.0

stop() { echo "CUT-FAILED $*"; exit 1; }

first_time() {
    if [[ $KIND == dax ]]; then
        ndctl create-namespace -f -e namespace0.0 -m devdax -M mem --align=2M >/dev/null || stop namespace
    else
        ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem --align=2M >/dev/null || stop namespace
        mkfs.ext4 -q -F -b 4096 /dev/pmem0 || stop mkfs
    fi
}

[[ -e /tmp/share/made ]] || first_time
if [[ $KIND == file ]]; then
    mkdir -p /mnt/e && mount -o dax /dev/pmem0 /mnt/e || stop mount
    POOL=/mnt/e/pool
fi
if [[ ! -e /tmp/share/made ]]; then
    nacre create --size "$([[ $KIND == file ]] && echo 256M || echo 0)" "$POOL" 2>/dev/null ||
        nacre create --force "$POOL" || stop create
    nacre info "$POOL"
    mkdir -p $MODELS $XDG_CACHE_HOME
    nacre run --quiet --pool "$POOL" -- mkdir /nacre/t /nacre/t/0 /nacre/t/1 /nacre/t/2 /nacre/t/3 || stop mkdir
    nacre run --quiet --pool "$POOL" -- touch /nacre/t/counter || stop touch
    sync
    touch /tmp/share/made
fi
touch /tmp/share/booted
nacre check "$POOL" || stop check
nacre run --quiet --pool "$POOL" -- worker verify $MODELS || stop verify
[[ -z ${LAST:-} ]] || { echo CUT-LAST; exit 0; }
for ((worker = 0; worker < WORKERS; worker++)); do
    nacre run --quiet --pool "$POOL" -- worker work $MODELS $worker $SEED "$( ((worker)) && echo - || echo "$HONESTY")" &
done
for ((worker = 0; worker < WORKERS; worker++)); do
    until [[ $MODELS/$worker -nt /tmp/share/booted ]]; do sleep 0.1; done
done
echo CUT-READY
wait -n
stop "a worker ended by itself"
