# A pool that somebody hostile filled: what leaves it changes nothing beside its destination, gives
# nobody rights, and says nothing to the terminal.
. "$PROGRAMS/expect.sh"

# under test, in the pool: `filled COMMANDS`
filled() { "$NACRE" run -q --pool "$SCRATCH/h" -- bash -c "cd /nacre && $1"; }
# The control characters of an output but the ends of lines.
controls() { { "$@" 2>&1 || true; } | tr -d '\n -~' | wc -c; }

"$NACRE" create --size 64M "$SCRATCH/h" >/dev/null
cd "$SCRATCH"

note copies that a link waits for
mkdir victim out
echo precious >victim/file
filled "mkdir d; ln -s '$SCRATCH/victim' d/folder; ln -s '$SCRATCH/victim/file' d/file"
"$NACRE" cp -r h:/d out
filled 'rm d/folder d/file; mkdir d/folder; echo hostile >d/folder/new; echo hostile >d/file'
refuses "a folder in place of a link" "out/d/folder" "$NACRE" cp -r h:/d out
same "nothing came through the link of a folder" file "$(ls victim)"
filled 'rm -r d/folder'
"$NACRE" cp -r h:/d out
same "nor through the link of a file" precious "$(cat victim/file)"
same "the file replaced the link" hostile "$(cat out/d/file)"
ln -s victim/file named
"$NACRE" cp h:/d/file named
same "a link that the caller names is followed" hostile "$(cat victim/file)"

note rights
filled 'cp /bin/true s; chmod 6777 s; mkdir sticky; chmod 3777 sticky; echo x >private; chmod 600 private'
"$NACRE" cp -r h:/ rights
same "set-id bits stay behind" "777 777 600" "$(stat -c %a rights/s rights/sticky rights/private | xargs)"
if ((EUID == 0)); then
    "$NACRE" cp -p h:/s kept
    same "owner and bits go together" "6777 0" "$(stat -c '%a %u' kept)"
fi

note control characters
filled 'rm -r d; mkdir names; cd names; n=$(printf "a\033]0;x\007b\nc\302\2330m")
    echo x >"$n"; mkdir "d$n"; ln -s "$n" link; mkfifo "p$n"; echo y >"d$n/x"'
filled 'python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"names/s\\033[2J\")"'
"$NACRE" snapshot h:/names $'s\e[2J' >snapshots
bad=$(printf 'h:/names/none\033[2J')
mkdir copies
for command in "ls h:/names" "ls -l h:/names" "ls -R h:/" "cp -r h:/names copies" \
    "snapshot list h:/names" "cat $bad" "info h" "list" "check h"; do
    # shellcheck disable=SC2086 # words
    same "nacre $command" 0 "$(controls "$NACRE" $command)"
done
same "snapshot" 0 "$(controls cat snapshots)"
same "export" 0 "$("$NACRE" export h:/names 2>&1 >tar | tr -d '\n -~' | wc -c)"
same "--json has the name as it is" True "$("$NACRE" ls --json h:/names |
    python3 -c 'import json, sys; print("a\x1b]0;x\ab\nc\x9b0m" in [it["path"] for it in json.load(sys.stdin)])')"
same "one line for a name" 5 "$("$NACRE" ls h:/names | grep -cv snapshots)"
"$NACRE" run -q --wear --keep --pool h -- bash -c 'cat /nacre/names/a* >/nacre/names/"$(printf "w\033[2J<script>")"' ||
    fail "counting"
hottest=$("$NACRE" wear --hottest=1000 --html page h)
contains "the hottest files" "<script>" "$hottest"
same "wear --hottest" 0 "$(printf %s "$hottest" | tr -d '\n -~' | wc -c)"
same "a page with no script but its own" 1 "$(grep -ci '<script' page)"

note archives
python3 - <<'P'
import io, tarfile
def archive(path, *entries):
    with tarfile.open(path, "w") as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            entry.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"y") if entry.size else None)
FILE, LINK, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
archive("up", ("i/../../up", FILE, ""))
archive("controls", ("i/\x1b[2J/../up", FILE, ""))
archive("absolute", ("/i/absolute", FILE, ""))
archive("through", ("i/out", LINK, "/names"), ("i/out/in", FILE, ""))
archive("hard", ("i/hard", HARD, "../names/link"))
archive("self", ("i/absolute", HARD, "i/absolute"))
P
refuses "a name that climbs" ".." "$NACRE" import -i up h:/
same "its message" 0 "$(controls "$NACRE" import -i controls h:/)"
"$NACRE" import -i absolute h:/
same "an absolute name is one of the pool" y "$("$NACRE" cat h:/i/absolute)"
refuses "a name through a link" "i/out" "$NACRE" import -i through h:/
refuses "a hard link that climbs" "not there" "$NACRE" import -i hard h:/
"$NACRE" import -i self h:/
same "a further name of itself" y "$("$NACRE" cat h:/i/absolute)"
"$NACRE" check h >/dev/null
