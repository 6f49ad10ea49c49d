#!/bin/bash
# Makes a chroot of Debian 13 with Debian's own Ceph 18.2.7, its tests, and its headers. Needs root,
# the network and 6 GB; takes about five minutes, and nothing if it is there.
#
#   ceph/chroot.sh          prints the chroot's folder
# Environment: NACRE_CEPH_CACHE (where it lies, default target/ceph), MIRROR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ceph/common.sh
. "$here/common.sh"
need_root
command -v debootstrap >/dev/null || die "install debootstrap first"
mkdir -p "$CACHE"
exec 8>"$CACHE/lock"
flock 8

# What a step has done stays done: each leaves a stamp.
step() {
    local name=$1
    [[ -e $CACHE/done.$name ]] && return
    echo "-- $name" >&2
    "$name" >"$CACHE/$name.log" 2>&1 || { tail -n 20 "$CACHE/$name.log" >&2; die "$name failed"; }
    touch "$CACHE/done.$name"
}

bootstrap() {
    rm -rf --one-file-system "$ROOT"
    debootstrap --variant=minbase trixie "$ROOT" "$MIRROR"
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
    chmod +x "$ROOT/usr/sbin/policy-rc.d"
    printf 'deb %s trixie main\ndeb-src %s trixie main\n' "$MIRROR" "$MIRROR" \
        >"$ROOT/etc/apt/sources.list"
    chroot "$ROOT" apt-get update
}

# The daemons, their tests, a compiler, and what Ceph's cmake insists on before it makes headers.
packages() {
    install_in ceph-mon ceph-mgr ceph-osd ceph-common ceph-test radosgw s3cmd fio procps gawk python3-minimal \
        python3-yaml dpkg-dev g++ cmake ninja-build pkg-config git patch libudev-dev libblkid-dev \
        libkeyutils-dev libaio-dev libcurl4-openssl-dev libnl-3-dev libnl-genl-3-dev \
        libsnappy-dev zlib1g-dev libbz2-dev liblz4-dev libzstd-dev libcap-ng-dev libcap-dev \
        libsqlite3-dev libexpat1-dev liboath-dev libncurses-dev libtool cython3 python3-dev \
        python3-setuptools liburing-dev libutf8proc-dev libgoogle-perftools-dev nasm \
        libboost-all-dev libssl-dev libfmt-dev libxml2-dev xfslibs-dev uuid-dev libicu-dev \
        libthrift-dev libyaml-cpp-dev libnuma-dev gperf ragel bison flex libevent-dev \
        libpmem-dev libpmemobj-dev libdaxctl-dev libndctl-dev
    chroot "$ROOT" apt-get clean
}

install_in() {
    DEBIAN_FRONTEND=noninteractive chroot "$ROOT" \
        apt-get install -y --no-install-recommends "$@"
}

# The archives are fetched and compared with the package list by apt; if it cannot get the .dsc,
# the archives are there all the same, and are compared here.
source_code() {
    chroot "$ROOT" sh -ec '
        cd /root
        apt-get source --download-only ceph || true
        for f in ceph_*.orig.tar.xz ceph_*.debian.tar.xz; do
            sum=$(sha256sum "$f" | cut -d " " -f 1)
            apt-cache showsrc ceph | grep -qF "$sum" || { echo "$f: not as listed"; exit 1; }
        done
        rm -rf ceph; mkdir ceph
        tar -C ceph --strip-components=1 -xf ceph_*.orig.tar.xz
        tar -C ceph -xf ceph_*.debian.tar.xz
        rm ceph_*.tar.xz
        cd ceph
        grep -v "^#" debian/patches/series | while read -r p; do
            [ -z "$p" ] || patch -p1 -s <"debian/patches/$p"
        done'
}

headers() {
    cp "$here/configure.sh" "$ROOT/root/configure.sh"
    chroot "$ROOT" env CEPH=/root/ceph bash /root/configure.sh
}

step bootstrap
step packages
step source_code
step headers
echo "$ROOT"
