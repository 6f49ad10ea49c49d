//! Power cuts: a virtual machine with an NVDIMM loses its power in the middle of work, comes up
//! again and compares the pool with what was acknowledged over the share with the host. What it
//! runs: tests/powercut/guest.sh; with a disk that has a volatile cache, tests/powercut/disk.sh.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nacre_testdisk::{Disk, NbdServer};
use rustix::process::{Pid, Signal, kill_process};

use crate::torture::{Outcome, Random, compile, nacre};
use crate::vm::{self, Vm};
use crate::workspace_root;

const USAGE: &str = "options: --cuts N, --seed S, --canary (a planted bug must be found),
         --disk (instead, and first: a disk that loses what was not flushed)";
/// What the guest says of something acknowledged that is not there.
const NOTICED: [&str; 2] = ["CUT-FAILED verify", "CUT-FAILED a worker"];
/// The same of a disk that forgets; its file system may be the first to notice.
const NOTICED_OF_DISK: [&str; 5] = [
    "CUT-FAILED verify",
    "CUT-FAILED check",
    "CUT-FAILED mount",
    "CUT-FAILED mkdir",
    "CUT-FAILED a worker",
];
const WORKERS: u32 = 3;
const CANARY_CUTS: u64 = 4;
const KINDS: [&str; 2] = ["dax", "file"];
const DISK: &str = "disk";
const DISK_SIZE: u64 = 512 << 20;
/// A boot under load.
const PATIENCE: Duration = Duration::from_secs(600);

/// One machine: its NVDIMM, its share, and its pool's kind.
struct Machine {
    kind: &'static str,
    folder: PathBuf,
    /// `lie` if the first worker acknowledges what it did not do, else `-`. A disk that lies does
    /// not flush.
    honesty: &'static str,
    /// Serves its disk, if it has one.
    server: Option<NbdServer>,
}

/// A machine that is on.
struct Running {
    runner: Child,
    lines: Receiver<String>,
}

/// `cargo xtask powercut`.
pub fn command(options: &[String]) -> Outcome<()> {
    let (mut cuts, mut seed) = (20, 1);
    let (kinds, options) = match options.split_first() {
        Some((first, rest)) if first == "--disk" => (&[DISK][..], rest),
        _ => (&KINDS[..], options),
    };
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
    match lies {
        true => canary(kinds[0]),
        false => cut_all(kinds, cuts, seed),
    }
}

/// Cuts, and a worker that acknowledges what it does not do; mostly the first shows it, on a slow
/// machine a later one.
fn canary(kind: &'static str) -> Outcome<()> {
    let machine = Machine::new(kind, "lie")?;
    let signs: &[&str] = if kind == DISK {
        &NOTICED_OF_DISK
    } else {
        &NOTICED
    };
    let mut random = Random::new(1);
    let found = (1..=CANARY_CUTS)
        .try_for_each(|seed| machine.cut(seed, &mut random))
        .and_then(|()| machine.look());
    match found {
        Err(text) if signs.iter().any(|noticed| text.contains(noticed)) => {
            println!("powercut: the planted bug was found: {}", text.trim());
            Ok(())
        }
        Err(other) => Err(other),
        Ok(said) => Err(format!("the planted bug was not found: {said}")),
    }
}

fn cut_all(kinds: &[&'static str], cuts: u64, seed: u64) -> Outcome<()> {
    let (mut random, start) = (Random::new(seed), Instant::now());
    let share = cuts.div_ceil(kinds.len() as u64);
    for (&kind, of_kind) in kinds.iter().zip([share, cuts - share]) {
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
        let mut machine = Machine {
            kind,
            folder: std::env::temp_dir().join(name),
            honesty,
            server: None,
        };
        let programs = machine.share().join("bin");
        fs::create_dir_all(&programs).map_err(|error| error.to_string())?;
        fs::create_dir_all(machine.share().join("models")).map_err(|error| error.to_string())?;
        match kind {
            DISK => machine.add_disk(&programs)?,
            _ => compile("worker.c", &programs.join("worker"))?,
        }
        let nacre = nacre()?;
        for program in [nacre.clone(), nacre.with_file_name("libnacre_preload.so")] {
            let to = programs.join(program.file_name().unwrap_or_default());
            fs::copy(&program, to).map_err(|error| format!("{}: {error}", program.display()))?;
        }
        Ok(machine)
    }

    /// A disk, and the programs that use it.
    fn add_disk(&mut self, programs: &Path) -> Outcome<()> {
        let failed = |error: std::io::Error| error.to_string();
        compile("synced.c", &programs.join("synced"))?;
        for script in ["acknowledged.py", "database.py", "postgres.py"] {
            let source = workspace_root().join("tests/powercut").join(script);
            fs::copy(source, programs.join(script)).map_err(failed)?;
        }
        let backing = self.folder.join("backing");
        let disk = Disk::open(&backing, DISK_SIZE, self.honesty != "lie").map_err(failed)?;
        let mut random = Random::new(DISK_SIZE);
        let below = move |limit| random.below(limit);
        let server = NbdServer::start(Arc::new(disk), &self.socket(), below);
        self.server = Some(server.map_err(failed)?);
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn share(&self) -> PathBuf {
        self.folder.join("share")
    }

    fn start(&self, seed: u64, last: bool) -> Outcome<Running> {
        let source = if self.kind == DISK { "disk" } else { "guest" };
        let source = workspace_root().join(format!("tests/powercut/{source}.sh"));
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
        let mut command = machine.command(&workspace_root());
        if self.server.is_some() {
            command.env("DISK", self.socket());
        }
        let mut runner = command
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
        self.await_disk()?;
        let rest: Vec<String> = running.lines.try_iter().collect();
        if rest.iter().any(|line| line.contains("CUT-FAILED")) {
            return Err(rest.join("\n"));
        }
        Ok(())
    }

    /// Boots once more and says what the last check found.
    fn look(&self) -> Outcome<String> {
        let mut running = self.start(0, true)?;
        let said = running.await_line(if self.kind == DISK {
            "database: "
        } else {
            "workers "
        })?;
        running.await_line("CUT-LAST")?;
        running.pull_the_plug();
        self.await_disk()?;
        Ok(said)
    }

    /// Its disk has noticed that the power is gone.
    fn await_disk(&self) -> Outcome<()> {
        match &self.server {
            Some(server) => server
                .await_cut(PATIENCE)
                .map_err(|error| error.to_string()),
            None => Ok(()),
        }
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
