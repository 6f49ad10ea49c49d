# stress-ng: all its file system stressors that Debian 12's version has and that can apply, STRESS_SECONDS for each group.
# Not run, and why:
#   bind-mount       mounts kernel file systems; needs mount(2)
#   binderfs         a kernel file system of its own
#   chattr           flags of ext4 by ioctl; Nacre stores none
#   dnotify, inotify, fanotify   the kernel's notification of its own inodes (docs/semantics.md)
#   eventfd          no files
#   lease            F_SETLEASE is the kernel's, on its own inodes
#   handle           name_to_handle_at, open_by_handle_at
#   inode-flags, verity, fiemap  ioctls of particular kernel file systems
#   io, procfs       sync() of the machine, /proc; no files of a folder
#   ioprio           block device scheduling
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
stressors=(access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl file-ioctl filename flock
    fpunch fsize fstat getdent hdd iomix link locka lockf lockofd mknod open rename symlink sync-file touch utime xattr)
# Eight kinds at once: they also meet each other.
for ((first = 0; first < ${#stressors[@]}; first += 8)); do
    batch=() names=("${stressors[@]:first:8}")
    for stressor in "${names[@]}"; do batch+=("--$stressor" 1); done
    out=$(stress-ng "${batch[@]}" --timeout "${STRESS_SECONDS:-2}" --temp-path "$MOUNT" --verify --hdd-bytes 16M \
        --fallocate-bytes 16M --iomix-bytes 16M --sync-file-bytes 4M 2>&1) || fail "${names[*]}: status $?: $out"
    [[ $out != *"fail:"* && $out != *" error:"* ]] || fail "${names[*]}: $out"
    [[ $out == *"successful run completed"* && $out != *skipped* ]] || fail "not all of ${names[*]} ran: $out"
done
# Where it comes to the limit of open files, `open` leaves some behind; on tmpfs too.
rm -f stress-open-*
gives "nothing is left" "" ls -A "$MOUNT"
