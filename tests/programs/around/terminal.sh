# An interactive shell on a terminal: keyboard signals, job control, window size.
. "$PROGRAMS/expect.sh"
if [[ -n ${BASELINE:-} ]]; then
    shell=(bash --norc -i)
else
    shell=("$NACRE" run --quiet --pool "$POOL" --mount "$MOUNT" -- bash --norc -i)
fi
MOUNT=$MOUNT PS1='ready> ' exec /usr/bin/python3 "$PROGRAMS/around/terminal.py" "${shell[@]}"
