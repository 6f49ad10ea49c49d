# A disk behind a pool in memory: what is cold goes there, by itself and when there is no other room.
. "$PROGRAMS/expect.sh"

nacre() { "$NACRE" "$@"; }
front=$SCRATCH/front cold=$DISK_FOLDER/nacre-cold-$$
trap 'rm -f "$cold"' EXIT

fresh() { # $1: size of the front
    rm -f "$front" "$cold"
    nacre create --size "$1" --behind "$cold=512M" "$front"
}

# Bytes in use of the device whose path ends so.
used_of() {
    nacre device list --json "$front" | python3 -c '
import json, sys
print(sum(one["used_bytes"] for one in json.load(sys.stdin)["devices"] if one["path"] == sys.argv[1]))' "$1"
}

refused() {
    note what is refused
    refuses "no size" "$cold" nacre create --size 32M --behind "$cold" "$front"
    [[ ! -e $front ]] || fail "a refused create leaves a file"
    refuses "copies" "cannot be used with" nacre create --copies 2 --size 32M --behind "$cold=64M" "$front" "$front.2"
    refuses "a disk in front" "must be memory" nacre create --size 32M --behind "$cold=64M" "$cold.front"
    [[ ! -e $cold && ! -e $cold.front ]] || fail "a refused create leaves a file"
    fresh 32M >/dev/null
    refuses "memory in front" "cannot be added to a pool with a disk behind it yet" nacre grow --size 32M "$front" "$front.2"
    mv "$cold" "$cold.away"
    refuses "the disk is away" "is missing" nacre info "$front"
    mv "$cold.away" "$cold"
    contains "it is back" "holds what is cold" "$(nacre info "$front")"
    contains "list" " behind " "$(nacre device list "$front")"
}

# More than the front holds, written, compared, changed and removed.
larger() { # $1: mode
    note "more than the front holds, mode $1"
    fresh 40M >/dev/null
    rm -f "$front" "$cold"
    nacre create --size 40M --mode "$1" --behind "$cold=512M" "$front" >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        set -e
        for n in $(seq 30); do seq $((n * 100000)) $((n * 100000 + 600000)) >/nacre/$n; done
        for n in $(seq 3 3 30); do echo changed | dd of=/nacre/$n bs=1 seek=123456 conv=notrunc status=none; done
        truncate -s 100000 /nacre/4; cp --reflink=always /nacre/5 /nacre/clone; rm /nacre/6
        echo more >>/nacre/5; (($(stat -f -c %b /nacre) * 4096 > 500 << 20))'
    nacre check "$front" >/dev/null
    (($(used_of "$cold") > 100 << 20)) || fail "only $(used_of "$cold") bytes lie behind"
    nacre run -q --pool "$front" -- bash -c '
        set -e
        for n in $(seq 30); do
            case $n in
            4) cmp <(seq 400000 1000000 | head -c 100000) /nacre/4 ;;
            5) cmp <(seq 500000 1100000; echo more) /nacre/5 ;;
            6) cmp <(seq 500000 1100000) /nacre/clone ;;
            *) cmp <(seq $((n * 100000)) $((n * 100000 + 600000)) | if ((n % 3)); then cat; else
                    head -c 123456; echo changed; fi) <(if ((n % 3)); then cat /nacre/$n; else
                    head -c 123464 /nacre/$n; fi) ;;
            esac
        done' || fail "what was written is not there"
}

# Nobody needs room, and yet some is made: by `nacre run`, and by a mount.
by_itself() {
    note "by itself"
    fresh 64M >/dev/null
    lies_behind() { (($(used_of "$cold") > 0)); }
    nacre run -q --pool "$front" -- bash -c '
        head -c 52M /dev/zero | tr "\0" x >/nacre/a; while [[ ! -e $1 ]]; do sleep 0.1; done
        cmp <(head -c 52M /dev/zero | tr "\0" x) /nacre/a' bash "$SCRATCH/moved" &
    wait_for 60 "what is cold to move" lies_behind
    touch "$SCRATCH/moved"
    wait $! || fail "by nacre run"
    if [[ -w /dev/fuse ]]; then
        fresh 64M >/dev/null
        mkdir -p "$SCRATCH/mounted"
        nacre mount "$front" "$SCRATCH/mounted"
        head -c 52M /dev/zero | tr '\0' x >"$SCRATCH/mounted/a"
        wait_for 60 "what is cold to move" lies_behind
        cmp <(head -c 52M /dev/zero | tr '\0' x) "$SCRATCH/mounted/a" || fail "by a mount"
        nacre umount "$SCRATCH/mounted"
    fi
}

# A database that is larger than the front, used by several processes at a time.
database() {
    note database
    fresh 32M >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        set -e
        sqlite3 /nacre/db "pragma journal_mode=wal; create table t (n integer primary key, b blob)" >/dev/null
        for worker in 1 2 3; do
            for part in $(seq 8); do
                sqlite3 -cmd ".timeout 60000" /nacre/db "with recursive s(i) as (select 1 union all select i+1 from s where i<500)
                    insert into t (b) select randomblob(4000) from s"
            done &
        done
        wait
        [[ $(sqlite3 /nacre/db "select count(*), sum(length(b)) from t; pragma integrity_check" | xargs) == "12000|48000000 ok" ]]' ||
        fail "database"
    nacre check "$front" >/dev/null
    (($(used_of "$cold") > 0)) || fail "nothing of the database lies behind"
}

both_full() {
    note "both are full"
    rm -f "$front" "$cold"
    nacre create --size 32M --behind "$cold=32M" "$front" >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        seq 1000000 >/nacre/kept
        if head -c 80M /dev/zero >/nacre/big 2>/dev/null; then exit 1; fi
        cmp <(seq 1000000) /nacre/kept && rm /nacre/big && head -c 30M /dev/zero >/nacre/next &&
        cmp <(seq 1000000) /nacre/kept' || fail "both are full"
    nacre check "$front" >/dev/null
}

reserved() {
    note "more is reserved than the front has, and written"
    fresh 40M >/dev/null
    nacre run -q --pool "$front" -- bash -c '
        set -e
        fallocate -l 200M /nacre/reserved
        cmp <(head -c 200M /dev/zero) /nacre/reserved
        seq 20000000 | head -c 150M | dd of=/nacre/reserved bs=300001 conv=notrunc status=none
        cmp <(seq 20000000 | head -c 150M; head -c 50M /dev/zero) /nacre/reserved' || fail "reserved"
    nacre check "$front" >/dev/null
    gives "contents" "" nacre run -q --pool "$front" -- bash -c '
        cmp <(seq 20000000 | head -c 150M; head -c 50M /dev/zero) /nacre/reserved'
    refuses "more than both have" "No space left" \
        nacre run -q --pool "$front" -- fallocate -l 700M /nacre/more
}

refused
larger direct
larger atomic
by_itself
database
both_full
reserved
note "deleting"
nacre delete --force "$front" >/dev/null
[[ ! -e $front && ! -e $cold ]] || fail "a device is left"
