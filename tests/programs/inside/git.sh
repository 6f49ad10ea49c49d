# A repository's whole life.
. "$PROGRAMS/expect.sh"
export GIT_CONFIG_NOSYSTEM=1 HOME=$SCRATCH GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git config --global user.name Tester
git config --global user.email tester@example.org
git config --global init.defaultBranch main
git config --global advice.detachedHead false
cd "$MOUNT"

git init -q work
cd work
cp -r /usr/include/linux src
git add .
git commit -qm first
same "clean after a commit" "" "$(git status --porcelain)"
same "all files are tracked" "$(find src -type f | wc -l)" "$(git ls-files | wc -l)"
tree=$(git rev-parse 'HEAD^{tree}')
expected=$(cd "$SCRATCH" && git init -q twin && cd twin && cp -r /usr/include/linux src && git add . && git write-tree)
same "same tree id as on the host" "$expected" "$tree"

note change, branch, merge
echo change >>src/fs.h
same "a change is seen" " M src/fs.h" "$(git status --porcelain)"
git commit -qam second
git checkout -qb topic HEAD~1
echo topic >topic.txt
git mv src/stat.h src/status.h
git add . && git commit -qm topic
git checkout -q main
git merge -q --no-edit topic
[[ -f topic.txt && -f src/status.h && ! -e src/stat.h ]] || fail "merge"
same "merge has two parents" 2 "$(git show -s --format=%P | wc -w)"
same "history" 4 "$(git rev-list --count HEAD)"
for i in $(seq 20); do
    echo "$i" >>log.txt
    git add log.txt
    git commit -qm "step $i"
done
git rebase -q HEAD~3
same "after 20 commits" 24 "$(git rev-list --count HEAD)"
git stash list >/dev/null
echo dirty >>log.txt
git stash -q && same "stashed" "" "$(git status --porcelain)" && git stash pop -q
git checkout -q -- log.txt

note conflict
git checkout -qb left && sed -i '1s/.*/left/' log.txt && git commit -qam left
git checkout -q main && sed -i '1s/.*/right/' log.txt && git commit -qam right
if git merge -q left >/dev/null 2>&1; then fail "a conflict must be reported"; fi
grep -q '^<<<<<<<' log.txt || fail "conflict markers"
git merge --abort

note maintenance
git tag -a v1 -m one
git gc -q --prune=now
same "loose objects are gone" 0 "$(git count-objects | cut -d' ' -f1)"
git fsck --full --strict >"$SCRATCH/fsck" 2>&1 || fail "fsck: $(cat "$SCRATCH/fsck")"
git repack -adq && git prune && git reflog expire --expire=now --all
git bisect start HEAD HEAD~12 >/dev/null
git bisect run bash -c '! grep -qx 15 log.txt' >"$SCRATCH/bisect" 2>&1 || true
same "bisect" "step 15" "$(git show -s --format=%s refs/bisect/bad)"
git bisect reset >/dev/null 2>&1

note clones
cd ..
git clone -q work clone
git clone -q --no-hardlinks "file://$MOUNT/work" packed
git clone -q --bare work bare.git
same "clone has the same head" "$(git -C work rev-parse HEAD)" "$(git -C clone rev-parse HEAD)"
diff -r --exclude=.git work clone || fail "clone differs"
git -C clone commit -q --allow-empty -m pushed
git -C clone push -q "$MOUNT/bare.git" HEAD:main
same "push arrived" "$(git -C clone rev-parse HEAD)" "$(git -C bare.git rev-parse main)"
git -C packed pull -q "$MOUNT/bare.git" main
same "pull arrived" "$(git -C clone rev-parse HEAD)" "$(git -C packed rev-parse HEAD)"
git -C bare.git fsck --full 2>/dev/null
git -C work worktree add -q ../tree v1
diff -r --exclude=.git tree/src work/src || fail "worktree differs"
git clone -q "$MOUNT/bare.git" "$SCRATCH/outside"
git -C "$SCRATCH/outside" fsck --full 2>/dev/null
git -C work archive HEAD | tar -tf - | grep -cx topic.txt >/dev/null || fail "archive"
git -C work grep -q pushed HEAD~1 || true
git -C work clean -qxdf
same "still clean" "" "$(git -C work status --porcelain)"
