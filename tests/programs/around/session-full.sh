# No room where the session files lie: a clear refusal at the start, waiting later; never a dead program.
. "$PROGRAMS/expect.sh"

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    unshare -rm true 2>/dev/null || { note "needs a mount namespace of its own"; return; }
    local folder=$SCRATCH/sessions run="$NACRE run -q --pool $POOL --mount $MOUNT --"
    mkdir -p "$folder"
    export NACRE_SESSION_DIR=$folder
    note "from the start"
    refuses "a run" "find room" unshare -rm bash -c "mount -t tmpfs -o size=16k none $folder && exec $run true"

    note "while a program works"
    cat >"$SCRATCH/fill" <<END
mount -t tmpfs -o size=64m none $folder
(
    until [[ -e $SCRATCH/works ]]; do sleep 0.05; done
    head -c 64M /dev/zero >$folder/filler
    touch $SCRATCH/full
    sleep 2
    rm $folder/filler
) 2>/dev/null &
$run bash -c '
    touch $SCRATCH/works
    until [[ -e $SCRATCH/full ]]; do sleep 0.05; done
    for i in {1..3000}; do echo \$i >$MOUNT/\$i; done
    cat $MOUNT/3000' 2>$SCRATCH/complaints
wait
END
    gives "a program that finds no room for a while" 3000 unshare -rm bash "$SCRATCH/fill"
    grep -q "no room for shared memory" "$SCRATCH/complaints" || fail "it did not say why it waited"
    unset NACRE_SESSION_DIR
    check_pool
}

run_parts "$@"
