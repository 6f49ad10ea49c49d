# Without the kernel's mount, programs that cannot be served never write to the host's folder below a mount point: they
# are refused, at any depth.
. "$PROGRAMS/expect.sh"

build() {
    cat >"$SCRATCH/writer.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : getenv("TARGET");
    int fd = path ? open(path, O_WRONLY | O_CREAT, 0644) : -1;
    if (path && (fd < 0 || write(fd, "x", 1) != 1)) return perror(path), 1;
    return 0;
}
C
    cat >"$SCRATCH/calls.c" <<'C'
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
static long call(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return number;
}
int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : getenv("TARGET");
    long fd = path ? call(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT, 0644) : -1;
    return path && (fd < 0 || call(SYS_write, fd, (long)"x", 1, 0) != 1);
}
C
    # As bun is, and what Free Pascal makes: nothing tells which functions lead to its calls.
    gcc -Wl,--no-eh-frame-hdr -o "$SCRATCH/own-calls" "$SCRATCH/calls.c"
    gcc -static -o "$SCRATCH/static" "$SCRATCH/writer.c"
    gcc -static-pie -o "$SCRATCH/static-pie" "$SCRATCH/writer.c"
    gcc -o "$SCRATCH/dynamic" "$SCRATCH/writer.c"
    gcc -o "$SCRATCH/setuid" "$SCRATCH/writer.c"
    cp "$SCRATCH/dynamic" "$SCRATCH/musl"
    sed -i 's,/lib64/ld-linux-x86-64.so.2,/lib64/ld-musl-x86_64.so.1,' "$SCRATCH/musl"
    printf '#!%s\n' "$SCRATCH/static" >"$SCRATCH/script"
    chmod 755 "$SCRATCH/script"
    # Another user's: set-id bits of one's own change nothing.
    if ((EUID == 0)); then chown nobody "$SCRATCH/setuid"; fi
    chmod 4755 "$SCRATCH/setuid"
}

run() { "$NACRE" run -q --no-fuse --pool "$POOL" --mount "$hd" -- "$@"; }

# What must not have happened anywhere: a file in the host's folder.
nothing_on_the_host() { same "$1: the host's folder" "" "$(ls -A "$hd")"; }

refused_at_any_depth() {
    local kind
    for kind in static static-pie musl own-calls; do
        note "$kind"
        refuses "$kind, started by us" "--allow-unserved" run "$SCRATCH/$kind" "$hd/f"
        refuses "$kind, started by bash" "its argument \`$hd/f\`" run bash -c "'$SCRATCH/$kind' '$hd/f'"
        refuses "$kind, deeper" "--allow-unserved" run bash -c "sh -c 'env A=b $SCRATCH/$kind $hd/f'; exit 1"
        refuses "$kind, by its working directory" "working directory" run bash -c "cd '$hd'; '$SCRATCH/$kind' f"
        refuses "$kind, by a relative path" "$hd" run bash -c "cd '$SCRATCH'; ./$kind hd/f"
        refuses "$kind, by a variable" "its variable \`TARGET=$hd/f\`" run env "TARGET=$hd/f" "$SCRATCH/$kind"
        nothing_on_the_host "$kind"
    done
    refuses "a script with such an interpreter" "statically" run bash -c "'$SCRATCH/script' '$hd/f'"
    refuses "posix_spawn" "statically" run python3 -c \
        "import os, sys; os.posix_spawn('$SCRATCH/static', ['static', '$hd/f'], os.environ)"
    refuses "fexecve" "statically" run python3 -c \
        "import os; os.execve(os.open('$SCRATCH/static', os.O_RDONLY), ['static', '$hd/f'], os.environ)"
    ((EUID != 0)) || refuses "setuid" "gains rights" run bash -c "'$SCRATCH/setuid' '$hd/f'"
    nothing_on_the_host "others"
    same "status of a refused program" 126 "$(run bash -c "'$SCRATCH/static' '$hd/f' 2>/dev/null; echo \$?")"
    same "status of nacre run" 126 "$(run "$SCRATCH/static" "$hd/f" 2>/dev/null || echo $?)"
}

harmless_ones_run() {
    note harmless
    run bash -c "cd '$hd'; cd /; PATH=\$PATH:$hd/bin '$SCRATCH/static'; '$SCRATCH/static' '$SCRATCH/other'"
    [[ -e $SCRATCH/other ]] || fail "a static program that names no mount point runs"
    run bash -c "'$SCRATCH/dynamic' '$hd/f' && cp '$SCRATCH/static' '$hd/s' && '$hd/s' '$SCRATCH/another'"
    [[ -e $SCRATCH/another ]] || fail "a static program of the pool runs"
    note "a program of musl"
    printf '#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n' >"$SCRATCH/puts.c"
    musl-gcc -o "$SCRATCH/of-musl" "$SCRATCH/puts.c"
    gives "started by us" runs run "$SCRATCH/of-musl"
    gives "started by bash" runs run bash -c "'$SCRATCH/of-musl'; exit"
    gives "its dynamic linker, started by us" runs run /lib/ld-musl-x86_64.so.1 "$SCRATCH/of-musl"
    gives "its dynamic linker" runs run bash -c "/lib/ld-musl-x86_64.so.1 '$SCRATCH/of-musl'; exit"
    gives "the dynamic linker as a program" x run /lib64/ld-linux-x86-64.so.2 /bin/cat "$hd/f"
    nothing_on_the_host harmless
    "$NACRE" run -q --allow-unserved --pool "$POOL" --mount "$hd" -- bash -c "'$SCRATCH/static' '$hd/allowed'"
    [[ -e $hd/allowed ]] || fail "--allow-unserved"
}

covering() {
    note covering
    refuses "a folder that is not empty" "--cover" run true
    refuses "a system folder" "--cover" "$NACRE" run -q --pool "$POOL" --mount /etc -- true
    refuses "a file" "--cover" "$NACRE" run -q --pool "$POOL" --mount /etc/passwd -- true
    gives "with --cover" f "$NACRE" run -q --cover --pool "$POOL" --mount "$hd" -- ls "$hd" --ignore=s
    rm "$hd/allowed"
    gives "a pool of a surrounding run" $'f\ns' run "$NACRE" run -q --pool "$POOL" --mount "$hd" -- ls "$hd"
}

main() {
    if [[ -n ${BASELINE:-} ]]; then
        note "nothing to compare on tmpfs"
        return
    fi
    hd=$SCRATCH/hd
    mkdir "$hd"
    build
    refused_at_any_depth
    harmless_ones_run
    covering
}

main
