# What the kernel's file systems cost, on the same emulated NVDIMM.
ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem --align=2M >/dev/null
mkdir -p /mnt/d
# Nothing is left for later, which would count while calls are counted.
mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/pmem0
mount -t ext4 -o dax /dev/pmem0 /mnt/d
nacre bench-count ext4-dax /mnt/d/b >>"$figures"
umount /mnt/d
mkfs.xfs -q -f -m reflink=0 /dev/pmem0
mount -t xfs -o dax /dev/pmem0 /mnt/d
nacre bench-count xfs-dax /mnt/d/b >>"$figures"
umount /mnt/d
nacre bench-count tmpfs /dev/shm/b >>"$figures"
rm -r /dev/shm/b
