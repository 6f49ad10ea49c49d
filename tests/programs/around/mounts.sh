# `nacre mount` and `nacre umount` a hundred times: nothing is left of any; `nacre list` tells of mounts.
. "$PROGRAMS/expect.sh"

# what could be left: mounts, servers, files beside the session, units of the pool
left() {
    grep -c "$SCRATCH/mounted" /proc/mounts || true
    # Processes and files of others may end while they are looked at.
    # What others have mounted is not walked through: they could not unmount it meanwhile.
    { grep -lszF "$SCRATCH/mounted" /proc/[0-9]*/cmdline || true; } | wc -l
    { find /dev/shm -xdev -path "*$uuid*" 2>/dev/null || true; } | wc -l
    "$NACRE" info --json "$POOL" | python3 -c 'import json, sys; print(json.load(sys.stdin)["usage"]["free_bytes"])'
}

cycle() {
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    echo "$1" >"$SCRATCH/mounted/file"
    [[ $(<"$SCRATCH/mounted/file") == "$1" ]] || fail "cycle $1: another content"
    "$NACRE" umount "$SCRATCH/mounted"
}

size_by() { stat -c %s "$SCRATCH/$1/file"; }

# What the kernel keeps for one mount while nobody else uses the pool, it has forgotten when another one is there.
two_mounts() {
    note "two mounts"
    local turn held
    mkdir "$SCRATCH/other"
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    printf '' >"$SCRATCH/mounted/file"
    exec {held}<"$SCRATCH/mounted/file"
    for turn in 1 2 3; do
        sleep 2.2
        size_by mounted >"$SCRATCH/kept"
        stat -L -c %s "/proc/self/fd/$held" >"$SCRATCH/kept"
        "$NACRE" mount "$POOL" "$SCRATCH/other"
        printf '%0*d' "$turn" 0 >"$SCRATCH/other/file"
        same "size by descriptor" "$turn" "$(stat -L -c %s "/proc/self/fd/$held")"
        same "size by name" "$turn" "$(size_by mounted)"
        "$NACRE" umount "$SCRATCH/other"
    done
    exec {held}<&-
    "$NACRE" umount "$SCRATCH/mounted"
}

# A mount knows a file that somebody else removes: its room is free at once.
room_of_removed() {
    note "room of what another process removes"
    local small=$SCRATCH/small
    "$NACRE" create --size 64M "$small" >/dev/null
    "$NACRE" run -q --pool "$small" -- sh -c 'cat /dev/zero >/nacre/filler 2>/dev/null; true'
    "$NACRE" mount "$small" "$SCRATCH/mounted"
    stat "$SCRATCH/mounted/filler" >/dev/null
    "$NACRE" rm "$small:/filler"
    head -c 1000000 /dev/zero >"$SCRATCH/mounted/new" || fail "there is no room"
    same "what was written" 1000000 "$(stat -c %s "$SCRATCH/mounted/new")"
    "$NACRE" umount "$SCRATCH/mounted"
    "$NACRE" delete --force "$small" >/dev/null
}

# Tools that look for the attributes of chattr find none, as on tmpfs.
flags() {
    note "attributes of chattr"
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    mkdir "$SCRATCH/mounted/flags"
    (cd "$SCRATCH/mounted/flags" && echo inside >file && same "those of a file" "    0 ---------------------- file" "$(lsattr -p file)" &&
        same "those of a folder" "---------------------- ." "$(lsattr -d .)" && chattr -A file &&
        refuses "one that a pool does not keep" "not supported" chattr +i file)
    rm -r "$SCRATCH/mounted/flags"
    "$NACRE" umount "$SCRATCH/mounted"
}

# What containers are made of: a folder of a mount is what an overlay file system writes to.
overlay() {
    note "an overlay on a mount"
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    (cd "$SCRATCH/mounted" && mkdir -p overlay/{lower/{gone,kept},upper,work,merged} && echo below >overlay/lower/file)
    unshare --mount "$BASH" "${BASH_SOURCE[0]}" on_overlay "$SCRATCH/mounted/overlay" >"$SCRATCH/seen" ||
        fail "status $? on the overlay: $(cat "$SCRATCH/seen")"
    same "what is seen" $'kept\nmoved\nnew\nbelow\nand above' "$(cat "$SCRATCH/seen")"
    same "what is left of moved and removed names" $'character special file 0 0\ncharacter special file 0 0' \
        "$(stat -c '%F %t %T' "$SCRATCH"/mounted/overlay/upper/{file,gone})"
    rm -r "$SCRATCH/mounted/overlay"
    "$NACRE" umount "$SCRATCH/mounted"
}

on_overlay() {
    cd "$1"
    mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
    cd merged
    echo new >new
    mv file moved
    echo "and above" >>moved
    rmdir gone
    ls
    cat moved
}

main() {
    if [[ -n ${BASELINE:-} || ! -w /dev/fuse ]]; then
        note "nothing can be mounted: left out"
        return
    fi
    local uuid before i
    uuid=$("$NACRE" info --json "$POOL" | python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
    mkdir "$SCRATCH/mounted"
    cycle 0
    before=$(left)
    for i in {1..100}; do cycle "$i"; done
    same "what 100 cycles leave (mounts, servers, files, free bytes)" "$before" "$(left)"
    note list
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    contains "list" "$SCRATCH/mounted" "$("$NACRE" list)"
    [[ $(left) != "$before" ]] || fail "the canary: a mount is not noticed"
    "$NACRE" umount "$SCRATCH/mounted"
    same "after the last one" "$before" "$(left)"
    two_mounts
    room_of_removed
    flags
    if unshare --mount true 2>/dev/null && grep -q '\<overlay$' /proc/filesystems; then
        overlay
    else
        note "no overlay can be mounted: left out"
    fi
    check_pool
}

"${@:-main}"
