# Copies come and go while a database runs: a healthy one is replaced, more come, one device becomes
# two, and copies grow. What was acknowledged is on each copy alone.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"
. "$PROGRAMS/killed.sh"

# What becomes of the new device in the middle and at the end; the canary loses what is stored later.
MIDDLE=: END=:

fresh() { # copies...
    no_disks
    rm -f "$d"
    nacre create --size 96M "${@:1}" >/dev/null
}

members() { nacre device list --json "$1" 2>/dev/null | sed -n 's/.*"path": ".*\/\(.*\)",/\1/p' | xargs; }

# on_each DEVICE...: each of them alone has all rows, as after a power cut
on_each() {
    local one other uuid
    uuid=$(uuid_of "$1")
    for one in "$@"; do
        lose_memory "$uuid"
        for other in "$@"; do
            cp "$other" "$other.kept"
            [[ $other == "$one" ]] || mv "$other" "$other.away"
        done
        all_rows "$one"
        contains "check" clean "$(nacre check "$one" 2>/dev/null)"
        lose_memory "$uuid"
        for other in "$@"; do
            rm -f "$other.away"
            mv -f "$other.kept" "$other"
        done
    done
}

healthy() { # old new
    note "$1 is replaced while a database runs"
    fresh --copies 2 "$a" "$b"
    begin_database
    goes_on before
    contains "told" "$1: removed" "$(nacre device replace "$a" "$1" "$2")"
    $MIDDLE "$2"
    goes_on afterwards
    end_database
    $END "$2"
    refuses "the old one" "no device of a Nacre pool" nacre info "$1"
    local other=$a
    [[ $1 != "$a" ]] || other=$b
    gives "states" "current current" states "$other"
    on_each "$other" "$2"
    note "what went can be used again, in the same pool, too"
    nacre device add "$other" "$1" >/dev/null
    gives "states" "current current current" states "$1"
}

killed() {
    note "killed again and again"
    fresh --copies 2 "$a" "$b"
    begin_database
    goes_on before
    local tries=0
    while ((tries++ < 12)) && [[ " $(members "$a") " == *" b "* ]]; do
        killed_soon "0.0$((tries % 10))" device replace "$a" "$b" "$c"
    done
    if [[ " $(members "$a") " == *" b "* ]]; then
        contains "told" "$b: removed" "$(nacre device replace "$a" "$b" "$c")"
    fi
    goes_on afterwards
    end_database
    gives "states" "current current" states "$a"
    gives "members" "a c" members "$c"
    on_each "$a" "$c"
}

more() {
    note "a third and a fourth copy, and no fifth"
    fresh --copies 2 "$a" "$b"
    begin_database
    goes_on before
    nacre device add "$a" "$c" >/dev/null
    nacre device add "$a" "$d" >/dev/null
    goes_on afterwards
    end_database
    gives "states" "current current current current" states "$d"
    refuses "a fifth" "four copies" nacre device add "$a" "$folder/e"
    [[ ! -e $folder/e ]] || fail "a file was made for it"
    refuses "one of them" "is a copy already" nacre device add "$a" "$d"
    refuses "stripes" "leave --stripe out" nacre device add --stripe 64K "$a" "$folder/e"
    on_each "$a" "$b" "$c" "$d"
}

second() {
    note "a pool on one device becomes one with two copies"
    fresh "$a"
    begin_database
    goes_on before
    refuses "in use" "in use" nacre device add --copy "$a" "$b"
    [[ ! -e $b ]] || fail "a file was made for it"
    end_database
    local tries
    for tries in 1 2 3 4; do
        killed_soon "0.0$tries" device add --copy "$a" "$b"
    done
    [[ $(states "$a" 2>/dev/null) == "current current" ]] || nacre device add --copy "$a" "$b" >/dev/null
    gives "states" "current current" states "$b"
    all_rows "$b"
    on_each "$a" "$b"
    refuses "parts" "each hold a part" bash -c "
        '$NACRE' create --force --size 48M '$c' '$d' >/dev/null && '$NACRE' device add --copy '$c' '$folder/e'"
    nacre delete --force "$c" >/dev/null
}

larger() {
    note "copies grow, all of them"
    fresh --copies 2 "$a" "$b"
    refuses "no room" "can become no larger" nacre grow "$a"
    begin_database
    goes_on before
    refuses "in use" "in use" nacre grow --size 256M "$a"
    end_database
    local tries
    for tries in 1 2 3 4; do
        killed_soon "0.0$tries" grow --size 256M "$a"
    done
    [[ $(nacre device list --json "$b" | grep -c 268435456) == 2 ]] || nacre grow --size 256M "$b" >/dev/null
    all_rows "$a"
    nacre run -q --pool "$b" -- sh -c 'head -c 150000000 /dev/zero >/nacre/more'
    on_each "$a" "$b"
    refuses "parts" "name a device" bash -c "'$NACRE' create --force --size 48M '$c' '$d' >/dev/null && '$NACRE' grow --size 64M '$c'"
}

# Free units of a new copy hold something else. That is nothing to find, whatever they become.
free() {
    note "what is free differs, and nobody finds that"
    fresh --copies 2 "$a" "$b"
    nacre run -q --pool "$a" -- sh -c 'head -c 60000000 /dev/urandom >/nacre/x; sync; seq 100000 >/nacre/kept
        rm /nacre/x; sync'
    nacre device replace "$a" "$b" "$c" >/dev/null
    [[ $a == "$SCRATCH"/* ]] || ! cmp -s -i $data -n $((80 << 20)) "$a" "$c" || fail "nothing was skipped"
    nacre run -q --pool "$c" -- bash -c '
        for n in $(seq 400); do
            seq $((n * 7 % 300)) >/nacre/f$n; ln -s f$n /nacre/a-long-name-of-a-link-$n
            ((n % 50)) || sync
        done
        setfattr -n user.long -v "$(head -c 5000 /dev/zero | tr "\\0" x)" /nacre/f3
        mkdir -p /nacre/d/{1,2,3,4,5}; truncate -s 3000000 /nacre/f5; sync'
    local said
    said=$(nacre scrub "$a") || fail "$said"
    [[ $said != *"repaired on"* && $said != *"copies differ"* ]] || fail "a scrub finds: $said"
    contains "check" clean "$(nacre check "$c")"
    nacre run -q --pool "$c" -- bash -c 'seq 100000 | cmp - /nacre/kept && cat /nacre/f* >/dev/null'
    nacre scrub "$a" >/dev/null || fail "a scrub finds something"
}

# A copy that lacks what is stored after it came must be found.
canary() {
    note canary
    keep() { cp "$1" "$1.then"; }
    put_back() { cp "$1.then" "$1"; }
    local said
    if said=$(MIDDLE=keep END=put_back && healthy "$b" "$c" 2>&1); then
        fail "nobody missed what the new copy lacks"
    fi
    contains "what is missed" "FAILED: rows" "$said"
    rm -f "$c.then" "$a".* "$c".*
}

all() {
    healthy "$b" "$c"
    healthy "$a" "$c"
    killed
    more
    second
    larger
    free
    canary
}

main() {
    disks_for replaced || return 0
    d=$folder/d
    all
    (in_memory)
}

killed_while_it_stays() {
    note "who names one that goes, as all were killed who used it, finds the others"
    waits "with open('/nacre/m', 'w') as file: file.write('kept')" "pass"
    contains "told" "$a: stays a copy" "$(nacre device replace "$a" "$a" "$c")"
    kill -9 $program $(pgrep -P $program)
    wait $program 2>/dev/null || true
    gives "contents" kept "$NACRE" run -q --pool "$a" -- cat /nacre/m
    refuses "the old one" "no device of a Nacre pool" nacre info "$a"
    gives "members" "b c" sorted_members "$b"
}

# In a shell of its own: these are other places.
in_memory() {
    note "in memory"
    a=$SCRATCH/a b=$SCRATCH/b c=$SCRATCH/c d=$SCRATCH/d folder=$SCRATCH/none
    mkdir "$folder"
    trap leave EXIT
    healthy "$b" "$c"
    read_one
    asleep
    mapped
    killed_while_it_stays
    killed
    more
    canary
}

read_one() {
    note "the one that is read stays while the pool is in use"
    fresh --copies 2 "$a" "$b"
    begin_database
    goes_on before
    contains "told" "$a: stays a copy" "$(nacre device replace "$a" "$a" "$c")"
    goes_on afterwards
    gives "states" "current current current" states "$c"
    contains "the other one" "$b: removed" "$(nacre device replace "$a" "$b" "$d")"
    goes_on "with two new ones"
    end_database
    gives "states" "current current" states "$c"
    gives "members" "c d" members "$d"
    refuses "the old one" "no device of a Nacre pool" nacre info "$a"
    on_each "$c" "$d"
}

sorted_members() { members "$1" | xargs -n1 | sort | xargs; }

# waits FIRST THEN: a program does the first part in the pool on a and b, and waits for goes
waits() {
    fresh --copies 2 "$a" "$b"
    rm -f "$SCRATCH/ready" "$SCRATCH/go"
    "$NACRE" run -q --pool "$a" -- /usr/bin/python3 -c "
import mmap, os, sys, time
$1
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
$2
" "$SCRATCH/ready" "$SCRATCH/go" &
    program=$!
    wait_for 60 "the program" test -e "$SCRATCH/ready"
}

goes() {
    touch "$SCRATCH/go"
    wait $program || fail "the program: $?"
}

asleep() {
    note "who sleeps while all others change stores to those that came"
    waits "file = open('/nacre/m', 'w+b', buffering=0); file.write(b'first')" \
        "file.seek(0); file.write(b'later')"
    contains "told" "$a: stays a copy" "$(nacre device replace "$a" "$a" "$c")"
    contains "told" "$b: removed" "$(nacre device replace "$a" "$b" "$d")"
    rm "$b"
    contains "told" "$c: removed" "$(nacre device replace "$d" "$c" "$b")"
    goes
    gives "members" "b d" sorted_members "$b"
    gives "contents" later bash -c "'$NACRE' cat '$d:/m'"
    cmp -i $data -n $((80 << 20)) "$b" "$d" || fail "the copies differ"
}

mapped() {
    note "a program that maps a file goes on with it"
    waits "
with open('/nacre/m', 'w+b') as file:
    file.truncate(8192)
    shown = mmap.mmap(file.fileno(), 8192)
shown[:5] = b'first'" "shown[:5] = b'later'"
    contains "told" "$a: stays a copy" "$(nacre device replace "$a" "$a" "$c")"
    gives "states" "current current current" states "$a"
    contains "again" "$a: stays a copy" "$(nacre device rebuild "$b")"
    contains "as JSON" '"stay": [' "$(nacre device rebuild --json "$b")"
    goes
    gives "states" "current current" states "$c"
    refuses "the old one" "no device of a Nacre pool" nacre info "$a"
    gives "on the new one" later bash -c "'$NACRE' cat '$c:/m' | head -c 5"
    cmp -i $data -n $((80 << 20)) "$b" "$c" || fail "the copies differ"
}

main
