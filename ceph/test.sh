#!/bin/bash
# Ceph's own conformance test of object stores, all cases of StoreTest, on a pool in memory: Debian's
# program, unmodified, which is given this store where it asks for MemStore. Needs root; with the
# chroot at hand it takes a few minutes.
#
#   ceph/test.sh [GTEST_FILTER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
filter=${1:-ObjectStore/StoreTest.*/0}
enter "$@"
make_work
work=$WORK log=$WORK/test.log
echo "-- ceph_test_objectstore: its results come when it ends, after some minutes" >&2
in_chroot env -C "$work" NACRE_INSTEAD_OF=memstore NACRE_SESSION_DIR="$work" \
    LD_PRELOAD=/root/nacre/lib/libnacre_ceph.so ceph_test_objectstore \
    --gtest_filter="$filter" --log-file="$work/ceph.log" --log-to-stderr=false \
    --memstore_device_bytes=$((2 << 30)) >"$log" 2>&1 && result=0 || result=$?
grep -E '^\[ +(OK|FAILED|SKIPPED|PASSED) +\]' "$log" || true
((result == 0)) || { tail -n 40 "$log" "$work/ceph.log"; die "ended with $result"; }
# Without these two lines the program might have tested what it has built in, or nothing.
grep -q 'nacre mounted' "$work/ceph.log" || die "the store was not used"
grep -qE '^\[==========\] [1-9][0-9]* tests? .* ran' "$log" || die "no test ran"
