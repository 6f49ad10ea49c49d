# Programs that cannot be preloaded, beside a preloaded bash under `nacre run`, which mounts for them: a static busybox
# shell, the Go compiler and a program of it, and one that gains rights at its start. Each reads what the other wrote.
. "$PROGRAMS/expect.sh"

AT=$SCRATCH/p

build() {
    cat >"$SCRATCH/exchange.c" <<'C'
#include <stdio.h>
#include <unistd.h>
int main(int count, char **arguments) {
    char said[100];
    FILE *from = count == 3 ? fopen(arguments[1], "r") : 0, *to = from ? fopen(arguments[2], "a") : 0;
    if (!to || !fgets(said, sizeof said, from)) return perror("exchange"), 1;
    return fprintf(to, "user %d read %s", (int)geteuid(), said) < 0 || fclose(to);
}
C
    gcc -o "$SCRATCH/setuid" "$SCRATCH/exchange.c"
    gcc -static -o "$SCRATCH/static" "$SCRATCH/exchange.c"
    chown 65534:65534 "$SCRATCH/setuid"
    chmod 6755 "$SCRATCH/setuid"
}

part_busybox() {
    cd "$AT"
    mkdir -m 777 b
    cd b
    echo "from bash" >there
    busybox sh -c 'read -r said <there; echo "busybox read: $said" >back; mkdir -p d/e; cd d/e; pwd >../where; ln -s ../../back link'
    gives "what busybox wrote" "busybox read: from bash" cat back
    gives "its folder" "$AT/b/d/e" cat d/where
    gives "its link" "busybox read: from bash" cat d/e/link
    for number in {1..20}; do
        echo "bash $number" >>log
        busybox sh -c "echo busybox $number >>log; test \$(wc -l <log) = $((number * 2))"
    done
    same "appended in turns" 40 "$(wc -l <log)"
    busybox sh -c 'mv log moved && rm back && rmdir d 2>/dev/null; test -d d'
    gives "names" "d moved there" sh -c 'echo *'
    # Where a program is, as others see it.
    (cd d/e && exec busybox sleep 100) &
    wait_for 20 "its start" grep -qsx busybox "/proc/$!/comm"
    gives "/proc/PID/cwd" "$AT/b/d/e" readlink "/proc/$!/cwd"
    kill $!
    gives "a pipe of both" 40 sh -c 'cat moved | busybox cat | wc -l'
    gives "exec of a static program of the pool" static bash -c 'mkdir bin; cp "$(command -v busybox)" bin; exec bin/busybox echo static'
    # What it looks for may lie beside it; without a name it runs from a copy.
    gives "where it says it is" "$AT/b/bin/busybox" bin/busybox readlink /proc/self/exe
    gives "where it is by a link" "$AT/b/bin/busybox" bash -c 'ln -s bin/busybox readlink; ./readlink /proc/self/exe; rm readlink'
    gives "a program without a name" nameless bash -c 'cp bin/busybox bin/echo; exec 9<bin/echo; rm bin/echo; exec -a echo /proc/self/fd/9 nameless'
}

part_go() {
    mkdir "$AT/go"
    cd "$AT/go"
    cat >exchange.go <<'G'
package main

import (
	"os"
	"path/filepath"
)

func main() {
	program, err := os.Executable()
	if err == nil && len(os.Args) == 1 {
		err = os.Chdir(filepath.Dir(program))
	}
	said, err := os.ReadFile("there")
	if err == nil {
		err = os.WriteFile("back", append([]byte("go read: "), said...), 0o640)
	}
	if err == nil {
		err = os.Rename("back", "renamed")
	}
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
G
    echo "from bash" >there
    export GOCACHE=$SCRATCH/go-cache GOPATH=$SCRATCH/go-path GOTOOLCHAIN=local GO111MODULE=off
    go build -o exchange exchange.go
    (cd / && exec "$AT/go/exchange")
    gives "what Go wrote" "go read: from bash" cat renamed
    gives "its mode" 640 stat -c %a renamed
    # The dynamic linker loads libraries into this one, but its calls are its own.
    printf 'package main\n\nimport "C"\n' >cgo.go
    go build -ldflags -linkmode=external -o linked exchange.go cgo.go
    rm renamed
    ./linked here
    gives "what Go wrote with the C library" "go read: from bash" cat renamed
}

part_rights() {
    mkdir -m 777 "$AT/rights"
    cd "$AT/rights"
    echo "from bash" >there
    "$SCRATCH/setuid" there back
    "$SCRATCH/static" there back
    gives "what each wrote" $'user 65534 read from bash\nuser '"$(id -u) read from bash" cat back
    gives "whose it is" 65534 stat -c %u back
    chmod 600 there
    refuses "without rights" "Permission denied" "$SCRATCH/setuid" there back
}

part_root() {
    cd "$AT"
    mkdir -p root/bin
    cp "$(command -v busybox)" /bin/cat root/bin
    for library in $(ldd /bin/cat | grep -o '/[^ ]*'); do
        mkdir -p "root${library%/*}"
        cp "$library" "root$library"
    done
    echo inside >root/there
    # Before anything has asked for the kernel's mount: from there nobody can.
    gives "in a network of its own" inside python3 -c '
import ctypes, os, signal
CLONE, CLONE_NEWNET = 56, 0x40000000
child = ctypes.CDLL(None).syscall(CLONE, CLONE_NEWNET | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os.chdir("root")
    os.chroot(".")
    os.execv("/bin/cat", ["cat", "/there"])
os.waitpid(child, 0)'
    gives "a program below another root" inside sh -c 'chroot root /bin/cat there 2>&1'
    chroot "$AT/root" /bin/busybox sh -c 'echo and more >>there'
    gives "what names the mount point from outside" inside \
        env HOME="$AT/home" chroot root /bin/busybox sh -c 'read -r said <there; echo "$said"' "$AT"
    gives "what it wrote" $'inside\nand more' cat root/there
    gives "what is open already" $'inside\nand more' sh -c 'chroot root /bin/cat <root/there >out && cat out'
    chroot root /bin/busybox sh -c 'echo one; echo two >&2' >out 2>errors
    chroot root /bin/busybox echo three >>out
    gives "what it wrote to what was open" $'one\nthree\ntwo' cat out errors
    cp -r root "$SCRATCH/root"
    chroot "$SCRATCH/root" /bin/busybox sh -c 'read -r said; echo "outside $said"' <root/there >>out
    gives "the same below a folder of the host" "outside inside" tail -n 1 out
    mkdir -p root/dev
    mknod -m 666 root/dev/null c 1 3
    gives "a device" gone chroot root /bin/busybox sh -c 'echo never >/dev/null && echo gone'
    python3 -c '
import os
log = open("log", "w", buffering=1)
os.chroot("root")
os.chdir("/")
if not os.fork():
    log.write(open("/there").readline())
    os._exit(0)
print(os.wait()[1], file=log)'
    gives "what is forked below another root" $'inside\n0' cat log
    refuses "another group" "nacre run --allow-other" python3 -c '
import os
os.setegid(60305)
os.chroot("root")'
    refuses "another user" "nacre run --allow-other" python3 -c '
import ctypes, os
libc = ctypes.CDLL(None)
libc.prctl(8, 1)
os.setresuid(60305, 60305, 0)
os.chroot("root")'
    refuses "a file" "Not a directory" chroot root/there /bin/cat
    gives "where one still is" here sh -c 'chroot root/bin/none /bin/cat 2>/dev/null; ls -d root >/dev/null && echo here'
}

# What others could have made a node of is no device.
part_nodes() {
    gives "what it may not open" "refused" busybox sh -c 'echo x 2>/dev/null >'"$AT"'/root/dev/null || echo refused'
}

part_loop() {
    cd "$AT"
    mkdir "$SCRATCH/image"
    truncate -s 16M image
    mkfs.ext4 -q image
    mount -o loop image "$SCRATCH/image"
    echo "in the image" >"$SCRATCH/image/there"
    umount "$SCRATCH/image"
    wait_for 20 "the end of the device" bash -c "! losetup -a | grep -q '$AT/image'"
    gives "what was written" "in the image" debugfs -R "cat there" image 2>/dev/null
    exec 9<>image
    rm image
    refuses "a file without a name" "not supported" losetup -f /proc/self/fd/9
}

# The program that runs is replaced by a newer one before anybody needs the mount.
part_upgrade() {
    cd "$AT"
    rm "$SCRATCH/bin/nacre"
    busybox sh -c 'echo busybox >upgraded'
    gives "what it wrote" busybox cat upgraded
}

# All of a run is killed, also who serves the mount: the next one takes the folder that was made away.
killed() {
    local at=$SCRATCH/made
    setfattr -n user.probe -v 1 "$SCRATCH" 2>/dev/null || { note "no attributes here: left out"; return 0; }
    "$NACRE" run --quiet --pool "$POOL" --mount "$at" -- busybox sleep 300 &
    wait_for 20 "the mount" mountpoint -q "$at"
    kill -KILL $! $(pgrep -f "[m]ount --foreground --below.*$POOL") $(pgrep -fx "busybox sleep 300")
    wait $! || true
    gives "the next one" here "$NACRE" run --quiet --pool "$POOL" --mount "$at" -- busybox sh -c 'cd "$0" && echo here' "$at"
    [[ ! -e $at ]] || fail "the folder is left"
}

# A shutdown signals all processes, and programs save what they have.
part_shutdown() {
    cd "$AT"
    busybox sh -c 'kill -TERM $(pgrep -f "$1"); sleep 1; echo saved >"$0/saved"' "$AT" "[m]ount --foreground --below.*$POOL"
    gives "what it saved" saved cat saved
}

# What is mounted past Nacre is not seen by programs that are served, which must be told.
part_hidden() {
    cd "$AT"
    mkdir hidden
    busybox mount -t tmpfs x "$AT/hidden"
    wait_for 20 "the message" grep -qs "$AT/hidden: something was mounted there" "$SCRATCH/said"
    echo seen >hidden/file
    busybox umount "$AT/hidden"
    gives "what was written past it" seen cat hidden/file
}

# Sandboxes mount what lies in the pool under other names, and may keep programs from attaching it.
part_sandbox() {
    cd "$AT"
    mkdir -p s/a s/root/bin s/over "$SCRATCH/mnt"
    cd s
    echo inside >a/there
    cp "$(command -v busybox)" root/bin
    mkdir root/proc
    cp -r root "$SCRATCH"
    export MNT=$SCRATCH/mnt
    gives "a folder mounted elsewhere" inside \
        unshare -m sh -c 'mount --bind a "$MNT" && cat "$MNT/there"'
    gives "a file" inside \
        unshare -m sh -c ': >"$MNT/f"; mount --bind a/there "$MNT/f" && cat "$MNT/f"'
    gives "an overlay" $'inside\nnew' unshare -m sh -c 'mount -t tmpfs x "$MNT" && cd "$MNT" && mkdir up work all &&
        mount -t overlay x -o "lowerdir=$1/s/a,upperdir=up,workdir=work" all &&
        cat all/there && echo new >all/new && ls up' sh "$AT"
    refuses "onto a folder of the pool" "not supported" mount -t tmpfs x over
    refuses "a mount that is moved there" "not supported" unshare -m mount --bind a over
    gives "with another /proc" "$AT/s inside more" \
        unshare -pf --mount-proc sh -c 'echo more >a/more; echo $(pwd) $(cat a/there "$0/s/a/more")' "$AT"
    gives "what it wrote" more cat a/more
    type bwrap >/dev/null 2>&1 || { note "no bwrap: left out"; return 0; }
    gives "bwrap --bind" inside bwrap --dev-bind / / --bind a /mnt cat /mnt/there
    gives "bwrap --ro-bind" "$AT/s inside" bwrap --ro-bind / / sh -c 'echo $(pwd) $(cat a/there)'
    gives "bwrap --ro-bind, by its name" inside bwrap --ro-bind / / cat "$AT/s/a/there"
    refuses "what may only be read" "Read-only" bwrap --ro-bind / / sh -c 'echo 1 >a/no'
    gives "bwrap with processes of its own" "$AT/s inside" \
        bwrap --dev-bind / / --unshare-pid --proc /proc sh -c 'echo $(pwd) $(cat a/there)'
    gives "a root in the pool" "in it" env -u OLDPWD bwrap --bind root / /bin/busybox echo "in it"
    # It may only use what the sandbox shows: its children cannot tell who uses the pool.
    gives "a root in the pool, with processes of its own" "in it" env -u OLDPWD \
        bwrap --unshare-pid --bind root / --proc /proc /bin/busybox sh -c 'echo "in it" >/new; cat /new'
    gives "what was written there" "in it" cat root/new
    gives "a root without the pool" "in it" env -u OLDPWD \
        bwrap --unshare-pid --ro-bind "$SCRATCH/root" / --proc /proc /bin/busybox echo "in it"
    # As the folder is not there in which bwrap was, it goes to the root.
    for shown in root "$SCRATCH/root"; do
        gives "the folder of ${shown##*/}" / env HOME="$AT" bwrap --bind "$shown" / --proc /proc /bin/busybox pwd
        gives "one that names what is not there" /s env HOME="$AT" bwrap --bind "$shown" / --proc /proc /bin/busybox echo /s
    done
    env -u OLDPWD bwrap --unshare-pid --bind root / --proc /proc /bin/busybox sh -c 'echo found >beside'
    gives "what was written in the root instead" found cat root/beside
    [[ ! -e beside ]] || fail "it is where the sandbox has no folder"
    refuses "who cannot attach it with a file open" "mounted read-only" bwrap --ro-bind / / cat <a/there
    # There is no file of the pool, no session and, mostly, no library to preload.
    local own=(--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64
        --proc /proc --dev /dev) script='cat there; echo "$0" >new; ls; pwd' shown
    for shown in s/a s ''; do
        own+=(--bind "$AT/$shown" "$AT/$shown" --chdir "$AT/s/a")
        gives "a root of its own, with /$shown" $'inside\nmore\nnew\nthere\n'"$AT/s/a" bwrap "${own[@]}" bash -c "$script" "in /$shown"
        gives "what was written there" "in /$shown" cat a/new
        gives "the same, with processes of its own" $'inside\nmore\nnew\nthere\n'"$AT/s/a" \
            bwrap "${own[@]}" --unshare-pid bash -c "$script" "alone in /$shown"
        gives "what was written there" "alone in /$shown" cat a/new
        gives "the same, with the library" "inside $AT/s/a" bwrap "${own[@]}" --unshare-pid \
            --ro-bind "${NACRE%/*}" "${NACRE%/*}" bash -c 'echo $(cat there) $(bash -c pwd); rm new'
        [[ ! -e a/new ]] || fail "what was removed with the library is there"
    done
}

has_loop_devices() {
    local device
    truncate -s 1M "$SCRATCH/none"
    device=$(losetup -f --show "$SCRATCH/none" 2>/dev/null) && losetup -d "$device"
}

# A mount of a pool that is gone is not one of the pool that has its place now.
part_holder() {
    echo old >"$AT/old"
    busybox ls "$AT" >"$SCRATCH/held"
    wait_for 20 "the other pool" test -e "$SCRATCH/enough"
}

another_pool() {
    local other=$SCRATCH/other.pool
    "$NACRE" create --size 64M "$other" >/dev/null
    "$NACRE" run --quiet --pool "$other" --mount "$AT" -- bash "${BASH_SOURCE[0]}" part_holder &
    wait_for 20 "the mount" grep -qs old "$SCRATCH/held"
    "$NACRE" delete --force "$other" >/dev/null 2>&1 || rm "$other"
    "$NACRE" create --size 64M "$other" >/dev/null
    refuses "what it would not find" "statically linked" "$NACRE" run --quiet --pool "$other" --mount "$AT" -- busybox ls "$AT"
    : >"$SCRATCH/enough"
    wait $!
    gives "once it is gone" "" "$NACRE" run --quiet --pool "$other" --mount "$AT" -- busybox ls "$AT"
}

# A root of its own shows none of the devices: the mount tells which pool it is. That of the run
# before, by the other device, may still be there.
copied_pool() {
    type bwrap >/dev/null 2>&1 || { note "no bwrap: left out"; return 0; }
    local first=$SCRATCH/first.pool second=$SCRATCH/second.pool device
    "$NACRE" create --quiet --copies 2 --size 64M "$first" "$second"
    for device in "$first" "$second" "$first" "$second"; do
        gives "by ${device##*/}" inside "$NACRE" run --quiet --pool "$device" --mount "$AT" -- sh -c 'echo inside >"$0/f"
            exec bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
                --proc /proc --dev /dev --unshare-pid --bind "$0" "$0" cat "$0/f"' "$AT"
    done
    by_the_other_device "$first" "$second"
}

part_shower() {
    echo shown >"$AT/f"
    busybox ls "$AT" >"$SCRATCH/shown"
    wait_for 20 "who stays there" test -e "$SCRATCH/stays"
}

# by_the_other_device FIRST SECOND: somebody keeps the mount a little longer than its run.
by_the_other_device() {
    "$NACRE" run --quiet --pool "$1" --mount "$AT" -- bash "${BASH_SOURCE[0]}" part_shower &
    local run=$!
    wait_for 20 "the mount" grep -qs f "$SCRATCH/shown"
    (cd "$AT" && : >"$SCRATCH/stays" && exec sleep 1) &
    wait "$run"
    gives "while somebody is there" shown "$NACRE" run --quiet --pool "$2" --mount "$AT" -- busybox cat "$AT/f"
    wait
}

# served OPTIONS -- PART
served() {
    "$NACRE" run --quiet --pool "$POOL" --mount "$AT" "${@:1:$#-1}" -- bash "${BASH_SOURCE[0]}" "part_${!#}"
    ! mountpoint -q "$AT" || fail "still mounted"
    same "the host's folder" "" "$(ls -A "$AT")"
}

main() {
    if [[ -n ${BASELINE:-} || $(id -u) != 0 || ! -w /dev/fuse ]]; then
        note "nothing can be mounted: left out"
        return
    fi
    mkdir "$AT"
    build
    note busybox
    served busybox
    note "another root"
    served root
    chmod 666 "$POOL"
    served nodes
    chmod 600 "$POOL"
    if has_loop_devices; then
        note "loop devices"
        served loop
    else
        note "no loop devices: left out"
    fi
    note sandboxes
    served sandbox
    note "a mount past it"
    served hidden 2>"$SCRATCH/said" || fail "status $?: $(cat "$SCRATCH/said")"
    note "an upgrade, a shutdown"
    mkdir "$SCRATCH/bin"
    cp "$NACRE" "${NACRE%/*}/libnacre_preload.so" "$SCRATCH/bin"
    NACRE=$SCRATCH/bin/nacre served upgrade
    served shutdown
    killed
    note "another pool"
    another_pool
    note "a pool with copies, in a sandbox"
    copied_pool
    note "a program that gains rights"
    served --allow-other rights
    if type go >/dev/null 2>&1; then
        note Go
        served go
    else
        note "no Go compiler: left out"
    fi
    check_pool
}

run_parts "$@"
