#!/bin/bash
# BlueStore and this store in turns: the engine alone under transactions like an OSD's, then one OSD
# under writes and reads of an RBD image; and what reaches this store's pool for a byte of the image
# (wear). Everything lies in memory. Needs root and 10 GB.
#
#   ceph/bench.sh [engine|rbd|wear]...
# Environment: ROUNDS (default 2), SECONDS_EACH (8), SIZES ("1k 4k 64k"), STORES ("bluestore nacre"),
# OSD_CONF (further lines of ceph.conf)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
enter "$@"
make_work
export POOL_SIZE=4G
rounds=${ROUNDS:-2} seconds=${SECONDS_EACH:-8}
read -ra sizes <<<"${SIZES:-1k 4k 64k}"
read -ra stores <<<"${STORES:-bluestore nacre}"
parts=("$@")
((${#parts[@]})) || parts=(engine rbd)

# What makes the race fair: BlueStore as for fast devices, with a file that is there already.
EXTRA_CONF="bluestore_debug_enforce_settings = ssd
bluestore_min_alloc_size = 4096
bluestore_block_size = 4294967296
memstore_device_bytes = 4294967296
osd_memory_target = 4294967296
${OSD_CONF:-}"
# shellcheck source=ceph/cluster.sh
. "$here/cluster.sh"

engine() {
    local store=$1 size=$2 plugin=
    rm -rf "$WORK/engine"
    mkdir "$WORK/engine"
    case $store in
        nacre) plugin=" $PLUGIN" ;;
        bluestore) fallocate -l 4G "$WORK/engine/block" ;;
    esac
    printf '[global]\n%s\n' "$EXTRA_CONF" >"$CONF"
    ceph_run env NACRE_BENCH=1 LD_PRELOAD="/root/nacre/lib/libengine.so$plugin" ceph-osd \
        --no-mon-config --log-to-stderr=false --err-to-stderr=false --log-file "$WORK/engine.log" \
        store="$store" folder="$WORK/engine" bytes="$(numfmt --from=iec "${size^^}")" depth=32 \
        seconds="$seconds" megabytes=512
}

# rbd STORE: a cluster of one OSD.
rbd_race() {
    local store=$1 size pattern before after waited file
    POOL_SIZE=4G make_cluster 1
    if [[ $store == nacre ]]; then
        make_osd 0
    else
        make_builtin "$store"
    fi
    ceph_run ceph osd pool create rbd 32 32 replicated 2>/dev/null
    ceph_run rbd create image --size 512
    fio_rbd --name=fill --rw=write --bs=4M --iodepth=8 >/dev/null
    for pattern in write randwrite randread; do
        for size in "${sizes[@]}"; do
            file=$WORK/fio.json
            before=$(cpu_ticks) waited=$(waits)
            fio_rbd --name=race --rw="$pattern" --bs="$size" --iodepth=32 --time_based \
                --runtime="$seconds" --norandommap --output-format=json --output="$file"
            after=$(cpu_ticks) waited=$(($(waits) - waited))
            in_chroot python3 - "$file" "$store" "$pattern" "$size" $((after - before)) \
                $waited <<'PYTHON'
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write"] if job["write"]["total_ios"] else job["read"]
print("rbd store %s %s bytes %s IOPS %.0f osd_cpu_us %.0f osd_waits %.2f" % (
    *sys.argv[2:5], side["iops"], int(sys.argv[5]) * 1e4 / side["total_ios"],
    int(sys.argv[6]) / side["total_ios"]))
PYTHON
        done
    done
    end_cluster
}

# A cluster of one OSD, whose pool counts.
wear() {
    local size before after
    [[ $1 == nacre ]] || return 0
    POOL_SIZE=4G make_cluster 1
    COUNTED=1 make_osd 0
    ceph_run ceph osd pool create rbd 32 32 replicated 2>/dev/null
    ceph_run rbd create image --size 512
    fio_rbd --name=fill --rw=write --bs=4M --iodepth=8 >/dev/null
    for size in "${sizes[@]}"; do
        before=$(written 0)
        fio_rbd --name=wear --rw=randwrite --bs="$size" --iodepth=32 --number_ios=20000 \
            --norandommap --output-format=json --output="$WORK/fio.json"
        after=$(written 0)
        ((after > before)) || die "nothing was counted"
        in_chroot python3 - "$WORK/fio.json" "$size" $((after - before)) <<'PYTHON'
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]["write"]
print("wear store nacre randwrite bytes %s writes %d medium/client %.2f" % (
    sys.argv[2], job["total_ios"], int(sys.argv[3]) / (job["io_kbytes"] * 1024)))
PYTHON
    done
    kill "$COUNTER"
    end_cluster
}

fio_rbd() {
    ceph_run fio --ioengine=rbd --clientname=admin --pool=rbd --rbdname=image --direct=1 \
        --invalidate=0 --randrepeat=0 "$@" 2>/dev/null
}

cpu_ticks() {
    awk '{ print $14 + $15 }' "/proc/$(osd_pid 0)/stat"
}

# How often threads of the OSD gave up the processor.
waits() {
    { cat /proc/"$(osd_pid 0)"/task/*/status 2>/dev/null || true; } |
        awk '$1 == "voluntary_ctxt_switches:" { sum += $2 } END { print sum }'
}

make_builtin() {
    local uuid
    uuid=$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "$WORK/osd-0"
    [[ $1 != bluestore ]] || fallocate -l 4G "$WORK/osd-0/block"
    echo "$1" >"$WORK/osd-0/type"
    ceph_run ceph osd new "$uuid" 0 >/dev/null
    ceph_run ceph-osd -i 0 --mkfs --osd-uuid "$uuid" 2>>"$WORK/log/start.log"
    ceph_run ceph osd crush add osd.0 1.0 root=default host=h0 2>/dev/null
    ceph_run ceph-osd -i 0 2>>"$WORK/log/start.log"
    wait_until 60 osd_is_up 0
}

end_cluster() {
    local file pid
    for file in "$WORK"/*.pid; do
        pid=$(cat "$file")
        kill "$pid"
        wait_until 60 gone "$pid"
    done
    rm -rf "${WORK:?}"/*
}

for ((round = 1; round <= rounds; round++)); do
    for part in "${parts[@]}"; do
        for store in "${stores[@]}"; do
            case $part in
                engine) for size in "${sizes[@]}"; do engine "$store" "$size"; done ;;
                rbd) rbd_race "$store" ;;
                wear) wear "$store" ;;
                *) die "engine, rbd or wear, not $part" ;;
            esac
        done
    done
done
