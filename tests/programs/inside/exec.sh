# Programs and scripts stored in the pool.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
mkdir bin
cp /bin/echo /bin/bash bin/
gives "program" "from the pool" bin/echo from the pool
gives "by PATH" "found" env PATH="$MOUNT/bin:$PATH" echo found
gives "shell of the pool" "42 $MOUNT" bin/bash -c 'echo $((6 * 7)) $PWD'
printf '#!/bin/sh\necho "script $0${1:+ $*}"\n' >bin/script
chmod +x bin/script
gives "script" "script bin/script a b" bin/script a b
printf '#!%s/bin/bash -e\necho "$0: $-" | grep -o e$ || echo "no -e: $-"\n' "$MOUNT" >bin/own
chmod +x bin/own
contains "interpreter of the pool with an argument" e "$(bin/own)"
printf '#!%s/bin/script inner\n' "$MOUNT" >bin/nested
chmod +x bin/nested
gives "script that is run by a script" "script $MOUNT/bin/script inner bin/nested x" bin/nested x
printf 'echo "no line at the start: $1"\n' >bin/plain
chmod +x bin/plain
gives "script without #!" "no line at the start: x" bin/plain x
ln -s script bin/link
gives "through a link" "script bin/link" bin/link
ln -s "$MOUNT/bin/script" "$SCRATCH/outer"
gives "through a link outside" "script $SCRATCH/outer y" "$SCRATCH/outer" y
chmod -x bin/plain
refuses "not executable" "Permission denied" bin/plain
refuses "folder" "Is a directory" "$MOUNT/bin"
printf '#!/nothing/here\n' >bin/broken
chmod +x bin/broken
# The words differ between versions of bash: those for a file elsewhere count.
mkdir "$SCRATCH/bin"
cp bin/broken "$SCRATCH/bin"
said_of_broken() { (cd "$1" && bash -c bin/broken 2>&1 || echo "$?"); }
contains "what is said of a missing interpreter" /broken "$(said_of_broken "$SCRATCH")"
gives "missing interpreter" "$(said_of_broken "$SCRATCH")" said_of_broken "$MOUNT"
refuses "missing program" "No such file" bin/missing
gives "chain of exec" done bash -c "exec bin/bash -c 'exec bin/echo done'"
gives "redirected at exec" "" bash -c "exec bin/echo into >file"
gives "and it arrived" into cat file
gives "environment" "A=1" env -i A=1 bin/bash -c 'echo A=$A'
gives "empty environment still sees the pool" "bin" env -i /bin/ls -d bin
gives "xargs" "1 2 3" bash -c 'printf "1\n2\n3\n" | xargs bin/echo'
gives "find -exec" 3 bash -c "find bin -name '*sh*' -o -name 'echo' -o -name link | xargs -n 1 bin/echo | wc -l"
cat >args.c <<'END'
#include <stdio.h>
#include <unistd.h>
#include <sys/auxv.h>
#include <string.h>
int main(int argc, char **argv) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    printf("%d %s %s %s\n", argc, argv[0], argv[argc - 1], path);
    return 3;
}
END
gcc -o args args.c
out=$(./args first last) || status=$?
same "exit status" 3 "$status"
same "arguments and /proc/self/exe" "3 ./args last $MOUNT/args" "$out"

note processes that execute the same program share its copy
copy_of() { stat -L -c %i "/proc/$1/exe"; }
script='stat -L -c %i /proc/$$/exe; "$0" -c "stat -L -c %i /proc/\$\$/exe; :"; :'
same "a child's is its parent's" 1 "$(bin/bash -c "$script" "$MOUNT/bin/bash" | sort -u | wc -l)"
mkfifo "$SCRATCH/end"
for name in one two; do
    bin/bash -c 'echo >"$0"; read -r _ <"$1"; :' "$name" "$SCRATCH/end" &
    wait_for 20 "process $name" test -e "$name"
done
processes=($(jobs -p))
[[ -n ${BASELINE:-} || $(readlink "/proc/${processes[0]}/exe") == "/memfd:bash (deleted)" ]] || fail "no copy is executed"
same "that of a sibling" "$(copy_of "${processes[0]}")" "$(copy_of "${processes[1]}")"
# What has the name and the length, and other contents, is another program.
cp bin/bash other
printf x | dd of=other bs=1 seek=$(($(stat -c %s other) - 1)) conv=notrunc status=none
mv other bin/bash
bin/bash -c 'echo >three; read -r _ <"$0"; :' "$SCRATCH/end" &
wait_for 20 "process three" test -e three
[[ $(copy_of $!) != "$(copy_of "${processes[0]}")" ]] || fail "another program with an old one's copy"
if [[ -z ${BASELINE:-} ]]; then
    cmp bin/bash "/proc/$!/exe" || fail "a copy is not the program"
fi
exec {end}<>"$SCRATCH/end"
printf '\n\n\n' >&"$end"
wait
