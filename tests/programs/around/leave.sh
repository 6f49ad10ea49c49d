# A device is taken out of a pool, and what it held moves to the others.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/leaving.sh"

a=$SCRATCH/a b=$SCRATCH/b c=$SCRATCH/c

copies() {
    note "copies: three, two, one"
    rm -f "$a" "$b" "$c"
    nacre create --copies 3 --size 64M "$a" "$b" "$c" >/dev/null
    nacre run -q --pool "$a" -- bash -c 'seq 1000000 >/nacre/kept'
    contains "told" "$a: removed" "$(nacre device remove "$b" "$a")"
    same "copies" "b:current c:current" "$(devices "$b")"
    refuses "the removed copy" "no device of a Nacre pool" nacre info "$a"
    nacre run -q --pool "$c" -- bash -c 'cmp <(seq 1000000) /nacre/kept && cp /nacre/kept /nacre/k2' ||
        fail "contents differ"
    note "the last current one stays"
    mv "$c" "$SCRATCH/away"
    nacre run -q --pool "$b" -- bash -c 'seq 10 >/nacre/later'
    mv "$SCRATCH/away" "$c"
    refuses "the current one" "no other copy is current" nacre device remove "$b" "$b"
    nacre device rebuild "$b" >/dev/null
    contains "told" "$b: removed" "$(nacre device remove "$c" "$b")"
    nacre run -q --pool "$c" -- bash -c 'cmp <(seq 10) /nacre/later && cmp /nacre/kept /nacre/k2' ||
        fail "contents differ"
    contains "check" clean "$(nacre check "$c")"
    refuses "the only one" "no other copy is current" nacre device remove "$c" "$c"
}

leave_in_all_ways
copies
