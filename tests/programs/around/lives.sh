# Whole lives of pools of each kind, a few of those that lives.py makes at random: programs at work, killed, power
# cuts, other session folders, devices that come and go. Then canaries.
#
#   SEEDS="1000 40" tests/programs/run-all.sh lives     others, and how many
. "$PROGRAMS/expect.sh"

lives() {
    nice -n 5 python3 "$PROGRAMS/around/lives.py" --disk "$DISK_FOLDER" --memory "$(dirname "$POOL")" "$@"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "a life needs a pool"
        return
    fi
    local kind first count
    read -r first count <<<"${SEEDS:-1 1}"
    for kind in $(sed -n 's/^    "\([a-z-]*\)": {"devices".*/\1/p' "$PROGRAMS/around/lives_pool.py"); do
        note "$kind"
        lives --kind "$kind" --seed "$first" --lives "$count" --steps 10
    done
    lives --kind disk --steps 4 --canary
}

main
