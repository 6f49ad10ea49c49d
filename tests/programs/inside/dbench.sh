# dbench: the recorded file operations of an office's file server, by four clients.
. "$PROGRAMS/expect.sh"
# The first semaphore after a boot has the id 0, which dbench takes for a failure: it is not to get that one.
ipcrm -s "$(ipcmk -S 1 | grep -o '[0-9]*$')" || fail "no semaphore can be made"
mkdir "$MOUNT/dbench"
dbench -D "$MOUNT/dbench" -c /usr/share/dbench/client.txt -t "${DBENCH_SECONDS:-5}" 4 >"$SCRATCH/out" 2>&1 ||
    fail "dbench: $(tail -n 20 "$SCRATCH/out")"
tail -n 2 "$SCRATCH/out"
operations=$(awk '$1 == "NTCreateX" { print $2 }' "$SCRATCH/out")
((operations > 1000)) || fail "only $operations files were opened: $(cat "$SCRATCH/out")"
if grep -qiE "fail|error|No such" "$SCRATCH/out"; then fail "dbench reports errors: $(grep -iE "fail|error|No such" "$SCRATCH/out" | head -n 5)"; fi
