# Kyoto Cabinet and Tokyo Cabinet, stores that map their files, by their own tests: threads that do
# everything at random, transactions, a file or a folder of many files. And killed while they write.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
quiet() { "$@" >"$SCRATCH/out" 2>&1 || fail "$*: $(tail -5 "$SCRATCH/out")"; }

note Kyoto Cabinet
quiet kchashtest wicked -th 2 -it 2 wicked.kch 5000
quiet kchashtest tran -th 2 -it 2 -hard tran.kch 300
quiet kctreetest wicked -th 2 -it 2 wicked.kct 3000
quiet kcdirtest wicked -th 2 wicked.kcd 500
quiet kcforesttest tran -hard tran.kcf 50

note Tokyo Cabinet
quiet tchmttest wicked wicked.tch 4 5000
quiet tcbmttest wicked wicked.tcb 4 5000
quiet tcttest wicked wicked.tct 2000

note killed in synced transactions, each batch whole or not there
for ((number = 1; number <= 6000; number++)); do printf 'key%d\tvalue%d\n' $number $number; done >"$SCRATCH/records"
kctreemgr create kept.kct
for round in 1 2 3 4 5 6; do
    lines=$((round * 1000))
    head -n $lines "$SCRATCH/records" >"$SCRATCH/part"
    quiet kctreemgr import kept.kct "$SCRATCH/part"
    rm -f killed.kct*
    kctreetest tran -it 1000 -hard killed.kct 2000 >/dev/null 2>&1 &
    writer=$!
    # Until it is at work, whenever that is.
    wait_for 20 "the writer" test -s killed.kct
    kill -KILL $writer
    wait $writer 2>/dev/null || true
    quiet kctreemgr check killed.kct
    quiet kctreemgr check kept.kct
    same "records" $lines "$(kctreemgr list kept.kct | wc -l)"
done
same "what was imported" "$(sort "$SCRATCH/records")" "$(kctreemgr list -pv kept.kct | sort)"
