# postmark: many small files created, read, appended to and deleted.
. "$PROGRAMS/expect.sh"
cat >"$SCRATCH/config" <<END
set location $MOUNT
set number 2000
set transactions 20000
set size 500 10000
set subdirectories 20
set seed 42
run
quit
END
postmark "$SCRATCH/config" >"$SCRATCH/out" || fail "postmark: $(cat "$SCRATCH/out")"
cat "$SCRATCH/out"
number() { sed -nE "s/^[[:space:]]*([0-9]+) $1 .*/\1/p" "$SCRATCH/out" | head -n 1; }
created=$(number created) deleted=$(number deleted)
((created > 2000)) || fail "files created: $created"
same "all files are deleted again" "$created" "$deleted"
if grep -qi error "$SCRATCH/out"; then fail "postmark reports errors"; fi
gives "nothing is left" "" ls -A "$MOUNT"
