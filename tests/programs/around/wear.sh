# Emulation and wear: every process of a run is counted and delayed; counters belong to their pool and can be reset.
. "$PROGRAMS/expect.sh"

count() {
    "$NACRE" wear --json "$POOL" | python3 -c "import json,sys; r=json.load(sys.stdin); print($1)"
}

main() {
    [[ -z ${BASELINE:-} ]] || { note "nothing to compare with"; return; }
    refuses "wear of what was never counted" "nacre run --wear" "$NACRE" wear "$POOL"
    refuses "an unknown profile" "optane-100, optane-interleaved-6" \
        "$NACRE" run --quiet --emulate optan --pool "$POOL" -- true
    sed 's/^line = 256/line = 250/' <("$NACRE" model --show optane-100) >"$SCRATCH/odd.toml"
    refuses "a profile with nonsense" "media.line is 250" \
        "$NACRE" run --quiet --emulate "$SCRATCH/odd.toml" --pool "$POOL" -- true
    refuses "an odd granularity" "power of two" "$NACRE" run --quiet --wear=100 --pool "$POOL" -- true

    note "each device of a pool may be another one"
    local one=$SCRATCH/one two=$SCRATCH/two
    "$NACRE" create --stripe 4K --size 32M "$one" "$two" >/dev/null
    "$NACRE" run --quiet --emulate none --emulate "$two=pcm" --wear --pool "$one" --mount "$MOUNT" -- \
        bash -c "head -c 1M /dev/zero >$MOUNT/a"
    same "bytes of data on both" $((1 << 20)) "$(POOL=$one count "r['kinds'][0]['bytes']")"
    refuses "a device of another pool" "no device of a pool that is used" \
        "$NACRE" run --quiet --emulate "$POOL=pcm" --pool "$one" -- true
    refuses "a device that is not there" "there is no $one.gone" \
        "$NACRE" run --quiet --emulate "$one.gone=pcm" --pool "$one" -- true
    refuses "two for all" "one for all devices is enough" \
        "$NACRE" run --quiet --emulate pcm --emulate dram --pool "$one" -- true

    note "two processes write 1 MiB each"
    "$NACRE" run --quiet --emulate pcm --wear --pool "$POOL" --mount "$MOUNT" -- bash -c \
        "head -c 1M /dev/zero >$MOUNT/a & head -c 1M /dev/zero >$MOUNT/b; wait"
    same "bytes of data" $((2 << 20)) "$(count "r['kinds'][0]['bytes']")"
    same "granules of data" 512 "$(count "r['kinds'][0]['spread']['granules_written']")"
    same "a lifetime is projected" True "$(count "r['lifetime_seconds'] > 0")"
    "$NACRE" wear --csv "$SCRATCH/before.csv" --svg "$SCRATCH/w.svg" --html "$SCRATCH/w.html" "$POOL" >/dev/null
    grep -q '</svg>' "$SCRATCH/w.svg" || fail "no picture"

    note "what runs without --wear is not counted"
    "$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- bash -c "head -c 1M /dev/zero >$MOUNT/c"
    same "bytes of data" $((2 << 20)) "$(count "r['kinds'][0]['bytes']")"

    note "the next count starts from zero and can be compared"
    "$NACRE" run --quiet --wear --pool "$POOL" --mount "$MOUNT" -- bash -c "head -c 4K /dev/zero >$MOUNT/d"
    same "bytes of data" 4096 "$(count "r['kinds'][0]['bytes']")"
    "$NACRE" wear --before "$SCRATCH/before.csv" "$POOL" | grep '^all *before' >/dev/null || fail "no comparison"
    "$NACRE" wear --png "$SCRATCH/w.png" "$POOL" >/dev/null
    head -c 8 "$SCRATCH/w.png" | grep -q PNG || fail "no PNG"

    note "one command makes a page of heat maps"
    "$NACRE" run --quiet --wear-html "$SCRATCH/one.html" --pool "$POOL" --mount "$MOUNT" -- bash -c "head -c 8K /dev/zero >$MOUNT/e"
    grep -q '</svg>' "$SCRATCH/one.html" || fail "no page"
    same "bytes of data" 8192 "$(count "r['kinds'][0]['bytes']")"
    refuses "a page that cannot be written" "/nowhere/w.html" \
        "$NACRE" run --quiet --wear-html /nowhere/w.html --pool "$POOL" -- true

    note "the hottest places have the names of their files"
    "$NACRE" run --quiet --wear=256 --pool "$POOL" --mount "$MOUNT" -- bash -c \
        "for i in {1..60}; do printf %0300d \$i | dd of=$MOUNT/hot bs=300 seek=30 conv=notrunc status=none; done
        echo >$MOUNT/cold"
    # Bytes 9000 to 9300 of the file: the granules from 8960 and from 9216 on.
    "$NACRE" wear --hottest=100000 "$POOL" >"$SCRATCH/hottest"
    same "the hottest files" "/hot at 8960 /hot at 9216" \
        "$(sed -nE 's/^ +0x[0-9a-f]+( +[0-9]+){3}  //p' "$SCRATCH/hottest" | head -2 | paste -sd' ')"
    grep -E ' +1 +0 +0  /cold at 0$' "$SCRATCH/hottest" >/dev/null || fail "/cold was not named"
    "$NACRE" wear --csv "$SCRATCH/now.csv" --html "$SCRATCH/hot.html" --hottest=4 "$POOL" >/dev/null
    grep '/hot at 8960' "$SCRATCH/hot.html" >/dev/null || fail "the page names no file"
    same "JSON with places and earlier counts" "/hot at 8960 True" "$("$NACRE" wear --json --hottest=1 \
        --before "$SCRATCH/now.csv" "$POOL" | python3 -c "import json, sys; r = json.load(sys.stdin); \
        print(r['hottest'][0]['holds'], r['before'][3]['spread'] == r['all'])")"
    refuses "what is no number" "12x" "$NACRE" wear --hottest=12x "$POOL"

    note "counts that are kept go on, and survive a restart"
    "$NACRE" wear --reset "$POOL"
    local run
    for run in 1 2; do
        "$NACRE" run --quiet --wear --keep --pool "$POOL" --mount "$MOUNT" -- bash -c "head -c 4K /dev/zero >$MOUNT/d"
    done
    same "bytes of data" 8192 "$(count "r['kinds'][0]['bytes']")"
    mv "$POOL.wear" "$SCRATCH/kept"
    "$NACRE" wear --reset "$POOL"
    mv "$SCRATCH/kept" "$POOL.wear"
    same "bytes of data that were kept" 8192 "$(count "r['kinds'][0]['bytes']")"
    "$NACRE" run --quiet --wear --keep --pool "$POOL" --mount "$MOUNT" -- bash -c "head -c 4K /dev/zero >$MOUNT/d"
    same "bytes of data" 12288 "$(count "r['kinds'][0]['bytes']")"
    refuses "another granularity" "granularity is 4096" \
        "$NACRE" run --quiet --wear=256 --keep --pool "$POOL" -- true
    "$NACRE" create --size 64M "$POOL.other" >/dev/null
    cp "$POOL.wear" "$POOL.other.wear"
    refuses "counters of another pool" "of another pool" \
        "$NACRE" run --quiet --wear --keep --pool "$POOL.other" -- true
    refuses "counters of another pool" "of another pool" "$NACRE" wear "$POOL.other"
    rm -f "$POOL.other.wear"
    "$NACRE" delete --force "$POOL.other"
    "$NACRE" wear --reset "$POOL"
    refuses "wear after a reset" "nacre run --wear" "$NACRE" wear "$POOL"
}

main
