# The tour runs through, shows each step, and ends with a sentence that its own table bears out.
. "$PROGRAMS/expect.sh"

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    ROUNDS=1 DISK='' "$PROGRAMS/tour.sh" >"$SCRATCH/out" 2>&1 || fail "the tour: $(tail -n 5 "$SCRATCH/out")"
    local step
    for step in "many files" "unpack" "git" "database" "log" "small files" "compile"; do
        contains "a step" "$step" "$(cat "$SCRATCH/out")"
    done
    local faster said
    # Columns in front of the last: the pool, tmpfs. Equal figures may have been faster by less than is shown.
    faster=$(awk '/^step / { on = 1; next } /^$/ { on = 0 } on && !/skipped/ { if ($(NF - 1) <= $NF) most++; if ($(NF - 1) < $NF) least++ }
        END { print least + 0, most + 0 }' "$SCRATCH/out")
    said=$(sed -n 's/^On this machine, \([0-9]*\) of [0-9]* steps took less time on the pool than on tmpfs\.$/\1/p' "$SCRATCH/out")
    [[ -n $said ]] || fail "no sentence: $(tail -n 3 "$SCRATCH/out")"
    ((said <= ${faster#* })) || fail "the sentence says $said, the table $faster"
    [[ $(ls -d /dev/shm/nacre-tour-* 2>/dev/null | wc -l) == 0 ]] || fail "the tour leaves files in /dev/shm"
}

main
