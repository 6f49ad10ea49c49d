# Making pools: sizes that are asked for, sizes that are too small, and nothing left behind by what failed or was
# removed.
. "$PROGRAMS/expect.sh"

size_of() { stat -c %s "$1"; }

# What a refusal asks for succeeds, whatever was asked for first and in how many files.
refused_sizes_name_one_that_works() {
    local size enough files
    for files in "a" "a b" "a b c d e"; do
        for size in 1M 4M 7M 8M 16M; do
            if ! "$NACRE" create --size $size $(printf "$SCRATCH/%s " $files) >"$SCRATCH/said" 2>&1; then
                enough=$(grep -o -- '--size [0-9]*M' "$SCRATCH/said") || fail "$size in $files: $(cat "$SCRATCH/said")"
                "$NACRE" create $enough $(printf "$SCRATCH/%s " $files) >/dev/null || fail "$size in $files: $enough"
            fi
            "$NACRE" delete --force "$SCRATCH/a" >/dev/null
        done
    done
    same "what five files need each" "--size 8M" "$enough"
}

sizes() {
    note sizes
    refused_sizes_name_one_that_works
    [[ ! -e $SCRATCH/a ]] || fail "a refused create leaves a file"
    "$NACRE" create --size 19M "$SCRATCH/a" >/dev/null
    "$NACRE" check "$SCRATCH/a" >/dev/null
    refuses "too small in two files" "too small for a pool" "$NACRE" create --size 10M "$SCRATCH/b" "$SCRATCH/c"
    [[ ! -e $SCRATCH/b && ! -e $SCRATCH/c ]] || fail "a refused create of two devices leaves files"
    refuses "no room" "b:" "$NACRE" create --size 4P "$SCRATCH/b"
    refuses "no copy at all" "on no device" "$NACRE" create --copies 0 --size 32M "$SCRATCH/b"
    refuses "stripes of copies" "all hold the same" "$NACRE" create --copies 2 --stripe 4K --size 32M "$SCRATCH/b" "$SCRATCH/c"
    [[ ! -e $SCRATCH/b ]] || fail "a create that is refused leaves a file"

    note "a new size with --force"
    "$NACRE" create --force --size 64M "$SCRATCH/a" >/dev/null
    same "larger" $((64 << 20)) "$(size_of "$SCRATCH/a")"
    "$NACRE" cp "$0" "$SCRATCH/a:/kept"
    refuses "too small with --force" "--size 20M" "$NACRE" create --force --size 16M "$SCRATCH/a"
    refuses "no room with --force" "a:" "$NACRE" create --force --size 4P "$SCRATCH/a"
    refuses "one of two cannot be made" "none/b" "$NACRE" create --force --size 32M "$SCRATCH/a" "$SCRATCH/none/b"
    gives "a refused one changes nothing" kept "$NACRE" ls "$SCRATCH/a"
    "$NACRE" create --force --size 32M "$SCRATCH/a" >/dev/null
    same "smaller" $((32 << 20)) "$(size_of "$SCRATCH/a")"
    "$NACRE" create --force "$SCRATCH/a" >/dev/null
    same "as it was" $((32 << 20)) "$(size_of "$SCRATCH/a")"
    "$NACRE" check "$SCRATCH/a" >/dev/null
    truncate -s 10K "$SCRATCH/blank"
    refuses "a file of another size" "leave the size out" "$NACRE" create --size 32M "$SCRATCH/blank"
    refuses "a pool of another size" "belongs to a pool" "$NACRE" create --size 64M "$SCRATCH/a"
    refuses "growing by the pool itself" "a" "$NACRE" grow --force --size 20M "$SCRATCH/a" "$SCRATCH/a"
    same "after that" $((32 << 20)) "$(size_of "$SCRATCH/a")"
    gives "empty" "" "$NACRE" ls "$SCRATCH/a"
}

# What a file is that is no pool, and what to do instead.
other_files() {
    note "files that are no pools"
    local run=("$NACRE" run -q --pool)
    : >"$SCRATCH/empty"
    refuses "an empty file" "is empty; check the path, or make a pool of it" "${run[@]}" "$SCRATCH/empty" -- true
    refuses "a text" "holds something else; check the path, or make a pool in a new file" "${run[@]}" "$0" -- true
    for size in "" "--size 64M"; do
        # shellcheck disable=SC2086
        refuses "a pool of a text, size '$size'" "holds data" "$NACRE" create $size "$0"
    done
    "$NACRE" create --size 32M "$SCRATCH/empty" >/dev/null
    "${run[@]}" "$SCRATCH/empty" -- true
    "$NACRE" delete --force "$SCRATCH/empty" >/dev/null
}

as_nobody() {
    setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# Which folder is in the way, and of whom.
folders() {
    [[ $(id -u) == 0 ]] || { note "folders of others: needs root to become somebody else"; return; }
    note "folders of others"
    local create=(as_nobody "$NACRE" create --size 32M)
    mkdir -m 755 "$SCRATCH/others"
    refuses "to be written" "the folder $SCRATCH/others may not be written by user 65534" "${create[@]}" "$SCRATCH/others/a"
    (cd "$SCRATCH/others" && refuses "a mere name" "the folder $SCRATCH/others may not" "${create[@]}" a)
    chmod 700 "$SCRATCH/others"
    refuses "to be entered" "the folder $SCRATCH/others may not be entered by user 65534" "${create[@]}" "$SCRATCH/others/a"
    "$NACRE" create --size 32M "$SCRATCH/others/a" >/dev/null
    chmod 755 "$SCRATCH/others"
    refuses "a pool of another user" "$SCRATCH/others/a: permission denied" as_nobody "$NACRE" info "$SCRATCH/others/a"
    same "what is there" a "$(ls "$SCRATCH/others")"
    "$NACRE" delete --force "$SCRATCH/others/a" >/dev/null
}

# /dev/shm as containers have it, or with less.
with_shm() {
    local size=$1
    shift
    unshare -m --propagation private sh -c 'mount -t tmpfs -o size='"$size"' none /dev/shm && exec "$@"' sh "$@"
}

small_memory() {
    # A copy outside of /dev/shm, which is another one in there.
    local bin=/tmp/nacre-test-$$
    mkdir "$bin"
    trap 'rm -rf "'$bin'"' EXIT
    cp "$NACRE" "$(dirname "$NACRE")"/libnacre_preload.so "$bin"
    if ! with_shm 1M true 2>/dev/null; then
        note "small /dev/shm: not here, mounting is not allowed"
        return
    fi
    note "a small /dev/shm"
    gives "64 MiB" kept with_shm 64M "$bin/nacre" run -q sh -c 'echo kept >/nacre/f; cat /nacre/f'
    gives "40 MiB" kept with_shm 40M "$bin/nacre" run -q sh -c 'echo kept >/nacre/f; cat /nacre/f'
    contains "20 MiB" "at least 32.0 MiB there" "$(with_shm 20M "$bin/nacre" run -q true 2>&1 || true)"
    contains "20 MiB: a remedy" "--shm-size" "$(with_shm 20M "$bin/nacre" run -q true 2>&1 || true)"
    # The user's own folder of run-time names stays; nothing is in it.
    same "what is left of it" "" "$(with_shm 20M sh -c "'$bin/nacre' run -q true 2>/dev/null; find /dev/shm ! -type d")"
    "$NACRE" create --size 64M "$bin/pool" >/dev/null
    contains "no room for a session" "NACRE_SESSION_DIR" "$(with_shm 100k "$bin/nacre" run -q --pool "$bin/pool" true 2>&1 || true)"
    gives "a session elsewhere" "" with_shm 100k env NACRE_SESSION_DIR="$bin" "$bin/nacre" run -q --pool "$bin/pool" true
    note "the default pool's size"
    gives "as asked" 50331648 with_shm 64M sh -c "'$bin/nacre' run -q --size 48M true && stat -c %s /dev/shm/nacre-*/*.pool"
    contains "another one later" "nacre delete" \
        "$(with_shm 64M sh -c "'$bin/nacre' run -q --size 48M true && '$bin/nacre' run --size 40M true" 2>&1 || true)"
}

# A pool whose emulation and session nobody could end is removed with `rm`: the next command finds what it left.
leftovers() {
    note "what a pool that was removed has left"
    local pool=$SCRATCH/gone folder runner i
    "$NACRE" create --size 64M "$pool" >"$SCRATCH/said"
    folder=/dev/shm/nacre-$(grep -oE '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' "$SCRATCH/said" | head -1)
    "$NACRE" run -q --pool "$pool" --emulate optane-100 -- sleep 50 &
    runner=$!
    for ((i = 0; i < 500; i++)); do
        ! pgrep -P "$runner" -x sleep >"$SCRATCH/program" || break
        sleep 0.1
    done
    [[ -e $(echo "$folder"-*/emulation) ]] || fail "no emulation to be left: $(echo "$folder"*/*)"
    kill -KILL "$runner" $(cat "$SCRATCH/program")
    wait "$runner" || true
    [[ -e $(echo "$folder"-*/emulation) ]] || fail "the emulation went by itself: this test sees nothing"
    rm "$pool"
    "$NACRE" run -q --pool "$POOL" true
    # The second that a program may have needed to be gone.
    for ((i = 0; i < 100; i++)); do
        [[ -e $(echo "$folder"-*) ]] || return 0
        sleep 0.1
        "$NACRE" run -q --pool "$POOL" true
    done
    fail "left in shared memory: $(echo "$folder"*/*)"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    sizes
    other_files
    folders
    small_memory
    leftovers
}

main
