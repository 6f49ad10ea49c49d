//! `nacre run` mounts its pools for programs that the preload library cannot serve.

use crate::commands::{nacre, text};
use crate::keeping::{can_forget, is_kept};
use crate::preload::preload;
use crate::stage::{Stage, soon};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// Does what its first argument says with the files behind it; compiled as any kind of program.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **a) {
    char text[100] = "";
    FILE *f = n > 2 ? fopen(a[2], *a[1] == 'w' ? "w" : "r") : 0;
    if (n > 1 && *a[1] == 'x') return execvp(a[2], a + 2), perror(a[2]), 1;
    if (n > 1 && *a[1] == 'i') return read(0, text, 2) != 2 || write(1, text, 2) != 2;
    if (!f) return perror(a[2]), 1;
    if (*a[1] == 'w') return fprintf(f, "%s\n", a[3]) < 0 || fclose(f);
    return !fgets(text, sizeof text, f) || fputs(text, stdout) < 0;
}
"#;

/// Takes a lock and says what came of it. Arguments: p, o or f (fcntl, its OFD locks, flock), s or
/// x (shared, exclusive), t, w or i (try, wait, wait until a signal comes), the file, and a file
/// until which the lock is kept.
const LOCKER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/time.h>
#include <unistd.h>
static void nothing(int signal) { (void)signal; }
int main(int n, char **a) {
    int shared = *a[2] == 's', try = *a[3] == 't', fd = open(a[4], O_RDWR | O_CREAT, 0644), got;
    struct flock lock = { .l_type = shared ? F_RDLCK : F_WRLCK, .l_start = 10, .l_len = 5 };
    struct sigaction act = { .sa_handler = nothing };
    struct itimerval soon = { .it_value.tv_usec = 200000, .it_interval.tv_usec = 50000 };
    if (fd < 0) return perror(a[4]), 1;
    sigaction(SIGALRM, &act, 0);
    if (*a[3] == 'i') setitimer(ITIMER_REAL, &soon, 0);
    if (*a[1] == 'f') got = flock(fd, (shared ? LOCK_SH : LOCK_EX) | (try ? LOCK_NB : 0));
    else if (*a[1] == 'o') got = fcntl(fd, try ? F_OFD_SETLK : F_OFD_SETLKW, &lock);
    else got = fcntl(fd, try ? F_SETLK : F_SETLKW, &lock);
    puts(!got ? "got" : errno == EAGAIN || errno == EACCES ? "busy"
        : errno == EINTR ? "interrupted" : "failed");
    fflush(stdout);
    while (n > 5 && access(a[5], F_OK)) usleep(5000);
    return 0;
}
"#;

struct Below {
    stage: Stage,
    library: PathBuf,
}

impl Below {
    fn new() -> Option<Below> {
        let stage = Stage::mounted(&[])?;
        stage.unmount();
        let folder = stage.pool.folder();
        fs::write(folder.join("program.c"), PROGRAM).unwrap();
        fs::write(folder.join("locker.c"), LOCKER).unwrap();
        let programs = [
            ("static", "-static", "program.c"),
            ("dynamic", "-O", "program.c"),
            ("slock", "-static", "locker.c"),
            ("dlock", "-O", "locker.c"),
        ];
        for (name, flag, source) in programs {
            let mut compiler = Command::new("gcc");
            compiler.args([flag, "-o", name, source]);
            assert!(compiler.current_dir(folder).status().unwrap().success());
        }
        Some(Below {
            stage,
            library: preload(),
        })
    }

    /// A script of bash under `nacre run`; `$D` is the folder of the programs.
    fn run(&self, options: &[&str], script: &str) -> Output {
        let folder = self.stage.pool.folder();
        let mut command = self.command();
        command.args(options).args(["--", "bash", "-c", script]);
        command.env("D", folder).output().unwrap()
    }

    fn nacre(&self) -> Command {
        let folder = self.stage.pool.folder();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
        command.env("NACRE_PRELOAD", &self.library);
        command.env("NACRE_SESSION_DIR", folder).current_dir(folder);
        command
    }

    fn command(&self) -> Command {
        let mut command = self.nacre();
        command.args(["run", "-q", "--pool", "my.pool", "--mount"]);
        command.arg(&self.stage.mount);
        command
    }

    fn gives(&self, script: &str, wanted: &str) {
        let output = self.run(&[], script);
        assert_eq!(text(&output), wanted, "{script}");
    }

    /// Nothing is mounted, nobody uses the pool, and all is well with it.
    fn nothing_is_left(&self) {
        assert!(self.stage.is_left());
        self.stage.check();
    }
}

#[test]
fn programs_that_cannot_be_served_get_the_files() {
    let Some(below) = Below::new() else { return };
    below.gives("cd mount; $D/static w $D/mount/f one; cat f", "one\n");
    below.gives("echo two >mount/f; $D/static r $D/mount/f", "two\n");
    below.nothing_is_left();
    // By the working directory, and back into it.
    below.gives(
        "mkdir mount/d; cd mount/d; $D/static w f three; cat f",
        "three\n",
    );
    below.gives("cd mount/d; $D/static x $D/dynamic r f", "three\n");
    let inside_mount = "cd mount/d; $D/static x sh -c 'pwd; readlink /proc/self/cwd'";
    let inside = below.stage.mount.join("d");
    let inside = inside.display();
    below.gives(inside_mount, &format!("{inside}\n{inside}\n"));
    below.gives("cd mount/d; $D/nothing 2>/dev/null; cat f", "three\n");
    below.nothing_is_left();
}

#[test]
fn the_program_itself_may_be_one_that_cannot_be_served() {
    let Some(below) = Below::new() else { return };
    below.gives("echo here >mount/f", "");
    let file = below.stage.mount.join("f");
    let program = below.stage.pool.folder().join("static");
    let named = below
        .command()
        .arg("--")
        .arg(&program)
        .arg("r")
        .arg(&file)
        .output();
    assert_eq!(text(&named.unwrap()), "here\n");
    let mut inside = below.nacre();
    inside.args(["run", "-q", "--pool", "../my.pool", "--mount", ".", "--"]);
    inside
        .arg(&program)
        .args(["r", "f"])
        .current_dir(&below.stage.mount);
    assert_eq!(text(&inside.output().unwrap()), "here\n");
    below.nothing_is_left();
}

#[test]
fn the_dynamic_linker_finds_what_it_is_told_to_load() {
    let Some(below) = Below::new() else { return };
    let prelude = "cd mount; mkdir -p d/lib; cp $D/dynamic d; cd d; echo here >f
         echo 'int f(void) { return 7; }' >f.c; echo 'int f(void); int main(void) { return f(); }' >m.c
         gcc -shared -fPIC -o lib/libf.so f.c; gcc -o near m.c -Llib -lf -Wl,-rpath,'$ORIGIN/lib'
         gcc -o far m.c -Llib -lf; linker=$(ldd $D/dynamic | grep -o '/[^ ]*/ld-linux[^ ]*')
         of() { $linker \"$@\"; echo $?; }";
    below.gives(prelude, "");
    let inside = "of ./dynamic r f; of $D/mount/d/dynamic r f; of lib/../near; of --library-path lib ./far
         LD_LIBRARY_PATH=$PWD/lib of ./far; ldd ./near | grep -c libf; of --verify ./near
         exec 5<f; read -n 2 -u 5 two; of /bin/sh -c 'read rest; echo $rest; pwd; echo new >made' <&5
         cat made; cd $D; of --verify mount/d/near; ldd mount/d/near | grep -c libf";
    let folder = below.stage.mount.join("d");
    let wanted = format!(
        "here\n0\nhere\n0\n7\n7\n7\n1\n0\nre\n{}\n0\nnew\n0\n1\n",
        folder.display()
    );
    let again = "linker=$(ldd $D/dynamic | grep -o '/[^ ]*/ld-linux[^ ]*')
         cd mount/d; of() { $linker \"$@\"; echo $?; }";
    below.gives(&format!("{again}\n{inside}"), &wanted);
    below.nothing_is_left();
    // As the first program; and one that names no pool has nothing mounted.
    let mut first = below.command();
    first.args(["--", "/lib64/ld-linux-x86-64.so.2"]);
    first
        .arg(folder.join("dynamic"))
        .arg("r")
        .arg(folder.join("f"));
    assert_eq!(text(&first.output().unwrap()), "here\n");
    below.gives(
        &format!("{again}; cd $D; of --verify ./dynamic; grep -c $D/mount /proc/self/mountinfo"),
        "0\n0\n",
    );
    below.nothing_is_left();
}

#[test]
fn without_the_mount_they_are_refused_and_nothing_is_mounted() {
    let Some(below) = Below::new() else { return };
    let script = "$D/static w $D/mount/f one; grep -c fuse.nacre /proc/self/mountinfo; true";
    let said = text(&below.run(&["--no-fuse"], script));
    assert!(said.contains("is statically linked"), "{said}");
    assert!(!said.contains("one"), "{said}");
    // Whoever may be served needs no mount.
    let mounted = "cat mount/f; $D/dynamic r mount/f; grep $D/mount /proc/self/mountinfo";
    let said = text(&below.run(&[], mounted));
    assert!(
        said.contains("mount/f: No such file") && !said.contains("fuse"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&below.stage.mount).unwrap().count(), 0);
    below.nothing_is_left();
}

/// The supervisor changes nothing, so the kernel may keep what the mount has told it.
#[test]
fn below_a_run_the_kernel_keeps_things_for_who_is_alone() {
    let Some(below) = Below::new().filter(|_| can_forget()) else {
        return;
    };
    let mut command = below.command();
    command.args(["--", "./static", "i"]).stdin(Stdio::piped());
    let mut run = command.stdout(Stdio::null()).spawn().unwrap();
    let file = below.stage.mount.join("f");
    let mounted = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        below.stage.is_mounted() && fs::write(&file, "").is_ok()
    });
    assert!(mounted && is_kept(&below.stage, &file));
    run.stdin.take().unwrap().write_all(b"on").unwrap();
    assert!(run.wait().unwrap().success());
    below.nothing_is_left();
}

/// The mount point need not be there: it is made when it is needed, and goes with the mount.
#[test]
fn a_missing_mount_point_is_made_for_the_time_it_is_needed() {
    let Some(below) = Below::new() else { return };
    let made = below.stage.pool.folder().join("made");
    let run = |script: &str| {
        let mut command = below.nacre();
        command.args(["run", "-q", "--pool", "my.pool", "--mount"]);
        command.arg(&made).args(["--", "bash", "-c", script]);
        let output = command.env("D", below.stage.pool.folder()).output();
        (text(&output.unwrap()), !soon(|| !made.exists()))
    };
    let served = "echo one >$D/made/f; $D/dynamic r $D/made/f; ls $D";
    let (said, is_left) = run(served);
    assert!(said.starts_with("one\n") && !is_left, "{said}");
    assert!(!said.contains("made"), "made without need: {said}");
    let (said, is_left) = run("$D/static r $D/made/f; cd $D/made; $D/static r f");
    assert_eq!((said.as_str(), is_left), ("one\none\n", false));
    // Killed, too: the server ends with the last program.
    let (_, _) = run("$D/static r $D/made/f; kill -9 $PPID; sleep 1.2; $D/static r $D/made/f");
    assert!(soon(|| !made.exists()));
    below.nothing_is_left();
}

/// What the kernel shows of one pool is no file of the host that another one would cover.
#[test]
fn another_pool_may_appear_at_the_same_place() {
    let Some(below) = Below::new() else { return };
    let other = "$D/static w $D/mount/f one; \"$NACRE\" create --size 24M $D/other >&2
        env -u NACRE_MOUNTS -u LD_PRELOAD \"$NACRE\" run -q --pool $D/other --mount $D/mount -- \
            bash -c 'echo two >$D/mount/f; $D/dynamic r $D/mount/f; $D/static r $D/mount/f'
        $D/static r $D/mount/f";
    let script = format!("NACRE={}\n{other}", env!("CARGO_BIN_EXE_nacre"));
    let said = text(&below.run(&[], &script));
    assert!(
        said.contains("two\n") && said.starts_with("two\none\n"),
        "{said}"
    );
    let instead = format!(
        "it would see {0}/my.pool, which user",
        below.stage.pool.folder().display()
    );
    assert!(
        said.contains("is statically linked") && said.contains(&instead),
        "{said}"
    );
    below.nothing_is_left();
}

#[test]
fn who_gains_rights_is_let_in_with_the_others_only() {
    let Some(below) = Below::new() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make a program of another user");
        return;
    }
    let program = below.stage.pool.folder().join("setuid");
    fs::copy(below.stage.pool.folder().join("dynamic"), &program).unwrap();
    std::os::unix::fs::chown(&program, Some(60_305), Some(60_305)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    below.gives("chmod 777 mount; cd mount; mkdir d; chmod 777 d", "");
    let script = "$D/setuid w $D/mount/d/f mine; stat -c %u $D/mount/d/f; cat $D/mount/d/f";
    let said = text(&below.run(&[], script));
    assert!(said.contains("gains rights at its start"), "{said}");
    let said = text(&below.run(&["--allow-other"], script));
    assert_eq!(said, "60305\nmine\n");
    below.nothing_is_left();
}

#[test]
fn two_runs_share_one_mount_until_the_last_ends() {
    let Some(below) = Below::new() else { return };
    let mut first = below.command();
    let wait =
        "$D/static w $D/mount/f one; echo >$D/ready; until [ -e $D/go ]; do sleep 0.01; done";
    first
        .args(["--", "bash", "-c", wait])
        .env("D", below.stage.pool.folder());
    let mut first = first.spawn().unwrap();
    let at = |name: &str| below.stage.pool.folder().join(name);
    while !at("ready").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let script = "$D/static r $D/mount/f; touch $D/go; while kill -0 $P 2>&-; do sleep 0.01; done
        $D/static r $D/mount/f; cd mount; $D/static r f";
    let script = script.replace("$P", &first.id().to_string());
    let waiter = thread::spawn(move || first.wait().unwrap());
    below.gives(&script, "one\none\none\n");
    assert!(waiter.join().unwrap().success());
    // The server looks once a second.
    while below.stage.is_mounted() || !below.stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    below.nothing_is_left();
}

#[test]
fn a_killed_supervisor_leaves_no_mount_behind() {
    let Some(below) = Below::new() else { return };
    let script = "$D/static w $D/mount/f one; kill -9 $PPID; sleep 1.2; $D/static r $D/mount/f";
    let output = below.run(&[], &format!("{script} >$D/seen 2>&1; echo >$D/end"));
    assert!(!output.status.success());
    let at = |name: &str| below.stage.pool.folder().join(name);
    while !at("end").exists() || below.stage.is_mounted() || !below.stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(at("seen")).unwrap(), "one\n");
    below.nothing_is_left();
}

/// As a container leaves it that was made meanwhile.
#[test]
fn a_copy_of_the_mount_elsewhere_does_not_keep_the_run_from_ending() {
    let Some(below) = Below::new() else { return };
    let folder = below.stage.pool.folder();
    let copied = "echo >copied; until [ -e go ]; do sleep 0.01; done; cat mount/f >seen";
    let copier = "until [ -e ready ]; do sleep 0.01; done
        exec unshare --mount --propagation private bash -c \"$0\"";
    let mut copier = Command::new("bash")
        .args(["-c", copier, copied])
        .current_dir(folder)
        .spawn()
        .unwrap();
    let wait = "echo >$D/ready; until [ -e $D/copied ]; do sleep 0.01; done";
    below.gives(&format!("$D/static w $D/mount/f one; {wait}"), "");
    assert!(!below.stage.is_mounted());
    fs::write(folder.join("go"), "").unwrap();
    assert!(copier.wait().unwrap().success());
    while !below.stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    let seen = fs::read_to_string(folder.join("seen"));
    assert_eq!(seen.unwrap(), "one\n");
    below.nothing_is_left();
}

#[test]
fn a_mount_of_a_run_that_was_killed_with_its_server_is_cleared() {
    let Some(below) = Below::new() else { return };
    let killed = "kill -STOP $PPID; pkill -9 -P $PPID nacre; kill -9 $PPID";
    below.run(&[], &format!("$D/static w $D/mount/f one; {killed}"));
    assert!(below.stage.is_mounted(), "dead");
    below.gives("$D/static r $D/mount/f; cat mount/f", "one\none\n");
    below.nothing_is_left();
}

#[test]
fn a_killed_server_is_replaced_when_it_is_needed() {
    let Some(below) = Below::new() else { return };
    let script = "$D/static w $D/mount/f one; pkill -9 -P $PPID nacre
        while grep -q \"$D/mount \" /proc/self/mountinfo; do sleep 0.01; done
        cat mount/f; $D/static r $D/mount/f";
    below.gives(script, "one\none\n");
    below.nothing_is_left();
    let info = text(&nacre(below.stage.pool.folder(), &["info", "my.pool"]));
    assert!(info.contains("nobody"), "{info}");
}

/// The position is that of the open file description, wherever it is moved.
#[test]
fn inherited_files_are_shared_with_programs_that_cannot_be_served() {
    let Some(below) = Below::new() else { return };
    below.gives("echo one >mount/f", "");
    let output =
        "{ $D/static r $D/mount/f; echo two; $D/static r $D/mount/f; } >mount/o; cat mount/o";
    below.gives(output, "one\ntwo\none\n");
    let append = "$D/static r $D/mount/f >>mount/o; tail -n 2 mount/o";
    below.gives(append, "one\none\n");
    let input =
        "printf 'a\\nb\\nc\\n' >mount/i; { $D/static i; read x; $D/static i; echo $x; } <mount/i";
    below.gives(input, "a\nc\nb\n");
    let nameless = "exec 5<>mount/g; rm mount/g; $D/static r $D/mount/f >&5; cat /proc/self/fd/5";
    below.gives(nameless, "one\n");
    // A program that cannot be executed leaves everything as it was.
    let failed = "cp $D/static $D/bad; chmod 644 $D/bad; python3 -c '
import os
f = os.open(\"mount/p\", os.O_CREAT | os.O_WRONLY)
os.set_inheritable(f, True)
try: os.execv(os.environ[\"D\"] + \"/bad\", [\"bad\"])
except PermissionError: os.write(f, b\"still\\n\")'; cat mount/p";
    below.gives(failed, "still\n");
    below.nothing_is_left();
}

#[test]
fn links_of_the_host_lead_into_the_pool_that_the_kernel_shows() {
    let Some(below) = Below::new() else { return };
    let prelude =
        "mkdir mount/d; echo one >mount/d/f; ln -s $D/mount/d/f file; ln -s $D/mount/d folder
         $D/static r $D/file; same() { stat -Lc %d:%i \"$@\" | uniq | wc -l; }";
    let script = "same file mount/d/f folder/f; same folder mount/d
         cp file mount/d/f 2>&1 | grep -o same; cp folder/f mount/d/f 2>&1 | grep -o same; cat mount/d/f
         echo two >file; cat mount/d/f; echo new >folder/new; cat mount/d/new
         cd folder; same . $D/mount/d; echo three >f; cat f; mv f g; ls; cat $D/folder/g
         python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
print(os.fstat(f).st_dev == os.stat(sys.argv[2]).st_dev, os.path.samefile(*sys.argv[1:]))' $D/folder/g $D/mount/d/g
         python3 -c 'import os, sys
os.close(0)
made = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
print(made, os.fstat(made).st_dev == os.stat(sys.argv[2]).st_dev)
os.mkdir(sys.argv[1] + \"d\")' $D/folder/made $D/mount/d; rm $D/mount/d/made; rmdir $D/mount/d/maded
         rm $D/folder/g; ls; cd $D; rm file folder";
    let wanted =
        "one\n1\n1\nsame\nsame\none\ntwo\nnew\n1\nthree\ng\nnew\nthree\nTrue True\n0 True\nnew\n";
    below.gives(&format!("{prelude}\n{script}"), wanted);
    below.nothing_is_left();
}

/// `first` holds a lock, `second` meets it.
fn exclude(below: &Below, first: &str, second: &str) {
    let prelude = format!(
        "cd $D; rm -f go out*; F=$D/{first} S=$D/{second}; L=$D/mount/lock
         hold() {{ : >out; $F $1 $2 t $L $D/go >out & until grep -q . out; do sleep 0.01; done; cat out; }}
         end() {{ touch go; wait; rm go; }}"
    );
    let script = |text: &str| format!("{prelude}\n{text}");
    for kind in ["p", "o", "f"] {
        let conflict = format!(
            "hold {kind} x; $S {kind} x t $L; $S {kind} s t $L; $S {kind} x i $L
             $S {kind} x w $L >out2 & sleep 0.1; cat out2; end; cat out2; $S {kind} x t $L"
        );
        below.gives(
            &script(&conflict),
            "got\nbusy\nbusy\ninterrupted\ngot\ngot\n",
        );
        let shared = format!("hold {kind} s; $S {kind} s t $L; $S {kind} x t $L; end");
        below.gives(&script(&shared), "got\ngot\nbusy\n");
    }
    below.gives(
        &script("hold p x; $S o x t $L; $S f x t $L; end"),
        "got\nbusy\ngot\n",
    );
    below.gives(
        &script("hold f x; $S p x t $L; $S f x t $L; end"),
        "got\ngot\nbusy\n",
    );
}

#[test]
fn locks_of_preloaded_programs_exclude_others() {
    let Some(below) = Below::new() else { return };
    exclude(&below, "dlock", "slock");
    below.nothing_is_left();
}

#[test]
fn locks_of_others_exclude_preloaded_programs() {
    let Some(below) = Below::new() else { return };
    exclude(&below, "slock", "dlock");
    below.nothing_is_left();
}

#[test]
fn locks_of_programs_of_the_mount_exclude_each_other() {
    let Some(below) = Below::new() else { return };
    exclude(&below, "slock", "slock");
    below.nothing_is_left();
}

/// The canary: without a common place for locks, nobody is excluded.
#[test]
fn canary_locks_of_two_pools_do_not_exclude() {
    let Some(below) = Below::new() else { return };
    below.gives("echo >$D/lock; $D/slock p x t $D/lock $D/go & sleep 0.1; $D/slock p x t $D/mount/lock; touch $D/go; wait", "got\ngot\n");
    below.nothing_is_left();
}
