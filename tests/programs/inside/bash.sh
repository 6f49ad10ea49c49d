# Redirections, pipelines, here-documents, subshells, job control, shared offsets, globs.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
same "cd into the mount" "$MOUNT" "$PWD"
same "the kernel's view of it" "$MOUNT" "$(pwd -P)"

note redirections
echo one >a
echo two >>a
gives "append" $'one\ntwo' cat a
{ echo three; echo four; } >>a
gives "group shares an offset" $'one\ntwo\nthree\nfour' cat a
(echo child; echo child2) >b
echo parent >>b
gives "subshell inherits" $'child\nchild2\nparent' cat b
ls "$MOUNT/nothing" 2>err || true
contains "stderr into a file" "No such file" "$(cat err)"
ls a "$MOUNT/nothing" >both 2>&1 || true
same "both streams into one file" 2 "$(wc -l <both)"
read -r first <a
same "read from a file" one "$first"
exec 5<>a
read -r x <&5; read -r y <&5
same "read-write descriptor keeps its offset" "one two" "$x $y"
echo THREE >&5
exec 5>&-
gives "write at the offset" $'one\ntwo\nTHREE\nfour' cat a
exec 6>c
echo 1 >&6
bash -c 'echo 2 >&6'
echo 3 >&6
exec 7>&6 6>&-
echo 4 >&7
exec 7>&-
gives "offset shared with an exec'd child and a duplicate" $'1\n2\n3\n4' cat c
set -C
if (echo x >c) 2>/dev/null; then fail "noclobber must refuse"; fi
set +C
: >c
same "truncate by redirection" 0 "$(stat -c %s c)"

note here-documents and pipelines
cat >here <<END
home $((6 * 7))
END
gives "here-document" "home 42" cat here
gives "here-string" "text" cat <<<text
seq 1 20000 | tee numbers | sort -n | tail -n 1 >max
gives "pipeline" 20000 cat max
same "tee wrote all" 20000 "$(wc -l <numbers)"
same "sum" 200010000 "$(awk '{s += $1} END {print s}' numbers)"
same "process substitution" "" "$(diff <(cat numbers) <(seq 1 20000))"
while read -r n; do [[ $n != 7 ]] || break; done <numbers
same "loop stops where it broke off" 7 "$n"
mapfile -t lines <numbers
same "mapfile" 20000 "${#lines[@]}"

note globs and tests
mkdir -p d/e/f
touch d/{x,y,z}.txt d/e/w.txt
same "glob" "d/x.txt d/y.txt d/z.txt" "$(echo d/*.txt)"
shopt -s globstar
same "globstar" "4" "$(printf '%s\n' d/**/*.txt | wc -l)"
[[ -f a && -s a && -d d && ! -e nothing && -r a && -w a && ! -x a && d/x.txt -ef ./d/../d/x.txt ]] || fail "test operators"
ln -s d link
cd link
same "logical directory" "$MOUNT/link" "$PWD"
same "physical directory" "$MOUNT/d" "$(pwd -P)"
cd ..
pushd d >/dev/null
popd >/dev/null
same "pushd and popd" "$MOUNT" "$PWD"

note background jobs
set -m
(sleep 0.2; echo background >bg) &
job=$!
wait $job
gives "background job" background cat bg
sleep 100 >sleeping &
kill -STOP $!
kill -CONT $!
kill -TERM $!
wait -f $! || status=$?
same "killed job" 143 "$status"
for i in 1 2 3 4 5 6 7 8; do
    (for n in $(seq 50); do echo "$i $n"; done >>appended) &
done
wait
same "eight appending writers lose nothing" 400 "$(sort -u appended | wc -l)"
set +m
mkfifo pipe
(echo through >pipe) &
read -r got <pipe
wait
same "named pipe" through "$got"
coproc CAT { cat; }
echo ping >&"${CAT[1]}"
read -r pong <&"${CAT[0]}"
same "coprocess" ping "$pong"
eval "exec ${CAT[1]}>&-"
wait

note descriptors above 9 and scripts
exec {fd}>high
echo high >&$fd
exec {fd}>&-
gives "allocated descriptor" high cat high
printf 'echo "script $1"\n' >script.sh
gives "sourced by name" "script x" bash script.sh x
gives "script on standard input" "script y" bash -s y <script.sh
. ./script.sh z >sourced
gives "source" "script z" cat sourced
trap 'echo bye >trapped' USR1
kill -USR1 $$
gives "trap" bye cat trapped
umask 027
: >masked
same "umask" 640 "$(stat -c %a masked)"
ulimit -f unlimited
cd /
rm -r "${MOUNT:?}"/*
gives "all removed" "" ls -A "$MOUNT"
