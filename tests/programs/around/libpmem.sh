# Programs that use libpmem on their own files: delayed and counted like those of a pool.
. "$PROGRAMS/expect.sh"

report() {
    python3 -c "import json,sys; r=json.load(open('$SCRATCH/report')); print($1)"
}

emulate() {
    "$NACRE" emulate --json "$@" 2>"$SCRATCH/report" || fail "$(cat "$SCRATCH/report")"
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    note "fio writes 4 MiB by its libpmem engine"
    emulate --profile pcm --csv "$SCRATCH/fio.csv" --png "$SCRATCH/fio.png" --html "$SCRATCH/fio.html" -- \
        fio --name=job --ioengine=libpmem --rw=write --bs=4k --size=4M --filename="$SCRATCH/file" \
        --direct=1 --thread --output="$SCRATCH/fio.out"
    same "bytes of data" $((4 << 20)) "$(report "r['kinds'][0]['bytes']")"
    same "granules, written once each" "1024 1" "$(report "r['all']['granules_written'], r['all']['most']" | tr -d '(),')"
    same "a lifetime is projected" True "$(report "r['lifetime_seconds'] > 0")"
    head -c 8 "$SCRATCH/fio.png" | grep -q PNG || fail "no picture"
    grep -q '</svg>' "$SCRATCH/fio.html" || fail "no page"

    note "pmempool makes pools by libpmemobj and libpmemblk"
    local kind
    for kind in obj "blk 512"; do
        rm -f "$SCRATCH/pmem"
        # shellcheck disable=SC2086
        emulate --profile optane-100 --no-delays -- pmempool create $kind --size 17M "$SCRATCH/pmem"
        same "$kind: counted, 17 MiB at most" True \
            "$(report "4096 < r['kinds'][0]['bytes'] < 17 << 20 and r['all']['granules_written'] > 1")"
        pmempool check -v "$SCRATCH/pmem" | grep ': consistent' >/dev/null || fail "pmempool check does not like its pool"
    done

    note "a program without libpmem is told so"
    "$NACRE" emulate -- true 2>&1 | grep "linked with it" >/dev/null || fail "nothing is said"
    local status=0
    "$NACRE" emulate --no-delays -- sh -c 'exit 7' 2>/dev/null || status=$?
    same "status" 7 "$status"
    refuses "an unknown profile" "optane-100, optane-interleaved-6" "$NACRE" emulate --profile optan -- true
    refuses "no program" "give a program" "$NACRE" emulate
    compgen -G "/dev/shm/nacre-program-*" >/dev/null && note "counters of other runs are left" || :
}

main
