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
    ((${#parts[@]})) || parts=(rados bench rbd kills)
    say "a monitor, a manager, three OSDs"
    make_three
    for part in "${parts[@]}"; do
        case $part in
            rados | bench | rbd | kills) "long_$part" ;;
            *) die "rados, bench, rbd or kills, not $part" ;;
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
