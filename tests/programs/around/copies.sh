# Pools with copies: a database runs while a device is truncated, overwritten, removed, replaced.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

a=$SCRATCH/a b=$SCRATCH/b

fresh() {
    rm -f "$SCRATCH"/{a,b,c}
    nacre create --copies 2 --size 48M "$a" "$b" >/dev/null
}

equal() {
    cmp -i $data -n $((40 << 20)) "$1" "$2" || fail "the copies $1 and $2 differ"
}

whole() {
    note whole
    fresh
    rows_survive "$a" :
    gives "states" "current current" states "$a"
    equal "$a" "$b"
    contains "info" "copy      $a: current" "$(nacre info "$a")"
    refuses "grow" "grows by its own devices" nacre grow --size 48M "$a" "$SCRATCH/c"
    refuses "three for two" "need as many devices" nacre create --copies 2 --size 48M "$SCRATCH"/{x,y,z}
}

lost() { # $1: which, $2: what happens to it
    note "$2, $1"
    fresh
    local other=$b left=$1
    [[ $1 != b ]] || other=$a
    rows_survive "$a" "$2"
    contains "states" failed "$(states "$other")"
    contains "check" clean "$(nacre check "$other" 2>/dev/null)"
    contains "what to do" "device replace $other" "$(nacre check "$other" 2>&1 >/dev/null)"
    note "and goes on without it"
    rows_survive "$other" :
    rm -f "$SCRATCH/$left"
    note "replaced while programs run"
    rows_survive "$other" "$NACRE device replace --json $other $SCRATCH/$left $SCRATCH/c >$SCRATCH/log 2>&1 || exit 6"
    gives "states" "current current" bash -c "'$NACRE' device list --json '$other' | grep -o current | xargs"
    equal "$other" "$SCRATCH/c"
    note "the new one does alone"
    rm -f "$other"
    rows_survive "$SCRATCH/c" :
}

away() {
    note away and back
    fresh
    nacre run -q --pool "$a" -- sh -c 'seq 100000 >/nacre/old'
    mv "$b" "$SCRATCH/elsewhere"
    contains "states before anybody came" missing "$(states "$a")"
    nacre run -q --pool "$a" -- sh -c 'seq 9 >/nacre/new' 2>"$SCRATCH/log"
    contains "warning" missing "$(cat "$SCRATCH/log")"
    mv "$SCRATCH/elsewhere" "$b"
    gives "is not trusted" "current missing" states "$a"
    contains "what to do" "device rebuild $a" "$(nacre run -q --pool "$a" -- true 2>&1)"
    nacre device rebuild "$a" >"$SCRATCH/log" 2>&1 || fail "$(cat "$SCRATCH/log")"
    gives "states" "current current" states "$a"
    equal "$a" "$b"
    note each used alone
    mv "$b" "$SCRATCH/elsewhere"
    nacre run -q --pool "$a" -- sh -c 'seq 9 >/nacre/new' 2>/dev/null
    mv "$a" "$SCRATCH/a.elsewhere"
    mv "$SCRATCH/elsewhere" "$b"
    nacre run -q --pool "$b" -- sh -c 'seq 8 >/nacre/new' 2>/dev/null
    mv "$SCRATCH/a.elsewhere" "$a"
    refuses "both" "were each used while the other was away" nacre info "$a"
}

killed() {
    note killed
    fresh
    setsid "$NACRE" run -q --pool "$a" -- bash -c '
        seq 100000 >/nacre/kept
        (while :; do head -c 300000 /dev/urandom >/nacre/busy; done) & sleep 0.3; kill -9 0' ||
        true
    "$NACRE" run -q --pool "$a" -- sh -c 'seq 100000 | cmp - /nacre/kept' || fail kept
    equal "$a" "$b"
}

whole
lost a "truncate -s 0 $a"
lost b "truncate -s 0 $b"
lost b "dd if=/dev/zero of=$b bs=1M count=48 conv=notrunc status=none; sleep 2.5"
away
killed
