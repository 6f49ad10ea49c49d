# Disks behind a pool in memory come, grow and leave, killed again and again, beside a database.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/killed.sh"

front=$SCRATCH/front cold=$DISK_FOLDER/nacre-cold-$$
first=$cold-1 second=$cold-2 third=$cold-3
# What failed is kept with the pool, if it is.
trap '(($? != 0)) && [[ -n ${KEEP:-} ]] || rm -f "$cold"-*' EXIT
ADD=(nacre device add) REMOVE=(nacre device remove)

devices() { nacre device list --json "$front" | python3 -c '
import json, sys
print(*(d["path"].split("-")[-1].split("/")[-1] + ":" + d["state"] for d in json.load(sys.stdin)["devices"]))'; }

used_of() {
    nacre device list --json "$front" | python3 -c '
import json, sys
print(sum(one["used_bytes"] for one in json.load(sys.stdin)["devices"] if one["path"] == sys.argv[1]))' "$1"
}

bytes_of_pool() { nacre info --json "$front" | python3 -c 'import json, sys; print(json.load(sys.stdin)["bytes"])'; }

# A pool in memory that has something of every kind, and nothing behind.
filled() {
    rm -f "$front" "$cold"-*
    nacre create --size 64M "$front" >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        set -e
        seq 1000000 >/nacre/large; mkdir /nacre/d
        for n in $(seq 100); do seq $n $((n + 1000)) >/nacre/d/$n; done
        seq 200000 >/nacre/shared; cp --reflink=auto /nacre/shared /nacre/clone'
    nacre snapshot "$front:/d" monday >/dev/null
}

# More than the front holds.
more() { # $1: which
    nacre run -q --pool "$front" -- bash -c '
        for n in $(seq 8); do seq $((n * 1000)) $((n * 1000 + 1000000)) >/nacre/more-$1-$n || exit 1; done' bash "$1"
}

# `is FILE COMMAND...`, in a program on the pool: the file holds what the command says, or it is told
# where it does not.
is() {
    cmp -s <("${@:2}") "$1" && return
    "${@:2}" >"$SCRATCH/expected"
    python3 "$PROGRAMS/differs.py" "$1" "$SCRATCH/expected"
    return 1
}
export -f is

more_is_right() { # $1: which
    nacre run -q --pool "$front" -- bash -c '
        for n in $(seq 8); do is /nacre/more-$1-$n seq $((n * 1000)) $((n * 1000 + 1000000)) || exit 1; done' bash "$1" ||
        fail "contents differ, status $?"
}

contents_are_right() {
    nacre run -q --pool "$front" -- bash -c '
        is /nacre/large seq 1000000 && is /nacre/clone seq 200000 && is /nacre/shared seq 200000 &&
        for n in $(seq 100); do
            is /nacre/d/$n seq $n $((n + 1000)) || exit 1
            is /nacre/d/.snapshots/monday/$n seq $n $((n + 1000)) || exit 1
        done' || fail "contents differ, status $?"
    contains "check" clean "$(nacre check "$front")"
}

# Until it is done, or says that it was.
in_the_end() { # $1: what devices are to be told, then the command
    local tries=0
    while ((tries++ < 12)) && [[ $(devices) != "$1" ]]; do
        killed_soon "0.0$tries" "${@:2}"
        contents_are_right
    done
    [[ $(devices) == "$1" ]] || nacre "${@:2}" >/dev/null || fail "${*:2}"
    same "devices" "$1" "$(devices)"
    contents_are_right
}

come() {
    note "a pool in memory gets a disk behind, and another one"
    filled
    refuses "no room" "No space left" more 1
    nacre run -q --pool "$front" -- bash -c 'rm -f /nacre/more-*'
    nacre run -q --pool "$front" -- bash -c '
        if "$1" device add --behind --size 96M "$2" "$3" 2>"$4"; then exit 1; fi' bash \
        "$NACRE" "$front" "$first" "$SCRATCH/said" || fail "it is added while a program runs"
    contains "in use" "in use" "$(<"$SCRATCH/said")"
    contains "told" "grown from" "$("${ADD[@]}" --behind --size 96M "$front" "$first")"
    same "devices" "front:present 1:behind" "$(devices)"
    more 1
    contents_are_right
    (($(used_of "$first") > 10 << 20)) || fail "nothing lies behind"
    refuses "full" "No space left" nacre run -q --pool "$front" -- bash -c 'head -c 90M /dev/zero >/nacre/big'
    nacre run -q --pool "$front" -- rm -f /nacre/big
    refuses "memory in front" "cannot be added to a pool with a disk behind it yet" \
        "${ADD[@]}" --size 64M "$front" "$SCRATCH/more"
    [[ ! -e $SCRATCH/more ]] || fail "a refused device is left"
    # A disk stands where disks do, without being told.
    "${ADD[@]}" --size 256M "$front" "$second" >/dev/null
    same "devices" "front:present 1:behind 2:behind" "$(devices)"
    more 2
    contents_are_right
    more_is_right 1
    more_is_right 2
    refuses "it is there" "belongs to the pool already" "${ADD[@]}" "$front" "$second"
}

come_killed() {
    note "killed while a disk comes"
    filled
    in_the_end "front:present 1:behind" device add --behind --size 96M "$front" "$first"
    in_the_end "front:present 1:behind 2:behind" device add --size 96M "$front" "$second"
    more 1
    more_is_right 1
}

grow() {
    note "the last disk grows"
    filled
    "${ADD[@]}" --behind --size 64M "$front" "$first" >/dev/null
    refuses "no more room" "no room for 4 MiB more" nacre grow "$front"
    refuses "smaller" "has 67108864 bytes" nacre grow --size 32M "$front"
    refuses "in use" "in use" nacre run -q --pool "$front" -- "$NACRE" grow --size 96M "$front"
    local before
    before=$(bytes_of_pool)
    contains "told" "grown from" "$(nacre grow --size 160M "$front")"
    same "bytes" "$((before + (96 << 20)))" "$(bytes_of_pool)"
    more 1
    note "one that has become larger, killed"
    truncate -s 256M "$first"
    local tries=0
    before=$(bytes_of_pool)
    while ((tries++ < 10)) && (($(bytes_of_pool) == before)); do
        killed_soon "0.0$tries" grow "$front"
        contents_are_right
    done
    (($(bytes_of_pool) > before)) || nacre grow "$front" >/dev/null || fail "grow"
    same "bytes" "$((before + (96 << 20)))" "$(bytes_of_pool)"
    more 2
    more_is_right 1
    more_is_right 2
    contents_are_right
}

leave() {
    note "disks leave, one after the other"
    filled
    "${ADD[@]}" --behind --size 160M "$front" "$first" >/dev/null
    more 1
    "${ADD[@]}" --size 160M "$front" "$second" >/dev/null
    refuses "what is in front" "the only device in front" "${REMOVE[@]}" "$front" "$front"
    contains "told" "$first: removed; moved" "$("${REMOVE[@]}" "$front" "$first")"
    same "devices" "front:present 2:behind" "$(devices)"
    refuses "the removed disk" "no device of a Nacre pool" nacre info "$first"
    contents_are_right
    more_is_right 1
    refuses "no room in front" "are missing; remove files" "${REMOVE[@]}" "$front" "$second"
    nacre run -q --pool "$front" -- bash -c 'rm /nacre/more-*'
    contains "told" "$second: removed; moved" "$("${REMOVE[@]}" "$front" "$second")"
    same "devices" "front:present" "$(devices)"
    contents_are_right
    # It is a pool in memory again, and gets memory, or a disk.
    nacre device add --size 64M "$front" "$SCRATCH/more" >/dev/null
    same "devices" "front:present more:present" "$(devices)"
    "${ADD[@]}" --behind --size 160M --force "$front" "$first" >/dev/null
    contains "told" "$front: removed" "$("${REMOVE[@]}" "$SCRATCH/more" "$front")"
    local before=$front
    front=$SCRATCH/more
    same "devices" "more:present 1:behind" "$(devices)"
    more 2
    more_is_right 2
    contents_are_right
    front=$before
    rm -f "$SCRATCH/more"
}

leave_killed() {
    note "killed, again and again, while a disk leaves beside a database"
    filled
    "${ADD[@]}" --behind --size 160M "$front" "$first" >/dev/null
    more 1
    "${ADD[@]}" --size 160M "$front" "$second" >/dev/null
    killed_beside_a_database "$front" 10 device remove "$front" "$first"
    in_the_end "front:present 2:behind" device remove "$front" "$first"
    more_is_right 1
    contains "database" "1830" "$(nacre run -q --pool "$front" -- sqlite3 /nacre/db 'select sum(n) from t')"
    note "called off"
    "${ADD[@]}" --size 160M "$front" "$third" >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        sleep 60 & "$1" device remove "$2" "$3"; kill %1' bash "$NACRE" "$front" "$second" >"$SCRATCH/said"
    contains "state" "2:leaving" "$(devices)"
    contains "told" "$second: stays" "$(nacre device remove --cancel "$front")"
    same "devices" "front:present 2:behind 3:behind" "$(devices)"
    more 2
    more_is_right 1
    more_is_right 2
    contents_are_right
}

come
come_killed
grow
leave
leave_killed
note "the canary: a remove that loses what was there is noticed"
lossy() { # $1: a device of the pool, $2: the one to remove
    nacre device remove "$@" && nacre run -q --pool "$1" -- truncate -s 3M /nacre/more-1-3
}
if said=$(REMOVE=(lossy) && leave 2>&1); then fail "a lossy one was not noticed"; fi
contains "noticed" "contents differ" "$said"
