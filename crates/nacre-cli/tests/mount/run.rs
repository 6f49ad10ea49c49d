//! `nacre run` mounts its pools for programs that the preload library cannot serve.

use crate::commands::{nacre, text};
use crate::preload::preload;
use crate::stage::Stage;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
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
    if (!f) return perror(a[2]), 1;
    if (*a[1] == 'w') return fprintf(f, "%s\n", a[3]) < 0 || fclose(f);
    return !fgets(text, sizeof text, f) || fputs(text, stdout) < 0;
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
        let folder = stage.folder.path();
        fs::write(folder.join("program.c"), PROGRAM).unwrap();
        for (name, flag) in [("static", "-static"), ("dynamic", "-O")] {
            let mut compiler = Command::new("gcc");
            compiler.args([flag, "-o", name, "program.c"]);
            assert!(compiler.current_dir(folder).status().unwrap().success());
        }
        Some(Below {
            stage,
            library: preload(),
        })
    }

    /// A script of bash under `nacre run`; `$D` is the folder of the programs.
    fn run(&self, options: &[&str], script: &str) -> Output {
        let folder = self.stage.folder.path();
        let mut command = self.command();
        command.args(options).args(["--", "bash", "-c", script]);
        command.env("D", folder).output().unwrap()
    }

    fn nacre(&self) -> Command {
        let folder = self.stage.folder.path();
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
        assert!(!self.stage.is_mounted());
        assert_eq!(self.stage.servers(), [0; 0]);
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
    let parked = "cd mount/d; $D/static x sh -c 'pwd; readlink /proc/self/cwd'";
    let inside = below.stage.mount.join("d");
    let inside = inside.display();
    below.gives(parked, &format!("{inside}\n{inside}\n"));
    below.gives("cd mount/d; $D/nothing 2>/dev/null; cat f", "three\n");
    below.nothing_is_left();
}

#[test]
fn the_program_itself_may_be_one_that_cannot_be_served() {
    let Some(below) = Below::new() else { return };
    below.gives("echo here >mount/f", "");
    let file = below.stage.mount.join("f");
    let program = below.stage.folder.path().join("static");
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
fn without_the_mount_they_are_refused_and_nothing_is_mounted() {
    let Some(below) = Below::new() else { return };
    let script = "$D/static w $D/mount/f one; grep -c fuse.nacre /proc/self/mountinfo; true";
    let said = text(&below.run(&["--no-fuse"], script));
    assert!(said.contains("is statically linked"), "{said}");
    assert!(!said.contains("one"), "{said}");
    // Who may be served needs no mount.
    let mounted = "cat mount/f; $D/dynamic r mount/f; grep $D/mount /proc/self/mountinfo";
    let said = text(&below.run(&[], mounted));
    assert!(
        said.contains("mount/f: No such file") && !said.contains("fuse"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&below.stage.mount).unwrap().count(), 0);
    below.nothing_is_left();
}

#[test]
fn who_gains_rights_is_let_in_with_the_others_only() {
    let Some(below) = Below::new() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make a program of another user");
        return;
    }
    let program = below.stage.folder.path().join("setuid");
    fs::copy(below.stage.folder.path().join("dynamic"), &program).unwrap();
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
        .env("D", below.stage.folder.path());
    let mut first = first.spawn().unwrap();
    let at = |name: &str| below.stage.folder.path().join(name);
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
    let at = |name: &str| below.stage.folder.path().join(name);
    while !at("end").exists() || below.stage.is_mounted() || !below.stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(at("seen")).unwrap(), "one\n");
    below.nothing_is_left();
}

#[test]
fn a_killed_server_is_replaced_when_it_is_needed() {
    let Some(below) = Below::new() else { return };
    let script = "$D/static w $D/mount/f one; pkill -9 -P $PPID nacre
        while grep -q \"$D/mount \" /proc/self/mountinfo; do sleep 0.01; done
        cat mount/f; $D/static r $D/mount/f";
    below.gives(script, "one\none\n");
    let info = text(&nacre(below.stage.folder.path(), &["info", "my.pool"]));
    assert!(info.contains("nobody"), "{info}");
    below.nothing_is_left();
}
