# What `nacre top` tells of pools while programs use them: changes, commits, reads, who it is; on a terminal, too.
. "$PROGRAMS/expect.sh"
[[ -z ${BASELINE:-} ]] || { note skipped: nothing to watch; exit 0; }
DISK=$DISK_FOLDER/top-$$.pool
PIDS=()
clean() {
    ((${#PIDS[@]} == 0)) || kill "${PIDS[@]}" 2>/dev/null || true
    wait
    "$NACRE" delete --force "$DISK" >/dev/null 2>&1 || true
}
trap clean EXIT
"$NACRE" create --size 128M "$DISK" >/dev/null

note nobody uses it
report=$("$NACRE" top --times 1 --every 10ms "$DISK")
contains "a pool that nobody uses" "$DISK: nobody uses it" "$report"
refuses "no pool" "no device of a Nacre pool" "$NACRE" top --times 1 /etc/passwd
refuses "no time" "is no time" "$NACRE" top --every soon
refuses "not once" "0" "$NACRE" top --times 0

# A program at $1 that does something each time that a line comes to the named pipe $2, and says so in $2.done.
start() {
    mkfifo "$2" "$2.done"
    "$NACRE" run --quiet --pool "$1" -- /usr/bin/python3 "$PROGRAMS/around/top.py" work "$2" &
    PIDS+=($!)
    # Both stay open, or the program would see an end.
    exec {pipe}<>"$2" {answer}<>"$2.done"
    read -r -t 60 <&$answer || fail "the program did not start"
}
start "$POOL" "$SCRATCH/memory"; MEMORY=$pipe MEMORY_DONE=$answer
start "$DISK" "$SCRATCH/disk"; TO_DISK=$pipe DISK_DONE=$answer

note programs at work
/usr/bin/python3 "$PROGRAMS/around/top.py" watch "$NACRE" "$POOL" "$DISK" $MEMORY $MEMORY_DONE $TO_DISK $DISK_DONE

note on a terminal
NACRE=$NACRE /usr/bin/python3 "$PROGRAMS/around/top.py" screen "$DISK"

note columns
contains "columns" "COMMITS/s" "$("$NACRE" top --times 1 --every 10ms)"
contains "one of them" "$DISK" "$("$NACRE" top --times 1 --every 10ms "$DISK")"
# Who reads no more ends it.
timeout 60 "$NACRE" top --every 10ms "$DISK" | head -n 3 >/dev/null

note two devices of one pool
"$NACRE" create --size 32M "$SCRATCH/c" "$SCRATCH/d" >/dev/null
start "$SCRATCH/c" "$SCRATCH/parts"
gives "the columns and one pool" 2 bash -c "'$NACRE' top --times 1 --every 10ms '$SCRATCH/d' '$SCRATCH/c' | wc -l"

note a copy that is lost
"$NACRE" create --copies 2 --size 64M "$SCRATCH/a" "$SCRATCH/b" >/dev/null
rm "$SCRATCH/b"
start "$SCRATCH/a" "$SCRATCH/copies" 2>/dev/null
contains "a copy that is lost" "1 of 2 copies are current" "$("$NACRE" top --times 1 --every 10ms "$SCRATCH/a")"

# What is in another user's pool is looked at if it was named.
of_another_user() {
    local home=$SCRATCH/home other as=(setpriv --reuid=65534 --regid=65534 --clear-groups env "HOME=$SCRATCH/home")
    mkdir "$home"
    chown 65534:65534 "$home"
    "${as[@]}" "$NACRE" create --size 64M "$home/pool" >/dev/null
    mkfifo -m 666 "$home/ready" "$home/end"
    "${as[@]}" "$NACRE" run --quiet --pool "$home/pool" -- sh -c 'echo >/nacre/file; echo >"$HOME/ready"; read -r _ <"$HOME/end"' &
    PIDS+=($!)
    read -r _ <"$home/ready"
    other=$("$NACRE" top --times 1 --every 10ms)
    contains "another user's" "$home/pool: is another user's; name it" "$other"
    contains "one's own beside it" "$DISK" "$other"
    other=$("$NACRE" top --times 1 --every 10ms "$home/pool")
    [[ $other != *"another user's"* && $other == *"$home/pool"* ]] || fail "another user's, named: $other"
    contains "its own user" " $home/pool" "$("${as[@]}" "$NACRE" top --times 1 --every 10ms)"
    echo >"$home/end"
}
note of another user
if ((EUID == 0)); then of_another_user; else note skipped: only root can be another user; fi

note all in use
all=$("$NACRE" top --json --times 1 --every 10ms)
contains "memory" "\"$POOL\"" "$all"
contains "disk" "\"$DISK\"" "$all"
