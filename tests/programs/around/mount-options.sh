# What users say to mount and unmount: each form of `nacre mount` and `nacre umount`, mount(8) and umount(8) with a line
# of /etc/fstab, a unit of systemd as docs/fuse.md shows them, and what is said to who gets it wrong.
. "$PROGRAMS/expect.sh"

AT=$SCRATCH/mounted

options() { findmnt -n -o OPTIONS "$AT"; }
unmounted() { ! mountpoint -q "$AT" || fail "$1: still mounted"; }

commands() {
    note commands
    "$NACRE" mount --pool "$POOL" "$AT"
    echo text >"$AT/file"
    "$NACRE" umount "$AT"
    unmounted "nacre umount"
    "$NACRE" mount "$POOL" "$AT"
    gives "mounted again" text cat "$AT/file"
    fusermount3 -u "$AT"
    unmounted fusermount3
    wait_for 20 "the server's end" nobody_uses
    "$NACRE" mount --read-only --allow-other --foreground --pool "$POOL" "$AT" &
    wait_for 20 "the mount" mountpoint -q "$AT"
    refuses "a change" "Read-only file system" touch "$AT/new"
    gives "another user reads" text setpriv --reuid=65534 --regid=65534 --clear-groups cat "$AT/file"
    umount "$AT"
    wait $! || fail "status $? of the server in the foreground"
}

nobody_uses() { "$NACRE" info "$POOL" | grep -q nobody; }

# mount(8) finds its helper in /usr/sbin, which in this mount namespace has nothing else.
fstab() {
    note fstab
    mkdir "$SCRATCH/sbin"
    # As `make install` writes it, for the program that is tested.
    printf '#!/bin/sh\nexec %q mount "$@"\n' "$NACRE" >"$SCRATCH/sbin/mount.nacre"
    chmod 755 "$SCRATCH/sbin/mount.nacre"
    mount --bind "$SCRATCH/sbin" /usr/sbin
    echo "$POOL  $AT  nacre  allow_other,nofail  0  0" >"$SCRATCH/fstab"
    mount -T "$SCRATCH/fstab" "$AT"
    contains "options" allow_other "$(options)"
    gives "another user reads" text setpriv --reuid=65534 --regid=65534 --clear-groups cat "$AT/file"
    umount "$AT"
    mount -v -n -s -T "$SCRATCH/fstab" -a
    mountpoint -q "$AT" || fail "mount -a"
    umount -v "$AT" >/dev/null
    mount -t nacre -o ro,noexec,noatime,user,_netdev,x-systemd.automount "$POOL" "$AT"
    contains "options" "ro,nosuid,nodev,noexec,noatime" "$(options)"
    umount "$AT"
    refuses "an option that means nothing" "-o wrong: unknown" mount -t nacre -o wrong "$POOL" "$AT"
    umount -l /usr/sbin
}

accessed() { stat -c %x "$AT/file" "$AT/folder" | cut -c 1-10 | paste -sd ' '; }

# The time of the last access stays with noatime, and moves without.
access_times() {
    note noatime
    local before=2001-01-01
    "$NACRE" mount -o noatime "$POOL" "$AT"
    mkdir "$AT/folder"
    touch -a -d $before "$AT/file" "$AT/folder"
    cat "$AT/file" >"$SCRATCH/read"
    ls "$AT/folder"
    gives "with noatime" "$before $before" accessed
    "$NACRE" umount "$AT"
    "$NACRE" mount "$POOL" "$AT"
    cat "$AT/file" >"$SCRATCH/read"
    ls "$AT/folder"
    [[ $(accessed) != *$before* ]] || fail "the canary: a time does not move: $(accessed)"
    rmdir "$AT/folder"
    "$NACRE" umount "$AT"
}

unit() {
    note "a unit of systemd"
    local name=$SCRATCH/nacre-test.service
    type systemd-analyze >/dev/null 2>&1 || { note "no systemd: left out"; return; }
    printf '%s\n' '[Unit]' 'Description=Pool at /mnt/p' 'RequiresMountsFor=/srv /mnt' '[Service]' \
        "ExecStart=$NACRE mount --foreground --allow-other $POOL $AT" "ExecStopPost=-$NACRE umount $AT" \
        'Restart=on-failure' '[Install]' 'WantedBy=multi-user.target' >"$name"
    gives "the unit" "" systemd-analyze verify "$name"
    # What systemd does with it: it starts, sends SIGTERM, and runs the last command.
    "$NACRE" mount --foreground --allow-other "$POOL" "$AT" &
    wait_for 20 "the mount" mountpoint -q "$AT"
    kill -TERM $!
    wait $! || fail "status $? after SIGTERM"
    unmounted SIGTERM
    refuses "nothing is left to unmount" "no pool is mounted there" "$NACRE" umount "$AT"
}

mistakes() {
    note mistakes
    local full=$SCRATCH/full
    mkdir "$full"
    touch "$full/there"
    refuses "no folder" "name the pool, and the folder" "$NACRE" mount "$POOL"
    refuses "two pools" "name the pool once" "$NACRE" mount --pool "$POOL" "$POOL" "$AT"
    refuses "no pool" "$SCRATCH/none: no such file" "$NACRE" mount "$SCRATCH/none" "$AT"
    refuses "another file" "is no device of a Nacre pool" "$NACRE" mount "$SCRATCH/fstab" "$AT"
    refuses "a missing folder" "none: there is no such folder" "$NACRE" mount "$POOL" "$SCRATCH/none"
    refuses "a file as folder" "not a directory" "$NACRE" mount "$POOL" "$SCRATCH/fstab"
    refuses "a folder with files" "is not empty" "$NACRE" mount "$POOL" "$full"
    refuses "a folder of the system" "is not empty" "$NACRE" mount "$POOL" /proc
    refuses "not mounted" "no pool is mounted there" "$NACRE" umount "$full"
    gives "what is there" there ls "$full"
    for cover in --cover "-o nonempty"; do
        # shellcheck disable=SC2086
        "$NACRE" mount $cover "$POOL" "$full"
        gives "covered" file ls "$full"
        "$NACRE" umount "$full"
    done
}

# How much memory what is on a disk may take.
memory() {
    note "memory of a pool on a disk"
    local disk=$DISK_FOLDER/mount-options-$$.pool asked
    "$NACRE" create -q --size 64M "$disk"
    for asked in "--cache 5M" "-o noatime,cache=5M"; do
        # shellcheck disable=SC2086
        "$NACRE" mount $asked "$disk" "$AT"
        contains "$asked" "of 5.00 MiB in memory" "$("$NACRE" info "$disk")"
        "$NACRE" umount "$AT"
    done
    "$NACRE" mount -o ro,cache=5M "$disk" "$AT"
    contains "read-only" "ro," "$(options)"
    "$NACRE" umount "$AT"
    refuses "no number" "-o cache=" "$NACRE" mount -o cache=much "$disk" "$AT"
    "$NACRE" delete --force "$disk" >/dev/null
}

part_all() {
    mkdir "$AT"
    commands
    fstab
    access_times
    memory
    unit
    mistakes
}

main() {
    if [[ -n ${BASELINE:-} || $(id -u) != 0 || ! -w /dev/fuse ]] || ! type fusermount3 >/dev/null; then
        note "nothing can be mounted: left out"
        return
    fi
    unshare --mount --propagation private bash "${BASH_SOURCE[0]}" part_all
    check_pool
}

run_parts "$@"
