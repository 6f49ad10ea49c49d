# The command line itself: pools made, inspected, filled, grown, deleted; refusals that help.
. "$PROGRAMS/expect.sh"

json() { /usr/bin/python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }

with_one_pool() {
    note create and info
    refuses "no size" "--size" "$NACRE" create "$SCRATCH/a"
    refuses "too small" "too small" "$NACRE" create --size 1M "$SCRATCH/a"
    [[ ! -e $SCRATCH/a ]] || fail "a refused create leaves a file"
    contains "create says what it survives" "survives" "$("$NACRE" create --size 64M "$SCRATCH/a")"
    refuses "again" "belongs to a pool already" "$NACRE" create --size 64M "$SCRATCH/a"
    gives "create says nothing if told so" "" "$NACRE" create --quiet --force "$SCRATCH/a"
    echo "precious" >"$SCRATCH/text"
    refuses "no pool" "no device of a Nacre pool" "$NACRE" info "$SCRATCH/text"
    refuses "not there" "check the path" "$NACRE" info "$SCRATCH/nothing"
    if unshare -m true 2>/dev/null; then
        refuses "no /proc" "mount -t proc" unshare -m sh -c 'umount -l /proc; exec "$@"' sh "$NACRE" info "$SCRATCH/nothing"
    fi
    same "info --json" "True True direct []" "$("$NACRE" info --json "$SCRATCH/a" |
        json '50 << 20 < d["bytes"] < 64 << 20, d["survives"]["process_death"], d["usage"]["mode"], d["used_by"]' | tr -d '(,)'"'")"

    note copies
    mkdir -p "$SCRATCH/tree/sub"
    seq 10000 >"$SCRATCH/tree/numbers"
    head -c 3000000 /dev/urandom >"$SCRATCH/tree/sub/random"
    truncate -s 5M "$SCRATCH/tree/sparse"
    ln -s sub/random "$SCRATCH/tree/link"
    chmod 640 "$SCRATCH/tree/numbers"
    touch -d @1234567890 "$SCRATCH/tree/numbers"
    refuses "folder without -r" "-r" "$NACRE" cp "$SCRATCH/tree" "$SCRATCH/a:/"
    "$NACRE" cp -rp "$SCRATCH/tree" "$SCRATCH/a:/"
    "$NACRE" cp -rp "$SCRATCH/a:/tree" "$SCRATCH/back"
    same_tree "in and out again" "$SCRATCH/tree" "$SCRATCH/back"
    gives "cat" 10000 bash -c "'$NACRE' cat '$SCRATCH/a:/tree/numbers' | wc -l"
    gives "cat through a link" 3000000 bash -c "'$NACRE' cat '$SCRATCH/a:/tree/link' | wc -c"
    gives "ls" $'link\nnumbers\nsparse\nsub' "$NACRE" ls "$SCRATCH/a:/tree"
    contains "ls -l" "file      0640" "$("$NACRE" ls -l "$SCRATCH/a:/tree")"
    gives "ls -R --json" 6 bash -c "'$NACRE' ls -R --json '$SCRATCH/a' | /usr/bin/python3 -c 'import json, sys; print(len(json.load(sys.stdin)))'"
    refuses "missing inside" "/tree/none: no such file" "$NACRE" cat "$SCRATCH/a:/tree/none"
    contains "check" clean "$("$NACRE" check "$SCRATCH/a")"
    same "check --json" True "$("$NACRE" check --json "$SCRATCH/a" | json 'd["clean"]')"

    note run
    in_pool=("$NACRE" run --quiet --pool "$SCRATCH/a")
    gives "what was copied in" 10000 "${in_pool[@]}" -- sh -c 'wc -l </nacre/tree/numbers'
    gives "other mount" tree "${in_pool[@]}" --mount /some/where -- ls --hide=hello /some/where
    gives "status" 7 bash -c "'$NACRE' run -q --pool '$SCRATCH/a' -- sh -c 'exit 7' || echo \$?"
    gives "signal" 143 bash -c "'$NACRE' run -q --pool '$SCRATCH/a' -- sh -c 'kill -TERM \$\$' || echo \$?"
    gives "missing program" 127 bash -c "'$NACRE' run -q --pool '$SCRATCH/a' -- /no/such/program 2>/dev/null || echo \$?"
    gives "missing pool" 125 bash -c "'$NACRE' run -q --pool '$SCRATCH/none' -- true 2>/dev/null || echo \$?"
    refuses "read-only" "Read-only" "${in_pool[@]}" --read-only -- touch /nacre/new
    "${in_pool[@]}" -- cp /bin/echo /nacre/hello
    gives "program stored in the pool" "from within" "${in_pool[@]}" -- /nacre/hello from within
    printf 'int main(void) { return 0; }' >"$SCRATCH/s.c"
    gcc -static -o "$SCRATCH/static" "$SCRATCH/s.c"
    contains "static program" "statically linked" "$("${in_pool[@]}" --no-fuse -- "$SCRATCH/static" 2>&1 || :)"
}

usage() {
    "$NACRE" info --json "$SCRATCH/n" | json "d['usage']$1"
}

# A pool of 64 MiB had 52 MiB free, and 12 MiB once 180 000 names had been made and removed.
with_many_names() {
    note names that come and go
    "$NACRE" create --size 64M "$SCRATCH/n" >/dev/null
    local before names='import os
for n in range(40000): open(f"/nacre/{n}", "x").close()
for n in range(40000): os.unlink(f"/nacre/{n}")'
    before=$(usage '["free_bytes"]')
    "$NACRE" run -q --pool "$SCRATCH/n" -- python3 -c "$names"
    gives "their room is free again" "$before" usage '["free_bytes"]'
    contains "it says where they were" "2 empty, counted as free" "$("$NACRE" info "$SCRATCH/n")"
    local most=$(((before >> 20) - 1))
    "$NACRE" run -q --pool "$SCRATCH/n" -- dd if=/dev/zero of=/nacre/data bs=1M count=$most status=none ||
        fail "data does not fill what is free"
    gives "given back" 2 usage '["metadata_blocks"]["given_back"]'
    "$NACRE" run -q --pool "$SCRATCH/n" -- sh -c 'rm /nacre/data; echo new >/nacre/name'
    "$NACRE" check "$SCRATCH/n" >/dev/null
}

with_users() {
    note a pool in use
    "$NACRE" run --quiet --pool "$SCRATCH/a" -- sleep 100 &
    local supervisor=$!
    wait_for 10 "the user of the pool" bash -c "! '$NACRE' info '$SCRATCH/a' | grep 'used by  *nobody' >/dev/null"
    refuses "check" "in use by" "$NACRE" check "$SCRATCH/a"
    refuses "delete" "in use by" "$NACRE" delete --force "$SCRATCH/a"
    refuses "create" "in use by" "$NACRE" create --force "$SCRATCH/a"
    gives "reading beside it" 10000 bash -c "'$NACRE' cat '$SCRATCH/a:/tree/numbers' | wc -l"
    kill -TERM $supervisor
    wait $supervisor || same "a signal to the supervisor ends the program" 143 $?
}

with_two_pools() {
    note several devices and pools
    "$NACRE" create --size 64M "$SCRATCH/b1" "$SCRATCH/b2" >/dev/null
    same "two devices" 2 "$("$NACRE" info --json "$SCRATCH/b2" | json 'len(d["devices"])')"
    contains "stripes are the default" "stripe    2M" "$("$NACRE" info "$SCRATCH/b1")"
    before=$("$NACRE" info --json "$SCRATCH/b1" | json 'd["usage"]["free_bytes"]')
    "$NACRE" cp "$SCRATCH/tree/numbers" "$SCRATCH/b1:/"
    contains "grow" "grown from" "$("$NACRE" grow --size 64M "$SCRATCH/b1" "$SCRATCH/b3")"
    after=$("$NACRE" info --json "$SCRATCH/b3" | json 'd["usage"]["free_bytes"]')
    ((after > before + (50 << 20))) || fail "grow adds space: $before, then $after"
    same "devices are listed" 3 "$("$NACRE" device list --json "$SCRATCH/b1" | json 'len(d["devices"])')"
    refuses "a stripe of no power of two" "power of two" "$NACRE" create --stripe 5K --size 64M "$SCRATCH/b7" "$SCRATCH/b8"
    "$NACRE" create --stripe 4K --size 64M "$SCRATCH/s1" "$SCRATCH/s2" "$SCRATCH/s3" >/dev/null
    head -c 15M /dev/urandom >"$SCRATCH/bytes"
    "$NACRE" cp "$SCRATCH/bytes" "$SCRATCH/s1:/"
    same "each device has its share" 3 "$("$NACRE" device list --json "$SCRATCH/s2" | json 'sum(4 << 20 <= it["used_bytes"] for it in d["devices"])')"
    "$NACRE" device add --size 64M "$SCRATCH/s2" "$SCRATCH/s4" >/dev/null
    same "the stripe is kept" 4K "$("$NACRE" device list --json "$SCRATCH/s4" | json 'd["stripe"]')"
    "$NACRE" check "$SCRATCH/s1" >/dev/null
    gives "contents after grow" 10000 bash -c "'$NACRE' cat '$SCRATCH/b3:/numbers' | wc -l"
    "$NACRE" check "$SCRATCH/b1" >/dev/null
    mv "$SCRATCH/b2" "$SCRATCH/hidden"
    refuses "missing device" "is missing" "$NACRE" info "$SCRATCH/b1"
    mv "$SCRATCH/hidden" "$SCRATCH/b2"
    local both=("$NACRE" run -q --pool "$SCRATCH/a" --mount /one --pool "$SCRATCH/b1" --mount /two --)
    "${both[@]}" sh -c 'cp -r /one/tree /two/ && mv /two/numbers /one/moved && diff -r /one/tree /two/tree && wc -l </one/moved' >"$SCRATCH/out"
    gives "between two pools" 10000 cat "$SCRATCH/out"
    refuses "one folder for two pools" "--mount" "$NACRE" run --pool "$SCRATCH/a" --pool "$SCRATCH/b1" -- true
}

with_default_pool() {
    note default pool
    export NACRE_DEFAULT_POOL=$SCRATCH/default.pool
    "$NACRE" run -- sh -c 'echo kept >/nacre/file' 2>"$SCRATCH/said"
    contains "says which" "default pool $NACRE_DEFAULT_POOL" "$(cat "$SCRATCH/said")"
    contains "says what it survives" "survives" "$(cat "$SCRATCH/said")"
    gives "is kept" kept "$NACRE" run -q -- cat /nacre/file
}

# A process that may have no more threads or memory is told so. It hung in the printing of a panic.
with_little_memory() {
    note little memory
    local data said
    for data in 1000 2000 3000; do
        said=$(ulimit -d $data; RUST_BACKTRACE=1 timeout -s KILL 20 "$NACRE" run -q --pool "$SCRATCH/a" \
            -- true 2>&1) && continue
        contains "with $data KiB" "nacre: " "$said"
        [[ $said != *panicked* ]] || fail "with $data KiB: $said"
    done
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    contains "help teaches" "nacre run -- bash" "$("$NACRE" --help)"
    with_one_pool
    with_many_names
    with_users
    with_two_pools
    with_default_pool
    with_little_memory
    "$NACRE" delete --force "$SCRATCH/a"
    [[ ! -e $SCRATCH/a ]] || fail "delete"
}

main
