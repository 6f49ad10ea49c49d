#!/bin/bash
# Installs, runs and removes a package in fresh chroots of Debian 12 and 13. Needs root, debootstrap and the network, and
# takes a minute or two for each.
#
#   tests/package/test-deb.sh PACKAGE.deb [SUITE...]
# SUITE may be testing: the newest glibc, but what it holds changes from day to day.
# Environment: MIRROR
set -euo pipefail
package=$(realpath "$1")
shift
suites=("$@")
((${#suites[@]})) || suites=(bookworm trixie)
((EUID == 0)) || { echo "test-deb.sh: chroots need root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "test-deb.sh: install debootstrap first" >&2; exit 2; }
work=$(mktemp -d)
# Nothing of what was mounted there may be met by rm.
clean() {
    local place
    for place in "$work"/*/{dev/shm,proc}; do
        ! mountpoint -q "$place" || umount "$place"
    done
    rm -rf --one-file-system "$work"
}
trap clean EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

try() {
    local suite=$1 root=$work/$1 before after
    echo "-- $suite"
    debootstrap --variant=minbase "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log"; fail "debootstrap of $suite"; }
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs -o size=256M none "$root/dev/shm"
    cp "$package" "$root/tmp/nacre.deb"
    files() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./var -o -path ./etc \) -prune -o -print | sort); }
    before=$(files)
    chroot "$root" dpkg -i /tmp/nacre.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "installing on $suite"; }
    in_it() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
    [[ $(in_it nacre run -q sh -c 'echo kept >/nacre/f; cat /nacre/f') == kept ]] || fail "a first run on $suite"
    [[ $(in_it nacre run -q cat /nacre/f) == kept ]] || fail "a second run on $suite"
    in_it nacre create --size 64M /tmp/p >/dev/null
    [[ $(in_it sh -c 'tar -C /etc -cf - apt | nacre import /tmp/p; nacre ls /tmp/p') == apt ]] || fail "import on $suite"
    in_it nacre check /tmp/p >/dev/null || fail "check on $suite"
    [[ -s $root/usr/share/man/man1/nacre-run.1.gz && -s $root/usr/share/bash-completion/completions/nacre ]] ||
        fail "manual pages and completions on $suite"
    # There is no /dev/fuse: that it is said by nacre shows that mount(8) found it.
    [[ $(in_it mount -t nacre /tmp/p /mnt 2>&1) == *"nacre: "*fuse* ]] || fail "mount -t nacre on $suite"
    in_it nacre delete --force /tmp/p >/dev/null
    in_it sh -c 'nacre delete --force /dev/shm/nacre-*/default.pool' >/dev/null
    chroot "$root" dpkg --purge nacre >"$work/log" 2>&1 || { cat "$work/log"; fail "removing on $suite"; }
    rm -rf "$root/root/.cache/nacre"
    after=$(files)
    [[ $before == "$after" ]] || { diff <(echo "$before") <(echo "$after"); fail "removing on $suite leaves or takes files"; }
    echo "$suite: installed, run and removed"
}

for suite in "${suites[@]}"; do try "$suite"; done
