# Sourced, behind expect.sh, by tests of commands that are killed again and again.

nacre() { "$NACRE" "$@"; }

# killed_soon AFTER COMMAND...: of nacre, killed after so many seconds unless it has ended. It is
# gone on return, as nothing goes on behind a power cut.
killed_soon() {
    local pid
    "$NACRE" "${@:2}" >/dev/null 2>&1 &
    pid=$!
    sleep "$1"
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
}

# killed_beside_a_database POOL TIMES COMMAND...: of nacre, killed after other times each time,
# while a database runs that must not notice
killed_beside_a_database() {
    nacre run -q --pool "$1" -- bash -c '
        set -e
        for n in $(seq 60); do
            sqlite3 /nacre/db "create table if not exists t (n integer); insert into t values ($n)"
        done
        [[ $(sqlite3 /nacre/db "select sum(n) from t; pragma integrity_check" | xargs) == "1830 ok" ]]' &
    local program=$! tries=0
    while ((tries++ < $2)); do
        killed_soon "0.0$tries" "${@:3}"
    done
    wait $program || fail "the database"
}
