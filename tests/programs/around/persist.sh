# What one run leaves, the next one finds: after a clean end, after kill -9 of everything, and
# without the session's shared memory.
. "$PROGRAMS/expect.sh"

part_write() {
    cd "$MOUNT"
    mkdir -p a/b/c
    seq 100000 >a/numbers
    head -c 3000000 /dev/urandom >a/b/random
    sha256sum a/numbers a/b/random >sums
    ln a/numbers a/hard && ln -s ../numbers a/b/soft
    truncate -s 1G a/sparse && echo end >>a/sparse
    touch -d @1111111111 a/b/c
    chmod 751 a/b
    stat -c '%n %F %s %b %a %u %g %h %Y %i' sums a a/* a/b a/b/* >"$SCRATCH/stats"
}

part_verify() {
    cd "$MOUNT"
    sha256sum -c --quiet sums
    stat -c '%n %F %s %b %a %u %g %h %Y %i' sums a a/* a/b a/b/* >"$SCRATCH/stats.now"
    diff "$SCRATCH/stats" "$SCRATCH/stats.now" || fail "attributes differ"
    gives "link" ../numbers readlink a/b/soft
    same "tail of a sparse file" end "$(tail -n 1 a/sparse | tr -d '\0')"
}

part_busy() {
    cd "$MOUNT"
    echo $$ >"$SCRATCH/pid"
    sleep 1000 <a/numbers &
    for ((i = 1; ; i++)); do
        echo "entry $i" >>log
        : >"empty-$((i % 100))"
        [[ -z ${SYNCED:-} ]] || sync log
        echo "$i" >>"$SCRATCH/acknowledged"
    done
}

kill_everything() {
    local entry
    for entry in /proc/[0-9]*; do
        if grep -qzxF "BUSY=yes" "$entry/environ" 2>/dev/null; then
            kill -KILL "${entry#/proc/}" 2>/dev/null || true
        fi
    done
}

# Whose address space is gone has no environment.
all_ended() {
    ! grep -qzxF "BUSY=yes" /proc/[0-9]*/environ 2>/dev/null
}

busy_and_killed() {
    rm -f "$SCRATCH/acknowledged"
    BUSY=yes part busy >/dev/null 2>&1 &
    wait_for 20 "the busy run" test -s "$SCRATCH/acknowledged"
    sleep 0.5
    kill_everything
    wait $! 2>/dev/null || true
    wait_for 20 "their end" all_ended
}

part_log() {
    local last
    last=$(tail -n 1 "$SCRATCH/acknowledged")
    same "acknowledged entry" "entry $last" "$(sed -n "${last}p" "$MOUNT/log")"
    same "nothing torn before it" "" "$(head -n "$last" "$MOUNT/log" | awk '$0 != "entry " NR')"
    rm -f "$MOUNT/log"
}

main() {
    part write
    part verify
    note kill -9 of everything
    busy_and_killed
    check_pool
    part verify
    part log
    if [[ -z ${BASELINE:-} ]]; then
        note and without the shared memory, as after a power cut of the host
        # On a disk, where only what was synced survives that.
        if [[ $MODE == cached ]]; then export SYNCED=yes; fi
        busy_and_killed
        rm -rf /dev/shm/nacre-"$("$NACRE" info --json "$POOL" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')"*
        check_pool
        part verify
        part log
    fi
    part verify
    check_pool
}

run_parts "$@"
