# The everyday tools, each with its effect checked.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"

note make a tree
mkdir -p -m 750 tree/sub/deep tree/empty
seq 1 1000 >tree/numbers
head -c 300000 /dev/urandom >tree/random
printf 'hello\n' >tree/sub/hello
ln tree/sub/hello tree/sub/hard
ln -s hello tree/sub/soft
ln -s /etc/hostname tree/sub/host
ln -s ../../nowhere tree/sub/dangling
touch -d '2001-02-03 04:05:06.123456789' tree/sub/deep/old
truncate -s 1M tree/sub/deep/sparse
mkfifo tree/fifo
same "nanoseconds are kept" "2001-02-03 04:05:06.123456789 +0000" "$(stat -c %y tree/sub/deep/old)"
same "mode of mkdir -m" 750 "$(stat -c %a tree/sub/deep)"
same "links" "2 2" "$(stat -c %h tree/sub/hello tree/sub/hard | paste -sd' ')"
same "same inode" "$(stat -c %i tree/sub/hello)" "$(stat -c %i tree/sub/hard)"
same "sub-folders count as links" 4 "$(stat -c %h tree)"
same "sparse" "1048576 0" "$(stat -c '%s %b' tree/sub/deep/sparse)"
same "types" "fifo symbolic link directory regular file" \
    "$(stat -c %F tree/fifo tree/sub/soft tree/empty tree/numbers | paste -sd' ')"
gives "readlink" hello readlink tree/sub/soft
gives "realpath" "$MOUNT/tree/sub/hello" realpath tree/sub/soft
gives "readlink -m over a dangling link" "$MOUNT/nowhere" readlink -m tree/sub/dangling

note ls
same "ls" "empty fifo numbers random sub" "$(ls tree | paste -sd' ')"
same "ls -a" ". .. empty fifo numbers random sub" "$(ls -a tree | paste -sd' ')"
ls -lR tree >ls.out
same "ls -lR lists all" 13 "$(grep -cE '^[-dlp][r-]' ls.out)"
contains "ls -l shows link targets" "soft -> hello" "$(cat ls.out)"
contains "ls -l of a link out of the pool" "host -> /etc/hostname" "$(cat ls.out)"
same "ls -i agrees with stat" "$(stat -c %i tree/numbers)" "$(ls -i tree/numbers | awk '{print $1}')"
same "ls -t" old "$(ls -t tree/sub/deep | tail -n 1)"
same "ls --full-time" 1 "$(ls --full-time tree/sub/deep | grep -c '2001-02-03 04:05:06.123456789')"
ls -laZ tree >/dev/null 2>&1 || fail "ls -laZ"

note find, du, df
same "find by type" "3 4 4" "$(find tree -type l | wc -l) $(find tree -type d | wc -l) $(find tree -type f -size -8k | wc -l)"
same "find -newer" "" "$(find tree/sub/deep/old -newer tree/numbers)"
same "find -links" "tree/sub/hard tree/sub/hello" "$(find tree -type f -links 2 | sort | paste -sd' ')"
same "find -inum" 2 "$(find tree -inum "$(stat -c %i tree/sub/hello)" | wc -l)"
same "find -exec" 1000 "$(find tree -name numbers -exec cat {} + | wc -l)"
same "find -printf" "d750" "$(find tree/sub/deep -maxdepth 0 -printf '%y%m')"
same "du of a file" 296 "$(du -k tree/random | cut -f1)"
same "du --apparent-size" 300000 "$(du -b tree/random | cut -f1)"
same "du counts hard links once" "$(du -k tree/sub/hello | cut -f1)" "$(du -ck tree/sub/hello tree/sub/hard | tail -n 1 | cut -f1)"
df -k "$MOUNT" >df.out
same "df has one line for the mount" 2 "$(wc -l <df.out)"
df -i . >/dev/null || fail "df -i"
read -r blocks free < <(stat -f -c '%b %f' "$MOUNT")
((blocks > 0 && free > 0 && free <= blocks)) || fail "statfs: $blocks blocks, $free free"
before=$(stat -f -c %f "$MOUNT")
head -c 8M /dev/zero >eight
after=$(stat -f -c %f "$MOUNT")
(((before - after) * $(stat -f -c %S "$MOUNT") >= 8 << 20)) || fail "free space shrinks by what is written"
rm eight

note cp, mv, ln, install
cp -a tree copy
same_tree "cp -a" tree copy
same "cp -a keeps times" "$(stat -c '%y %a' tree/sub/deep/old)" "$(stat -c '%y %a' copy/sub/deep/old)"
same "cp -a keeps hard links" "$(stat -c %i copy/sub/hello)" "$(stat -c %i copy/sub/hard)"
same "cp -a keeps holes" 0 "$(stat -c %b copy/sub/deep/sparse)"
cp -a tree "$SCRATCH/out"
same_tree "copy out of the pool" tree "$SCRATCH/out"
cp -a "$SCRATCH/out" back
same_tree "copy into the pool" tree back
cp tree/numbers copy/empty/
cp -l tree/random copy/linked
same "cp -l" "$(stat -c %i tree/random)" "$(stat -c %i copy/linked)"
rm copy/linked
cp --reflink=auto tree/random copy/reflinked
cmp tree/random copy/reflinked
cp -u tree/numbers copy/numbers
cp --remove-destination tree/sub/hello copy/numbers
gives "cp --remove-destination" hello cat copy/numbers
cp --backup=numbered tree/random copy/numbers
gives "cp --backup" hello cat copy/numbers.~1~
mv copy/numbers moved
mv moved copy/sub/
cmp tree/random copy/sub/moved
mv copy renamed
[[ -d renamed && ! -e copy ]] || fail "mv of a directory"
mv -T back renamed2
mv renamed2 renamed/inside
mv renamed/inside "$SCRATCH/moved-out"
same_tree "mv out of the pool" tree "$SCRATCH/moved-out"
mv "$SCRATCH/moved-out" in
same_tree "mv into the pool" tree in
refuses "mv into itself" "subdirectory of itself" mv in in/sub
mv -n tree/numbers renamed/sub/moved
[[ -e tree/numbers ]] || fail "mv -n must not overwrite"
refuses "ln over a name" "File exists" ln tree/numbers tree/random
refuses "ln of a directory" "hard link not allowed" ln tree dirlink
ln -sf numbers tree/again; ln -sfn random tree/again
gives "ln -sf" random readlink tree/again
ln -sr tree/sub/hello relative
gives "ln -sr" tree/sub/hello readlink relative
install -D -m 4711 tree/random bin/tool
same "install -D -m" 4711 "$(stat -c %a bin/tool)"
install -d -m 1777 sticky
same "install -d" 1777 "$(stat -c %a sticky)"

note modes, owners, times
chmod -R g+w,o-rwx tree
same "chmod -R" 770 "$(stat -c %a tree/sub)"
chmod 2755 tree/empty; mkdir tree/empty/child
same "setgid is inherited" 2755 "$(stat -c %a tree/empty/child)"
if ((EUID == 0)); then
    chown -R 1234:4321 tree/sub
    same "chown -R" "1234 4321" "$(stat -c '%u %g' tree/sub/deep)"
    chown -h 7:8 tree/sub/soft
    same "chown -h" "7 8" "$(stat -c '%u %g' tree/sub/soft)"
    chmod 6755 bin/tool; chown 5:5 bin/tool
    same "chown clears setuid" 755 "$(stat -c %a bin/tool)"
fi
touch -r tree/sub/deep/old tree/random
same "touch -r" "$(stat -c %Y tree/sub/deep/old)" "$(stat -c %Y tree/random)"
touch -a -d @1000000000 tree/random
same "touch -a" 1000000000 "$(stat -c %X tree/random)"
touch -h -d @1 tree/sub/dangling
same "touch -h" 1 "$(stat -c %Y tree/sub/dangling)"
touch -c nothing; [[ ! -e nothing ]] || fail "touch -c"

note contents
same "head and tail" "1 1000" "$(head -n 1 tree/numbers) $(tail -n 1 tree/numbers)"
same "tail -c" 00 "$(tail -c 3 tree/numbers | tr -d '\n')"
same "tac" 1000 "$(tac tree/numbers | sed -n 1p)"
sort -rn -o sorted tree/numbers; same "sort -o" 1000 "$(head -n 1 sorted)"
sort -n --parallel=2 -S 64K -T "$MOUNT" sorted -o sorted; cmp sorted tree/numbers
split -l 100 -d tree/numbers part.; same "split" 10 "$(ls part.* | wc -l)"
cat part.* | cmp - tree/numbers
split -b 65536 tree/random piece.; cat piece.* | cmp - tree/random
csplit -s tree/numbers 500 '{0}'; same "csplit" 499 "$(wc -l <xx00)"
dd if=tree/random of=dd.out bs=777 status=none; cmp tree/random dd.out
dd if=tree/random of=dd.out bs=4096 skip=3 seek=5 count=2 conv=notrunc status=none
cmp <(dd if=tree/random bs=4096 skip=3 count=2 status=none) <(dd if=dd.out bs=4096 skip=5 count=2 status=none)
dd if=tree/random of=direct bs=4096 oflag=direct count=4 status=none; same "O_DIRECT" 16384 "$(stat -c %s direct)"
dd if=/dev/zero of=synced bs=512 count=3 oflag=sync,append conv=notrunc status=none; same "O_SYNC" 1536 "$(stat -c %s synced)"
truncate -s 100 dd.out; same "truncate" 100 "$(stat -c %s dd.out)"
truncate -s +5M dd.out; same "extend" 5242980 "$(stat -c %s dd.out)"
same "extension reads as zeros" 0 "$(tail -c +101 dd.out | tr -d '\0' | wc -c)"
fallocate -l 1M fa; same "fallocate" "1048576 2048" "$(stat -c '%s %b' fa)"
yes 0123456 | head -c 1M >fa || true
fallocate -p -o 4096 -l 8192 fa; same "punched" "$((2048 - 16))" "$(stat -c %b fa)"
same "hole reads as zeros" 0 "$(dd if=fa bs=4096 skip=1 count=2 status=none | tr -d '\0' | wc -c)"
same "rest is untouched" "$((1048576 - 8192))" "$(tr -d '\0' <fa | wc -c)"
md5sum tree/numbers tree/random >sums; md5sum -c --quiet sums
sha256sum tree/random | sha256sum -c --quiet
paste -d, tree/numbers tree/numbers | tail -n 1 | grep -qx 1000,1000 || fail "paste"
shuf tree/numbers | sort -n | cmp - tree/numbers
wc tree/numbers | grep -q '1000 *1000 *3893' || fail "wc"
od -An -tx1 -N4 tree/numbers | grep -q '31 0a 32 0a' || fail "od"
same 'cut and uniq' 28 "$(cut -c1 tree/numbers | uniq | wc -l)"
sed -i 's/^1000$/thousand/' tree/numbers; same "sed -i" thousand "$(tail -n 1 tree/numbers)"
grep -rl thousand tree | grep -qx tree/numbers || fail "grep -r"
xargs -a part.00 -n 10 echo | wc -l | grep -qx 10 || fail "xargs"
shred -n 1 -u part.00; [[ ! -e part.00 ]] || fail "shred -u"
sync tree/random; sync -f tree
mktemp -p "$MOUNT" file.XXXXXX >/dev/null; mktemp -d -p "$MOUNT" dir.XXXXXX >/dev/null
timeout 5 tail -f -n 1 tree/numbers --pid=$$ >/dev/null 2>&1 & tailing=$!
kill $tailing; wait $tailing || true
cat tree/numbers >copied; cat copied copied >>twice; same "cat" 2000 "$(wc -l <twice)"
refuses "cat onto itself" "input file is output file" bash -c 'cat copied >>copied'
refuses "rmdir of a full folder" "not empty" rmdir tree
refuses "missing" "No such file" cat nothing
refuses "not a folder" "Not a directory" cat copied/x
refuses "is a folder" "Is a directory" cat tree
refuses "long name" "File name too long" touch "$(printf 'n%.0s' $(seq 256))"
touch "$(printf 'n%.0s' $(seq 255))" $'tab\tand\nnewline' 'ü — 雪' ' ' '*'
same "odd names" 3 "$(find . -maxdepth 1 \( -name '[*]' -o -name ' ' -o -name 'ü*' \) | wc -l)"

note many files
mkdir many
(cd many && seq 1 5000 | xargs touch)
same "5000 files" 5000 "$(ls many | wc -l)"
(cd many && ls | sed -n 1,2500p | xargs rm)
same "2500 remain" 2500 "$(find many -type f | wc -l)"
rm -rf many
[[ ! -e many ]] || fail "rm -rf"
cd /
find "$MOUNT" -mindepth 1 -delete
gives "all removed" "" ls -A "$MOUNT"
