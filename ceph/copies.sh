#!/bin/bash
# A cluster of three OSDs, of which the first has two copies of its pool in memory, and is asked for
# everything. Metadata of the copy that is read is damaged while clients work. Then that copy is cut
# off, another device comes for it, and the other one goes. The OSD must not notice; clients compare
# all that they read. Needs root and 4 GB of memory; takes some minutes.
#
#   ceph/copies.sh
# Environment: POOL_SIZE (default 512M), KINDS (of metadata), ROUNDS (of damage, of each kind; 5)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
[[ -n ${NACRE_CEPH_INSIDE:-}${NACRE_CEPH_BUILT:-} ]] || cargo build --release --quiet \
    --manifest-path "$TOP/Cargo.toml" -p nacre-objects --example spoil
enter "$@"
make_work
# shellcheck source=ceph/cluster.sh
. "$here/cluster.sh"
: "${POOL_SIZE:=512M}"
cp "$TARGET/release/examples/spoil" "$here/client.py" "$WORK/"

make_pool() {
    local devices=("osd-$1/a")
    ((10#$1)) || devices+=(osd-0/b)
    ceph_run nacre create --copies "${#devices[@]}" --size "$POOL_SIZE" "${devices[@]}" >/dev/null
    ln -sfn a "$WORK/osd-$1/pool"
}

begin_clients() {
    rm -f "$WORK/stop"
    CLIENTS=()
    for name in x y; do
        ceph_run python3 client.py "$CONF" "$name" "$WORK/stop" &
        CLIENTS+=($!)
    done
}

end_clients() {
    touch "$WORK/stop"
    for client in "${CLIENTS[@]}"; do wait "$client" || die "a client failed"; done
}

# goes_on PID: that of the OSD, which is the same, and those of clients
goes_on() {
    kill -0 "$1" && osd_is_up 0 || die "osd.0 ended"
    kill -0 "${CLIENTS[@]}" || die "a client ended"
}

say "a monitor, a manager, three OSDs"
make_three
for id in 1 2; do ceph_run ceph osd primary-affinity $id 0 2>/dev/null; done
begin_clients
sleep 5
pid=$(osd_pid 0)

for kind in ${KINDS:-onodes maps trees values all}; do
    say "$kind of the copy that is read are damaged"
    for ((round = 1; round <= ${ROUNDS:-5}; round++)); do
        ceph_run ./spoil osd-0/pool osd-0/a "$kind" $((round % 3 + 1))
        sleep 2
        goes_on "$pid"
    done
done
say "a scrub of the pool"
# Who reads a long value knows its checksum, a scrub does not: it must be told which copy is right.
ceph_run nacre scrub osd-0/pool >"$WORK/scrub" ||
    ceph_run nacre scrub --repair --from osd-0/b osd-0/pool >>"$WORK/scrub" ||
    { tail -n 5 "$WORK/scrub"; die "the scrub left damage"; }
tail -n 1 "$WORK/scrub"
goes_on "$pid"

say "the copy that is read is cut off"
truncate -s 100M "$WORK/osd-0/a"
sleep 5
goes_on "$pid"
ceph_run nacre device list osd-0/b
say "another device comes for it"
ceph_run nacre device replace osd-0/b osd-0/a osd-0/c
ln -sfn c "$WORK/osd-0/pool"
goes_on "$pid"
ceph_run nacre scrub osd-0/pool
end_clients
say "a deep scrub of everything"
wait_until 300 is_clean
scrub_all deep-scrub

say "the OSD is killed, and the new copy alone is there"
end_osd 0 KILL
rm "$WORK/osd-0/b"
start_osd 0
wait_until 300 is_clean
begin_clients
sleep 5
end_clients
scrub_all deep-scrub
say "every byte is as it was written"
