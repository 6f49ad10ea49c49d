#!/bin/bash
# A tour: real programs on a pool and on kernel tmpfs, what they did and how long it took.
# The pool is durable when a call returns as far as its device is; tmpfs never promises that.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
NACRE=${NACRE:-${CARGO_TARGET_DIR:-$ROOT/target}/release/nacre}
BASE=/dev/shm/nacre-tour-$$
POOL=$BASE/tour.pool
MOUNT=/nacre
export LC_ALL=C GIT_CONFIG_NOSYSTEM=1 HOME=$BASE

mkdir -p "$BASE/tmpfs"
# Each step runs as a process of its own, which has no pool to delete.
trap '[[ ! -e $POOL ]] || "$NACRE" delete --force "$POOL" >/dev/null; rm -rf "$BASE"' EXIT
export GIT_AUTHOR_NAME=Tour GIT_AUTHOR_EMAIL=tour@example.org
export GIT_COMMITTER_NAME=Tour GIT_COMMITTER_EMAIL=tour@example.org

# What a step wants besides bash and coreutils.
declare -A wants=([tar]=gzip [git]=git [sqlite]=sqlite3 [python]=/usr/bin/python3 [make]=gcc
    [randwrite]="fio /usr/bin/python3" [randread]="fio /usr/bin/python3")

# Each step is a shell function that runs in the folder to be measured and prints one line.
step_files() {
    mkdir files && cd files
    for i in $(seq 500); do echo "file $i" >"f$i"; done
    echo "$(ls -l | grep -c '^-') files written, listed, $(cat f* | wc -l) lines read"
}
step_tar() {
    tar -C /usr/include -cf - linux asm-generic | tar -xf -
    tar -czf tree.tgz linux
    echo "$(find linux -type f | wc -l) files unpacked, packed again into $(stat -c %s tree.tgz) bytes"
}
step_git() {
    git init -q -b main repo && cd repo && cp -r ../linux . && git add . && git commit -qm tour && git gc -q
    git fsck --full 2>/dev/null
    echo "$(git ls-files | wc -l) files committed, packed and verified"
}
step_sqlite() {
    { echo "pragma journal_mode=wal; pragma synchronous=full; create table t(a, b);"
        for i in $(seq 5000); do echo "insert into t values ($i, hex(randomblob(40)));"; done
        echo "select count(*) || ' rows in as many transactions, integrity ' || (select * from pragma_integrity_check) from t;"
    } | sqlite3 -batch tour.db | tail -n 1
}
step_python() {
    /usr/bin/python3 -c '
import mmap, os, zipfile
with zipfile.ZipFile("tour.zip", "w") as z:
    for name in sorted(os.listdir("linux"))[:200]:
        if os.path.isfile("linux/" + name): z.write("linux/" + name)
with open("map", "w+b") as f:
    f.truncate(1 << 24)
    with mmap.mmap(f.fileno(), 0) as m:
        for at in range(0, 1 << 24, 4096): m[at] = 1
    print(len(zipfile.ZipFile("tour.zip").namelist()), "files zipped,", sum(f.read()), "pages written through a mapping")
'
}
step_make() {
    mkdir c && cd c
    for i in $(seq 30); do echo "int part$i(void) { return $i; }" >part$i.c; done
    printf '#include <stdio.h>\nint main(void) { puts("a program compiled, linked and run"); }\n' >main.c
    printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c)) ; @gcc -o tour $^\n.SUFFIXES: .c .o\n.c.o: ; @gcc -c -o $@ $<\n' >Makefile
    make -s all && ./tour
}
step_fio() {
    fio --name=tour --filename=fio --size=64M --bs=4k --rw="$1" --ioengine=psync --runtime=3 --time_based \
        --output-format=json --allow_file_create=1 2>/dev/null |
        /usr/bin/python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
print(int(max(job["read"]["iops"], job["write"]["iops"])), "IOPS of 4 KiB")'
}
step_randwrite() { step_fio randwrite; }
step_randread() { step_fio randread; }

if [[ ${1:-} == step ]]; then
    cd "$2"
    "step_$3"
    exit
fi

show() { printf '%-10s %-72s %8s %8s\n' "$@"; }

measure() { # WHERE STEP: prints "seconds<TAB>what it did"
    local start end out
    local run=(bash "$0" step)
    start=$(date +%s%N)
    if [[ $1 == nacre ]]; then
        out=$("$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- "${run[@]}" "$MOUNT" "$2")
    else
        out=$("${run[@]}" "$BASE/tmpfs" "$2")
    fi
    end=$(date +%s%N)
    printf '%s\t%s\n' "$(((end - start) / 1000000))" "$out"
}

# Says so and fails if something that a step wants is not installed.
possible() {
    local program
    for program in ${wants[$1]:-}; do
        command -v "$program" >/dev/null && continue
        show "$1" "skipped, ${program##*/} is not installed (\`make packages\` installs all)" "" ""
        return 1
    done
}

"$NACRE" create --size 1G "$POOL"
echo
show step "what it did on the pool" "ms" "tmpfs"
for step in files tar git sqlite python make; do
    possible "$step" || continue
    IFS=$'\t' read -r pool what < <(measure nacre "$step")
    IFS=$'\t' read -r tmpfs _ < <(measure tmpfs "$step")
    show "$step" "$what" "$pool" "$tmpfs"
done
for step in randwrite randread; do
    possible "$step" || continue
    IFS=$'\t' read -r _ pool < <(measure nacre "$step")
    IFS=$'\t' read -r _ tmpfs < <(measure tmpfs "$step")
    ratio=$(awk -v a="${pool%% *}" -v b="${tmpfs%% *}" 'BEGIN { if (b > 0) printf "%.2f", a / b; else print "-" }')
    show "$step" "fio: $pool; tmpfs ${tmpfs%% *}; ratio" "$ratio" ""
done
echo
"$NACRE" check "$POOL"
echo "Now yours: $NACRE run -- bash     (then: cd /nacre)"
