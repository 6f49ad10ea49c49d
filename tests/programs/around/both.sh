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
    "$NACRE" umount "$at"
    check_pool
}

run_parts "$@"
