#!/bin/bash
# boot.sh [SCRIPT]: boots Debian's kernel in QEMU with an emulated NVDIMM and runs SCRIPT in it as root. Without SCRIPT
# it only fetches what the machine needs.
#
# The machine sees the root of its host (read only) and $SHARE as /tmp/share (to write). It prints VM-READY when it is
# up and "VM-DONE rc=N" at its end. Nothing is installed but Debian packages; kernel and initramfs are kept in $WORK.
#
#   MODE=icount  one processor whose clock counts its instructions: 1 ns is one instruction, whatever else the host does
#   MODE=tcg     two processors in real time, 10 to 50 times slower than the host
#   WORK SHARE   folders (default: a new one each)      NVDIMM  file that backs it (default: one that is removed again)
#   SIZE         of the NVDIMM (1G)                     LIMIT   seconds after which the machine is switched off (900)
#   DISK         socket of an NBD server: a disk with a volatile cache, /dev/vda in the machine (default: none)
#
# Ends with 3 if there can be no machine here (no right to install what it needs, no network).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
MODE=${MODE:-icount} SIZE=${SIZE:-1G} LIMIT=${LIMIT:-900}
WORK=${WORK:-$(mktemp -d)} SHARE=${SHARE:-$WORK/share}
mkdir -p "$WORK" "$SHARE"

unavailable() {
    echo "no virtual machine: $1" >&2
    exit 3
}

# Modules of the guest: the share and the root, the NVDIMM, and the file systems that Nacre is compared with, with the
# checksums that udev would load for this processor.
MODULES="virtio_pci virtio_blk 9pnet_virtio 9p nfit nd_pmem dax_pmem device_dax crc32c_generic crc32c_intel ext4 xfs"

make_guest() {
    "$here/../programs/packages.sh" qemu-system-x86 ndctl e2fsprogs xfsprogs busybox-static cpio kmod >&2 \
        || unavailable "its packages are missing"
    local release tree=$WORK/kernel
    release=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p' | head -n 1)
    [[ $release ]] || unavailable "apt knows no linux-image-amd64"
    rm -rf "$tree"
    mkdir -p "$tree/package"
    (cd "$tree/package" && apt-get -qq download "linux-image-$release" 2>/dev/null) || unavailable "its kernel cannot be downloaded"
    dpkg -x "$tree"/package/*.deb "$tree"
    depmod -b "$tree" "$release"
    make_initramfs "$tree" "$release"
    mv "$tree/boot/vmlinuz-$release" "$WORK/vmlinuz"
    rm -rf "$tree"
}

# The files of the modules, each behind those that it needs; modules.dep names these nearest first. (modprobe would leave
# out what the host's own kernel has.)
load_order() {
    awk -v wanted="$MODULES" '
        { name = $1; gsub(/.*\/|\.ko:$/, "", name); gsub(/-/, "_", name); needs[name] = $0 }
        END {
            count = split(wanted, names, " ")
            for (i = 1; i <= count; i++) {
                files = split(needs[names[i]], file, /:? /)
                for (j = files; j >= 1; j--) { sub(/:$/, "", file[j]); if (file[j] != "" && !seen[file[j]]++) print file[j] }
            }
        }' "$1/modules.dep"
}

make_initramfs() {
    local root=$1/initramfs modules=$1/lib/modules/$2
    mkdir -p "$root"/{bin,modules,proc,sys,dev,host}
    cp "$(command -v busybox)" "$root/bin/busybox"
    load_order "$modules" >"$root/paths"
    (cd "$modules" && xargs cp -t "$root/modules") <"$root/paths"
    sed 's|.*/||' "$root/paths" >"$root/modules/order"
    install -m 755 "$here/init.sh" "$root/init"
    (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$WORK/initramfs.new"
    mv "$WORK/initramfs.new" "$WORK/initramfs"
}

exec 9>"$WORK/lock"
flock 9
[[ -s $WORK/vmlinuz && $WORK/initramfs -nt $here/init.sh && $WORK/initramfs -nt $here/boot.sh ]] || make_guest
exec 9>&-
(($#)) || exit 0

job=job.$$.sh
cp "$1" "$SHARE/$job"
if [[ -z ${NVDIMM:-} ]]; then
    NVDIMM=$(mktemp -p /dev/shm nacre-nvdimm.XXXXXX)
    made=$NVDIMM
fi
trap 'rm -f "$SHARE/$job" ${made:+"$made"}' EXIT

# The kernel's tests of its ciphers may get stuck in emulation.
kernel="console=ttyS0 panic=-1 quiet mitigations=off no_timer_check cryptomgr.notests script=$job"
case $MODE in
    # Without ERMS the kernel copies in loops: a string instruction counts each of its repetitions.
    icount) machine="-accel tcg -icount shift=0,sleep=off -rtc base=2026-01-01,clock=vm -seed 1 -smp 1 -cpu max,erms=off,la57=off" kernel+=" tsc=reliable norandmaps" ;;
    tcg) machine="-accel tcg,thread=multi -smp 2 -cpu max,la57=off" ;;
    *) echo "MODE is icount or tcg" >&2 && exit 2 ;;
esac
share() { echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"; }
disk() { echo "-drive driver=nbd,if=none,id=disk,server.type=unix,server.path=$DISK,cache.writeback=on -device virtio-blk-pci,drive=disk"; }
# shellcheck disable=SC2046,SC2086 # lists of options; no path of them has a blank
timeout "$LIMIT" qemu-system-x86_64 -machine q35,nvdimm=on $machine -m 1G,slots=2,maxmem=32G \
    -object memory-backend-file,id=nvdimm,share=on,mem-path="$NVDIMM",size="$SIZE",align=2M -device nvdimm,memdev=nvdimm \
    -kernel "$WORK/vmlinuz" -initrd "$WORK/initramfs" -append "$kernel" \
    -display none -serial stdio -monitor none -no-reboot -net none \
    $(share host / ,readonly=on) $(share share "$SHARE" "") ${DISK:+$(disk)} </dev/null
