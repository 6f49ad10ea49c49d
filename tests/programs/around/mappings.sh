# Shared mappings, also as on devices that map pages of 2 MiB only (device-DAX), where files move to aligned units.
. "$PROGRAMS/expect.sh"

part_work() {
    cd "$MOUNT"
    gives "python's mmap" "mappings ok" /usr/bin/python3 "$PROGRAMS/around/mappings.py" "$MOUNT"
    fio --name=m --directory="$MOUNT" --ioengine=mmap --rw=randrw --bs=4k --size=8m --numjobs=2 --verify=crc32c \
        --output="$SCRATCH/fio" || fail "fio: $(tail -n 20 "$SCRATCH/fio")"
    sqlite3 wal.db 'pragma journal_mode=wal; create table t(a, b);' >/dev/null
    local writer
    for writer in 1 2; do
        for ((i = 0; i < 30; i++)); do echo "insert into t values($writer, $i);"; done |
            sqlite3 -cmd '.timeout 60000' wal.db &
    done
    wait
    gives "two writers of a database" $'60\nok' sqlite3 wal.db 'select count(*) from t; pragma integrity_check;'
    rm -rf "${MOUNT:?}"/*
}

main() {
    part work
    NACRE_MAP_CHUNKS=1 part work
    check_pool
}

run_parts "$@"
