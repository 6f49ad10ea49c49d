# Sourced by every test program. Stops the test at the first thing that is not as expected.
#
# Given by run-all.sh:
#   MOUNT     folder under test: inside the pool, or a tmpfs folder when BASELINE=1
#   POOL      the pool file (empty when BASELINE=1)
#   SCRATCH   folder on the host, empty at the start, removed at the end
#   NACRE     the `nacre` binary (empty when BASELINE=1)
#   PROGRAMS  folder of this file
set -Eeuo pipefail
export LC_ALL=C TZ=UTC

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
trap 'printf "FAILED: %s:%s: status %s of: %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$?" "$BASH_COMMAND" >&2' ERR

note() { printf -- '-- %s\n' "$*"; }

# same WHAT EXPECTED ACTUAL
same() {
    [[ $2 == "$3" ]] || fail "$1
  expected: $2
  actual:   $3"
}

# gives WHAT EXPECTED COMMAND...: the command succeeds and prints exactly this
gives() {
    local what=$1 expected=$2 actual
    shift 2
    actual=$("$@") || fail "$what: status $? of: $*"
    same "$what" "$expected" "$actual"
}

# refuses WHAT TEXT COMMAND...: the command fails and its message contains the text
refuses() {
    local what=$1 text=$2 out
    shift 2
    if out=$("$@" 2>&1); then fail "$what: should have failed: $*"; fi
    [[ $out == *"$text"* ]] || fail "$what: message lacks '$text': $out"
}

# contains WHAT TEXT ACTUAL
contains() {
    [[ $3 == *"$2"* ]] || fail "$1: '$2' is missing in: $3"
}

# under test: several of these may run at once on one pool
inside() {
    if [[ -n ${BASELINE:-} ]]; then
        "${AS[@]}" "$@"
    else
        "${AS[@]}" "$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "$@"
    fi
}
# words put before what `inside` runs, e.g. to become another user
AS=(env)

# another part of the running test, as a script under test: `part NAME` runs `part_NAME`
part() {
    inside bash "${BASH_SOURCE[1]}" "part_$1"
}

# ends a script: runs the part that was asked for, or `main`
run_parts() {
    "${1:-main}"
}

# the pool must be consistent (always true for a baseline)
check_pool() {
    [[ -n ${BASELINE:-} ]] || "$NACRE" check "$POOL" >"$SCRATCH/check.out" 2>&1 ||
        fail "nacre check: $(cat "$SCRATCH/check.out")"
}

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "waited too long for $what"
        sleep 0.05
    done
}

# same_tree WHAT A B: same names, types, modes, sizes, link targets and contents
same_tree() {
    diff <(cd "$2" && shape_of_tree) <(cd "$3" && shape_of_tree) || fail "$1: trees differ in shape"
    diff <(cd "$2" && find . -type f -exec cksum {} + | sort -k 3) \
        <(cd "$3" && find . -type f -exec cksum {} + | sort -k 3) || fail "$1: contents differ"
}

shape_of_tree() {
    {
        find . ! -type d -printf '%P %y %m %s %n %TY-%Tm-%Td %TT %l\n'
        find . -type d -printf '%P %y %m\n'
    } | sort
}
