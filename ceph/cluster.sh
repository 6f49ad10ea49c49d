# A small Ceph cluster in the chroot, in namespaces of its own. Sourced behind common.sh, inside of
# enter(); WORK is where everything lies.
# shellcheck shell=bash
CONF=$WORK/ceph.conf
PLUGIN=/root/nacre/lib/libnacre_ceph.so

# Inside the chroot, with the cluster's configuration. Nothing takes that long: it would wait for
# OSDs that ended.
ceph_run() {
    in_chroot timeout --foreground 1800 env -C "$WORK" CEPH_CONF="$CONF" NACRE_SESSION_DIR="$WORK" "$@"
}

say() {
    printf '\n== %s\n' "$*"
}

# Waits up to $1 seconds until the rest, a command, is true.
wait_until() {
    local seconds=$1
    shift
    for ((try = 0; try < 2 * seconds; try++)); do
        "$@" && return
        sleep 0.5
    done
    ceph_run ceph -s || true
    die "waited $seconds s in vain for: $*"
}

# make_cluster REPLICAS: a monitor and a manager. What follows is for a single machine that does
# something else, too.
make_cluster() {
    local id
    id=$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "$WORK"/{mon-a,mgr-x,log}
    cat >"$CONF" <<CONF
[global]
fsid = $id
mon_host = [v2:127.0.0.1:13300/0,v1:127.0.0.1:13301/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv4 = true
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = $1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 32
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_osd_down_out_interval = 3600
osd_class_update_on_start = false
osd_class_dir = /usr/lib/x86_64-linux-gnu/rados-classes
osd_max_scrubs = 16
osd_scrub_sleep = 0
osd_scrub_load_threshold = 1000
osd_op_num_shards = 8
osd_op_num_threads_per_shard_hdd = 2
osd_op_queue = wpq
osd_max_backfills = 4
osd_recovery_sleep = 0
run_dir = $WORK
admin_socket = $WORK/\$name.asok
pid_file = $WORK/\$name.pid
log_file = $WORK/log/\$name.log
crash_dir = $WORK
keyring = $WORK/keyring
mon_data = $WORK/mon-\$id
mgr_data = $WORK/mgr-\$id
osd_data = $WORK/osd-\$id
${EXTRA_CONF:-}
[client]
rbd_cache = false
rbd_default_features = 1
# Without cephx nothing is encrypted, on which radosgw insists unless told.
ms_mon_client_mode = crc
log_file =
admin_socket =
pid_file =
CONF
    ceph_run ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *' >/dev/null
    ceph_run ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' \
        --cap mgr 'allow *' >/dev/null
    ceph_run monmaptool --create --fsid "$id" --addv a \
        '[v2:127.0.0.1:13300,v1:127.0.0.1:13301]' monmap >/dev/null
    ceph_run ceph-mon --mkfs -i a --monmap monmap --keyring keyring
    ceph_run ceph-mon -i a
    wait_until 60 quiet ceph_run timeout 10 ceph -s
    ceph_run ceph config set mon auth_allow_insecure_global_id_reclaim false
    ceph_run ceph config set global mon_warn_on_insecure_global_id_reclaim_allowed false
}

start_manager() {
    ceph_run ceph-mgr -i x 2>/dev/null
    wait_until 60 manager_is_there
}

manager_is_there() {
    ceph_run ceph mgr stat 2>/dev/null | grep -q '"available": true'
}

quiet() {
    "$@" >/dev/null 2>&1
}

# Runs its arguments, which can make no code writable then, as units of Ceph have it
# (MemoryDenyWriteExecute). Kernels before 6.3 do not know that.
AS_IN_A_UNIT='import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
os.execvp(sys.argv[1], sys.argv[1:])'

# osd ID ARGUMENTS: the unmodified program, with the store.
osd() {
    local id=$1
    shift
    ceph_run python3 -c "$AS_IN_A_UNIT" env LD_PRELOAD="$PLUGIN" ceph-osd -i "$id" "$@" \
        2>>"$WORK/log/start.log"
}

# make_osd ID: on a pool that `nacre` makes; with COUNTED, what is stored there is counted.
make_osd() {
    local uuid
    uuid=$(cat /proc/sys/kernel/random/uuid)
    echo "$uuid" >"$WORK/uuid-$1"
    ceph_run ceph osd new "$uuid" "$1" >/dev/null
    make_store "$1"
    ceph_run ceph osd crush add "osd.$1" 1.0 root=default "host=h$1" 2>/dev/null
    [[ -z ${COUNTED:-} ]] || count_osd "$1"
    start_osd "$1"
}

# count_osd ID: before it starts; until the process in COUNTER ends.
count_osd() {
    ceph_run nacre run -q --no-fuse --wear --pool "osd-$1/pool" -- sleep infinity &
    COUNTER=$!
    wait_until 60 is_counted "$1"
}

# What is over is counted no longer.
is_counted() {
    kill -0 "$COUNTER" && quiet ceph_run nacre wear "osd-$1/pool" && ceph_run nacre list | grep -q ".* nacre$"
}

# written ID: bytes that reached the pool so far.
written() {
    ceph_run nacre wear --json "osd-$1/pool" |
        in_chroot python3 -c 'import json, sys; print(sum(kind["bytes"] for kind in json.load(sys.stdin)["kinds"]))'
}

# make_store ID: an empty one for an OSD that the monitors know.
make_store() {
    mkdir -p "$WORK/osd-$1"
    make_pool "$1"
    echo nacre >"$WORK/osd-$1/type"
    osd "$1" --mkfs --osd-uuid "$(cat "$WORK/uuid-$1")"
}

make_pool() {
    ceph_run nacre create --size "${POOL_SIZE:-2G}" "osd-$1/pool" >/dev/null
}

start_osd() {
    osd "$1"
    wait_until 60 osd_is_up "$1"
}

osd_is_up() {
    ceph_run ceph osd dump 2>/dev/null | grep -q "^osd.$1 up"
}

# Threads that work on operations.
op_threads() {
    grep -lx tp_osd_tp /proc/"$(osd_pid "$1")"/task/*/comm | wc -l
}

osd_pid() {
    cat "$WORK/osd.$1.pid"
}

# end_osd ID SIGNAL
end_osd() {
    local pid
    pid=$(osd_pid "$1")
    kill "-$2" "$pid"
    wait_until 60 gone "$pid"
    wait_until 60 osd_is_down "$1"
}

gone() {
    ! kill -0 "$1" 2>/dev/null
}

# The monitors are told by the other OSDs, or here.
osd_is_down() {
    quiet ceph_run ceph osd down "$1"
    ! osd_is_up "$1"
}

# All placement groups are active and clean.
is_clean() {
    ceph_run ceph pg stat 2>/dev/null | grep -qE '^([0-9]+) pgs: \1 active\+clean;'
}

# Three OSDs that use the store, and a pool for images.
make_three() {
    make_cluster 3
    start_manager
    for id in 0 1 2; do make_osd "$id"; done
    ceph_run ceph osd pool create rbd 32 32 replicated 2>/dev/null
    ceph_run ceph osd pool application enable rbd rbd 2>/dev/null
    wait_until 120 is_clean
    for id in 0 1 2; do
        # Canary: an OSD that took another store would show nothing of what follows.
        ceph_run ceph osd metadata "$id" | grep -q '"osd_objectstore": "nacre"' ||
            die "osd.$id does not use the store"
        (($(op_threads "$id") == 8)) || die "osd.$id has not one thread for each of its 8 shards"
    done
    ceph_run ceph -s
}

# Everything was scrubbed since $started.
scrubbed() {
    ! ceph_run ceph pg dump pgs -f json 2>/dev/null | in_chroot python3 -c "
import json, sys
pgs = json.load(sys.stdin)['pg_stats']
late = [p['pgid'] for p in pgs if p['$1'] < '$started']
sys.exit(0 if late else 1)"
}

# scrub_all KIND: a scrub or deep-scrub of all pools, which finds nothing.
scrub_all() {
    local pool stamp=last_scrub_stamp
    [[ $1 == scrub ]] || stamp=last_deep_scrub_stamp
    started=$(date -u +%Y-%m-%dT%H:%M:%S)
    sleep 1
    for pool in $(ceph_run ceph osd pool ls 2>/dev/null); do
        ceph_run ceph osd pool "$1" "$pool" >/dev/null 2>&1
    done
    wait_until 900 scrubbed $stamp
    ceph_run ceph health detail | tee "$WORK/health"
    ! grep -qiE 'inconsistent|scrub errors|damage' "$WORK/health" || die "a scrub found something"
}
