# A disk is taken out of a pool of several, behind one image, and what it held moves to the others.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"
. "$PROGRAMS/leaving.sh"

no_devices() { no_disks; }

is_gone() { [[ $(devices "$1") != *"$2:"* ]]; }

# The power goes while device $1 of $a, $b and $c leaves, again and again.
cut_while_it_leaves() {
    note "the power goes while ${1##*/} leaves"
    filled 64K
    local stays=$c uuid round=0 one pid
    uuid=$(uuid_of "$c")
    until ((round++ > 8)) || is_gone "$stays" "${1##*/}"; do
        "$NACRE" device remove "$stays" "$1" >/dev/null 2>&1 &
        pid=$!
        sleep "$((round % 3)).$((round * 37 % 90 + 10))"
        # Nobody writes while the disks are copied.
        kill -STOP $pid 2>/dev/null || true
        for one in "$a" "$b" "$c"; do cp "$one" "$one.cut"; done
        kill -KILL $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        lose_memory "$uuid"
        for one in "$a" "$b" "$c"; do mv "$one.cut" "$one"; done
        contains "check" clean "$(nacre check "$stays")"
    done
    is_gone "$stays" "${1##*/}" || nacre device remove "$stays" "$1" >/dev/null || fail "remove"
    rm "$1"
    contents_are_right "$stays"
    note "what is synced later is there after a power cut, too"
    nacre run -q --pool "$stays" -- bash -c '
        seq 400000 >/nacre/later; sync /nacre/later
        for one in "$@"; do [[ ! -e $one ]] || cp "$one" "$one.cut"; done' bash "$a" "$b" "$c"
    lose_memory "$uuid"
    for one in "$a" "$b" "$c"; do [[ ! -e $one.cut ]] || mv "$one.cut" "$one"; done
    gives "later" "" nacre run -q --pool "$stays" -- cmp <(seq 400000) /nacre/later
    contents_are_right "$stays"
}

# What was not synced survives the programs while a disk leaves.
unsynced() {
    note "what was not synced survives a kill of all"
    filled 4K
    nacre run -q --pool "$a" -- bash -c 'seq 300000 >/nacre/unsynced
        "$0" device remove "$1" "$2" >/dev/null; kill -KILL $PPID $$' "$NACRE" "$a" "$b" || true
    gives "unsynced" "" nacre run -q --pool "$c" -- cmp <(seq 300000) /nacre/unsynced
    nacre device remove "$a" "$b" >/dev/null
    gives "unsynced" "" nacre run -q --pool "$c" -- cmp <(seq 300000) /nacre/unsynced
    contents_are_right "$a"
}

main() {
    disks_for leave || return 0
    leave_in_all_ways
    unsynced
    cut_while_it_leaves "$b"
    cut_while_it_leaves "$a"
}

main
