# Two sessions (here: two NACRE_SESSION_DIRs, as two containers have) must not work on one pool.
. "$PROGRAMS/expect.sh"

in_session() {
    local folder=$SCRATCH/session-$1
    mkdir -p "$folder"
    shift
    NACRE_SESSION_DIR=$folder "$@"
}

run_in() {
    local session=$1
    shift
    in_session "$session" "$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "$@"
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    local supervisor
    note "a program of session one is at work, with a forked child that never execs"
    run_in one bash -c "echo one >$MOUNT/file; sync $MOUNT/file; (while :; do read -r -t 1000 <> <(:); done) & echo \$! >$SCRATCH/child; echo \$\$ >$SCRATCH/shell; wait" &
    supervisor=$!
    wait_for 20 "the first session" test -s "$SCRATCH/shell"

    refuses "run in another session" "another session" run_in two true
    refuses "cp in another session" "another session" in_session two "$NACRE" cp "$POOL:/file" "$SCRATCH/copy"
    refuses "check in another session" "another session" in_session two "$NACRE" check "$POOL"
    refuses "grow in another session" "another session" in_session two "$NACRE" grow --size 32M "$POOL" "$POOL.more"
    refuses "delete in another session" "another session" in_session two "$NACRE" delete --force "$POOL"
    refuses "create over it" "in use" in_session two "$NACRE" create --force "$POOL"
    contains "info in another session" "another session" "$(in_session two "$NACRE" info "$POOL")"
    gives "session one goes on" one run_in one cat "$MOUNT/file"

    note "the child alone keeps the pool, whoever else is killed"
    kill -KILL "$supervisor" "$(cat "$SCRATCH/shell")"
    wait "$supervisor" || true
    refuses "run beside the child" "another session" run_in two true
    kill -KILL "$(cat "$SCRATCH/child")"
    wait_for 20 "the pool" run_in two true
    gives "another session recovers it" one run_in two cat "$MOUNT/file"
    check_pool
}

run_parts "$@"
