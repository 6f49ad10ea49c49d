# Sourced, behind expect.sh, by tests of devices that leave a pool. Who sources it says where the
# devices $a, $b and $c are.

. "$PROGRAMS/killed.sh"
no_devices() { rm -f "$a" "$b" "$c"; }
# What is tried; the canary puts something that loses a device's contents in its place.
REMOVE=(nacre device remove)

# A pool of three devices with something of every kind.
filled() { # $1: stripe
    no_devices
    nacre create --size 96M --stripe "$1" "$a" "$b" "$c" >/dev/null
    nacre run -q --pool "$a" -- bash -c '
        set -e
        seq 3000000 >/nacre/large; mkdir /nacre/d
        for n in $(seq 300); do seq $n $((n + 1000)) >/nacre/d/$n; done
        seq 200000 >/nacre/shared; cp --reflink=auto /nacre/shared /nacre/clone
        fallocate -l 3M /nacre/reserved'
    nacre snapshot "$a:/d" monday >/dev/null
}

contents_are_right() { # $1: a device of the pool
    nacre run -q --pool "$1" -- bash -c '
        cmp <(seq 3000000) /nacre/large && cmp <(seq 200000) /nacre/clone &&
        cmp <(seq 200000) /nacre/shared && cmp <(head -c 3M /dev/zero) /nacre/reserved &&
        for n in $(seq 300); do
            cmp <(seq $n $((n + 1000))) /nacre/d/$n || exit 1
            cmp /nacre/d/$n /nacre/d/.snapshots/monday/$n || exit 1
        done' ||
        fail "contents differ"
    contains "check" clean "$(nacre check "$1")"
}

devices() { nacre device list --json "$1" | python3 -c '
import json, sys
print(*(d["path"].split("/")[-1] + ":" + d["state"] for d in json.load(sys.stdin)["devices"]))'; }

simply() { # $1: stripe
    note "stripes of $1, one device after the other"
    filled "$1"
    contains "told" "$b: removed; moved" "$("${REMOVE[@]}" "$c" "$b")"
    same "devices" "a:present c:present" "$(devices "$c")"
    contents_are_right "$c"
    refuses "the removed device" "no device of a Nacre pool" nacre info "$b"
    # The first one, with the pool's header.
    contains "told" "$a: removed; moved" "$("${REMOVE[@]}" "$c" "$a")"
    same "devices" "c:present" "$(devices "$c")"
    contents_are_right "$c"
    note "what was removed is used again, in this pool and in another one"
    nacre create "$a" >/dev/null
    nacre device add "$c" "$b" >/dev/null
    nacre run -q --pool "$c" -- bash -c 'seq 1000000 >/nacre/more'
    contains "told" "$c: removed" "$("${REMOVE[@]}" "$b" "$c")"
    contents_are_right "$b"
}

killed() {
    note "killed, again and again, while a database runs"
    filled 64K
    killed_beside_a_database "$a" 10 device remove "$a" "$b"
    note "killed when nobody else uses the pool"
    local tries=0
    while ((tries++ < 15)) && [[ $(devices "$a" 2>&1) == *leaving* ]]; do
        killed_soon "0.0$((tries % 10))" device remove "$a" "$b"
        contains "check" clean "$(nacre check "$a")"
    done
    [[ $(devices "$a") != *b:* ]] || nacre device remove "$a" "$b" >/dev/null || fail "remove"
    same "devices" "a:present c:present" "$(devices "$a")"
    contents_are_right "$a"
    contains "database" "1830" "$(nacre run -q --pool "$a" -- sqlite3 /nacre/db 'select sum(n) from t')"
}

in_use() {
    note "what is mapped waits, and nothing new goes there"
    filled 64K
    nacre run -q --pool "$a" -- python3 -c '
import mmap, subprocess, sys
nacre, pool, device = sys.argv[1:]
with open("/nacre/large", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
    done = subprocess.run([nacre, "device", "remove", pool, device], capture_output=True)
    assert done.returncode == 1, done
    print(done.stdout.decode())
    view[0:2] = b"1\n"
    with open("/nacre/new", "wb") as new:
        new.write(b"new" * 1000000)
    print(subprocess.run([nacre, "device", "list", pool], capture_output=True).stdout.decode())' \
        "$NACRE" "$a" "$b" >"$SCRATCH/said"
    contains "told" "leaving; moved" "$(<"$SCRATCH/said")"
    contains "told why" "that are in use, mapped, shared with clones or snapshots, or reserved" "$(<"$SCRATCH/said")"
    contains "told who" "when nobody uses the pool (used by " "$(<"$SCRATCH/said")"
    contains "state" "leaving" "$(<"$SCRATCH/said")"
    contents_are_right "$a"
    refuses "a second one" "another device is leaving" nacre device remove "$a" "$c"
    note "called off"
    contains "told" "$b: stays" "$(nacre device remove --cancel "$a")"
    same "devices" "a:present b:present c:present" "$(devices "$a")"
    refuses "twice" "no device is leaving" nacre device remove --cancel "$a"
    contents_are_right "$a"
    note "and begun again"
    nacre device remove "$a" "$b" >/dev/null
    contents_are_right "$a"
}

refused() {
    note "what is refused"
    no_devices
    nacre create --size 48M "$a" "$b" >/dev/null
    nacre run -q --pool "$a" -- bash -c 'head -c 50M /dev/urandom >/nacre/much'
    refuses "no room" "are missing; remove files, or add a device first" nacre device remove "$a" "$b"
    same "devices" "a:present b:present" "$(devices "$a")"
    refuses "a stranger" "has no such device" nacre device remove "$a" /dev/null
    no_devices
    nacre create --size 32M "$a" >/dev/null
    refuses "the only one" "it is the pool's only device" nacre device remove "$a" "$a"
}

# All of the above.
leave_in_all_ways() {
    simply 2M
    note "the canary: one that loses what was there is noticed"
    lossy() { # $1: a device of the pool, $2: the one to remove
        nacre device remove "$@" && nacre run -q --pool "$1" -- truncate -s 3M /nacre/large
    }
    if said=$(REMOVE=(lossy) && simply 2M 2>&1); then fail "a lossy one was not noticed"; fi
    contains "noticed" "contents differ" "$said"
    simply 4K
    simply none
    killed
    in_use
    refused
}
