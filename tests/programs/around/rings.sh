# Rings of the kernel's (io_uring, Linux AIO) on pools on disks, of which memory holds little: what
# would wait for the disk completes later than it was handed in.
. "$PROGRAMS/expect.sh"
. "$PROGRAMS/devices.sh"

in_a_pool() {
    note "$1"
    no_disks
    nacre create --size 128M --cache 1M "${@:2}" >/dev/null
    nacre run -q --pool "$a" -- "$SCRATCH/rings" make /nacre/file
    nacre run -q --pool "$a" -- "$SCRATCH/rings" check /nacre/file || fail "$1: rings"
    contains "sound" clean "$(nacre check "$a")"
}

# A disk that ends where the file goes on.
fails_where_the_disk_fails() {
    note "errors of the disk"
    no_disks
    nacre create --size 128M --cache 1M "$a" >/dev/null
    nacre run -q --pool "$a" -- "$SCRATCH/rings" make /nacre/file
    nacre run -q --pool "$a" -- "$SCRATCH/rings" fail /nacre/file "$a" >"$SCRATCH/said" 2>"$SCRATCH/told" || true
    same "results" "EIO EIO" "$(<"$SCRATCH/said")"
}

is_durable() {
    note "what is synced by a ring survives a power cut"
    no_disks
    nacre create --size 128M --cache 1M "$a" >/dev/null
    local uuid
    uuid=$(uuid_of "$a")
    nacre run -q --pool "$a" -- "$SCRATCH/rings" make /nacre/file
    nacre run -q --pool "$a" -- "$SCRATCH/rings" sync /nacre/file >"$SCRATCH/said" 2>/dev/null || true
    same "the program came to its end" synced "$(<"$SCRATCH/said")"
    cp "$a" "$a.cut"
    lose_memory "$uuid"
    mv "$a.cut" "$a"
    gives "what was synced" 262144 bash -c "'$NACRE' cat '$a:/file' | head -c 262144 | tr -dc s | wc -c"
    contains "sound" clean "$(nacre check "$a")"
}

main() {
    disks_for rings || return 0
    if ! printf '6.10\n%s\n' "$(uname -r)" | sort -VC; then
        note "skipped, before Linux 6.10"
        return
    fi
    gcc -O1 -Wall -Werror -o "$SCRATCH/rings" "$PROGRAMS/rings.c" -luring -pthread
    in_a_pool "one disk" "$a"
    in_a_pool "two copies" --copies 2 "$a" "$b"
    in_a_pool "stripes over three" --stripe 4K "$a" "$b" "$c"
    fails_where_the_disk_fails
    is_durable
    note "canary: contents that are not what was asked for are noticed"
    nacre run -q --pool "$a" -- bash -c 'cp /nacre/file /nacre/other && printf x |
        dd of=/nacre/other bs=1 seek=9999999 conv=notrunc status=none'
    if nacre run -q --pool "$a" -- "$SCRATCH/rings" check /nacre/other 2>"$SCRATCH/said"; then
        fail "the canary was not caught"
    fi
    contains "what was wrong" is_page "$(<"$SCRATCH/said")"
}
main
