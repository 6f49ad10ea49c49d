# A pool on a disk where a control group limits memory, as for a container or a service: what is kept in memory is cut
# to the limit, so that nobody is killed. Written are five times as many bytes as the group may use.
. "$PROGRAMS/expect.sh"

LIMIT=$((200 << 20))
GROUP=''

# Makes a group with a limit of memory below that of this process, by version 1 or 2. Its folder is in GROUP.
make_group() {
    local file=memory.limit_in_bytes root=/sys/fs/cgroup/memory own
    own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    if [[ ! -e $root/$file ]]; then
        file=memory.max root=/sys/fs/cgroup
        own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    fi
    local folder=$root$own/nacre-test-$$
    [[ -d $root$own ]] || folder=$root/nacre-test-$$
    mkdir "$folder" 2>/dev/null || return 1
    GROUP=$folder
    echo "$LIMIT" 2>/dev/null >"$folder/$file"
}

remove_group() {
    [[ -z $GROUP ]] || rmdir "$GROUP"
}

# Ends who is left in the group, whose limit may have killed the process that started them, and
# removes it. That works once the last one is gone: who is dying is not listed, but has the pool.
end_group() {
    local pid
    until rmdir "$GROUP" 2>/dev/null; do
        while read -r pid; do kill -9 "$pid" 2>/dev/null || true; done <"$GROUP/cgroup.procs"
        sleep 0.05
    done
    GROUP=''
}

# Runs a command as a member of the group.
limited() {
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$GROUP" "$@"
}

write_much() {
    limited "$NACRE" run -q "$@" --pool "$DISK" -- dd if=/dev/zero of=/nacre/much bs=1M count=1000 status=none
}

# Somebody whom nothing limits uses the pool already, and could keep all of it in memory.
write_beside_another() {
    local fifo=$SCRATCH/limit-fifo user
    mkfifo "$fifo"
    "$NACRE" run -q --pool "$DISK" -- bash -c 'echo ready >"$0"; read -r <"$0"' "$fifo" &
    user=$!
    read -r <"$fifo"
    write_much || fail "status $? of a program that writes beside who may keep more"
    echo enough >"$fifo"
    wait "$user" || fail "status $? of who used the pool before"
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    trap remove_group EXIT
    make_group || { note "needs a control group with a limit of memory"; return; }
    DISK=$DISK_FOLDER/nacre-limited-$$
    trap 'remove_group; rm -f "$DISK"' EXIT
    "$NACRE" create --size 2G "$DISK" >/dev/null
    write_much || fail "status $? of a program that writes more than it may keep"
    write_beside_another
    gives "what was written" 1048576000 bash -c "'$NACRE' cat '$DISK:/much' | wc -c"
    "$NACRE" check "$DISK" >"$SCRATCH/check.out" || fail "$(cat "$SCRATCH/check.out")"
    if [[ $(grep -c . /proc/swaps) == 1 ]]; then
        note "canary: who asks for more than is allowed is killed"
        ! write_much --cache 1G 2>/dev/null || fail "the limit is none: this test shows nothing"
        end_group
    fi
    "$NACRE" delete --force "$DISK" >/dev/null
}

run_parts "$@"
