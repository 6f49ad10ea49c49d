# What `demo.sh --long` does: Ceph's own tests and tools on a cluster whose OSDs use the store.
# Sourced behind cluster.sh.
# shellcheck shell=bash

# All of `ceph_test_rados_api_*`.
RADOS_TESTS=(aio aio_pp asio c_read_operations c_write_operations cls_remote_reads cmd cmd_pp io
    io_pp list lock lock_pp misc misc_pp pool service service_pp snapshots snapshots_pp stat stat_pp
    tier_pp watch_notify watch_notify_pp)

# What the tests expect: many pools that go again, all classes, and overwrites in pools with erasure
# codes, which the monitors allow to OSDs that name BlueStore only.
EXTRA_CONF="mon_allow_pool_delete = true
mon_debug_no_require_bluestore_for_ec_overwrites = true
mon_max_pg_per_osd = 2000
osd_class_load_list = *
osd_class_default_list = *"

long() {
    local parts=("$@") part
    ((${#parts[@]})) || parts=(rados bench rbd rgw kills)
    say "a monitor, a manager, three OSDs"
    make_three
    for part in "${parts[@]}"; do
        case $part in
            rados | bench | rbd | rgw | kills) "long_$part" ;;
            *) die "rados, bench, rbd, rgw or kills, not $part" ;;
        esac
    done
    say "a scrub and a deep scrub of everything"
    wait_until 300 is_clean
    scrub_all scrub
    scrub_all deep-scrub
    say "no scrub found anything"
}

# Each of the programs, with its own pools; what fails is named in the end.
long_rados() {
    local name log result failed=()
    for name in ${RADOS:-"${RADOS_TESTS[@]}"}; do
        log=$WORK/rados-$name.log result=0
        ceph_run timeout "${RADOS_SECONDS:-900}" "ceph_test_rados_api_$name" >"$log" 2>&1 || result=$?
        if ((result == 0)) && grep -E '^\[  PASSED  \] [1-9]' "$log" >"$WORK/passed"; then
            printf '%-20s %s\n' "$name" "$(<"$WORK/passed")"
            continue
        fi
        failed+=("$name")
        printf '%-20s FAILED (%s)\n' "$name" "$(reason $result)"
        # What had come last, if no test says that it failed.
        { grep -E '^\[  FAILED  \]|Failure|^\[  PASSED  \]' "$log" || tail -n 3 "$log"; } |
            sort -u | head -n 30
    done
    ((${#failed[@]} == 0)) || die "these failed: ${failed[*]}"
}

reason() {
    case $1 in
        0) echo 'no test ran' ;;
        124) echo "not over in ${RADOS_SECONDS:-900} s" ;;
        *) echo "it ended with $1" ;;
    esac
}

long_bench() {
    say "rados bench"
    ceph_run ceph osd pool create bench 32 32 replicated 2>/dev/null
    ceph_run ceph osd pool application enable bench rados 2>/dev/null
    # A fast store must not fill the pools meanwhile: an object takes about 12 KiB of each.
    ceph_run rados bench -p bench 10 write -b 4096 -t 16 --max-objects 20000 --no-cleanup |
        grep -E 'Average IOPS|Average Latency|Bandwidth'
    for kind in seq rand; do
        ceph_run rados bench -p bench 5 $kind -t 16 | grep -E 'Average IOPS|Average Latency'
    done
    ceph_run rados -p bench cleanup
}

# Snapshot, clone, flatten, export, differences and import: the same bytes everywhere.
long_rbd() {
    local before after
    say "snapshot, clone, export, import of an image"
    make_image
    fio_rbd --name=fill --rw=write --bs=1M --iodepth=4 >/dev/null
    ceph_run rbd snap create --no-progress image@one
    before=$(sum_of_image image@one)
    fio_rbd --name=change --rw=randwrite --bs=4k --iodepth=16 --number_ios=3000 >/dev/null
    ceph_run rbd snap create --no-progress image@two
    after=$(sum_of_image image@two)
    [[ $before != "$after" ]] || die "the image did not change"
    ceph_run rbd clone --rbd-default-clone-format 2 image@one clone
    same "the clone" clone "$before"
    ceph_run rbd flatten --no-progress clone
    same "the flattened clone" clone "$before"
    ceph_run rbd export --no-progress image@one "$WORK/one"
    ceph_run rbd export-diff --no-progress --from-snap one image@two "$WORK/difference"
    ceph_run rbd import --no-progress "$WORK/one" again
    same "what was exported and imported" again "$before"
    ceph_run rbd snap create --no-progress again@one
    ceph_run rbd import-diff --no-progress "$WORK/difference" again
    same "with the difference" again "$after"
    ceph_run rbd snap rollback --no-progress image@one
    same "rolled back" image "$before"
    rm "$WORK/one" "$WORK/difference"
    echo "all alike"
}

# Unless another part has made it.
make_image() {
    quiet ceph_run rbd info image || ceph_run rbd create image --size "$image_mib"
}

# same WHAT IMAGE SUM
same() {
    [[ $(sum_of_image "$2") == "$3" ]] || die "$1 differs"
}

# Objects of S3, some in many parts, are written and read while an OSD after the other is killed.
long_rgw() {
    local round load
    say "objects of a gateway (S3), an OSD killed in each of 3 rounds"
    start_gateway
    s3 mb s3://bucket >/dev/null
    for round in 0 1 2; do
        make_files "$WORK/sent" "$round"
        s3 sync --delete-removed "$WORK/sent/" s3://bucket/ >"$WORK/s3.log" 2>&1 &
        load=$!
        sleep 2
        end_osd "$round" KILL
        start_osd "$round"
        wait "$load" || { tail "$WORK/s3.log"; die "s3cmd failed"; }
        s3 get --recursive s3://bucket/ "$WORK/got/" >/dev/null
        diff -r "$WORK/sent" "$WORK/got" || die "objects of the gateway differ"
        echo "$(find "$WORK/got" -type f | wc -l) objects alike"
        rm -r "$WORK/got"
        wait_until 300 is_clean
    done
}

start_gateway() {
    in_chroot sh -c 'command -v radosgw && command -v s3cmd' >/dev/null ||
        die "the chroot is an older one, without radosgw and s3cmd: remove it to have it made again"
    quiet ceph_run radosgw-admin user create --uid user --display-name user --access-key key \
        --secret-key secret
    ceph_run radosgw -n client.gateway --rgw-frontends 'beast endpoint=127.0.0.1:13380'
    wait_until 120 quiet s3 ls
}

s3() {
    ceph_run s3cmd --quiet --access_key key --secret_key secret --no-ssl \
        --multipart-chunk-size-mb 5 --host 127.0.0.1:13380 --host-bucket 127.0.0.1:13380 "$@"
}

# make_files FOLDER ROUND: 300 small files and three of many parts; in later rounds some others.
make_files() {
    local number
    mkdir -p "$1" "$WORK/got"
    for ((number = $2; number < 300; number += $2 + 1)); do
        head -c $((1 + RANDOM)) /dev/urandom >"$1/small-$number"
    done
    for number in 1 2 3; do head -c $((17 * number))M /dev/urandom >"$1/large-$number"; done
    rm -f "$1/small-$((20 + $2))"
}

# An OSD after the other is killed while an image is written; each time the image is verified.
long_kills() {
    local round load
    say "an OSD is killed $kills times under load"
    make_image
    for ((round = 1; round <= kills; round++)); do
        fio_rbd --name=load --rw=randwrite --bs=4k --iodepth=16 --size=64M --number_ios=2000 \
            --randseed="$round" --verify=crc32c --do_verify=1 --verify_fatal=1 \
            >"$WORK/fio.log" 2>&1 &
        load=$!
        sleep 0.$((round % 10))
        end_osd $((round % 3)) KILL
        start_osd $((round % 3))
        wait "$load" || { cat "$WORK/fio.log"; die "fio failed"; }
        wait_until 300 is_clean
        ((round % 10)) || echo "$round kills"
    done
}
