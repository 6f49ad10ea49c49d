# Disks that hold metadata and precious files together, and other contents each alone: either one is
# lost, comes back, is lost beneath a database, with the power; is replaced, lost and healthy; more
# come, and leave.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

fresh() { # further words for create
    no_disks
    nacre create --copies metadata=2 --stripe 64K --size 128M "$@" "$a" "$b" >/dev/null
}

# In a shell in the pool: files of numbers, in a plain folder and in a precious one.
cat >"$SCRATCH/fill.py" <<'P'
import os
os.chdir("/nacre")
for folder in ("plain", "precious"):
    os.makedirs(folder + "/deep/er")
os.setxattr("precious", "user.nacre.copies", b"2")
os.makedirs("precious/later")
for number in range(30):
    for folder in ("plain", "precious/later"):
        with open(f"{folder}/f{number}", "w") as file:
            file.write("".join(f"{number} {line}\n" for line in range(number * 2000)))
os.symlink("f" * 3000, "plain/long")
os.sync()
P

# Reads all page by page, compares, and prints of each file in plain which bytes cannot be read.
cat >"$SCRATCH/look.py" <<'P'
import errno, os, sys
def look(path, number):
    wanted = "".join(f"{number} {line}\n" for line in range(number * 2000)).encode()
    fd, lost = os.open(path, os.O_RDONLY), []
    assert os.fstat(fd).st_size == len(wanted), path
    for at in range(0, len(wanted), 4096):
        try:
            page = os.pread(fd, 4096, at)
            assert page == wanted[at:at + 4096], (path, at)
        except OSError as error:
            assert error.errno == errno.EIO, error
            if lost and lost[-1][1] == at:
                lost[-1][1] = at + 4096
            else:
                lost.append([at, at + 4096])
    os.close(fd)
    return lost
os.chdir("/nacre")
assert len(os.listdir("plain")) >= 32 and os.readlink("plain/long") == "f" * 3000
for number in range(30):
    assert not look(f"precious/later/f{number}", number), number
    for start, end in look(f"plain/f{number}", number):
        print(f"/plain/f{number} {start} {end}")
P

look() { nacre run -q --pool "$1" -- /usr/bin/python3 "$SCRATCH/look.py" 2>"$SCRATCH/said" || fail "$1: $(cat "$SCRATCH/said")"; }

# what `nacre check` says is lost, in the form of look
told() {
    { nacre check --json "$1" 2>/dev/null || true; } | /usr/bin/python3 -c '
import json, sys
report = json.load(sys.stdin)
assert not report["problems"], report["problems"]
for lost in report["lost"]:
    print(lost["what"], lost["from"], lost["to"])'
}

is_whole() { # DEVICE
    gives "nothing is lost" "" look "$1"
    contains "it is sound" clean "$(nacre check "$1")"
}

either_is_away() {
    local away other
    note "names and precious files are there without either disk, and what is lost is told"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    is_whole "$a"
    for away in "$a" "$b"; do
        other=$a
        [[ $away != "$a" ]] || other=$b
        mv "$away" "$away.away"
        look "$other" | sort >"$SCRATCH/lost"
        [[ -s $SCRATCH/lost ]] || fail "nothing is lost without $away"
        (($(cut -d' ' -f1 "$SCRATCH/lost" | sort -u | wc -l) < 30)) || fail "all is lost"
        told "$other" | sort >"$SCRATCH/told"
        gives "check tells what cannot be read" "" diff "$SCRATCH/lost" "$SCRATCH/told"
        refuses "check, in words" "were on a device that is lost" nacre check "$other"
        refuses "and what to do" "nacre device rebuild" nacre check "$other"
        contains "states" missing "$(states "$other")"
        note "the pool goes on"
        nacre run -q --pool "$other" -- sh -c 'cd /nacre && mkdir new && head -c 3000000 /dev/zero >new/f &&
            cp new/f new/g && cmp new/f new/g && mv new/f precious/f && sync' 2>/dev/null
        nacre run -q --pool "$other" -- sh -c 'cd /nacre && cmp new/g precious/f && rm -r new precious/f' 2>/dev/null
        note "the disk comes back"
        mv "$away.away" "$away"
        contains "not by itself" missing "$(nacre run -q --pool "$other" -- true 2>/dev/null; states "$other")"
        nacre device rebuild "$other" >/dev/null
        gives "states" "current current" states "$a"
        is_whole "$other"
    done
}

lost_with_the_power() {
    note "a disk is lost with the power"
    fresh
    local uuid
    uuid=$(uuid_of "$a")
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    nacre run -q --pool "$a" -- sh -c 'echo old >/nacre/precious/f; sync; echo new >/nacre/precious/f; sync
        echo new >/nacre/plain/f; sync; kill -KILL $PPID $$' 2>/dev/null || true
    lose_memory "$uuid"
    rm "$a"
    gives "what was synced" new bash -c "'$NACRE' cat '$b:/precious/f' 2>/dev/null"
    look "$b" >"$SCRATCH/lost"
    [[ -s $SCRATCH/lost ]] || fail "nothing is lost without $a"
}

beneath_a_database() {
    note "a disk is written over beneath a precious database"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    # The disk of the pool's first path stays.
    nacre run -q --pool "$a" -- bash -c '
        sqlite3 /nacre/precious/db "create table t (n integer)" || exit 9
        for n in $(seq 40); do
            if [[ $n == 10 ]]; then
                dd if=/dev/zero of="$2" bs=1M count=128 conv=notrunc status=none
                for ((looks = 0; looks < 200; looks++)); do
                    "$0" device list --json "$1" | grep -q failed && break; sleep 0.1; done
            fi
            sqlite3 /nacre/precious/db "insert into t values ($n)" || exit 8
            head -c 100000 /dev/urandom >/nacre/plain/new$n && sync -f /nacre/plain || exit 7
        done
        sync
        for n in $(seq 12 40); do cat /nacre/plain/new$n >/dev/null || exit 6; done
        [[ $(sqlite3 /nacre/precious/db "select count(*), sum(n) from t; pragma integrity_check" |
            xargs) == "40|820 ok" ]] || exit 5' "$NACRE" "$a" "$b" 2>"$SCRATCH/said" || fail "$? $(cat "$SCRATCH/said")"
    contains "states" "current failed" "$(states "$a")"
    rm "$b"
    nacre cat "$a:/precious/db" 2>/dev/null >"$SCRATCH/db"
    gives "rows" "40 ok" bash -c "sqlite3 '$SCRATCH/db' 'select count(*) from t; pragma integrity_check' | xargs"
    look "$a" | sort >"$SCRATCH/lost"
    told "$a" | grep -v new | sort >"$SCRATCH/told"
    gives "check tells what cannot be read" "" diff "$SCRATCH/lost" "$SCRATCH/told"
    note "a new one comes instead"
    contains "rebuilt" "all copies are whole" "$(nacre device replace "$a" "$b" "$c" 2>/dev/null)"
    gives "states" "current current" states "$c"
    look "$c" | sort >"$SCRATCH/lost.then"
    gives "what was lost goes on to fail" "" diff "$SCRATCH/lost" "$SCRATCH/lost.then"
    gives "rows" "40 ok" bash -c "'$NACRE' cat '$c:/precious/db' >'$SCRATCH/db'
        sqlite3 '$SCRATCH/db' 'select count(*) from t; pragma integrity_check' | xargs"
}

# members DEVICE: the names of its pool's devices
members() { nacre device list --json "$1" 2>/dev/null | sed -n 's/.*"path": ".*\/\(.*\)",/\1/p' | xargs; }

# What becomes of the new disk in the end; the canary takes away what it got.
END=:

lost_is_replaced() { # old
    local old=$1 other=$a
    [[ $old != "$a" ]] || other=$b
    note "$old is lost and replaced, and killed again and again"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    rm "$old"
    told "$other" | sort >"$SCRATCH/lost"
    [[ -s $SCRATCH/lost ]] || fail "nothing is lost without $old"
    killed_until_done "$other" device replace "$other" "$old" "$c"
    $END "$c"
    gives "members" "${other##*/} c" members "$c"
    gives "states" "current current" states "$other"
    look "$c" | sort >"$SCRATCH/now"
    gives "what was lost goes on to fail, and nothing else" "" diff "$SCRATCH/lost" "$SCRATCH/now"
    told "$c" | sort >"$SCRATCH/told"
    gives "check tells it" "" diff "$SCRATCH/lost" "$SCRATCH/told"
    refuses "check, in words" "were on a device that is lost" nacre check "$c"
    note "what is precious is on the new one, too"
    mv "$other" "$other.away"
    nacre run -q --pool "$c" -- sh -c 'cd /nacre/precious/later && cat f* >/dev/null && ls ../../plain >/dev/null' 2>/dev/null
    mv "$other.away" "$other"
    nacre device rebuild "$c" >/dev/null 2>&1
    note "who writes the files again has them again"
    nacre run -q --pool "$c" -- sh -c 'rm -r /nacre/plain /nacre/precious' 2>/dev/null
    nacre run -q --pool "$c" -- /usr/bin/python3 "$SCRATCH/fill.py"
    is_whole "$c"
}

# killed_until_done DEVICE WORDS...: nacre with these words is killed a dozen times, each second time
# with the power; then it ends
killed_until_done() {
    local by=$1 tries=0 pid uuid
    uuid=$(uuid_of "$by")
    while ((tries++ < 12)); do
        "$NACRE" "${@:2}" >/dev/null 2>&1 &
        pid=$!
        sleep "0.$((10 + tries * 37 % 60))"
        kill -9 $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        ((tries % 2)) || lose_memory "$uuid"
    done
    "$NACRE" "${@:2}" >"$SCRATCH/said" 2>&1 || is_over || fail "$* $(cat "$SCRATCH/said")"
}

# It had done so before it was killed last.
is_over() { grep -q "is no device of this pool\|is a device of this pool" "$SCRATCH/said"; }

healthy_is_replaced() { # old
    local old=$1 other=$a
    [[ $old != "$a" ]] || other=$b
    note "$old is there and replaced beneath a precious database and plain files"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    killed_until_done "$other" device replace "$other" "$old" "$c"
    gives "members" "${other##*/} c" members "$c"
    gives "states" "current current" states "$other"
    refuses "the old one" "no device of a Nacre pool" nacre info "$old"
    rm "$old"
    is_whole "$c"
    is_whole "$other"
}

# What can move moves while programs run; the rest when nobody does.
beside_programs() {
    note "contents move while a database runs; the disk goes when nobody uses the pool"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    begin_database
    goes_on before
    refuses "to begin" "in use" nacre device replace "$a" "$b" "$c"
    [[ ! -e $c ]] || fail "a file was made for it"
    end_database
    all_rows "$a"
    nacre run -q --pool "$a" -- sh -c 'rm /nacre/db*'
    # It begins, and is killed before contents have moved.
    for ((looks = 0; looks < 50; looks++)); do
        timeout -s KILL "0.$((10 + looks))" "$NACRE" device replace "$a" "$b" "$c" >/dev/null 2>&1 || true
        [[ $(members "$a") == "a b" ]] || break
    done
    if [[ $(members "$a") == "a b c" ]]; then
        begin_database
        goes_on afterwards
        refuses "it waits for the end of programs" "used by" bash -c "'$NACRE' device rebuild '$a' >&2"
        goes_on "beside a move"
        end_database
        contains "told" "$b: removed" "$(nacre device rebuild "$a")"
    fi
    all_rows "$c"
    gives "members" "a c" members "$a"
    is_whole "$a"
}

more_come_and_leave() {
    note "a disk more, and either of the first ones leaves"
    fresh
    nacre run -q --pool "$a" -- /usr/bin/python3 "$SCRATCH/fill.py"
    killed_until_done "$a" device add "$a" "$c"
    gives "states" "current current current" states "$b"
    refuses "stripes" "leave --stripe out" nacre device add --stripe 4K "$a" "$folder/e"
    refuses "itself" "is a device of this pool" nacre device replace "$a" "$b" "$c"
    is_whole "$c"
    refuses "nothing to call off" "no device is leaving" nacre device remove --cancel "$b"
    local one by=$c
    for one in "$a" "$b"; do
        killed_until_done "$by" device remove "$by" "$one"
        refuses "the old one" "no device of a Nacre pool" nacre info "$one"
        is_whole "$by"
    done
    refuses "the last one" "no other device" nacre device remove "$c" "$c"
    note "a lost one is taken out"
    nacre device add "$c" "$a" >/dev/null
    nacre run -q --pool "$c" -- sh -c 'rm -r /nacre/plain /nacre/precious'
    nacre run -q --pool "$c" -- /usr/bin/python3 "$SCRATCH/fill.py"
    rm "$a"
    told "$c" | sort >"$SCRATCH/lost"
    contains "told" "removed" "$(nacre device remove "$c" "$a" 2>/dev/null)"
    told "$c" | sort >"$SCRATCH/told"
    gives "what is lost stays so" "" diff "$SCRATCH/lost" "$SCRATCH/told"
    gives "members" "c" members "$c"
}

# A new disk that lacks what all hold must be found.
canary() {
    note canary
    empty() { dd if=/dev/zero of="$1" bs=1M seek=2 count=16 conv=notrunc status=none; }
    local said
    if said=$(END=empty && lost_is_replaced "$b" 2>&1); then
        fail "nobody missed what the new disk lacks"
    fi
    contains "what is missed" "FAILED" "$said"
}

by_attribute() {
    note "a file moves when it is asked for; df and info tell both kinds of room"
    fresh --copies-room 32M
    contains "info" "on all" "$(nacre info "$a")"
    nacre run -q --pool "$a" -- /usr/bin/python3 -c '
import os
fd = os.open("/nacre/f", os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 4000000)
def free(): return os.statvfs("/nacre").f_bavail
before = free()
os.setxattr(fd, "user.nacre.copies", b"2")
assert free() - before == 977, free() - before
assert os.getxattr(fd, "user.nacre.copies") == b"2" and os.listxattr(fd) == ["user.nacre.copies"]
assert os.pread(fd, 4000000, 0) == b"x" * 4000000
os.removexattr(fd, "user.nacre.copies")
assert free() == before and not os.listxattr(fd)
os.write(fd, b"x" * 40000000)
try:
    os.setxattr(fd, "user.nacre.copies", b"2")
    raise SystemExit("it has no room")
except OSError as error:
    assert error.errno == 28, error
assert not os.listxattr(fd)'
    contains "it is sound" clean "$(nacre check "$a")"
    no_disks
    local memory
    memory=$(mktemp -d /dev/shm/precious-XXXXXX)
    refuses "memory in mode direct" "mode cached" nacre create --copies metadata=2 --size 64M "$memory/x" "$memory/y"
    rmdir "$memory" || fail "a file is left in memory"
    refuses "another number" "as many devices" nacre create --copies metadata=3 --size 64M "$a" "$b"
    refuses "memory beside a disk" "for disks alone" nacre create --copies metadata=2 --size 64M "$SCRATCH/disk-beside" "$DISK_FOLDER/beside-$$"
    [[ ! -e $DISK_FOLDER/beside-$$ && ! -e $SCRATCH/disk-beside ]] || fail "what was refused left files"
    [[ ! -e $a ]] || fail "a file is left"
}

main() {
    disks_for precious || return 0
    either_is_away
    lost_with_the_power
    beneath_a_database
    by_attribute
    lost_is_replaced "$a"
    lost_is_replaced "$b"
    healthy_is_replaced "$a"
    healthy_is_replaced "$b"
    beside_programs
    more_come_and_leave
    canary
}

main
