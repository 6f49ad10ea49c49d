# A pool on a disk: what was synced is on the disk, what was not is in memory and survives programs;
# a copy of the file shows what the disk has.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

cached() {
    note synced files survive the loss of memory
    contains "create" "mode cached" "$("$NACRE" create --size 256M "$DISK/a")"
    local way
    for way in fsync fdatasync dsync sync-flag rwf msync syncfs renamed; do
        "$NACRE" run -q --pool "$DISK/a" -- /usr/bin/python3 "$PROGRAMS/around/synced.py" 1000 $way || true
        cp "$DISK/a" "$DISK/copy"
        contains "the disk alone is sound" clean "$("$NACRE" check "$DISK/copy")"
        contains "$way" "$way" "$("$NACRE" ls "$DISK/copy:/")"
    done
    gives "contents" 5000 bash -c "'$NACRE' cat '$DISK/copy:/fsync' | wc -c"
    contains "stored through a mapping" there "$("$NACRE" cat "$DISK/copy:/msync" | tr -d '\0')"
    gives "written by a child" "in a child" "$NACRE" cat "$DISK/copy:/renamed"
    note what was not synced survives the programs
    gives "unsynced" 8000 bash -c "'$NACRE' cat '$DISK/a:/unsynced' | wc -c"
    same "the last one leaves nothing in memory" "" "$(image_of "$DISK/a" || true)"
    cp "$DISK/a" "$DISK/copy"
    gives "and everything on the disk" 8000 bash -c "'$NACRE' cat '$DISK/copy:/unsynced' | wc -c"
}

# Of what is new at most 16 MiB stay: whoever stays beside the programs brings home what is more.
in_the_background() {
    note what gathers goes to the disk in the background
    "$NACRE" create --size 256M "$DISK/g" >/dev/null
    cat >"$SCRATCH/gather.sh" <<'S'
dirty() { "$NACRE" info --json "$1" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["cache"]["dirty_bytes"])'; }
head -c 1000000 /dev/zero >/nacre/little
sleep 0.5
(($(dirty "$1") >= 1000000)) || echo "little went"
head -c 60000000 /dev/zero >/nacre/much
for ((looks = 0; looks < 300; looks++)); do
    (($(dirty "$1") >= 16 << 20)) || exit 0
    sleep 0.1
done
echo "much stayed"
S
    gives "much goes, little stays" "" "$NACRE" run -q --every 1h --pool "$DISK/g" -- bash "$SCRATCH/gather.sh" "$DISK/g"
    "$NACRE" delete --force "$DISK/g" >/dev/null 2>&1 || rm -f "$DISK/g"
}

# Ranges that go home at the same time are flushed once, before the record that needs them (D124).
flushed_once() {
    note what goes home from memory is flushed before the record
    "$NACRE" create --size 256M "$DISK/f" >/dev/null
    # Not so much that the supervisor brings it home.
    "$NACRE" run -q --every 1h --pool "$DISK/f" -- \
        strace -o "$SCRATCH/trace" -e trace=pwrite64,msync,fdatasync \
        dd if=/dev/zero of=/nacre/much bs=1M count=12 conv=fsync >"$SCRATCH/null" 2>&1 ||
        { note "no rights to trace: left out"; return 0; }
    local writes early
    # To memory go 64 KiB at most; a record begins with its mark.
    read -r writes early <<<"$(awk '
        /^pwrite64/ && $NF > 65536 { writes++; waiting++ }
        /^(msync|fdatasync)/ { waiting = 0 }
        /NACREjrr/ { early += waiting; records++ }
        END { print writes + 0, early + waiting + !records }' "$SCRATCH/trace")"
    case $(stat -f -c %T "$DISK") in
        ext2/ext3 | xfs)
            ((writes > 1)) || fail "only $writes writes were seen"
            same "writes that no flush came behind" 0 "$early"
            ;;
        *) note "this file system gets copies: $writes long writes were seen" ;;
    esac
    "$NACRE" delete --force "$DISK/f" >/dev/null 2>&1 || rm -f "$DISK/f"
}

while_it_runs() {
    note a pool in use, from outside
    "$NACRE" run -q --pool "$DISK/a" -- sh -c 'echo late >/nacre/late; touch "$0"; exec sleep 100' "$SCRATCH/ready" &
    local supervisor=$!
    wait_for 20 "the file" test -e "$SCRATCH/ready"
    "$NACRE" sync "$DISK/a"
    cp "$DISK/a" "$DISK/copy"
    gives "nacre sync" late "$NACRE" cat "$DISK/copy:/late"
    contains "info" "commits" "$("$NACRE" info "$DISK/a")"
    kill -TERM $supervisor
    wait $supervisor || true
    lose_memory "$(uuid_of "$DISK/a")"
    gives "without memory" late "$NACRE" cat "$DISK/a:/late"
}

other_modes() {
    local mode
    for mode in direct atomic; do
        note "mode $mode: each call is durable when it returns"
        "$NACRE" create --force --size 64M --mode $mode "$DISK/$mode" >/dev/null
        "$NACRE" run -q --pool "$DISK/$mode" -- sh -c 'echo one >/nacre/f; mkdir /nacre/d; mv /nacre/f /nacre/d/g; cp "$0" "$0.copy"' "$DISK/$mode"
        gives "$mode" one "$NACRE" cat "$DISK/$mode.copy:/d/g"
    done
}

without_supervisor() {
    note "what is older than some seconds is on the disk, also where no supervisor is"
    "$NACRE" create --force --size 64M "$DISK/alone" >/dev/null
    "$NACRE" run -q --pool "$DISK/alone" -- sh -c 'while :; do echo tick >>/nacre/ticks; sleep 0.3; done & echo $! >"$0"' "$SCRATCH/left"
    kill_stand_in
    wait_for 100 "a commit by the program itself" ticks_on_disk
    kill -KILL "$(cat "$SCRATCH/left")"
}

users() { "$NACRE" info "$1" | sed -n 's/^used by *//p'; }

# Of the pool of `without_supervisor`.
kill_stand_in() {
    local pid
    for pid in $(users "$DISK/alone"); do
        if [[ $pid != nobody ]] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -e --every; then
            kill -KILL "$pid"
        fi
    done
}

synced_by_program() {
    note "the program sync, which uses no file of the pool itself"
    "$NACRE" run -q --pool "$DISK/quiet" -- sh -c 'echo synced >/nacre/synced; sync; cp "$0" "$0.copy"' "$DISK/quiet"
    gives "on the disk" synced "$NACRE" cat "$DISK/quiet.copy:/synced"
}

outlives_its_supervisor() {
    note "a program that outlives its supervisor and stores nothing more"
    "$NACRE" create --force --size 64M "$DISK/quiet" >/dev/null
    cat >"$SCRATCH/quiet.py" <<'P'
import sys, time
file = open("/nacre/last", "w")
file.write("last")
file.flush()
open(sys.argv[1], "w")
time.sleep(300)
P
    "$NACRE" run -q --pool "$DISK/quiet" -- sh -c '/usr/bin/python3 "$0.py" "$0.stored" & echo $! >"$1"
        while [ ! -e "$0.stored" ]; do sleep 0.1; done' "$SCRATCH/quiet" "$SCRATCH/left"
    wait_for 100 "a commit by the stand-in" last_on_disk
    contains "its name" " nacre" "$("$NACRE" list)"
    kill -KILL "$(cat "$SCRATCH/left")"
    wait_for 100 "the end of the stand-in" nobody_uses "$DISK/quiet"
}

grows() {
    note "a full pool on one disk grows, also when its users were killed"
    "$NACRE" create --force --size 64M "$DISK/full" >/dev/null
    "$NACRE" run -q --pool "$DISK/full" -- sh -c 'head -c 10M /dev/urandom >/nacre/kept; cp /nacre/kept "$0"; sync
        cat /dev/zero >/nacre/rest 2>/dev/null; kill -KILL $PPID $$' "$SCRATCH/kept" || true
    wait_for 100 "the end of its users" nobody_uses "$DISK/full"
    refuses "smaller" "no pool becomes smaller" "$NACRE" grow --size 32M "$DISK/full"
    contains "grow" "grown from" "$("$NACRE" grow --size 256M "$DISK/full")"
    "$NACRE" run -q --pool "$DISK/full" -- sh -c 'head -c 128M /dev/zero >>/nacre/rest; cmp /nacre/kept "$0"' "$SCRATCH/kept"
    contains "check" clean "$("$NACRE" check "$DISK/full")"
    rm "$DISK/full"
}

supervised_by_two() {
    note "who is supervised by another process needs no stand-in"
    "$NACRE" create --force --size 64M "$DISK/quiet" >/dev/null
    local one
    for one in a b; do
        "$NACRE" run -q --pool "$DISK/quiet" -- sh -c ': >"$0.began"; while [ ! -e "$0.end" ]; do sleep 0.05; done' \
            "$SCRATCH/$one" &
    done
    wait_for 100 "both began" test -e "$SCRATCH/a.began" -a -e "$SCRATCH/b.began"
    : >"$SCRATCH/a.end"
    wait -n
    ! pgrep -f "sync --every [0-9]+ $DISK/quiet" >/dev/null || fail "a stand-in beside a supervisor"
    : >"$SCRATCH/b.end"
    wait -n
    nobody_uses "$DISK/quiet" || fail "somebody uses the pool behind the last program"
}

executes_alone() {
    note "who uses a pool alone executes a program that does not use it"
    "$NACRE" create --force --size 64M "$DISK/quiet" >/dev/null
    "$NACRE" run -q --pool "$DISK/quiet" -- \
        sh -c '{ sleep 1; echo last >/nacre/last; exec sleep 300; } & echo $! >"$0"; kill -KILL $PPID' "$SCRATCH/left" || true
    wait_for 100 "a commit before exec" last_on_disk
    kill -KILL "$(cat "$SCRATCH/left")"
}

last_on_disk() {
    cp "$DISK/quiet" "$DISK/quiet.copy" && "$NACRE" cat "$DISK/quiet.copy:/last" 2>/dev/null | grep -q last
}

nobody_uses() { [[ $(users "$1") == nobody ]]; }

# Leaves what was synced on the disk, and the rest in memory.
write_and_die() {
    "$NACRE" run -q --pool "$1" -- sh -c 'echo "$0" >/nacre/f; sync; kill -KILL $PPID $$' "$2" || true
}

own_way() {
    note "memory is not taken for that of a copy that went its own way and stands in the place of its file"
    "$NACRE" create --size 64M "$DISK/one" >/dev/null
    cp "$DISK/one" "$DISK/other"
    write_and_die "$DISK/one" mine
    write_and_die "$DISK/other" theirs
    rm -r "${NACRE_SESSION_DIR:-/dev/shm}"/nacre-*-"$(printf %x "$(stat -c %i "$DISK/other")")"
    cat "$DISK/other" >"$DISK/one"
    gives "the file in its place" theirs "$NACRE" cat "$DISK/one:/f"
    contains "and it is sound" clean "$("$NACRE" check "$DISK/one")"
}

# Everything is killed before the disk has what memory holds.
kill_all_of() {
    "$NACRE" run -q --pool "$1" -- sh -c 'echo kept >/nacre/kept; kill -KILL $PPID $$' || true
}

image_of() {
    local uuid
    uuid=$("$NACRE" info --json "$1" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
    compgen -G "${NACRE_SESSION_DIR:-/dev/shm}/nacre-$uuid-*/image"
}

removed_and_moved() {
    note what memory holds of a pool that was removed goes an hour later, not what it holds of one that was moved
    local pool image moved
    for pool in removed moved; do
        "$NACRE" create --size 64M "$DISK/$pool" >/dev/null
        kill_all_of "$DISK/$pool"
    done
    image=$(image_of "$DISK/removed")
    moved=$(image_of "$DISK/moved")
    rm "$DISK/removed"
    mkdir "$DISK/elsewhere"
    mv "$DISK/moved" "$DISK/elsewhere/moved"
    "$NACRE" run -q --pool "$DISK/a" -- true
    [[ -e $image && -e $moved ]] || fail "gone at once"
    gives "the moved one" kept "$NACRE" cat "$DISK/elsewhere/moved:/kept"
    touch -d "2 hours ago" "${image%image}gone"
    "$NACRE" run -q --pool "$DISK/a" -- true
    [[ ! -e ${image%/image} ]] || fail "$image is still there"
    "$NACRE" delete --force "$DISK/elsewhere/moved" >/dev/null
    rmdir "$DISK/elsewhere"
}

ticks_on_disk() {
    cp "$DISK/alone" "$DISK/alone.copy" && "$NACRE" cat "$DISK/alone.copy:/ticks" | grep -q tick
}

# Runs a shell script on the pool that is saved to $DISK/img every $1; then it dies with its
# supervisor, and the machine restarts: nothing of what memory held is left.
die_and_restart() {
    # Asked before: who asks while the killed ones are still dying is the last to leave, and commits.
    local image
    image=$("$NACRE" info --json "$DISK/img" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
    "$NACRE" run -q --pool "$SCRATCH/ram" --save-to "$DISK/img" --every "$1" -- \
        sh -c "$2"'; kill -KILL $PPID $$' || true
    rm -rf "${NACRE_SESSION_DIR:-/dev/shm}/nacre-$image-"*
    rm -f "$SCRATCH/ram"
}

seen_after() {
    cp "$DISK/img" "$DISK/img.copy"
    "$NACRE" cat "$DISK/img.copy:/$1" 2>/dev/null | grep -q "$1"
}

saved() {
    note "a pool in memory that a restart finds again"
    contains "it is made" "every 3600 s" \
        "$("$NACRE" run --size 64M --pool "$SCRATCH/ram" --save-to "$DISK/img" --every 1h -- true 2>&1)"
    "$NACRE" run -q --pool "$SCRATCH/ram" -- sh -c 'echo first >/nacre/first'
    gives "by both names" first "$NACRE" cat "$DISK/img:/first"
    contains "info" "every 3600 s" "$("$NACRE" info "$SCRATCH/ram")"
    die_and_restart 1h 'echo early >/nacre/early; sync /nacre/early; sync'
    gives "what the last program left" first "$NACRE" cat "$DISK/img:/first"
    refuses "nobody waited for what is too new" early "$NACRE" cat "$DISK/img:/early"
    "$NACRE" run -q --pool "$SCRATCH/ram" --save-to "$DISK/img" --every 200ms -- \
        sh -c 'echo later >/nacre/later; : >"$0"; while [ ! -e "$0.end" ]; do sleep 0.05; done' "$SCRATCH/saving" &
    wait_for 100 "it runs" test -e "$SCRATCH/saving"
    wait_for 100 "a commit by the supervisor" seen_after later
    "$NACRE" run -q --pool "$SCRATCH/ram" -- sh -c 'echo now >/nacre/now'
    "$NACRE" sync "$SCRATCH/ram"
    seen_after now || fail "nacre sync did not save"
    : >"$SCRATCH/saving.end"
    wait -n
    die_and_restart 1h 'echo lost >/nacre/lost'
    "$NACRE" run -q --pool "$SCRATCH/ram" --save-to "$DISK/img" -- sh -c 'cat /nacre/later; echo again >/nacre/again'
    gives "a restart in the middle" again "$NACRE" cat "$SCRATCH/ram:/again"
    contains "and it is sound" clean "$("$NACRE" check "$SCRATCH/ram")"
    refuses "a pool of its own" "fsync waits" "$NACRE" run -q --save-to "$DISK/a" -- true
    : >"$SCRATCH/other"
    refuses "a name that is taken" "already" "$NACRE" run -q --pool "$SCRATCH/other" --save-to "$DISK/img" -- true
    refuses "the same" "already" "$NACRE" run -q --pool "$SCRATCH/other" --save-to "$DISK/fresh" -- true
    [[ ! -e $DISK/fresh ]] || fail "a pool was made for a name that is taken"
    "$NACRE" delete --force "$SCRATCH/ram" >/dev/null
    [[ ! -L $SCRATCH/ram && ! -e $DISK/img ]] || fail "something is left of a deleted pool"
}

# A child begins in its parent's memory, while the parent's threads are storing.
spawns_beside_writers() {
    note threads that store beside children that start in their memory
    cat >"$SCRATCH/spawns.c" <<'P'
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static volatile int going = 1;
static char bytes[1 << 20];

static void *writes(void *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    while (going)
        if (pwrite(fd, bytes, sizeof bytes, 0) != sizeof bytes) abort();
    return NULL;
}

int main() {
    pthread_t threads[2];
    char *names[] = {"/nacre/one", "/nacre/two"};
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writes, names[i]);
    int fd = open("/nacre/synced", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 20; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        char *arguments[] = {"echo", "x", NULL};
        pid_t child;
        if (posix_spawn(&child, "/bin/echo", &actions, NULL, arguments, environ)) abort();
        if (waitpid(child, NULL, 0) != child || fsync(fd)) abort();
    }
    going = 0;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}
P
    gcc -O1 -o "$SCRATCH/spawns" "$SCRATCH/spawns.c" -pthread
    timeout 60 "$NACRE" run -q --pool "$DISK/a" -- "$SCRATCH/spawns"
    cp "$DISK/a" "$DISK/copy"
    contains "the disk alone is sound" clean "$("$NACRE" check "$DISK/copy")"
    gives "what was synced" 40 bash -c "'$NACRE' cat '$DISK/copy:/synced' | wc -c"
}

leave() {
    local pool
    [[ ! -e $SCRATCH/left ]] || kill -KILL "$(cat "$SCRATCH/left")" 2>/dev/null || true
    for pool in "$DISK"/*; do
        "$NACRE" delete --force "$pool" >/dev/null 2>&1 || true
    done
    rm -rf "$DISK"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    DISK=$(mktemp -d "$DISK_FOLDER/disk-XXXXXX")
    trap 'leave' EXIT
    cached
    in_the_background
    flushed_once
    while_it_runs
    other_modes
    without_supervisor
    outlives_its_supervisor
    grows
    supervised_by_two
    executes_alone
    synced_by_program
    spawns_beside_writers
    removed_and_moved
    own_way
    saved
    "$NACRE" delete --force "$DISK/a" >/dev/null
}

main
