# Programs with engines of their own for asynchronous I/O: RocksDB (io_uring), QEMU (native AIO and
# io_uring), node (libuv).
. "$PROGRAMS/expect.sh"
cd "$MOUNT"

note RocksDB
bench=(db_bench --db="$MOUNT/rocks" --num=20000 --value_size=400 --seed=7 --threads=2)
"${bench[@]}" --benchmarks=fillrandom,compact --sync=0 >"$SCRATCH/fill" 2>&1 || fail "$(tail -5 "$SCRATCH/fill")"
"${bench[@]}" --benchmarks=readrandom,multireadrandom --use_existing_db=1 --async_io=1 --multiread_batched=1 \
    --verify_checksum=1 --cache_size=65536 >"$SCRATCH/read" 2>&1 || fail "$(tail -5 "$SCRATCH/read")"
grep -q "^multireadrandom .* of 20000 found" "$SCRATCH/read" || fail "$(grep random "$SCRATCH/read")"
for i in 1 2 3; do ldb --db="$MOUNT/small" --create_if_missing put "key$i" "value$i" >/dev/null; done
gives "ldb scans" $'key1 : value1\nkey2 : value2\nkey3 : value3' ldb --db="$MOUNT/small" scan
contains "checked" "OK" "$(ldb --db="$MOUNT/rocks" checkconsistency)"

note QEMU
for engine in native io_uring threads; do
    if [[ $engine == io_uring ]] && ! printf '6.10\n%s\n' "$(uname -r)" | sort -VC; then
        note "io_uring: skipped, before Linux 6.10"
        continue
    fi
    qemu-img create -q -f qcow2 "$engine.qcow2" 64M
    qemu-io -n -i $engine -f qcow2 "$engine.qcow2" \
        -c 'aio_write -P 17 0 1M' -c 'aio_write -P 18 1M 64k' -c 'aio_write -P 19 8M 2M' -c 'aio_flush' \
        -c 'aio_write -z 8704k 512k' -c 'aio_flush' -c 'flush' >"$SCRATCH/$engine" 2>&1 ||
        fail "$engine: $(cat "$SCRATCH/$engine")"
    qemu-io -n -i $engine -f qcow2 "$engine.qcow2" -c 'aio_read -P 17 0 1M' -c 'aio_read -P 18 1M 64k' \
        -c 'aio_read -P 19 8M 512k' -c 'aio_read -P 0 8704k 512k' -c 'aio_read -P 19 9M 1M' -c aio_flush \
        >"$SCRATCH/$engine" 2>&1 || fail "$engine: $(cat "$SCRATCH/$engine")"
    if grep -qi "failed\|error" "$SCRATCH/$engine"; then fail "$engine: $(cat "$SCRATCH/$engine")"; fi
    qemu-img check -q "$engine.qcow2"
done
qemu-img convert -f qcow2 -O raw native.qcow2 raw
qemu-img compare -q -f raw -F qcow2 raw threads.qcow2

note node
if type node >/dev/null 2>&1; then
    UV_USE_IO_URING=1 node -e '
        const fs = require("fs/promises");
        (async () => {
            const names = [...Array(200).keys()].map((i) => `n${i}`);
            await Promise.all(names.map((name) => fs.writeFile(name, name.repeat(500))));
            const all = await Promise.all(names.map((name) => fs.readFile(name, "utf8")));
            all.forEach((text, i) => { if (text !== names[i].repeat(500)) throw new Error(names[i]); });
            const stats = await Promise.all(names.map((name) => fs.stat(name)));
            console.log(stats.reduce((sum, stat) => sum + stat.size, 0));
            await Promise.all(names.map((name) => fs.unlink(name)));
        })().catch((error) => { console.error(error); process.exit(1); });' >"$SCRATCH/node" || fail node
    same "sizes of what node wrote" 345000 "$(<"$SCRATCH/node")"
fi
