//! Power cuts: a virtual machine with an NVDIMM loses its power in the middle of work, comes up
//! again and compares the pool with what was acknowledged over the share with the host. What it
//! runs: tests/powercut/guest.sh.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::torture::{Outcome, Random, compile, nacre};
use crate::vm::{self, Vm};
use crate::workspace_root;

const USAGE: &str = "options: --cuts N, --seed S, --canary (a planted bug must be found)";
/// What the guest says of something acknowledged that is not there.
const NOTICED: [&str; 2] = ["CUT-FAILED verify", "CUT-FAILED a worker"];
const WORKERS: u32 = 3;
const CANARY_CUTS: u64 = 4;
const KINDS: [&str; 2] = ["dax", "file"];
/// A boot under load.
const PATIENCE: Duration = Duration::from_secs(600);

/// One machine: its NVDIMM, its share, and its pool's kind.
struct Machine {
    kind: &'static str,
    folder: PathBuf,
    /// `lie` if the first worker acknowledges what it did not do, else `-`.
    honesty: &'static str,
}

/// A machine that is on.
struct Running {
    runner: Child,
    lines: Receiver<String>,
}

/// `cargo xtask powercut`.
pub fn command(options: &[String]) -> Outcome<()> {
    let (mut cuts, mut seed) = (20, 1);
    let lies = options == ["--canary"];
    for pair in options.chunks(2).filter(|_| !lies) {
        let value = pair.get(1).and_then(|value| value.parse().ok());
        match (pair[0].as_str(), value) {
            ("--cuts", Some(value)) => cuts = value,
            ("--seed", Some(value)) => seed = value,
            _ => return Err(USAGE.to_string()),
        }
    }
    if !vm::is_available(&workspace_root())? {
        println!("powercut: NOT DONE");
        return Ok(());
    }
    if lies { canary() } else { cut_all(cuts, seed) }
}

/// Cuts, and a worker that acknowledges what it does not do; mostly the first shows it, on a slow
/// machine a later one.
fn canary() -> Outcome<()> {
    let machine = Machine::new(KINDS[0], "lie")?;
    let mut random = Random::new(1);
    let found = (1..=CANARY_CUTS)
        .try_for_each(|seed| machine.cut(seed, &mut random))
        .and_then(|()| machine.look());
    match found {
        Err(text) if NOTICED.iter().any(|noticed| text.contains(noticed)) => {
            println!("powercut: the planted bug was found: {}", text.trim());
            Ok(())
        }
        Err(other) => Err(other),
        Ok(said) => Err(format!("the planted bug was not found: {said}")),
    }
}

fn cut_all(cuts: u64, seed: u64) -> Outcome<()> {
    let (mut random, start) = (Random::new(seed), Instant::now());
    for (kind, of_kind) in KINDS.into_iter().zip([cuts.div_ceil(2), cuts / 2]) {
        let machine = Machine::new(kind, "-")?;
        for cut in 0..of_kind {
            machine.cut(random.below(u64::MAX), &mut random)?;
            println!("powercut: {kind}: cut {} of {of_kind}", cut + 1);
        }
        let said = machine.look()?;
        println!("powercut: {kind}: {of_kind} cuts, nothing lost; {said}");
    }
    println!("powercut: seed {seed}, {} s", start.elapsed().as_secs());
    Ok(())
}

impl Machine {
    fn new(kind: &'static str, honesty: &'static str) -> Outcome<Machine> {
        let name = format!("nacre-powercut-{}-{kind}", std::process::id());
        let machine = Machine {
            kind,
            folder: std::env::temp_dir().join(name),
            honesty,
        };
        let programs = machine.share().join("bin");
        fs::create_dir_all(&programs).map_err(|error| error.to_string())?;
        fs::create_dir_all(machine.share().join("models")).map_err(|error| error.to_string())?;
        compile("worker.c", &programs.join("worker"))?;
        let nacre = nacre()?;
        for program in [nacre.clone(), nacre.with_file_name("libnacre_preload.so")] {
            let to = programs.join(program.file_name().unwrap_or_default());
            fs::copy(&program, to).map_err(|error| format!("{}: {error}", program.display()))?;
        }
        Ok(machine)
    }

    fn share(&self) -> PathBuf {
        self.folder.join("share")
    }

    fn start(&self, seed: u64, last: bool) -> Outcome<Running> {
        let source = workspace_root().join("tests/powercut/guest.sh");
        let source = fs::read_to_string(source).map_err(|error| error.to_string())?;
        let last = if last { "LAST=1\n" } else { "" };
        let script = format!(
            "KIND={} HONESTY={} SEED={seed} WORKERS={WORKERS}\n{last}{source}",
            self.kind, self.honesty
        );
        let job = self.folder.join("guest.sh");
        fs::write(&job, script).map_err(|error| error.to_string())?;
        let machine = Vm {
            mode: "tcg",
            share: &self.share(),
            script: &job,
            limit: PATIENCE.as_secs(),
        };
        let mut runner = machine
            .command(&workspace_root())
            .env("NVDIMM", self.folder.join("nvdimm"))
            .env("SIZE", "512M")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (sender, lines) = channel();
        if let Some(console) = runner.stdout.take() {
            thread::spawn(move || {
                let mut lines = BufReader::new(console).split(b'\n').map_while(Result::ok);
                lines.all(|line| {
                    sender
                        .send(String::from_utf8_lossy(&line).into_owned())
                        .is_ok()
                })
            });
        }
        Ok(Running { runner, lines })
    }

    /// Boots, lets the workers work, and pulls the plug; every fourth time already while it
    /// recovers.
    fn cut(&self, seed: u64, random: &mut Random) -> Outcome<()> {
        let mut running = self.start(seed, false)?;
        let early = random.below(4) == 0 && self.share().join("made").exists();
        running.await_line(if early { "VM-READY" } else { "CUT-READY" })?;
        sleep(Duration::from_millis(random.below(8000)));
        running.pull_the_plug();
        let rest: Vec<String> = running.lines.try_iter().collect();
        if rest.iter().any(|line| line.contains("CUT-FAILED")) {
            return Err(rest.join("\n"));
        }
        Ok(())
    }

    /// Boots once more and says what the last check found.
    fn look(&self) -> Outcome<String> {
        let mut running = self.start(0, true)?;
        let said = running.await_line("workers ")?;
        running.await_line("CUT-LAST")?;
        running.pull_the_plug();
        Ok(said)
    }
}

impl Running {
    fn await_line(&mut self, wanted: &str) -> Outcome<String> {
        let mut seen = String::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(wanted) => return Ok(line),
                Ok(line) if line.contains("CUT-FAILED") => {
                    return Err(format!("{line}\n{seen}"));
                }
                Ok(line) => seen += &(line + "\n"),
                Err(RecvTimeoutError::Timeout) => return Err(format!("no {wanted}:\n{seen}")),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the machine went off before {wanted}:\n{seen}"));
                }
            }
        }
    }

    /// The machine is the process below the runner's `timeout`.
    fn pull_the_plug(&mut self) {
        for process in descendants(self.runner.id()).into_iter().rev() {
            let _gone = kill_process(process, Signal::KILL);
        }
        let _gone = self.runner.kill();
        let _ended = self.runner.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.pull_the_plug();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::env::var_os("KEEP").is_none() {
            let _best_effort = fs::remove_dir_all(&self.folder);
        }
    }
}

/// All processes below this one, parents first.
fn descendants(pid: u32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children: Vec<u32> = children
        .split_whitespace()
        .filter_map(|one| one.parse().ok())
        .collect();
    let below = children.iter().flat_map(|&child| {
        let own = Pid::from_raw(child as i32);
        own.into_iter().chain(descendants(child))
    });
    below.collect()
}
