# What the scripts of this folder share. Sourced.
# shellcheck shell=bash
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$TOP/target}
CACHE=${NACRE_CEPH_CACHE:-$TARGET/ceph}
ROOT=$CACHE/trixie
MIRROR=${MIRROR:-http://deb.debian.org/debian}

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

need_root() {
    ((EUID == 0)) || die "chroots need root"
}

# Builds what is missing (not if NACRE_CEPH_BUILT is set), then goes on in namespaces of its own, with /proc and /dev in the chroot:
# whatever happens, nothing stays mounted, and no daemon runs on.
enter() {
    need_root
    [[ -z ${NACRE_CEPH_INSIDE:-} ]] || return 0
    [[ -n ${NACRE_CEPH_BUILT:-} ]] || "$TOP/ceph/build.sh" >/dev/null
    NACRE_CEPH_INSIDE=1 exec unshare --mount --pid --net --fork --kill-child \
        --propagation private bash -c 'root=$1; shift
            ip link set lo up &&
            mount -t proc proc /proc && mount -t proc proc "$root/proc" &&
            mount --rbind /dev "$root/dev" && mount --rbind /dev/shm "$root/dev/shm" && exec "$@"' \
        bash "$ROOT" "$0" "$@"
}

in_chroot() {
    chroot "$ROOT" "$@"
}

# WORK: a folder in memory, the same inside and outside; gone with the script. What daemons said
# when they did not start, and why stores gave up, is shown.
make_work() {
    WORK=$(mktemp -d /dev/shm/nacre-ceph.XXXXXX)
    trap 'end_work $?' EXIT
}

end_work() {
    if (($1 != 0)); then
        tail -n 20 "$WORK/log/start.log" >&2 2>/dev/null || true
        grep -hm 1 'nacre a transaction failed' "$WORK"/log/osd.*.log >&2 2>/dev/null || true
    fi
    rm -rf "$WORK"
}
