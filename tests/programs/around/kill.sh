# SIGKILL in the middle of work, while others go on. What was acknowledged must be there.
. "$PROGRAMS/expect.sh"
ROUNDS=${ROUNDS:-8}

# Writes files, renames them into place and notes each on the host after it is done.
part_worker() {
    local me=${WORKER:?} i
    mkdir -p "$MOUNT/$me"
    cd "$MOUNT/$me"
    for ((i = 1; ; i++)); do
        printf '%s %s %s\n' "$me" "$i" "$(printf 'x%.0s' {1..2000})" >new
        mv new "file-$((i % 50))"
        echo "$me $i" >>"$MOUNT/journal-$me"
        ln -f "file-$((i % 50))" "link-$((i % 7))"
        ((i % 10)) || rm -f "link-$((i % 7))"
        mkdir -p "d/$((i % 5))/e" && rmdir "d/$((i % 5))/e"
        echo "$i" >>"$SCRATCH/done-$me"
    done
}

# A python program with big writes, so that kills meet the middle of a copy.
part_writer() {
    exec /usr/bin/python3 -c '
import os, sys
me, mount, scratch = sys.argv[1:]
done = os.open(f"{scratch}/written", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
fd = os.open(f"{mount}/big", os.O_RDWR | os.O_CREAT)
n = 0
while True:
    n += 1
    os.pwrite(fd, bytes([n % 251]) * 300000, (n % 13) * 300000)
    if n % 13 == 0:
        os.ftruncate(fd, 13 * 300000 // 2)
    os.write(done, b"%d\n" % n)
' "${WORKER:?}" "$MOUNT" "$SCRATCH"
}

# Goes on through all rounds; must never be held up for long.
part_survivor() {
    cd "$MOUNT"
    local i last=$SECONDS
    for ((i = 1; ; i++)); do
        [[ ! -e $SCRATCH/stop ]] || break
        echo "$i" >survivor
        [[ $(cat survivor) == "$i" ]] || fail "the survivor reads $(cat survivor), wrote $i"
        ls -la "$MOUNT"/w1 "$MOUNT"/w2 >/dev/null 2>&1 || true
        cksum "$MOUNT/big" >/dev/null 2>&1 || true
        ((SECONDS - last < 15)) || fail "the survivor was held up for $((SECONDS - last)) s"
        last=$SECONDS
    done
    echo "$i" >"$SCRATCH/survived"
}

# What each worker had acknowledged when it was killed.
part_judge() {
    local me last
    cd "$MOUNT"
    for me in w1 w2 w3; do
        last=$(tail -n 1 "$SCRATCH/done-$me")
        [[ $(awk -v n="$last" '$2 == n' "journal-$me" | tail -n 1) == "$me $last" ]] ||
            fail "journal-$me lacks acknowledged line $last"
        read -r who n rest <"$me/file-$((last % 50))"
        [[ $who == "$me" && $n -ge $last && ${#rest} == 2000 ]] || fail "$me/file-$((last % 50)): '$who $n' with ${#rest} bytes, acknowledged $last"
        for f in "$me"/file-*; do
            [[ $(stat -c %s "$f") -gt 2000 ]] || fail "$f is torn: $(stat -c %s "$f") bytes"
        done
        rm -rf "$me" "journal-$me" || fail "rm leaves $(find "$me" -ls 2>&1; rm -rf "$me" && echo 'until it is run again')"
    done
}

# Each job is a process group of its own (`set -m`), so a kill leaves none of its programs behind.
main() {
    local round me jobs
    set -m
    part survivor >"$SCRATCH/survivor.log" 2>&1 &
    local survivor=$!
    for ((round = 1; round <= ROUNDS; round++)); do
        rm -f "$SCRATCH"/done-* "$SCRATCH"/written
        for me in w1 w2 w3; do WORKER=$me part worker >/dev/null 2>&1 & done
        WORKER=w4 part writer >/dev/null 2>&1 &
        for me in w1 w2 w3; do wait_for 20 "worker $me" test -s "$SCRATCH/done-$me"; done
        wait_for 20 "the writer" test -s "$SCRATCH/written"
        sleep "0.$((RANDOM % 9))"
        jobs=$(jobs -p | grep -vx $survivor)
        for me in $jobs; do kill -KILL -- "-$me"; done
        wait $jobs 2>/dev/null || true
        kill -0 $survivor || fail "the survivor died: $(cat "$SCRATCH/survivor.log")"
        part judge
    done
    touch "$SCRATCH/stop"
    wait $survivor || fail "survivor: $(cat "$SCRATCH/survivor.log")"
    note "the survivor did $(cat "$SCRATCH/survived") rounds"
    check_pool
}

run_parts "$@"
