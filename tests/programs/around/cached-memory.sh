# A pool in mode cached on memory: what was synced is on the device, what was not survives programs,
# and less reaches the device than in mode direct. A copy of the file shows what the device has.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

made() {
    note how it is made
    local text
    text=$("$NACRE" create --size 64M --mode cached "$SCRATCH/a")
    contains "create" "mode cached" "$text"
    contains "it is no safer than the device" "does NOT survive" "$text"
    contains "info" "file in memory, flush: commit" "$("$NACRE" info "$SCRATCH/a")"
    contains "the usual mode is as it was" "mode direct" "$("$NACRE" create --size 64M "$SCRATCH/usual")"
    text=$("$NACRE" create --size 64M --mode cached "$SCRATCH/one" "$SCRATCH/other")
    contains "several devices" "mode cached" "$text"
    refuses "no room for a journal" "cached" "$NACRE" create --size 24M --mode cached "$SCRATCH/b"
    [[ ! -e $SCRATCH/b ]] || fail "a device is left of a pool that was refused"
}

survives() {
    note "all are killed; the device has what was synced"
    "$NACRE" run -q --pool "$SCRATCH/a" -- /usr/bin/python3 "$PROGRAMS/around/synced.py" 1000 fsync dsync msync renamed || true
    cp "$SCRATCH/a" "$SCRATCH/copy"
    contains "the device alone is sound" clean "$("$NACRE" check "$SCRATCH/copy")"
    for name in first fsync dsync msync; do
        contains "$name" "$name" "$("$NACRE" ls "$SCRATCH/copy:/")"
    done
    gives "contents" 5000 bash -c "'$NACRE' cat '$SCRATCH/copy:/fsync' | wc -c"
    contains "stored through a mapping" there "$("$NACRE" cat "$SCRATCH/copy:/msync" | tr -d '\0')"
    gives "written by a child" "in a child" "$NACRE" cat "$SCRATCH/copy:/renamed"
    gives "what was not synced survives the programs" 8000 bash -c "'$NACRE' cat '$SCRATCH/a:/unsynced' | wc -c"
    contains "sound" clean "$("$NACRE" check "$SCRATCH/a")"
    cp "$SCRATCH/a" "$SCRATCH/copy"
    gives "the last one to leave left all on the device" 8000 \
        bash -c "'$NACRE' cat '$SCRATCH/copy:/unsynced' | wc -c"
}

# The device keeps its place and its name, and memory is lost.
lost_image() {
    note "memory is lost while a program runs"
    "$NACRE" run -q --pool "$SCRATCH/a" -- sh -c 'echo synced >/nacre/synced; sync; echo late >/nacre/late; kill -KILL $PPID $$' || true
    lose_memory "$(uuid_of "$SCRATCH/a")"
    gives "what was synced" synced "$NACRE" cat "$SCRATCH/a:/synced"
    contains "sound" clean "$("$NACRE" check "$SCRATCH/a")"
}

small_cache() {
    note "a cache of 1 MiB"
    "$NACRE" create --size 128M --mode cached --cache 1M "$SCRATCH/small" >/dev/null
    "$NACRE" run -q --pool "$SCRATCH/small" -- bash -c '
        seq 3000000 >/nacre/numbers && cp /nacre/numbers /nacre/copy && cmp /nacre/numbers /nacre/copy &&
        [[ $(tail -n 1 /nacre/copy) == 3000000 ]]' || fail "a file that is larger than the cache"
    contains "sound" clean "$("$NACRE" check "$SCRATCH/small")"
}

# Bytes of lines of a device, and writes of the place that was written most, by a workload in a mode.
worn_by() {
    local pool=$SCRATCH/worn-$1
    "$NACRE" create --force --size 64M --mode "$1" "$pool" >/dev/null
    "$NACRE" run -q --wear --pool "$pool" -- \
        /usr/bin/python3 "$PROGRAMS/around/cached-memory.py" /nacre overwrites,appends,attributes 4000 1000
    "$NACRE" wear --json "$pool" | /usr/bin/python3 -c 'import json, sys
report = json.load(sys.stdin)
print(sum(kind["line_bytes"] for kind in report["kinds"]), report["all"]["most"])'
    "$NACRE" check "$pool" >/dev/null
}

worn_less() {
    note "less reaches the device"
    local direct cached
    read -ra direct <<<"$(worn_by direct)"
    read -ra cached <<<"$(worn_by cached)"
    echo "direct ${direct[*]}, cached ${cached[*]}"
    ((cached[0] > 0 && 3 * cached[0] < 2 * direct[0])) || fail "bytes: ${cached[0]} cached, ${direct[0]} direct"
    ((20 * cached[1] < direct[1])) || fail "most writes: ${cached[1]} cached, ${direct[1]} direct"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    made
    survives
    lost_image
    small_cache
    worn_less
    local pool
    for pool in a usual small worn-direct worn-cached; do
        "$NACRE" delete --force "$SCRATCH/$pool" >/dev/null
    done
}

main
