#!/bin/bash
# Builds libnacre and the store for Ceph in the chroot (made if it is not there), into /root/nacre
# of it. Prints the chroot's folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
root=$("$here/chroot.sh")
echo "-- libnacre, the program nacre, the store; what is built already stays" >&2
make --no-print-directory -s -C "$TOP" install-lib PREFIX="$root/root/nacre" >&2
cargo build --release --quiet --manifest-path "$TOP/Cargo.toml" -p nacre-cli -p nacre-preload
install -m 755 "$TARGET/release/nacre" "$root/usr/local/bin/nacre"
install -D -m 755 "$TARGET/release/libnacre_preload.so" "$root/usr/local/lib/nacre/libnacre_preload.so"
mkdir -p "$root/root/nacre/src"
cp -rup "$here/Makefile" "$here/plugin" "$here/bench" "$root/root/nacre/src/"
chroot "$root" make --no-print-directory -s -j2 -C /root/nacre/src \
    CEPH=/root/ceph PREFIX=/root/nacre OUT=/root/nacre/lib all bench >&2
echo "$root"
