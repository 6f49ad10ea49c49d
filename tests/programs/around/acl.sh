# POSIX access control lists: the same transcript as on tmpfs, preloaded and through FUSE; what clones,
# snapshots and copies keep of them.
. "$PROGRAMS/expect.sh"

transcript() {
    mkdir -m 755 "$1"
    python3 "$PROGRAMS/around/acl.py" "$1"
    rm -r "$1"
}

part_transcript() {
    transcript "$MOUNT/lists"
}

part_set() {
    mkdir -p "$MOUNT/kept/below"
    echo text >"$MOUNT/kept/below/file"
    setfacl -m u:3001:rw,d:g:4001:rx "$MOUNT/kept/below"
    setfacl -m u:3001:r,g:4001:rwx "$MOUNT/kept/below/file"
}

# lists_below FOLDER: those of all that is in it
lists_below() {
    (cd "$1" && find below | sort | xargs getfacl -n)
}

part_kept() { lists_below "$MOUNT/kept"; }
part_cloned() { lists_below "$MOUNT/cloned"; }
part_copied() { lists_below "$MOUNT/copied"; }

kept() {
    local expected
    part set
    expected=$(part kept)
    contains "the list is there" "group:4001:rwx" "$expected"
    "$NACRE" snapshot "$POOL:/kept" monday
    inside setfacl -R -b "$MOUNT/kept/below"
    [[ $(part kept) != "$expected" ]] || fail "nothing was taken away"
    "$NACRE" snapshot restore "$POOL:/kept" monday
    same "after a snapshot was restored" "$expected" "$(part kept)"
    "$NACRE" clone "$POOL:/kept" "$POOL:/cloned"
    same "in a clone" "$expected" "$(part cloned)"
    "$NACRE" cp -rp "$POOL:/kept" "$SCRATCH/copied"
    same "copied out" "$expected" "$(lists_below "$SCRATCH/copied")"
    "$NACRE" cp -rp "$SCRATCH/copied" "$POOL:/copied"
    same "copied in" "$expected" "$(part copied)"
}

main() {
    # What a failure shows names its place.
    transcript "$SCRATCH/tmpfs" >"$SCRATCH/expected"
    ((($(wc -l <"$SCRATCH/expected")) > 1500)) || fail "the transcript is too short"
    grep -q "user:3002:rwx" "$SCRATCH/expected" || fail "tmpfs here knows no lists"
    note preloaded
    part transcript >"$SCRATCH/preloaded"
    diff "$SCRATCH/expected" "$SCRATCH/preloaded" || fail "preloaded programs see something else"
    [[ -z ${BASELINE:-} ]] || return 0
    note kept
    kept
    check_pool
    if [[ ! -w /dev/fuse ]]; then
        note "nothing can be mounted: left out"
        return
    fi
    note "through FUSE"
    mkdir "$SCRATCH/mounted"
    "$NACRE" mount --allow-other "$POOL" "$SCRATCH/mounted"
    transcript "$SCRATCH/mounted/lists" >"$SCRATCH/fuse" || fail "through FUSE"
    "$NACRE" umount "$SCRATCH/mounted"
    diff "$SCRATCH/expected" "$SCRATCH/fuse" || fail "programs see something else through FUSE"
    check_pool
}

run_parts "$@"
