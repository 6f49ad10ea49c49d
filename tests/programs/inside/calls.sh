# System calls and libc functions that few programs use; see calls.c.
. "$PROGRAMS/expect.sh"
gcc -O1 -Wall -Wno-stringop-overflow -Wno-stringop-overread -D_GNU_SOURCE -o "$SCRATCH/calls" "$PROGRAMS/inside/calls.c" -lpthread
mkdir "$MOUNT/calls"
cd "$MOUNT/calls"
"$SCRATCH/calls"
