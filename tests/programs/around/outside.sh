# Files of a pool from outside: rm, mkdir, mv, export, import; list; and what is generated from the command line.
. "$PROGRAMS/expect.sh"

names() {
    note "rm, mkdir, mv"
    "$NACRE" mkdir "$POOL:/a"
    "$NACRE" mkdir -p "$POOL:/a/b/c" "$POOL:/a/b" "$POOL:/"
    refuses "mkdir of one that exists" "exists" "$NACRE" mkdir "$POOL:/a"
    refuses "mkdir without -p" "no such file" "$NACRE" mkdir "$POOL:/x/y"
    seq 1000 >"$SCRATCH/numbers"
    "$NACRE" cp "$SCRATCH/numbers" "$POOL:/a/n"
    "$NACRE" mv "$POOL:/a/n" "$POOL:/a/b/m"
    "$NACRE" mv "$POOL:/a/b/m" "$POOL:/a/b/c"
    gives "moved into a folder" 1000 bash -c "'$NACRE' cat '$POOL:/a/b/c/m' | wc -l"
    "$NACRE" cp "$SCRATCH/numbers" "$POOL:/one"
    refuses "several to a name" "no folder" "$NACRE" mv "$POOL:/one" "$POOL:/a" "$POOL:/two"
    "$NACRE" create --size 32M "$SCRATCH/other" >/dev/null
    refuses "another pool" "nacre cp" "$NACRE" mv "$POOL:/one" "$SCRATCH/other:/"
    refuses "a missing file" "no such file" "$NACRE" mv "$POOL:/none" "$POOL:/two"
    refuses "into itself" "invalid" "$NACRE" mv "$POOL:/a" "$POOL:/a/b"
    refuses "rm of a folder" "-r" "$NACRE" rm "$POOL:/a"
    refuses "rm of what is not there" "no such file" "$NACRE" rm "$POOL:/none"
    refuses "rm of the root" "root folder" "$NACRE" rm -r "$POOL:/"
    gives "ls of several" "$POOL:/a:"$'\nb\n'"$POOL:/one:"$'\n/one' "$NACRE" ls "$POOL:/a" "$POOL:/one"
    gives "the same as JSON" "$POOL:/a b $POOL:/one /one" bash -c "'$NACRE' ls --json '$POOL:/a' '$POOL:/one' |
        python3 -c 'import json, sys; print(*(x for line in json.load(sys.stdin) for x in (line[\"below\"], line[\"path\"])))'"
    refuses "ls of one that is not there" "no such file" "$NACRE" ls "$POOL:/a" "$POOL:/none"
    "$NACRE" rm -f "$POOL:/none"
    "$NACRE" rm -r "$POOL:/a" "$POOL:/one"
    gives "all is gone" "" "$NACRE" ls "$POOL"
    check_pool
}

archives() {
    note "export, import"
    mkdir -p "$SCRATCH/tree/sub/$(printf 'long%.0s' {1..40})/$(printf 'name%.0s' {1..40})"
    head -c 3000000 /dev/urandom >"$SCRATCH/tree/random"
    : >"$SCRATCH/tree/empty"
    truncate -s 5M "$SCRATCH/tree/sparse"
    ln "$SCRATCH/tree/random" "$SCRATCH/tree/sub/again"
    ln -s ../random "$SCRATCH/tree/sub/link"
    ln -s nowhere "$SCRATCH/tree/dangling"
    mkfifo "$SCRATCH/tree/fifo"
    chmod 640 "$SCRATCH/tree/empty"
    chmod 1755 "$SCRATCH/tree/sub"
    touch -d @1234567890.123456789 "$SCRATCH/tree/empty" "$SCRATCH/tree/sub"
    if ((EUID == 0)); then chown 12:34 "$SCRATCH/tree/empty"; fi
    tar --format=posix -C "$SCRATCH/tree" -cf - . | "$NACRE" import "$POOL"
    "$NACRE" export "$POOL" >"$SCRATCH/out.tar"
    mkdir "$SCRATCH/back"
    tar -C "$SCRATCH/back" -xpf "$SCRATCH/out.tar"
    same_tree "in and out again" "$SCRATCH/tree" "$SCRATCH/back"
    gives "holes stay holes" True bash -c "'$NACRE' info --json '$POOL' | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d[\"bytes\"] - d[\"usage\"][\"free_bytes\"] < 24 << 20)'"
    inside python3 -c "import os; os.setxattr('$MOUNT/empty', 'user.colour', b'green')"
    "$NACRE" mkdir "$POOL:/copy"
    "$NACRE" export "$POOL:/sub" | "$NACRE" import "$POOL:/copy"
    "$NACRE" export "$POOL:/empty" | "$NACRE" import "$POOL:/copy"
    gives "extended attributes" green inside python3 -c "import os; print(os.getxattr('$MOUNT/copy/empty', 'user.colour').decode())"
    gives "nanoseconds" 1234567890.123456789 inside stat -c %.9Y "$MOUNT/copy/empty"
    "$NACRE" export -o "$SCRATCH/whole.tar" "$POOL"
    cp "$SCRATCH/whole.tar" "$SCRATCH/before.tar"
    refuses "an output that is full" "the archive: No space left" bash -c '"$0" export "$1" >/dev/full' "$NACRE" "$POOL"
    ! "$NACRE" export -o "$SCRATCH/whole.tar" "$POOL:/none" 2>/dev/null || fail "what is not there was exported"
    cmp "$SCRATCH/before.tar" "$SCRATCH/whole.tar" || fail "an archive is lost"
    same "what is not there is no archive" 0 "$("$NACRE" export "$POOL:/none" 2>/dev/null | wc -c || :)"
    "$NACRE" import -i "$SCRATCH/whole.tar" "$POOL"
    gives "over what is there" 3000000 bash -c "'$NACRE' cat '$POOL:/copy/again' | wc -c"
    "$NACRE" export -o "$SCRATCH/file.tar" "$POOL:/copy"
    gives "from a file" 0 bash -c "'$NACRE' import -i '$SCRATCH/file.tar' '$POOL'; echo \$?"
    check_pool
    bad_archives
}

bad_archives() {
    note "bad archives"
    python3 - "$SCRATCH" <<'PY'
import io, sys, tarfile
def make(name, *entries):
    with tarfile.open(f"{sys.argv[1]}/{name}", "w") as t:
        for kind, path, link in entries:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, link
            if kind == tarfile.REGTYPE: info.size = 1
            t.addfile(info, io.BytesIO(b"x"))
make("up.tar", (tarfile.REGTYPE, "../up", ""))
make("through.tar", (tarfile.SYMTYPE, "l", "copy"), (tarfile.REGTYPE, "l/f", ""))
make("hard.tar", (tarfile.LNKTYPE, "h", "../../etc/passwd"))
make("slash.tar", (tarfile.REGTYPE, "/etc/x", ""))
PY
    refuses "a name that climbs" ".." "$NACRE" import -i "$SCRATCH/up.tar" "$POOL"
    refuses "through a link" "not a directory" "$NACRE" import -i "$SCRATCH/through.tar" "$POOL"
    refuses "a link to nothing" "not there" "$NACRE" import -i "$SCRATCH/hard.tar" "$POOL"
    "$NACRE" import -i "$SCRATCH/slash.tar" "$POOL"
    gives "a slash at the start" x "$NACRE" cat "$POOL:/etc/x"
    refuses "no archive" "tar archive" "$NACRE" import -i "$SCRATCH/numbers" "$POOL"
    head -c 1000000 "$SCRATCH/out.tar" >"$SCRATCH/cut.tar"
    refuses "a cut archive" "broken" "$NACRE" import -i "$SCRATCH/cut.tar" "$POOL"
    refuses "into a file" "not a directory" "$NACRE" import -i "$SCRATCH/numbers" "$POOL:/random"
    check_pool
}

lists() {
    note list
    "$NACRE" run -q --pool "$POOL" --mount "$MOUNT" -- bash -c "cd '$MOUNT'; echo on >'$SCRATCH/up'; exec sleep 100" &
    local holder=$!
    wait_for 10 "the program" bash -c "[[ -s $SCRATCH/up ]] && '$NACRE' list | grep -q sleep"
    contains "list" "$POOL" "$("$NACRE" list)"
    contains "its processes" "sleep at $MOUNT" "$("$NACRE" list)"
    same "list --json" "$MOUNT" "$("$NACRE" list --json | python3 -c "
import json, sys
pool, = [p for p in json.load(sys.stdin) if p['pool'] == '$POOL']
assert '$holder' in [str(p['pid']) for p in pool['processes']]
print(*{m for p in pool['processes'] for m in p['mounts']})")"
    kill -TERM $holder
    wait $holder || same "ended" 143 $?
    [[ $("$NACRE" list) != *"$POOL"* ]] || fail "a pool that nobody uses is listed"
}

generated() {
    note "completions and manual pages"
    "$NACRE" completions bash >"$SCRATCH/complete"
    gives "bash completes" export bash -c ". '$SCRATCH/complete'; COMP_WORDS=(nacre expo); COMP_CWORD=1; _nacre nacre expo nacre; echo \$COMPREPLY"
    "$NACRE" completions zsh | grep -q '#compdef nacre' || fail "zsh"
    "$NACRE" completions fish | grep -q 'complete -c nacre' || fail "fish"
    "$NACRE" man --all "$SCRATCH/man"
    [[ -s $SCRATCH/man/nacre.1 && -s $SCRATCH/man/nacre-run.1 && -s $SCRATCH/man/nacre-export.1 ]] || fail "pages: $(ls "$SCRATCH/man")"
    [[ ! -e $SCRATCH/man/nacre-bench-worker.1 ]] || fail "a page of a hidden command"
    grep -A 2 '^.SH EXAMPLES' "$SCRATCH/man/nacre-run.1" | grep -q '^  nacre run' || fail "the page of run has no example"
    grep -A 2 '^.SH SYNOPSIS' "$SCRATCH/man/nacre-create.1" | grep -q 'create .*DEVICE>\.\.\.$' || fail "its page does not say how create is called"
    [[ -s $SCRATCH/man/nacre-objects-put.1 ]] || fail "no page of a command below another one"
    contains "bench --list" "pread 64 B" "$("$NACRE" bench --list)"
    refuses "a wrong number" "write a whole number" "$NACRE" bench --rounds x
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    names
    archives
    lists
    generated
    note delete
    local out
    out=$("$NACRE" delete --force "$POOL")
    contains "what was removed" "removed $POOL" "$out"
}

main
