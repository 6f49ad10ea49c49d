# Who may not use /dev/fuse, and who may by fusermount3 only: each gets what is possible, and is told.
. "$PROGRAMS/expect.sh"

# elsewhere COMMAND...: in a mount namespace of its own
elsewhere() { unshare --mount --propagation private "$@"; }

# A container without /dev/fuse: preloaded programs are served, others refused.
part_without() {
    mkdir "$SCRATCH/without" "$SCRATCH/dev"
    mount -t tmpfs -o dev,mode=755 none "$SCRATCH/dev"
    mkdir "$SCRATCH/dev/shm"
    for node in null:3 zero:5 random:8 urandom:9; do
        mknod -m 666 "$SCRATCH/dev/${node%:*}" c 1 "${node#*:}"
    done
    ln -s /proc/self/fd "$SCRATCH/dev/fd"
    mount --bind /dev/shm "$SCRATCH/dev/shm"
    mount --rbind "$SCRATCH/dev" /dev
    [[ ! -e /dev/fuse ]] || fail "it is still there"
    run=("$NACRE" run --quiet --pool "$POOL" --mount "$SCRATCH/without" --)
    "${run[@]}" sh -c "echo preloaded >'$SCRATCH/without/file'"
    refuses "a static program" "$SCRATCH/without" "${run[@]}" busybox cat "$SCRATCH/without/file"
    refuses "nacre mount" "/dev/fuse" "$NACRE" mount "$POOL" "$SCRATCH/without"
    gives "a static program elsewhere" here "${run[@]}" busybox echo here
    gives "a preloaded one" preloaded "${run[@]}" cat "$SCRATCH/without/file"
    same "the host's folder" "" "$(ls -A "$SCRATCH/without")"
}

# An ordinary user (with a name, as fusermount3 wants it), and a device that all may open.
part_user() {
    mkdir "$SCRATCH/devices" "$SCRATCH/home"
    mount -t tmpfs -o dev,mode=755 none "$SCRATCH/devices"
    mknod -m 666 "$SCRATCH/devices/fuse" c 10 229
    mount --bind "$SCRATCH/devices/fuse" /dev/fuse
    chown 65534:65534 "$SCRATCH/home"
    cd "$SCRATCH/home"
    setpriv --reuid=65534 --regid=65534 --clear-groups \
        env HOME="$SCRATCH/home" XDG_CACHE_HOME="$SCRATCH/home/cache" SCRATCH="$SCRATCH/home" \
        bash "$PROGRAMS/around/fuse-access.sh" part_as_user
}

part_as_user() {
    local pool=$SCRATCH/pool run
    "$NACRE" create --size 64M "$pool" >/dev/null
    mkdir "$SCRATCH/mounted" "$SCRATCH/by-run"
    "$NACRE" mount "$pool" "$SCRATCH/mounted"
    echo text >"$SCRATCH/mounted/file"
    gives "a static program" text busybox cat "$SCRATCH/mounted/file"
    run=("$NACRE" run --quiet --pool "$pool" --mount "$SCRATCH/by-run" --)
    gives "a preloaded one" text "${run[@]}" cat "$SCRATCH/by-run/file"
    gives "a static one below nacre run" text "${run[@]}" busybox cat "$SCRATCH/by-run/file"
    "$NACRE" umount "$SCRATCH/mounted"
    refuses "others, without user_allow_other" "allow_other" \
        "$NACRE" mount --allow-other "$pool" "$SCRATCH/mounted"
    "$NACRE" delete --force "$pool" >/dev/null
}

main() {
    if [[ -n ${BASELINE:-} || $(id -u) != 0 || ! -w /dev/fuse ]] || ! type fusermount3 >/dev/null; then
        note "nothing can be mounted: left out"
        return
    fi
    note without /dev/fuse
    elsewhere bash "${BASH_SOURCE[0]}" part_without
    note ordinary user
    elsewhere bash "${BASH_SOURCE[0]}" part_user
    check_pool
}

run_parts "$@"
