# Two shells at once on one pool, started apart: what one does, the other sees.
. "$PROGRAMS/expect.sh"

seen() { wait_for 20 "$1" test -e "$MOUNT/$1"; }

part_one() {
    cd "$MOUNT"
    echo "from one" >hello
    touch one-ready
    seen two-ready
    gives "what the other wrote" "from two" cat reply
    for i in $(seq 200); do echo "one $i" >>shared; done
    mkdir -p tree && for i in $(seq 100); do echo "$i" >"tree/one-$i"; done
    for i in $(seq 50); do
        (flock 9; n=$(cat counter 2>/dev/null || echo 0); echo $((n + 1)) >counter) 9>lock
    done
    mv "$MOUNT/hello" "$MOUNT/moved"
    exec 5>open-file
    echo "still open" >&5
    touch one-done
    seen unlinked
    echo "after unlink" >&5
    same "an open file outlives its name" 0 "$(stat -Lc %h /dev/fd/5)"
    exec 5>&-
    touch one-end
}

part_two() {
    seen one-ready
    cd "$MOUNT"
    gives "what the other wrote" "from one" cat hello
    echo "from two" >reply
    touch two-ready
    for i in $(seq 200); do echo "two $i" >>shared; done
    mkdir -p tree && for i in $(seq 100); do echo "$i" >"tree/two-$i"; done
    for i in $(seq 50); do
        (flock 9; n=$(cat counter 2>/dev/null || echo 0); echo $((n + 1)) >counter) 9>lock
    done
    seen one-done
    [[ -e moved && ! -e hello ]] || fail "a rename is seen"
    rm open-file
    touch unlinked
    seen one-end
}

main() {
    part one &
    local one=$!
    part two &
    local two=$!
    wait $one || fail "first shell"
    wait $two || fail "second shell"
    part after
    check_pool
}

part_after() {
    cd "$MOUNT"
    same "no append is lost" 400 "$(sort -u shared | wc -l)"
    same "no line is torn" 0 "$(grep -cvE '^(one|two) [0-9]+$' shared || true)"
    same "no create is lost" 200 "$(ls tree | wc -l)"
    gives "no count under a lock is lost" 100 cat counter
}

run_parts "$@"
