# One tree through both front ends: git in one and make in the other, exec, cp -a, tar and find -xdev across.
. "$PROGRAMS/expect.sh"

part_clone() {
    mkdir "$MOUNT/project"
    cd "$MOUNT/project"
    git init -q .
    git config user.name tester
    git config user.email tester@example.org
    printf '#include <stdio.h>\n#include "version.h"\nint main(void) { puts(VERSION); return 0; }\n' >main.c
    echo '#define VERSION "one"' >version.h
    printf 'program: main.c version.h\n\tgcc -o $@ main.c\n' >Makefile
    printf '#!/bin/sh\necho "script $1"\n' >script
    chmod 755 script
    ln -s version.h link
    echo program >.gitignore
    git add . && git commit -qm one
}

part_change() {
    cd "$MOUNT/project"
    gives "built by the other side" one ./program
    gives "a script" "script x" ./script x
    same "nothing but what is ignored" "" "$(git status --short)"
    echo '#define VERSION "two"' >version.h
    git commit -qam two
}

part_compare() {
    cd "$MOUNT"
    gives "built again" two project/program
    gives "find -xdev" "$(find project | sort)" sh -c 'find project -xdev | sort'
    cp -a project copied
    same_tree "cp -a of a copy" "$MOUNT/project" "$MOUNT/copied"
    same_tree "cp -a through the mount" "$MOUNT/project" "$MOUNT/other"
    tar -xf through.tar -C "$SCRATCH"
    same_tree "tar through the mount" "$MOUNT/project" "$SCRATCH/project"
    gives "inode numbers" "$(<numbers)" sh -c 'find project -printf "%P %i %n\n" | sort'
    git -C project fsck --strict
}

# The kernel does not hear that what it knows was removed.
part_removed() {
    local through=$SCRATCH/mounted all one
    cd "$MOUNT"
    all=$(stat -f -c %f .)
    head -c 64000000 /dev/zero | tr '\0' x >open
    one=$(stat -f -c %f .)
    ((all - one >= 15625)) || fail "64 MB took $((all - one)) units"
    head -c 64000000 /dev/zero | tr '\0' y >large
    gives "sizes through the mount" "128000000" sh -c 'cat "$0/open" "$0/large" | wc -c' "$through"
    exec 9<"$through/open"
    rm open large
    wait_for 20 "the space of what was removed" bash -c "((\$(stat -f -c %f .) >= $one - 100))"
    gives "what is open there still" 64000000 sh -c 'tr -d y <&9 | wc -c'
    exec 9<&-
    wait_for 20 "the space of what was closed" bash -c "((\$(stat -f -c %f .) >= $all - 100))"
    refuses "the old name" "No such file" cat "$through/large"
    for number in {1..300}; do echo "$number" >"new$number"; done
    gives "new files, maybe with old numbers" 45150 sh -c 'cat "$0"/new* | awk "{ sum += \$1 } END { print sum }"' "$through"
    rm new*
}

main() {
    if [[ -n ${BASELINE:-} || ! -w /dev/fuse ]]; then
        note "nothing can be mounted: left out"
        return
    fi
    local at=$SCRATCH/mounted
    mkdir "$at"
    "$NACRE" mount "$POOL" "$at"
    trap '! mountpoint -q "$SCRATCH/mounted" || "$NACRE" umount --lazy "$SCRATCH/mounted"' EXIT
    part clone
    make -s -C "$at/project"
    gives "through the mount" one "$at/project/program"
    gives "a script through the mount" "script y" "$at/project/script" y
    gives "git through the mount" "" git -C "$at/project" status --short
    part change
    make -s -C "$at/project"
    gives "made again" two "$at/project/program"
    gives "history" $'two\none' git -C "$at/project" log --format=%s
    cp -a "$at/project" "$at/other"
    tar --format=posix -cf "$at/through.tar" -C "$at" project
    (cd "$at" && find project -xdev -printf '%P %i %n\n' | sort >"$SCRATCH/numbers" && cp "$SCRATCH/numbers" numbers)
    gives "find -xdev through the mount" "$(cd "$at" && find project | sort)" sh -c "cd '$at' && find project -xdev | sort"
    part compare
    part removed
    "$NACRE" umount "$at"
    check_pool
}

run_parts "$@"
