#!/bin/bash
# Runs real, unmodified programs on a pool, one test after the other, and checks what they did.
#
#   tests/programs/run-all.sh               all tests
#   tests/programs/run-all.sh git sqlite    some tests
#   BASELINE=1 tests/programs/run-all.sh    the same scripts on plain tmpfs: proves the scripts
#
# Tests in inside/ run wholly under one `nacre run`; those in around/ make several runs.
#   ON_DISK=1 tests/programs/run-all.sh sqlite   pools on the disk of the target folder, cached
#   COPIES=2 tests/programs/run-all.sh sqlite    pools with two copies, STRIPE=3: on three devices
#   BEHIND=40M tests/programs/run-all.sh sqlite  so much memory, and a disk behind it
#
# Environment: NACRE (binary, default target/release/nacre), MODE (direct, atomic or cached), KEEP=1
# (keep pool and scratch folder of failed tests), TIMEOUT (seconds for each test), DISK_FOLDER (a
# folder on a disk, default the target folder).
set -uo pipefail

PROGRAMS=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$PROGRAMS/../.." && pwd)
NACRE=${NACRE:-${CARGO_TARGET_DIR:-$ROOT/target}/release/nacre}
BASE=/dev/shm/nacre-test-$$
export DISK_FOLDER=${DISK_FOLDER:-${CARGO_TARGET_DIR:-$ROOT/target}}
POOLS=$BASE
if [[ -n ${ON_DISK:-} ]]; then
    POOLS=$DISK_FOLDER/nacre-test-$$
    MODE=${MODE:-cached}
fi
export MODE=${MODE:-direct}
export PROGRAMS
# Nor is a make among the programs to be told what the one that runs this was told.
unset NACRE_MOUNTS LD_PRELOAD MAKEFLAGS MAKELEVEL MFLAGS

passed=0 failed=0 rows=()

declare -A limit=([large-mappings]=240 [reach]=360 [mounts]=360 [behind-devices]=600 [postgres]=240 [fio]=240 [git]=180 [kill]=180 [scrub]=240 [replace]=240 [rebalance]=240 [leave]=420 [leave-disks]=900 [precious]=600 [stress-ng]=300 [dbench]=900)
declare -A size=([postgres]=1G [fio]=1G [stress-ng]=1G [lmdb]=64M)

# Makes the pool of the test $1 at $POOL, with the devices that are asked for.
make_pool() {
    local devices=("$POOL") spread=() number
    for ((number = 2; number <= ${COPIES:-${STRIPE:-1}}; number++)); do
        devices+=("$POOL.$number")
    done
    [[ -z ${COPIES:-} ]] || spread=(--copies "$COPIES")
    [[ -z ${STRIPE:-} ]] || spread=(--stripe 4K)
    [[ -z ${BEHIND:-} ]] || spread=(--behind "$POOL.behind=${size[$1]:-512M}")
    "$NACRE" create --size "${BEHIND:-${size[$1]:-512M}}" --mode "$MODE" "${spread[@]}" "${devices[@]}"
}

# One test in a fresh pool and a fresh scratch folder; its output goes to $1.
run_one() {
    local log=$1 script=$2 name=$3 seconds=${TIMEOUT:-${limit[$3]:-120}}
    : >"$log"
    export SCRATCH=$BASE/$name.scratch
    mkdir -p "$SCRATCH" && chmod 1777 "$SCRATCH"
    local run=(bash "$script")
    if [[ -n ${BASELINE:-} ]]; then
        export MOUNT=$BASE/$name.mount POOL='' NACRE=''
        mkdir -p "$MOUNT"
    else
        export MOUNT=/nacre POOL=$POOLS/$name.pool NACRE
        mkdir -p "$POOLS"
        make_pool "$name" >>"$log" 2>&1 || return
        if [[ $script == */inside/* ]]; then
            run=("$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "${run[@]}")
        fi
    fi
    (exec {held}>&-; cd "$SCRATCH" && NACRE_TEST=$BASE timeout -k 10 "$seconds" "${run[@]}") >>"$log" 2>&1 </dev/null
    local status=$?
    ((status != 124)) || echo "FAILED: still running after $seconds s" >>"$log"
    end_leftovers "$log"
    if ((status == 0)) && [[ -z ${BASELINE:-} && -e $POOL ]]; then
        "$NACRE" check "$POOL" >>"$log" 2>&1 || { echo "FAILED: nacre check after the test" >>"$log"; status=1; }
    fi
    return $status
}

# Ends what a test left running: processes that carry this run's mark in their environment.
end_leftovers() {
    local entry pid
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        if [[ $pid != "$$" ]] && grep -qzsxF "NACRE_TEST=$BASE" "$entry/environ" 2>/dev/null; then
            echo "left running: $(tr '\0' ' ' <"$entry/cmdline" 2>/dev/null)" >>"$1"
            kill -KILL "$pid" 2>/dev/null
        fi
    done
    return 0
}

report() {
    local name=$1 status=$2 seconds=$3 log=$4
    if ((status == 0)); then
        passed=$((passed + 1))
        rows+=("$(printf '%-14s ok      %4d s' "$name" "$seconds")")
    else
        failed=$((failed + 1))
        rows+=("$(printf '%-14s FAILED  %4d s  %s' "$name" "$seconds" "$(grep -m1 FAILED "$log" | cut -c1-100)")")
        echo "---- $name: last lines of $log"
        tail -n 30 "$log"
    fi
    echo "${rows[-1]}"
}

test_script() {
    local script=$1 name log start=$SECONDS status
    name=$(basename "$script" .sh)
    log=$LOGS/$name.log
    run_one "$log" "$script" "$name"
    status=$?
    report "$name" $status $((SECONDS - start)) "$log"
    if ((status == 0)) || [[ -z ${KEEP:-} ]]; then discard "$name"; fi
}

# Removes what a test used, its pool with all that dead processes may have left in shared memory.
discard() {
    [[ ! -e $POOLS/$1.pool ]] || "$NACRE" delete --force "$POOLS/$1.pool" >/dev/null
    rm -rf "$BASE/$1".* "$POOLS/$1".*
}

# A test with a wrong expectation must be reported as failed, or no result below means anything.
canary() {
    local log=$LOGS/canary.log
    if run_one "$log" "$PROGRAMS/inside/canary.sh" canary || ! grep -q 'FAILED: the canary' "$log"; then
        cat "$log"
        echo "the canary was not caught: this runner cannot be trusted"
        echo "0 passed, 1 failed"
        exit 1
    fi
    discard canary
    echo "canary         caught"
}

scripts() {
    local script name
    shopt -s nullglob
    for script in "$PROGRAMS"/{inside,around}/*.sh; do
        name=$(basename "$script" .sh)
        [[ $name != canary ]] || continue
        if (($# == 0)) || [[ " $* " == *" $name "* ]]; then echo "$script"; fi
    done
}

if [[ -z ${BASELINE:-} && ! -x $NACRE ]]; then
    echo "$NACRE is missing: run \`cargo build --release\`, or set NACRE" >&2
    exit 2
fi
# Runs that were killed left folders, which nobody holds.
for left in /dev/shm/nacre-test-*/held; do
    left=${left%/held}
    # Others may make such names, too.
    [[ -O $left && ! -L $left ]] || continue
    ! flock -n "$left/held" true 2>/dev/null || rm -rf "$left" "$DISK_FOLDER/${left##*/}"
done
mkdir -p "$BASE/bin"
exec {held}>"$BASE/new"
flock "$held" && mv "$BASE/new" "$BASE/held"
# Some tests become other users, who cannot look into everybody's home.
cp -r "$PROGRAMS" "$BASE/programs"
PROGRAMS=$BASE/programs
if [[ -z ${BASELINE:-} ]]; then
    cp "$NACRE" "$(dirname "$NACRE")"/libnacre_*.so "$BASE/bin"
    NACRE=$BASE/bin/nacre
fi
chmod -R a+rX "$BASE"
LOGS=${LOGS:-${CARGO_TARGET_DIR:-$ROOT/target}/programs}
mkdir -p "$LOGS"
trap 'rm -f "$BASE/held"; [[ -n ${KEEP:-} ]] || rm -rf "$BASE" "$POOLS"' EXIT
canary
for script in $(scripts "$@"); do test_script "$script"; done
echo
printf '%s\n' "${rows[@]}"
echo
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
