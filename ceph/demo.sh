#!/bin/bash
# A cluster of three OSDs, each on a pool of Nacre: an image is written and verified, an OSD is
# killed under load and comes back, another one loses its pool and is filled again by Ceph. In the
# end every byte is compared. Needs root and 8 GB of memory; takes some minutes.
#
#   ceph/demo.sh
#   ceph/demo.sh --long [rados|bench|rbd|rgw|kills]...    instead: Ceph's own tests of a cluster
# Environment: POOL_SIZE (default 1G; with --long 2G), IMAGE_MIB (256), KILLS (3; with --long 50),
# RADOS (which of Ceph's tests, default all), RADOS_SECONDS (for each, 900)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
enter "$@"
make_work
# shellcheck source=ceph/cluster.sh
. "$here/cluster.sh"
image_mib=${IMAGE_MIB:-256}

fio_rbd() {
    ceph_run fio --eta=never --ioengine=rbd --clientname=admin --pool=rbd --rbdname=image --direct=1 "$@"
}

# Bytes of the image as a client reads them.
sum_of_image() {
    ceph_run rbd export --no-progress "$1" - | sha256sum | cut -d ' ' -f 1
}

if [[ ${1:-} == --long ]]; then
    : "${POOL_SIZE:=2G}"
    kills=${KILLS:-50}
    # shellcheck source=ceph/long.sh
    . "$here/long.sh"
    long "${@:2}"
    exit
fi
: "${POOL_SIZE:=1G}"
kills=${KILLS:-3}

say "a monitor, a manager, three OSDs"
make_three

say "an image of $image_mib MiB, written at random and verified"
ceph_run rbd create image --size "$image_mib"
fio_rbd --name=fill --rw=write --bs=4M --iodepth=4 >/dev/null
fio_rbd --name=verified --rw=randwrite --bs=4k --iodepth=16 --verify=crc32c --do_verify=1 \
    --verify_fatal=1 --size=32M | grep -E 'read:|write:|err='
ceph_run rbd snap create --no-progress image@before
ceph_run rbd clone --rbd-default-clone-format 2 image@before copy
before=$(sum_of_image image@before)

say "names and keys that clients may give, and no other store minds"
ceph_run rados -p rbd create names
long=$(printf 'n%.0s' {1..300})
ceph_run timeout 60 rados -p rbd rmxattr names "$long" || die "a long name of an attribute"
said=$(ceph_run timeout 60 rados -p rbd getxattr names "$long" 2>&1) && die "a long name has an attribute"
[[ $said == *"No data"* ]] || die "an attribute of a long name: $said"
ceph_run timeout 60 rados -p rbd rmomapkey names "$long$(printf 'n%.0s' {1..70000})" || die "a long key"
ceph_run timeout 60 rados -p rbd setomapval names "" "of none" || die "a key without bytes"
ceph_run timeout 60 rados -p rbd getomapval names "" "$WORK/value" >/dev/null
[[ $(<"$WORK/value") == "of none" ]] || die "the value of a key without bytes differs"

say "a second folder that names the pool of osd.0 is refused"
mkdir "$WORK/second"
cp "$WORK"/osd-0/{fsid,type,whoami,ceph_fsid,magic,ready} "$WORK/second"
ln -s "$WORK/osd-0/pool" "$WORK/second/pool"
ceph_run env LD_PRELOAD="$PLUGIN" ceph-objectstore-tool --data-path second --op list >"$WORK/tool.log" 2>&1 &&
    die "two programs have a pool"
grep -q 'has the store locked' "$WORK/tool.log" || { cat "$WORK/tool.log"; die "it was refused in another way"; }

say "osd.0 is killed $kills times while the image is written"
for ((round = 1; round <= kills; round++)); do
    fio_rbd --name=load --rw=randwrite --bs=4k --iodepth=16 --offset=64M --size=64M \
        --number_ios=4000 --randseed="$round" --verify=crc32c --do_verify=1 --verify_fatal=1 \
        >"$WORK/fio.log" 2>&1 &
    load=$!
    sleep 1
    end_osd 0 KILL
    start_osd 0
    wait "$load" || { cat "$WORK/fio.log"; die "fio failed"; }
    wait_until 300 is_clean
done
ceph_run ceph -s
[[ $(sum_of_image image@before) == "$before" ]] || die "the snapshot changed"
[[ $(sum_of_image copy) == "$before" ]] || die "the clone differs"
whole=$(sum_of_image image)

say "osd.1 loses its pool; Ceph fills a new one"
end_osd 1 TERM
# It left the pool, so nothing is to be recovered.
ceph_run nacre check osd-1/pool | tee "$WORK/check"
grep -q ' of metadata: clean$' "$WORK/check" || die "the OSD did not leave its pool"
ceph_run env LD_PRELOAD="$PLUGIN" ceph-objectstore-tool --data-path osd-1 --op list >"$WORK/list" \
    2>"$WORK/tool.log" || { cat "$WORK/tool.log"; die "ceph-objectstore-tool failed"; }
echo "ceph-objectstore-tool lists $(grep -c rbd_data "$WORK/list") pieces of images"
ceph_run nacre delete --force osd-1/pool >/dev/null 2>&1 || rm "$WORK/osd-1/pool"
rm -rf "$WORK/osd-1"
make_store 1
start_osd 1
ceph_run ceph -s
wait_until 600 is_clean

say "only osd.1 answers: what it was given is what the others had"
ceph_run ceph osd set noout 2>/dev/null
ceph_run ceph osd primary-affinity 0 0 2>/dev/null
ceph_run ceph osd primary-affinity 2 0 2>/dev/null
end_osd 0 TERM
end_osd 2 TERM
[[ $(sum_of_image image) == "$whole" ]] || die "the image differs"
[[ $(sum_of_image image@before) == "$before" ]] || die "the snapshot differs"
start_osd 0
start_osd 2
wait_until 300 is_clean

say "a deep scrub of everything"
scrub_all deep-scrub
ceph_run ceph osd df
ceph_run ceph daemon osd.1 perf dump nacre
say "every byte is as it was written"
