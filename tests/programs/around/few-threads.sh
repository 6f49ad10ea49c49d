# Where the system gives few threads (the pids limit of a container), and where somebody else has
# locked a pool: what can be done is done, the rest says why and leaves nothing behind.
. "$PROGRAMS/expect.sh"

# The control group's folder; made below the own one.
GROUP=
make_group() {
    local root=/sys/fs/cgroup/pids own
    own=$(sed -n 's/^[0-9]*:pids://p' /proc/self/cgroup)
    if [[ ! -d $root ]]; then
        root=/sys/fs/cgroup
        own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    fi
    GROUP=$root${own%/}/nacre-test-$$
    mkdir "$GROUP" 2>/dev/null && [[ -w $GROUP/pids.max ]]
}

remove_group() {
    local pid tries
    while read -r pid; do kill -KILL "$pid" 2>/dev/null || true; done <"$GROUP/cgroup.procs"
    for tries in {1..100}; do
        if rmdir "$GROUP" 2>/dev/null; then return; fi
        sleep 0.05
    done
}

# with TASKS COMMAND...: so many processes and threads at most
with() {
    echo "$1" >"$GROUP/pids.max"
    shift
    bash -c 'echo $$ >"$0/cgroup.procs" && exec timeout -s KILL 60 "$@"' "$GROUP" "$@"
}

few_threads() {
    local tasks said status folder=$SCRATCH/mounted
    mkdir "$folder"
    for tasks in 2 3 4 5 6 7 8 12; do
        note "$tasks tasks"
        rm -f "$SCRATCH/new"
        with "$tasks" "$NACRE" create --size 64M "$SCRATCH/new" >/dev/null 2>"$SCRATCH/said" ||
            fail "create with $tasks: $(cat "$SCRATCH/said")"
        with "$tasks" "$NACRE" check --repair "$SCRATCH/new" >/dev/null 2>"$SCRATCH/said" ||
            fail "check --repair with $tasks: $(cat "$SCRATCH/said")"
        status=0
        said=$(with "$tasks" "$NACRE" mount "$SCRATCH/new" "$folder" 2>&1) || status=$?
        if ((status == 0)); then
            timeout -s KILL 20 ls "$folder" >/dev/null || fail "a mount with $tasks does not answer"
            timeout -s KILL 20 "$NACRE" umount "$folder"
        else
            contains "a refused mount with $tasks" "temporarily unavailable" "$said"
            [[ $said != *panicked* ]] || fail "a panic with $tasks: $said"
        fi
        wait_for 20 "the end of the mount" bash -c "! grep -q ' $folder fuse' /proc/mounts"
    done
}

locked() {
    local reader waiter
    note "a pool that somebody has locked"
    "$NACRE" create --size 64M "$SCRATCH/locked" >/dev/null
    mkfifo "$SCRATCH/hold"
    flock -s "$SCRATCH/locked" bash -c ': >"$0/held"; read -r <"$0/hold"' "$SCRATCH" &
    reader=$!
    wait_for 60 "the lock" test -e "$SCRATCH/held"
    "$NACRE" info "$SCRATCH/locked" >"$SCRATCH/info" 2>"$SCRATCH/said" &
    waiter=$!
    wait_for 60 "word of the lock" grep -q "/locked, which process $reader (flock) has locked" "$SCRATCH/said"
    echo >"$SCRATCH/hold"
    wait "$waiter" || fail "info after the lock: $(cat "$SCRATCH/said")"
    contains "info after the lock" "64.0 MiB" "$(cat "$SCRATCH/info")"
    wait "$reader"
}

locked
if [[ -c /dev/fuse ]] && make_group; then
    trap remove_group EXIT
    few_threads
fi
