# A user without write permission: a pool that nobody changes, and one that others work on.
. "$PROGRAMS/expect.sh"

as_nobody() {
    setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_CACHE_HOME="$SCRATCH/cache" "$@"
}

below_read_only() {
    unshare --mount "$BASH" -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"' "$(dirname "$POOL")" "$@"
}

# Sessions of readers. (Their user may have plans in shared memory, too.)
readers_sessions() {
    ls -d /dev/shm/nacre-65534*/readers-of-* 2>/dev/null || true
}

mounted_read_only() {
    note "its file system is mounted read-only, as in sandboxes"
    refuses "a run that may write" "show it with --read-only" below_read_only "$NACRE" run -q --pool "$POOL" --mount "$MOUNT" -- true
    gives "ls there" $'cat\nfile\nfolder' below_read_only "$NACRE" ls "$POOL:/"
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    [[ $(id -u) == 0 ]] || { note "needs root to become somebody else"; return; }
    inside bash -c "echo text >$MOUNT/file; cp /bin/cat $MOUNT/cat; mkdir $MOUNT/folder"
    chmod 644 "$POOL"*
    chmod a+x "$(dirname "$POOL")" "$SCRATCH"
    install -d -o 65534 -m 700 "$SCRATCH/cache"
    local look="cat $MOUNT/file; cat <$MOUNT/file | $MOUNT/cat; ls $MOUNT; (cd $MOUNT/folder && pwd) & wait"
    local seen=$'text\ntext\ncat\nfile\nfolder\n'$MOUNT/folder
    note "nobody changes the pool"
    local before meanwhile
    before=$(readers_sessions)
    meanwhile=$(export -f readers_sessions && as_nobody "$NACRE" run -q --read-only --pool "$POOL" --mount "$MOUNT" -- bash -c readers_sessions)
    [[ $meanwhile != "$before" ]] || fail "readers have a session that this test does not see"
    gives "a program that reads" "$seen" as_nobody "$NACRE" run -q --read-only --pool "$POOL" --mount "$MOUNT" -- bash -c "$look"
    refuses "writing" "Read-only" as_nobody "$NACRE" run -q --read-only --pool "$POOL" --mount "$MOUNT" -- touch "$MOUNT/new"
    refuses "a run that may write" "permission denied" as_nobody "$NACRE" run -q --pool "$POOL" --mount "$MOUNT" -- true
    gives "ls" $'cat\nfile\nfolder' as_nobody "$NACRE" ls "$POOL:/"
    gives "cat" text as_nobody "$NACRE" cat "$POOL:/file"
    as_nobody "$NACRE" check "$POOL" >/dev/null
    [[ $(readers_sessions) == "$before" ]] || fail "the readers' session is left"

    ! unshare --mount true 2>/dev/null || mounted_read_only

    note "others change it"
    inside bash -c "echo >$SCRATCH/ready; while [[ ! -e $SCRATCH/stop ]]; do sleep 0.1; done" &
    wait_for 20 "the writer" test -e "$SCRATCH/ready"
    refuses "who cannot join" "another session" as_nobody "$NACRE" run -q --read-only --pool "$POOL" --mount "$MOUNT" -- true
    touch "$SCRATCH/stop"
    wait
    check_pool
}

run_parts "$@"
