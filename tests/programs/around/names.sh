# Names changed at random through both front ends in one tree, beside a tree on tmpfs that says what is right;
# then by both at once.
. "$PROGRAMS/expect.sh"

worker() { printf 'python3 %q worker %q' "$PROGRAMS/around/names.py" "$1"; }

preloaded() {
    printf '%q run --quiet --pool %q --mount %q -- %s' "$NACRE" "$POOL" "$MOUNT" "$(worker "$MOUNT/$1")"
}

# model NAME SEED STEPS: in new folders
model() {
    local name=$1
    shift
    mkdir "$SCRATCH/mounted/$name" "$SCRATCH/$name"
    python3 "$PROGRAMS/around/names.py" model "$@" "$(preloaded "$name")" \
        "$(worker "$SCRATCH/mounted/$name")" "$(worker "$SCRATCH/$name")"
}

main() {
    if [[ -n ${BASELINE:-} || ! -w /dev/fuse ]]; then
        note "nothing can be mounted: left out"
        return
    fi
    mkdir "$SCRATCH/mounted"
    "$NACRE" mount "$POOL" "$SCRATCH/mounted"
    trap '! mountpoint -q "$SCRATCH/mounted" || "$NACRE" umount --lazy "$SCRATCH/mounted"' EXIT
    local seed
    for seed in ${SEEDS:-1 2 3}; do
        model "tree$seed" "$seed" 1500
    done
    CANARY=1 refuses "a worker that lies" "right:" model lies 7 1500
    mkdir "$SCRATCH/mounted/storm"
    python3 "$PROGRAMS/around/names.py" storm 4 300 "$(preloaded storm)" "$(worker "$SCRATCH/mounted/storm")"
    "$NACRE" umount "$SCRATCH/mounted"
    check_pool
}

run_parts "$@"
