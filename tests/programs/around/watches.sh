# Programs that watch files of a pool, told by inotify of changes by another `nacre run`, by a mount and by
# the command line: tail -f, inotifywait, node's fs.watch, and a program that builds what has changed.
. "$PROGRAMS/expect.sh"

background=()
# starts a program that watches: `watching NAME COMMAND...`; its output goes to $SCRATCH/NAME
watching() {
    local name=$1
    shift
    local run=("$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" --)
    [[ -z ${BASELINE:-} ]] || run=(env)
    "${run[@]}" "$@" >"$SCRATCH/$name" 2>"$SCRATCH/$name.complaints" &
    background+=($!)
}

stop() {
    kill -TERM "${background[@]}" 2>/dev/null || true
    wait "${background[@]}" 2>/dev/null || true
    background=()
}
trap stop EXIT

# said NAME TEXT: the program has written a line with this text
said() { wait_for 20 "'$2' of $1: $(head "$SCRATCH/$1")" grep -qF -- "$2" "$SCRATCH/$1"; }

followed() {
    note "tail -f"
    inside bash -c "mkdir '$MOUNT/t'; echo first >'$MOUNT/t/log'"
    watching tail tail -f -n 1 "$MOUNT/t/log"
    said tail first
    inside bash -c "echo second >>'$MOUNT/t/log'"
    said tail second
    through_mount t/log third
    said tail third
    stop
}

# appends a line through the kernel, where a mount can be made
through_mount() {
    if [[ -n ${BASELINE:-} ]]; then
        echo "$2" >>"$MOUNT/$1"
    elif [[ -w /dev/fuse ]]; then
        mkdir -p "$SCRATCH/mounted"
        "$NACRE" mount "$POOL" "$SCRATCH/mounted"
        echo "$2" >>"$SCRATCH/mounted/$1"
        "$NACRE" umount "$SCRATCH/mounted"
    else
        note "no /dev/fuse: written without a mount"
        inside bash -c "echo '$2' >>'$MOUNT/$1'"
    fi
}

listed() {
    note "inotifywait"
    inside mkdir -p "$MOUNT/i/deep"
    watching wait inotifywait -m -r --format '%w%f %e' "$MOUNT/i"
    said wait.complaints 'Watches established'
    inside bash -c "cd '$MOUNT/i'; echo x >a; mv a deep/b; chmod 600 deep/b; mkdir new; sleep 0.5; : >new/c; rm -r new"
    local line
    for line in "a CREATE" "a MODIFY" "a CLOSE_WRITE,CLOSE" "a MOVED_FROM" "deep/b MOVED_TO" "deep/b ATTRIB" \
        "new CREATE,ISDIR" "new/c CREATE" "new/c DELETE" "new DELETE,ISDIR"; do
        said wait "$MOUNT/i/$line"
    done
    if [[ -z ${BASELINE:-} ]]; then
        "$NACRE" mv "$POOL:/i/deep/b" "$POOL:/i/by-command"
        said wait "$MOUNT/i/by-command MOVED_TO"
        copied
    fi
    stop
}

# What `nacre cp` and `nacre import` write is told as what cp and tar write.
copied() {
    head -c 3000000 /dev/urandom >"$SCRATCH/copied"
    "$NACRE" cp "$SCRATCH/copied" "$POOL:/i/copied"
    tar -C "$SCRATCH" -cf - copied | "$NACRE" import "$POOL:/i/deep"
    for line in {,deep/}copied" "{CREATE,OPEN,MODIFY,CLOSE_WRITE\,CLOSE}; do
        said wait "$MOUNT/i/$line"
    done
}

noticed_by_node() {
    command -v node >"$SCRATCH/node" || { note "no node: fs.watch is left out"; return; }
    note "node's fs.watch"
    inside mkdir -p "$MOUNT/n"
    watching fs.watch node -e "require('fs').watch('$MOUNT/n', (kind, name) => console.log(kind, name)); console.log('ready')"
    said fs.watch ready
    inside bash -c "cd '$MOUNT/n'; echo x >one; mv one two; echo y >>two"
    said fs.watch "rename one"
    said fs.watch "rename two"
    said fs.watch "change two"
    stop
}

# As cargo watch does it: waits for a file to be written completely, builds, and waits again.
part_builder() {
    cd "$MOUNT/b"
    exec 3< <(exec inotifywait -q -m -e close_write,moved_to --format %f .)
    trap "kill $!; exit" TERM
    while read -r name <&3; do
        if [[ $name == *.c ]]; then
            gcc -o "${name%.c}" "$name" && echo "built $name: $("./${name%.c}")"
        fi
    done
}

built() {
    note "a program that builds what has changed"
    inside mkdir -p "$MOUNT/b"
    watching builder bash "${BASH_SOURCE[0]}" part_builder
    wait_for 20 "the watch of the builder" watches
    local version
    for version in 1 2 3; do
        inside bash -c "echo 'int puts(const char *); int main(void) { return puts(\"version $version\") < 0; }' >'$MOUNT/b/.new'; mv '$MOUNT/b/.new' '$MOUNT/b/p.c'"
        said builder "built p.c: version $version"
    done
    stop
}

watches() { grep -qs ^inotify /proc/[0-9]*/fdinfo/*; }

main() {
    followed
    listed
    noticed_by_node
    built
    check_pool
    gone
}

# Nothing of a watch is left when its watcher has ended, even if it was killed.
gone() {
    [[ -z ${BASELINE:-} ]] || return 0
    local uuid
    uuid=$("$NACRE" info --json "$POOL" | python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
    part_gone "$uuid" "$MOUNT/i" >"$SCRATCH/gone"
    same "shadows while there is a watch, and afterwards" "1 0" "$(cat "$SCRATCH/gone")"
}

part_gone() {
    inside bash -c "
        shadows() { find /dev/shm -xdev -path '*$1*nodes/watch-*' | wc -l; }
        inotifywait -q -m '$2' & watcher=\$!
        until ((\$(shadows) == 1)); do sleep 0.05; done
        printf '1 '
        kill -KILL \$watcher
        until ((\$(shadows) == 0)); do sleep 0.05; done
        echo 0"
}

run_parts "$@"
