# fio: engines psync, sync, mmap, libaio, io_uring; threads and processes; contents verified by CRC-32C.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"

job() { # NAME OPTIONS...
    local name=$1
    shift
    note "$name: $*"
    fio --name="$name" --directory="$MOUNT" --output-format=json --output="$SCRATCH/$name.json" \
        --size=16M --bs=4k --randseed=7 --verify=crc32c --verify_fatal=1 --do_verify=1 --fallocate=none "$@" ||
        fail "$name: $(tail -n 20 "$SCRATCH/$name.json")"
    /usr/bin/python3 - "$SCRATCH/$name.json" <<'END' || fail "$name: wrong totals"
import json, sys
text = open(sys.argv[1]).read()
jobs = json.loads(text[text.index("{"):])["jobs"]
for job in jobs:
    assert job["error"] == 0, job["error"]
    assert job["write"]["io_bytes"] > 0
    assert job["read"]["io_bytes"] >= job["write"]["io_bytes"], "was not verified"
END
    rm -f "$MOUNT/$name".*
}

for engine in psync sync mmap; do
    job "$engine-seq" --ioengine=$engine --rw=write
    job "$engine-rand" --ioengine=$engine --rw=randwrite
    job "$engine-threads" --ioengine=$engine --rw=randwrite --numjobs=4 --thread --size=4M
    job "$engine-processes" --ioengine=$engine --rw=randwrite --numjobs=4 --size=4M
done
rings=libaio
if printf '6.10\n%s\n' "$(uname -r)" | sort -VC && [[ $(cat /proc/sys/kernel/io_uring_disabled) == 0 ]]; then
    rings+=' io_uring'
    job uring-registered --ioengine=io_uring --fixedbufs --registerfiles --iodepth=32 --rw=randwrite
else
    note "io_uring: skipped, this kernel has none that Nacre can serve (Linux 6.10)"
fi
for engine in $rings; do
    job "$engine-rand" --ioengine=$engine --iodepth=16 --rw=randwrite
    job "$engine-batches" --ioengine=$engine --iodepth=32 --iodepth_batch=8 --rw=randwrite --bsrange=512-64k
    job "$engine-threads" --ioengine=$engine --iodepth=8 --rw=randwrite --numjobs=4 --thread --size=4M
    job "$engine-processes" --ioengine=$engine --iodepth=8 --rw=randwrite --numjobs=4 --size=4M --fsync=16
done
job libaio-reaped-from-the-ring --ioengine=libaio --userspace_reap --iodepth=16 --rw=randwrite
job sizes --ioengine=psync --rw=randwrite --bsrange=512-128k
job fsync --ioengine=psync --rw=randwrite --fsync=8 --size=4M
job direct --ioengine=psync --rw=randwrite --direct=1
job osync --ioengine=psync --rw=write --sync=1 --size=4M
job vectors --ioengine=pvsync --rw=randwrite --size=4M
job preallocated --ioengine=psync --rw=randwrite --fallocate=posix

note one file, several jobs
fio --name=shared --filename="$MOUNT/one" --size=16M --bs=4k --rw=randrw --numjobs=4 --ioengine=psync --loops=2 \
    --output-format=terse --output="$SCRATCH/shared" || fail "shared file"
same "size" $((16 << 20)) "$(stat -c %s "$MOUNT/one")"
