# Copies on disks behind one image: what was synced is on each disk, one lost disk is survived, and
# what comes back is not trusted before it is rebuilt.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"
. "$PROGRAMS/killed.sh"

# Takes a disk away, does something with the pool at $2, and puts it back as it was.
without() {
    mv "$1" "$1.away"
    cp "$2" "$2.before"
    "${@:3}"
    mv -f "$1.away" "$1"
    cat "$2.before" >"$2"
    rm "$2.before"
}

fresh() {
    no_disks
    nacre create --copies 2 --size 128M "$a" "$b" >/dev/null
}

# Both hold the same where data is: a scrub has nothing to repair. What is free may differ until then
# (D82), and not behind it.
equal() {
    contains "nothing of $1 is repaired" ": 0 B repaired, 0 B left" "$(nacre scrub "$1")"
    cmp -i $((2 << 20)) -n $((100 << 20)) "$1" "$2" || fail "$1 and $2 differ"
}

synced_is_there() {
    contains "$1 is sound" clean "$(nacre check "$1" 2>/dev/null)"
    gives "contents on $1" 5000 bash -c "'$NACRE' cat '$1:/fsync' 2>/dev/null | wc -c"
    gives "a name on $1" "dsync first fsync renamed" bash -c "'$NACRE' ls '$1:/' 2>/dev/null | grep -v unsynced | xargs"
    contains "the other one is missed" missing "$(states "$1")"
}

cached() {
    note "what was synced is on either disk"
    contains "create" "mode cached" "$(nacre create --copies 2 --size 128M "$a" "$b")"
    local uuid
    uuid=$(uuid_of "$a")
    nacre run -q --pool "$b" -- /usr/bin/python3 "$PROGRAMS/around/synced.py" 1000 fsync dsync renamed || true
    cp "$a" "$a.cut"
    cp "$b" "$b.cut"
    note "what was not synced survives the programs, also if a disk is lost then"
    mv "$a" "$a.away"
    gives "unsynced" 8000 bash -c "'$NACRE' cat '$b:/unsynced' 2>/dev/null | wc -c"
    mv "$a.away" "$a"
    note "a power cut, and either disk alone"
    lose_memory "$uuid"
    mv "$a.cut" "$a"
    mv "$b.cut" "$b"
    without "$b" "$a" synced_is_there "$a"
    lose_memory "$uuid"
    without "$a" "$b" synced_is_there "$b"
    lose_memory "$uuid"
    note "and both"
    contains "both are sound" clean "$(nacre check "$a")"
    gives "states" "current current" states "$a"
    nacre run -q --pool "$a" -- true
    equal "$a" "$b"
}

one_is_away() {
    note "a disk that was away is not trusted before it is rebuilt"
    fresh
    nacre run -q --pool "$a" -- sh -c 'echo old >/nacre/f'
    mv "$b" "$b.away"
    nacre run -q --pool "$a" -- sh -c 'echo new >/nacre/f; sync' 2>/dev/null
    mv "$b.away" "$b"
    gives "by its own name" new bash -c "'$NACRE' cat '$b:/f' 2>/dev/null"
    gives "states" "current missing" states "$b"
    nacre device rebuild "$b" >/dev/null
    gives "states" "current current" states "$a"
    equal "$a" "$b"
    without "$a" "$b" gives "the one that came back, alone" new bash -c "'$NACRE' cat '$b:/f' 2>/dev/null"
}

copied() { # which of both is missing
    note "without $1, a copy of the other disk is a pool of its own"
    fresh
    local lost=$1 other=$a copy=$folder/copy
    [[ $lost != "$a" ]] || other=$b
    nacre run -q --pool "$a" -- sh -c 'echo synced >/nacre/f'
    mv "$lost" "$lost.away"
    "$NACRE" run -q --pool "$other" -- sh -c 'echo mine >/nacre/g; kill -KILL $PPID $$' 2>/dev/null || true
    mkdir "$copy"
    cp "$other" "$copy"
    copy=$copy/${other##*/}
    gives "what was synced" "f" bash -c "'$NACRE' ls '$copy:/' 2>/dev/null"
    nacre run -q --pool "$copy" -- sh -c 'echo other >/nacre/g; sync' 2>/dev/null
    gives "what was not" mine bash -c "'$NACRE' cat '$other:/g' 2>/dev/null"
    gives "its own" other bash -c "'$NACRE' cat '$copy:/g' 2>/dev/null"
    nacre delete --force "$copy" >/dev/null
    rm -rf "${copy%/*}"
    mv "$lost.away" "$lost"
    nacre device rebuild "$a" >/dev/null
    equal "$a" "$b"
}

replaced() {
    note "what was not synced survives the programs, also if the first disk was replaced"
    fresh
    nacre run -q --pool "$a" -- sh -c '"$0" device replace "$1" "$1" "$2" >/dev/null || exit 1
        echo mine >/nacre/g; kill -KILL $PPID $$' "$NACRE" "$a" "$c" 2>/dev/null || true
    gives "unsynced" mine bash -c "'$NACRE' cat '$b:/g' 2>/dev/null"
}

rows() { nacre cat "$1:/db" 2>/dev/null >"$SCRATCH/db" && sqlite3 "$SCRATCH/db" "select count(*) from t"; }

lost_in_the_middle() { # which of both
    note "$1 is written over while a database runs, and replaced while it runs"
    fresh
    local lost=$1 other=$a uuid
    [[ $1 != "$a" ]] || other=$b
    uuid=$(uuid_of "$a")
    rows_survive "$a" "dd if=/dev/zero of=$lost bs=1M count=120 conv=notrunc status=none
        for ((looks = 0; looks < 200; looks++)); do
            $NACRE device list --json $other | grep -q failed && break; sleep 0.1; done"
    contains "states" failed "$(states "$other")"
    rm -f "$lost"
    gives "the other one has all" 40 rows "$other"
    rows_survive "$other" "$NACRE device replace --json $other $lost $c >$SCRATCH/log 2>&1 || exit 6"
    gives "states" "current current" bash -c "'$NACRE' device list --json '$other' | grep -o current | xargs"
    nacre run -q --pool "$other" -- true
    equal "$other" "$c"
    note "the new one alone, as after a power cut"
    "$NACRE" run -q --pool "$other" -- sh -c 'echo more >/nacre/more; sync; kill -KILL $PPID $$' 2>/dev/null || true
    lose_memory "$uuid"
    without "$other" "$c" gives "more" more bash -c "'$NACRE' cat '$c:/more' 2>/dev/null"
    lose_memory "$uuid"
}

killed_rebuild() {
    note "a rebuild that is killed again and again"
    fresh
    nacre run -q --pool "$a" -- sh -c 'head -c 60000000 /dev/urandom >/nacre/large; cp /nacre/large "$0"' "$SCRATCH/large"
    dd if=/dev/zero of="$b" bs=1M count=1 conv=notrunc status=none
    rm "$b"
    local round
    nacre device list "$a" >/dev/null
    killed_soon 0.05 device replace "$a" "$b" "$c"
    if ! states "$a" | grep -q rebuilding; then
        rm -f "$c"
        nacre device replace "$a" "$b" "$c" >/dev/null 2>&1 || true
    fi
    for round in 1 2 3; do
        killed_soon 0.0${round}5 device rebuild "$a"
        gives "contents" "" cmp "$SCRATCH/large" <(nacre cat "$a:/large" 2>/dev/null)
    done
    nacre device rebuild "$a" >/dev/null
    equal "$a" "$c"
    gives "states" "current current" states "$c"
    without "$a" "$c" gives "alone" "" cmp "$SCRATCH/large" <(nacre cat "$c:/large" 2>/dev/null)
}

three() {
    note "three copies, one of which leaves"
    fresh
    nacre delete --force "$a" >/dev/null
    rm -f "$a" "$b"
    nacre create --copies 3 --size 128M "$a" "$b" "$c" >/dev/null
    nacre run -q --pool "$c" -- sh -c 'echo kept >/nacre/f'
    nacre device remove "$a" "$a" >/dev/null
    gives "states" "current current" states "$b"
    gives "contents" kept nacre cat "$c:/f"
    nacre device remove "$b" "$c" >/dev/null
    gives "contents" kept nacre cat "$b:/f"
    refuses "the last" "no other copy is current" nacre device remove "$b" "$b"
}

refused() {
    note "what is not there is refused"
    fresh
    refuses "grow" "grows by its own devices" nacre grow --size 256M "$a" "$c"
    refuses "smaller" "has 134217728 bytes" nacre grow --size 64M "$a"
    refuses "a copy for itself" "is a device of this pool" nacre device replace "$a" "$b" "$b"
}

one_fails() {
    note "one disk is there, and fails at what is written to it, its label first"
    no_disks
    truncate -s 160M "$a" "$b"
    local one other
    one=$(losetup -f --show "$a" 2>/dev/null) || { note "no loop devices here: left out"; return 0; }
    trap "losetup -d $one; leave" EXIT
    other=$(losetup -f --show "$b")
    trap "losetup -d $one $other; leave" EXIT
    chgrp root "$one" "$other"
    nacre create --copies 2 "$one" "$other" >/dev/null
    nacre run -q --pool "$one" -- sh -c 'echo kept >/nacre/f'
    truncate -s 50M "$a"
    gives "contents" kept bash -c "'$NACRE' cat '$other:/f' 2>/dev/null"
    nacre run -q --pool "$other" -- sh -c 'echo new >/nacre/g' 2>/dev/null
    gives "what was stored since" new bash -c "'$NACRE' cat '$other:/g' 2>/dev/null"
    gives "states" "failed current" states "$other"
    losetup -d "$one" "$other"
    trap leave EXIT
}

main() {
    disks_for mirrored || return 0
    cached
    one_is_away
    copied "$a"
    copied "$b"
    replaced
    lost_in_the_middle "$b"
    lost_in_the_middle "$a"
    killed_rebuild
    three
    refused
    one_fails
}

main
