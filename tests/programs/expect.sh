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
    local aspect
    for aspect in shape contents; do
        same_aspect "$aspect" "$@"
    done
}

# same_aspect ASPECT WHAT A B: `ASPECT_of` says the same of both. A failure shows the difference, and
# whether a second look sees it, too; a program that failed while looking is no difference.
same_aspect() {
    local aspect=$1 what=$2 kept said
    kept=$(mktemp -d "$SCRATCH/aspect.XXXXXX")
    "${aspect}_of" "$3" "$kept/first"
    "${aspect}_of" "$4" "$kept/second"
    said=$(diff -u --label "$3" --label "$4" "$kept/first" "$kept/second") || {
        said+=$(changed_since "$aspect" "$3" "$kept/first")$(changed_since "$aspect" "$4" "$kept/second")
        fail "$what: trees differ in $aspect
$said"
    }
    rm -r "$kept"
}

# changed_since ASPECT FOLDER FILE: what a second look sees that differs from the first, kept in FILE
changed_since() {
    "${1}_of" "$2" "$3.again"
    cmp -s "$3" "$3.again" || printf '\n%s is now: %s' "$2" "$(diff "$3" "$3.again")"
}

# shape_of FOLDER FILE, contents_of FOLDER FILE: the names of FOLDER with what they are, sorted, in FILE
shape_of() {
    local others='%P %y %m %s %n %TY-%Tm-%Td %TT %l\n' folders='%P %y %m\n'
    find "$1/" ! -type d -printf "$others" -o -printf "$folders" >"$2.raw" ||
        fail "status $? of find below $1, which said $(wc -l <"$2.raw") lines"
    sort "$2.raw" >"$2" || fail "status $? of sort"
}

contents_of() {
    (cd "$1" && find . -type f -exec cksum {} +) >"$2.raw" ||
        fail "status $? of find or cksum below $1, which said $(wc -l <"$2.raw") lines"
    sort -k 3 "$2.raw" >"$2" || fail "status $? of sort"
}
