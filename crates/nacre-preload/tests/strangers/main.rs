//! Another user of the machine, with names that can be guessed or seen: whatever B makes, A's
//! programs work on A's pool.
//!
//! Attacks are rows of a table. Each is tried with the library as it is, and none may succeed. Then
//! each is tried with a library that trusts anybody's files, and some must be noticed. Only root
//! can play two users.

mod places;
mod stage;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use places::DEVICES;
use stage::{A, B, KINDS, NAMES, SECRET, SQUATS, Stage, compiled, give, set_mode, squat};

fn names_taken_before(trusting: bool) -> Result<(), String> {
    for (how, kind) in SQUATS
        .into_iter()
        .flat_map(|how| KINDS.map(|kind| (how, kind)))
    {
        let stage = Stage::of(kind, 0o644, trusting);
        for name in NAMES {
            squat(&stage, name, how);
        }
        let stay = stage.staying();
        let seen = stage.usual().and_then(|()| stage.exposed());
        let stayed = stay.go_on();
        seen.and(stayed)
            .and_then(|()| stage.ends_clean())
            .map_err(|error| format!("{kind:?}, {how}: {error}"))?;
        stage.nothing_is_trapped(how)?;
    }
    Ok(())
}

fn names_swapped_while_a_runs(trusting: bool) -> Result<(), String> {
    let swapped = |kind| {
        let swapped = names_swapped_of_a_pool(&Stage::of(kind, 0o644, trusting));
        swapped.map_err(|error| format!("{kind:?}: {error}"))
    };
    KINDS.into_iter().try_for_each(swapped)
}

fn names_swapped_of_a_pool(stage: &Stage) -> Result<(), String> {
    let stay = stage.staying();
    for how in SQUATS {
        for name in NAMES.into_iter().chain(DEVICES) {
            // Whatever of it works.
            let swap = "rm -rf $1; mv -T $1 $1.away; rmdir $1; ln -sfn /tmp $1; ls $1; cat $1/session; echo x >$1/session";
            stage.run(B, &format!("set -- $BASE/{name}; {swap}; {how}"));
        }
        stage.usual().map_err(|error| format!("{how}: {error}"))?;
    }
    stage.exposed()?;
    stay.go_on()?;
    stage.ends_clean()
}

/// B's folder holds a copy of A's session, as one would be that B made to fit.
fn a_session_to_hijack(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    squat(&stage, "$POOL_NAME", "mkdir -m 777 $1");
    let stay = stage.staying();
    let bait = stage.base().join(stage.name()).join("session");
    let real = fs::read_dir(stage.base())
        .unwrap()
        .flatten()
        .map(|entry| entry.path().join("session"))
        .find(|path| path.exists() && *path != bait);
    let Some(real) = real else {
        let _ = stay.end();
        return Err("A's session is in B's folder".into());
    };
    let output = Command::new("cp")
        .arg("--sparse=always")
        .args([&real, &bait])
        .status();
    assert!(output.unwrap().success());
    give(&bait, B);
    set_mode(&bait, 0o666);
    let sum = || Command::new("cksum").arg(&bait).output().unwrap().stdout;
    let before = sum();
    let seen = stage.usual();
    let untouched = sum() == before;
    stay.go_on()?;
    seen?;
    match untouched {
        true => stage.ends_clean(),
        false => Err("A's process joined B's session".into()),
    }
}

/// In a pool that everybody may write B is trusted with what is in it, but with nothing else of
/// A's.
fn nodes_of_a_shared_pool(trusting: bool) -> Result<(), String> {
    // Whoever uses a node first makes the folder of nodes; B can make it without one.
    let makers = [
        (A, "mkfifo /nacre/first; : <>/nacre/first"),
        (B, "mkdir -m 1777 $BASE/$POOL_NAME/session.nodes"),
    ];
    let attacked = |(user, make)| nodes_of_a_shared_pool_in_a_folder(trusting, user, make);
    makers.into_iter().try_for_each(attacked)
}

fn nodes_of_a_shared_pool_in_a_folder(trusting: bool, user: u32, make: &str) -> Result<(), String> {
    let stage = Stage::new(0o666, trusting);
    let stay = stage.staying();
    let made = stage.run(user, make);
    assert!(made.status.success(), "{made:?}");
    stage.works(
        &format!("echo '{SECRET}' >victim; chmod 600 victim; mkfifo /nacre/p"),
        "",
    )?;
    let node = stage.run(A, "stat -c %i /nacre/p");
    let node = format!(
        "{:x}",
        String::from_utf8_lossy(&node.stdout)
            .trim()
            .parse::<u64>()
            .unwrap()
    );
    let attacks = [
        "ln -s ~+/../a/victim $1",
        "mkdir -m 777 $1",
        "echo x >$1; chmod 666 $1",
    ];
    for how in attacks {
        for generation in 0..4 {
            let name = format!("{}/session.nodes/{node}-{generation:x}", stage.name());
            let planted = stage.run(B, &format!("set -- $BASE/{name}; {how}"));
            assert!(planted.status.success(), "{planted:?}");
        }
        let output = stage.run(A, "timeout 5 bash -c 'echo secret >/nacre/p'");
        if output.status.success() {
            return Err(format!("{how}: A wrote somewhere"));
        }
        let caught = stage.run(B, "timeout 5 cat $BASE/*/session.nodes/*");
        if String::from_utf8_lossy(&caught.stdout).contains("secret") {
            return Err(format!("{how}: B reads what A wrote"));
        }
        stage.run(B, "rm -rf $BASE/*/session.nodes/*-*");
    }
    stage.works("cat victim", SECRET)?;
    stay.go_on()
}

/// `node NAME`, `server NAME`, `client NAME SECRET`: sockets by name. The server says what it
/// hears.
const SOCKETS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
int main(int count, char **arguments) {
    struct sockaddr_un name = {AF_UNIX};
    char heard[99] = {0};
    strncpy(name.sun_path, arguments[2], sizeof name.sun_path - 1);
    umask(0);
    if (*arguments[1] == 'n') return mknod(arguments[2], S_IFSOCK | 0666, 0) ? 1 : 0;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (*arguments[1] == 'c') {
        if (connect(fd, (void *)&name, sizeof name)) return 2;
        return write(fd, arguments[3], strlen(arguments[3])) > 0 ? 0 : 3;
    }
    if (bind(fd, (void *)&name, sizeof name) || listen(fd, 1)) return 4;
    puts("ready");
    fflush(stdout);
    int one = accept(fd, 0, 0);
    while (read(one, heard, sizeof heard - 1) > 0) {}
    puts(heard);
    return 0;
}
"#;

/// A server of a user that is ready.
fn serving(mut command: Command) -> Result<Child, String> {
    use std::io::{BufRead, BufReader};
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let read = BufReader::with_capacity(1, server.stdout.as_mut().unwrap()).read_line(&mut line);
    match read.is_ok() && line == "ready\n" {
        true => Ok(server),
        false => Err(format!("no server: {:?}", server.wait_with_output())),
    }
}

/// A's client must reach A's server, and nobody else's, in a pool that B may write.
fn sockets_of_a_shared_pool(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o666, trusting);
    let program = compiled(&stage, "sockets", SOCKETS, &[]);
    let program = program.display();
    let stay = stage.staying();
    let client = |name: &str| stage.run(A, &format!("{program} client {name} '{SECRET}'"));
    let server = serving(stage.command(A, &format!("exec {program} server /nacre/own")))?;
    let reached = client("/nacre/own");
    let heard = server.wait_with_output().unwrap().stdout;
    if !reached.status.success() || !String::from_utf8_lossy(&heard).contains(SECRET) {
        return Err(format!("A does not reach A: {reached:?}, {heard:?}"));
    }
    // A socket that nobody has bound since: copied into the pool, or of an earlier session.
    stage.works(&format!("{program} node /nacre/s"), "")?;
    let node = stage.run(A, "printf %x $(stat -c %i /nacre/s)");
    let node = String::from_utf8(node.stdout).unwrap();
    let folder = format!("cd $BASE/{}/session.nodes", stage.name());
    for generation in 0..4 {
        let name = format!("{node}-{generation:x}");
        let direct = format!("{folder}; exec {program} server {name}");
        let by_link = format!("{folder}; ln -s ~+/b {name}; exec {program} server b");
        for how in [direct, by_link] {
            let mut server = serving(stage.command(B, &how))?;
            let reached = client("/nacre/s");
            server.kill().unwrap();
            server.wait().unwrap();
            if reached.status.success() {
                return Err(format!("{how}: A's client reaches B's server"));
            }
            stage.run(B, &format!("{folder}; rm -f {name} b"));
        }
    }
    stay.go_on()
}

/// Where A's default pool would be stands a folder of B's, with a copy of A's pool for everybody.
fn a_default_pool_of_bs(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    let trap = "mkdir -m 777 $1; cp ~+/../a/pool $1/default.pool; chmod 666 $1/default.pool";
    squat(&stage, "nacre-60102", trap);
    let pool = stage.base().join("nacre-60102/default.pool");
    let mut command = stage.command(A, &format!("echo '{SECRET}' >/nacre/f"));
    command.env("NACRE_MOUNTS", format!("/nacre={}", pool.display()));
    let output = command.output().unwrap();
    match output.status.success() {
        true => Err(format!("A writes to B's pool: {output:?}")),
        false => stage.usual(),
    }
}

/// What A's programs make is closed to B, name by name.
fn looking_in(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    let stay = stage.staying();
    let looks = [
        "ls $BASE/$POOL_NAME",
        "cat $BASE/$POOL_NAME/session",
        "echo x >$BASE/$POOL_NAME/x",
        "ls $BASE/$POOL_NAME/session.nodes",
        "mkfifo $BASE/$POOL_NAME/session.nodes/2-1",
    ];
    for look in looks {
        if stage.run(B, look).status.success() {
            return Err(format!("B may: {look}"));
        }
    }
    stay.go_on()
}

/// A name in the base that A gives for a log.
fn a_name_for_a_log(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    stage.works(&format!("echo '{SECRET}' >victim; chmod 600 victim"), "")?;
    let log = stage.base().join("log");
    let others = ["ln -s $PWD/../a/victim $1", "ln $PWD/../a/victim $1"];
    for how in SQUATS.into_iter().chain(others) {
        let taken = stage.run(B, &format!("set -e; set -- $BASE/log; {how}"));
        if !taken.status.success() {
            // The system keeps users from linking files of others.
            continue;
        }
        let is_file = fs::symlink_metadata(&log).unwrap().is_file();
        let contents = || is_file.then(|| fs::read(&log).unwrap());
        let before = contents();
        let mut command = stage.command(A, "timeout 5 cat /nacre/f");
        let output = command.env("NACRE_LOG", &log).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if contents() != before || said.contains("panicked") {
            return Err(format!("{how}: {said}"));
        }
        stage.works("cat victim", SECRET)?;
        let _gone = fs::remove_file(&log).or_else(|_| fs::remove_dir_all(&log));
    }
    // The canary: nobody has taken the name.
    let mut command = stage.command(A, "cat /nacre/f");
    let output = command.env("NACRE_LOG", &log).output().unwrap();
    match fs::read_to_string(&log).is_ok_and(|text| text.contains("/nacre/f")) {
        true => Ok(()),
        false => Err(format!("nothing is logged: {output:?}")),
    }
}

/// B listens where a supervisor has listened, and answers nobody; its queue is full.
const FULL_SOCKET: &str = r#"
import socket, sys, time
family = socket.AF_UNIX
listener = socket.socket(family)
listener.bind("\0" + sys.argv[1])
listener.listen(0)
clients = []
while True:
    clients.append(socket.socket(family))
    clients[-1].setblocking(False)
    if clients[-1].connect_ex("\0" + sys.argv[1]):
        break
print("full", flush=True)
time.sleep(60)
"#;

/// The socket of a supervisor that has ended, which A's programs ask before they start one that
/// cannot be served.
fn a_supervisors_socket(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    let source = stage.path("a/static.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-static", "-o"]).arg(stage.path("a/static"));
    assert!(compiler.arg(&source).status().unwrap().success());
    let name = format!("nacre-run-{}", stage.uuid);
    let mut listens = stage.command(B, r#"exec python3 -c "$0" "$1""#);
    listens.args([FULL_SOCKET, &name]).stdout(Stdio::piped());
    let mut listener = listens.spawn().unwrap();
    let mut tells = listener.stdout.take().unwrap();
    tells.read_exact(&mut [0; 5]).unwrap();
    let mut command = stage.command(A, "timeout -s KILL 20 ./static; echo $?");
    let output = command.env("NACRE_KERNEL_MOUNTS", &name).output().unwrap();
    listener.kill().unwrap();
    listener.wait().unwrap();
    match output.stdout == b"0\n" {
        true => Ok(()),
        false => Err(format!("{output:?}")),
    }
}

type Attack = fn(bool) -> Result<(), String>;

const ATTACKS: [(&str, Attack); 15] = [
    ("names taken before", names_taken_before),
    ("names swapped while A runs", names_swapped_while_a_runs),
    ("a session to hijack", a_session_to_hijack),
    ("nodes of a shared pool", nodes_of_a_shared_pool),
    ("sockets of a shared pool", sockets_of_a_shared_pool),
    ("a default pool of B's", a_default_pool_of_bs),
    (
        "an old default pool of B's",
        places::an_old_default_pool_of_bs,
    ),
    (
        "names in the pool's folder",
        places::names_in_the_pools_folder,
    ),
    ("names in a shared folder", places::names_in_a_shared_folder),
    ("the place of a lost copy", places::the_place_of_a_lost_copy),
    ("the place of all copies", places::the_place_of_all_copies),
    ("a link to a pool", places::a_link_to_a_pool),
    ("looking in", looking_in),
    ("a name for a log", a_name_for_a_log),
    ("a supervisor's socket", a_supervisors_socket),
];

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can play two users");
    }
    root
}

#[test]
fn no_attack_succeeds() {
    if !is_root() {
        return;
    }
    let succeeded =
        |(name, attack): &(&str, Attack)| Some(format!("{name}: {}", attack(false).err()?));
    let succeeded: Vec<String> = ATTACKS.iter().filter_map(succeeded).collect();
    assert!(succeeded.is_empty(), "{succeeded:#?}");
}

#[test]
fn canary_a_library_that_trusts_anybody_is_noticed() {
    if !is_root() {
        return;
    }
    let noticed: Vec<&str> = ATTACKS
        .iter()
        .filter(|(_, attack)| attack(true).is_err())
        .map(|(name, _)| *name)
        .collect();
    assert!(
        [
            "names taken before",
            "a session to hijack",
            "sockets of a shared pool",
            "a default pool of B's",
            "a link to a pool",
            "a name for a log"
        ]
        .iter()
        .all(|name| noticed.contains(name)),
        "{noticed:?}"
    );
}

/// What a program without Nacre can do with fds 4 (a folder) and 5 (a file) of a pool.
const PROBE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
static void fails(const char *what, long result, int wanted) {
    if (result != -1 || errno != wanted) printf("%s: %ld, errno %d\n", what, result, errno);
}
static void cannot_leave(int fd) {
    fails("make a file", openat(fd, "x", O_CREAT | O_WRONLY, 0600), ENOTDIR);
    fails("make a folder", mkdirat(fd, "x", 0700), ENOTDIR);
    fails("make a link", symlinkat("x", fd, "x"), ENOTDIR);
    fails("look above", openat(fd, "..", O_PATH), ENOTDIR);
    fails("look further", openat(fd, "../..", O_PATH), ENOTDIR);
    fails("go there", fchdir(fd), ENOTDIR);
}
static void cannot_write(int fd) {
    char byte = 0;
    struct stat stat;
    fails("write", write(fd, &byte, 1), EPERM);
    fails("write somewhere", pwrite(fd, &byte, 1, 1 << 20), EPERM);
    fails("lengthen", ftruncate(fd, 1), EPERM);
    fails("take room", fallocate(fd, 0, 0, 1), EPERM);
    fails("map", (long)mmap(0, 1, PROT_WRITE, MAP_SHARED, fd, 0), EPERM);
    if (fstat(fd, &stat) || stat.st_size || stat.st_blocks) puts("it has grown");
}
int main(void) {
    char byte, name[64];
    for (int fd = 4; fd <= 5; fd++) {
        cannot_leave(fd);
        fails("read", read(fd, &byte, 1), EBADF);
        fails("map to read", (long)mmap(0, 1, PROT_READ, MAP_SHARED, fd, 0), EACCES);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        int again = open(name, O_RDWR);
        if (again < 0) perror("open again");
        cannot_write(again);
        if (read(again, &byte, 1)) puts("something is read");
    }
    if (setresuid(60101, 60101, 60101)) perror("setresuid");
    for (int fd = 4; fd <= 5; fd++) {
        cannot_leave(fd);
        fails("as another, read", read(fd, &byte, 1), EBADF);
        fails("as another, write", write(fd, &byte, 1), EPERM);
    }
    puts("done");
    return 0;
}
"#;

/// An fd that reaches a program of root which Nacre does not serve.
#[test]
fn nothing_can_be_made_behind_a_pools_fd() {
    if !is_root() {
        return;
    }
    let stage = Stage::new(0o600, false);
    let probe = compiled(&stage, "probe", PROBE, &[Path::new("-static")]);
    // Afterwards programs with Nacre know the fds as before.
    let script = format!(
        "mkdir /nacre/d; echo x >/nacre/f; exec 4</nacre/d 5</nacre/f; {}; cat <&5; ls -d /proc/self/fd/4/.",
        probe.display()
    );
    let output = stage
        .command(0, &script)
        .env("NACRE_UNSERVED", "allow")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "done\nx\n/proc/self/fd/4/.\n", "{output:?}");
}

/// Says whether it gained rights, and whether it sees a pool.
const PRIVILEGED: &str = r#"
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>
int main(void) {
    printf("%s, %s\n", getauxval(AT_SECURE) ? "secure" : "plain",
           access("/nacre/f", F_OK) ? "no pool" : "a pool");
    return 0;
}
"#;

#[test]
fn a_program_that_gains_rights_heeds_nothing_that_its_caller_says() {
    if !is_root() {
        return;
    }
    // Where set-id bits count.
    let stage = Stage::new_in(&std::env::temp_dir(), 0o600, false);
    let system = rustix::fs::statvfs(stage.files.folder()).unwrap();
    if system
        .f_flag
        .contains(rustix::fs::StatVfsMountFlags::NOSUID)
    {
        eprintln!("skipped: programs gain no rights here");
        return;
    }
    // Linked with it, so that the dynamic linker cannot leave it away.
    let library = stage.path("libnacre_preload.so");
    let program = compiled(&stage, "privileged", PRIVILEGED, &[&library]);
    stage.works("echo x >/nacre/f", "").unwrap();
    let log = stage.base().join("log");
    let says = |mode| {
        set_mode(&program, mode);
        let mut command = stage.command(A, &program.display().to_string());
        let output = command
            .env("NACRE_UNSERVED", "allow")
            .env("NACRE_LOG", &log)
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap();
        (String::from_utf8(output.stdout).unwrap(), log.exists())
    };
    assert_eq!(says(0o4755), ("secure, no pool\n".to_owned(), false));
    assert_eq!(says(0o2755), ("secure, no pool\n".to_owned(), false));
    // The canary: without more rights it heeds them.
    assert_eq!(says(0o755), ("plain, a pool\n".to_owned(), true));
}

/// Gives up rights, then uses the pool; they must stay away, also in a program of the pool with
/// set-id bits.
const MODEST: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int failed;
static void is(const char *what, long found, long wanted) {
    if (found != wanted) { printf("%s: %ld, not %ld\n", what, found, wanted); failed = 1; }
}
static struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
static unsigned rights(void) {
    struct __user_cap_data_struct sets[2];
    syscall(SYS_capget, &head, sets);
    return sets[0].effective | sets[0].permitted | sets[1].effective | sets[1].permitted;
}
static void look(int dumpable) {
    is("dumpable", prctl(PR_GET_DUMPABLE), dumpable);
    is("no new privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    is("capabilities", rights(), 0);
    is("user", geteuid(), getuid());
}
int main(int count, char **arguments) {
    if (count > 1) { look(1); is("another's file", access("/etc/shadow", W_OK), -1); return failed; }
    struct __user_cap_data_struct none[2] = {{0}};
    is("drop", syscall(SYS_capset, &head, none), 0);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    look(0);
    int fd = open("/nacre/modest", O_CREAT | O_RDWR, 0600);
    is("write", write(fd, "x", 1), 1);
    is("close", close(fd), 0);
    is("fifo", mkfifo("/nacre/modest.fifo", 0600), 0);
    fd = open("/nacre/modest.fifo", O_RDWR);
    is("write to the fifo", write(fd, "x", 1), 1);
    look(0);
    int child = fork(), status;
    if (!child) {
        look(0);
        execl("/nacre/su", "su", "again", (char *)0);
        _exit(99);
    }
    waitpid(child, &status, 0);
    is("the child", status, 0);
    look(0);
    puts(failed ? "failed" : "done");
    return 0;
}
"#;

#[test]
fn what_a_program_gave_up_stays_given_up() {
    if !is_root() {
        return;
    }
    let stage = Stage::new(0o600, false);
    let program = compiled(&stage, "modest", MODEST, &[]);
    let script = format!(
        "rm -f /nacre/su; cp {0} /nacre/su; chmod 4755 /nacre/su; exec {0}",
        program.display()
    );
    let output = stage.run(A, &script);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "done\n",
        "{output:?}"
    );
}

/// Executes a program that names the pool, as one user or as two.
const TWO_USERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
    if (count > 1 && setresuid(-1, atoi(arguments[1]), -1)) return 1;
    execl("/bin/cat", "cat", "/nacre/f", (char *)0);
    printf("refused: %s\n", strerrorname_np(errno));
    return 0;
}
"#;

#[test]
fn a_program_that_the_linker_would_not_serve_for_its_two_users_is_refused() {
    if !is_root() {
        return;
    }
    let stage = Stage::new(0o644, false);
    let program = compiled(&stage, "two", TWO_USERS, &[]);
    let says = |more: &str| {
        let script = format!("echo x >/nacre/f; exec {} {more}", program.display());
        let output = stage.run(0, &script);
        format!("{output:?}")
    };
    let (one, two) = (says(""), says(&B.to_string()));
    assert!(one.contains(r#"stdout: "x\n""#), "{one}");
    assert!(two.contains(r#"stdout: "refused: EPERM\n""#), "{two}");
}

#[test]
fn a_library_under_another_name_serves_as_well() {
    if !is_root() {
        return;
    }
    let stage = Stage::new(0o644, false);
    let other = stage.path("another-name.so");
    fs::rename(stage.path("libnacre_preload.so"), &other).unwrap();
    let mut command = stage.command(A, "echo x >/nacre/f; bash -c 'cat /nacre/f; true'");
    let output = command.env("LD_PRELOAD", &other).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n", "{output:?}");
}
