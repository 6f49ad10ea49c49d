//! Preloaded programs and programs of the kernel's mount use one pool at the same time, and see
//! each other's changes at once.

use crate::preload::preload;
use crate::stage::Stage;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A preloaded shell that does one line after the other; its `/nacre` is the pool.
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    pub fn start(stage: &Stage) -> Shell {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
        command.args(["run", "--pool", "my.pool", "--", "bash", "--norc"]);
        command.env("NACRE_PRELOAD", preload());
        command.env("NACRE_SESSION_DIR", stage.pool.folder());
        command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
        command.current_dir(stage.pool.folder());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Shell {
            child,
            input,
            output,
        }
    }

    /// What a line says.
    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}; echo; echo END").unwrap();
        let mut said = String::new();
        loop {
            let before = said.len();
            assert_ne!(self.output.read_line(&mut said).unwrap(), 0, "{said}");
            if &said[before..] == "END\n" {
                return said[..before].trim_end().to_string();
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ended = writeln!(self.input, "exit");
        let _ended = self.child.wait();
    }
}

#[test]
fn both_kinds_of_programs_see_each_others_changes_at_once() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let mut shell = Shell::start(&stage);
    let at = |name: &str| stage.mount.join(name);
    fs::create_dir(at("d")).unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(at("d/f"))
        .unwrap();
    for round in 0..30 {
        let text = format!("kernel {round}{}", "k".repeat(round * 100));
        file.set_len(0).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        assert_eq!(shell.say("cat /nacre/d/f"), text);
        let size = shell.say("stat -c '%s %i %h' /nacre/d/f");
        let ino = file.metadata().unwrap().ino();
        assert_eq!(size, format!("{} {ino} 1", text.len()));
        // A file that is open here changes there.
        shell.say(&format!("echo -n preloaded {round} > /nacre/d/f"));
        let wanted = format!("preloaded {round}");
        assert_eq!(file.metadata().unwrap().len(), wanted.len() as u64);
        let mut seen = vec![0; 100];
        let len = file.read_at(&mut seen, 0).unwrap();
        assert_eq!(&seen[..len], wanted.as_bytes());
        // Names.
        shell.say(&format!("ln /nacre/d/f /nacre/d/l{round}"));
        assert_eq!(fs::metadata(at("d/f")).unwrap().nlink(), 2);
        fs::rename(at(&format!("d/l{round}")), at("moved")).unwrap();
        assert_eq!(
            shell.say("ls /nacre /nacre/d"),
            "/nacre:\nd\nmoved\n\n/nacre/d:\nf"
        );
        shell.say("rm /nacre/moved");
        assert!(!at("moved").exists());
        shell.say("chmod 604 /nacre/d/f");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o604);
        fs::write(at("moved"), "").unwrap();
        fs::remove_file(at("moved")).unwrap();
        assert_eq!(shell.say("test -e /nacre/moved || echo gone"), "gone");
    }
    drop(shell);
}

#[test]
fn appends_of_both_kinds_follow_each_other() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let mut shell = Shell::start(&stage);
    let path = stage.mount.join("log");
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    let mut wanted = String::new();
    for round in 0..50 {
        writeln!(log, "kernel {round}").unwrap();
        shell.say(&format!("echo preloaded {round} >> /nacre/log"));
        wanted += &format!("kernel {round}\npreloaded {round}\n");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
}

#[test]
fn a_file_that_the_other_kind_removes_lives_while_it_is_open() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let mut shell = Shell::start(&stage);
    fs::write(stage.mount.join("a"), "kernel").unwrap();
    let open = File::open(stage.mount.join("a")).unwrap();
    shell.say("rm /nacre/a; seq 100000 > /nacre/other");
    let mut seen = [0; 6];
    open.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!((&seen, open.metadata().unwrap().nlink()), (b"kernel", 0));
    drop(open);
    shell.say("echo preloaded > /nacre/b; exec 7< /nacre/b");
    fs::remove_file(stage.mount.join("b")).unwrap();
    fs::write(stage.mount.join("c"), vec![1; 100_000]).unwrap();
    assert_eq!(shell.say("cat <&7"), "preloaded");
    drop(shell);
    stage.unmount();
    stage.check();
}
