#!/bin/busybox sh
# The first process of the virtual machine of boot.sh: makes the host's root its own and runs the script there.
alias b=/bin/busybox
options=trans=virtio,version=9p2000.L,msize=262144
b mount -t proc proc /proc
b mount -t sysfs sys /sys
b mount -t devtmpfs dev /dev
for module in $(b cat /modules/order); do
    b insmod "/modules/$module" || echo "VM: $module does not load"
done
b mount -t 9p -o "$options,ro,cache=loose" host /host || b poweroff -f
for name in proc sys dev; do
    b mount --move "/$name" "/host/$name"
done
for folder in /dev/shm /tmp /mnt /run; do
    [ -d "/host$folder" ] || b mkdir "/host$folder"
    b mount -t tmpfs tmpfs "/host$folder"
done
b mkdir /host/tmp/share
b mount -t 9p -o "$options,cache=none" share /host/tmp/share
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
script=$(b sed -n 's/.*script=\([^ ]*\).*/\1/p' /host/proc/cmdline)
echo VM-READY
b chroot /host /bin/bash "/tmp/share/$script" </host/dev/console >/host/dev/console 2>&1
echo "VM-DONE rc=$?"
b sync
b poweroff -f
