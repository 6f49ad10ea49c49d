#!/bin/bash
# A tour: real programs on a pool, on kernel tmpfs and on a folder of the disk, what they did and how long it took.
# Each step runs warm several times in turns, the best counts. The pool is durable when a call returns as far as its
# device is; tmpfs never promises that, a disk only to who asks for it.
#
# Environment: NACRE (binary), ROUNDS (default 3), DISK (folder on a disk, default beside the build; empty for none)
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
NACRE=${NACRE:-${CARGO_TARGET_DIR:-$ROOT/target}/release/nacre}
ROUNDS=${ROUNDS:-3}
BASE=/dev/shm/nacre-tour-$$
POOL=$BASE/tour.pool
MOUNT=$BASE/pool
export LC_ALL=C GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Tour GIT_AUTHOR_EMAIL=tour@example.org
export GIT_COMMITTER_NAME=Tour GIT_COMMITTER_EMAIL=tour@example.org

# What a step wants besides bash and coreutils.
declare -A wants=([unpack]=tar [git]=git [sqlite]=sqlite3 [make]=gcc [small]=/usr/bin/python3 [log]=/usr/bin/python3)
declare -A title=([files]="write, list and read many files" [unpack]="unpack an archive" [git]="add and commit it in git"
    [sqlite]="transactions of a database, synced" [log]="append to a log, synced" [small]="change many small files" [make]="compile and link a program")

# Each step is a shell function that runs in a fresh folder. It prints nothing, or the nanoseconds that count; without them
# all of it counts. `prepare_STEP` makes what the step needs and does not count.
step_files() {
    for i in {1..500}; do echo "file $i" >"f$i"; done
    [[ $(ls | wc -l) == 500 && $(cat f* | wc -l) == 500 ]]
}
prepare_unpack() { cp "$BASE/tree.tar" .; }
step_unpack() { tar -xf tree.tar; }
prepare_git() { tar -xf "$BASE/tree.tar" && git init -q -b main; }
step_git() { git add . && git commit -qm tour; }
step_sqlite() {
    sqlite3 -batch tour.db <"$BASE/rows.sql" >/dev/null
}
step_log() {
    /usr/bin/python3 - <<'PY'
import os, time
fd = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
start = time.monotonic_ns()
for i in range(300):
    os.write(fd, b"one entry of a log, as long as most of them are\n")
    os.fdatasync(fd)
print(time.monotonic_ns() - start)
PY
}
step_small() {
    /usr/bin/python3 - <<'PY'
import os, time
start = time.monotonic_ns()
for i in range(1000):
    fd = os.open(f"f{i}", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * 200)
    os.close(fd)
for i in range(1000):
    os.stat(f"f{i}")
    os.rename(f"f{i}", f"g{i}")
for i in range(1000):
    os.unlink(f"g{i}")
print(time.monotonic_ns() - start)
PY
}
prepare_make() {
    for i in {1..12}; do echo "int part$i(void) { return $i; }" >part$i.c; done
    echo 'int main(void) { return 0; }' >main.c
}
step_make() {
    local part
    for part in *.c; do gcc -c "$part"; done
    gcc -o tour ./*.o && ./tour
}

# step FOLDER STEP ROUNDS: a process of its own; prints the nanoseconds of each round.
if [[ ${1:-} == step ]]; then
    BASE=$TOUR_BASE
    for ((round = 0; round < $4; round++)); do
        mkdir "$2/work" && cd "$2/work"
        ! declare -F "prepare_$3" >/dev/null || "prepare_$3"
        start=$(date +%s%N)
        inner=$("step_$3")
        end=$(date +%s%N)
        echo "${inner:-$((end - start))}"
        cd / && rm -rf "$2/work"
    done
    exit
fi

mkdir -p "$BASE/tmpfs"
DISK=${DISK-$(dirname "$NACRE")}
disk=
if [[ -n $DISK ]]; then
    kind=$(stat -f -c %T "$DISK")
    case $kind in
        tmpfs | ramfs) ;;
        ext2/ext3) kind=ext4 disk=$DISK/nacre-tour-$$ ;;
        *) disk=$DISK/nacre-tour-$$ ;;
    esac
fi
[[ -z $disk ]] || mkdir -p "$disk"
# Each step runs as a process of its own, which has no pool to delete.
trap '[[ ! -e $POOL ]] || "$NACRE" delete --force "$POOL" >/dev/null; rm -rf "$BASE" ${disk:+"$disk"}' EXIT
export HOME=$BASE TOUR_BASE=$BASE

# What steps unpack and insert.
include=/usr/include
[[ -d $include/linux ]] || include=/usr/share
tar -C "$include" -cf "$BASE/tree.tar" $(cd "$include" && ls -d linux asm-generic 2>/dev/null || echo doc)
{
    echo "pragma journal_mode=wal; pragma synchronous=full; create table t(a, b);"
    for i in {1..300}; do echo "insert into t values ($i, hex(randomblob(40)));"; done
} >"$BASE/rows.sql"

once() { # WHERE STEP ROUNDS: prints nanoseconds
    local run=(bash "$0" step)
    case $1 in
        nacre) "$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "${run[@]}" "$MOUNT" "$2" "$3" ;;
        tmpfs) "${run[@]}" "$BASE/tmpfs" "$2" "$3" ;;
        disk) "${run[@]}" "$disk" "$2" "$3" ;;
    esac
}

# Says so and fails if something that a step wants is not installed.
possible() {
    local program
    for program in ${wants[$1]:-}; do
        command -v "$program" >/dev/null && continue
        printf '%-36s skipped: %s is not installed (`make packages` installs all)\n' "${title[$1]}" "${program##*/}"
        return 1
    done
}

best() { sort -n | head -n 1; }
ms() { awk -v ns="$1" 'BEGIN { printf "%.1f", ns / 1e6 }'; }
times() { awk -v a="$1" -v b="$2" 'BEGIN { r = a / b; printf (r < 10 ? "%.2f" : "%.0f"), r }'; }

places=(nacre tmpfs ${disk:+disk})
steps=(files small unpack git sqlite log make)
"$NACRE" create --size 1G "$POOL"
echo
echo "Best of $ROUNDS rounds each, in milliseconds. The pool and tmpfs are in memory${disk:+, $kind is $DISK}."
printf '%-36s %9s %9s %9s   %s\n' step nacre tmpfs "${disk:+$kind}" "${disk:+$kind / nacre}"
against_tmpfs=() against_disk=()
for step in "${steps[@]}"; do
    possible "$step" || continue
    declare -A found=([nacre]='' [tmpfs]='' [disk]='')
    # The first round warms, the places take turns.
    for place in "${places[@]}"; do once "$place" "$step" 1 >/dev/null; done
    for ((round = 0; round < ROUNDS; round++)); do
        for place in "${places[@]}"; do found[$place]+="$(once "$place" "$step" 1) "; done
    done
    for place in "${places[@]}"; do found[$place]=$(tr ' ' '\n' <<<"${found[$place]% }" | best); done
    against_tmpfs+=("$(times "${found[tmpfs]}" "${found[nacre]}")")
    [[ -z $disk ]] || against_disk+=("$(times "${found[disk]}" "${found[nacre]}") ${title[$step]}")
    printf '%-36s %9s %9s %9s   %s\n' "${title[$step]}" "$(ms "${found[nacre]}")" "$(ms "${found[tmpfs]}")" \
        "${disk:+$(ms "${found[disk]}")}" "${disk:+$(times "${found[disk]}" "${found[nacre]}")}"
done
echo
"$NACRE" check "$POOL"

# One sentence that is true here: counted, not promised.
faster() { printf '%s\n' "$@" | awk '$1 > 1 { n++ } END { print n + 0 }'; }
sentence="On this machine, $(faster "${against_tmpfs[@]}") of ${#against_tmpfs[@]} steps took less time on the pool than on tmpfs"
if ((${#against_disk[@]})); then
    read -r most what < <(printf '%s\n' "${against_disk[@]}" | sort -rg | head -n 1)
    sentence+=", and $(faster "${against_disk[@]}") of ${#against_disk[@]} less than on $kind, up to $most times as fast ($what)"
fi
echo "$sentence."
echo "Now yours: $NACRE run bash     (then: cd /nacre)"
