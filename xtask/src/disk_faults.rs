//! Disks that fail: who syncs is told, nothing is lost, and all goes on when the disk does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nacre_testdisk::{Disk, FILE, Faults, Mounted, mount};

use crate::disk_torture::{Campaign, Stage};
use crate::torture::{Outcome, Random, Worker, succeed};
use crate::workspace_root;

const BROKEN: Faults = Faults {
    reads: false,
    writes: true,
    flushes: true,
    no_room: false,
};
const FULL: Faults = Faults {
    reads: false,
    writes: false,
    flushes: false,
    no_room: true,
};
const UNREADABLE: Faults = Faults {
    reads: true,
    writes: false,
    flushes: false,
    no_room: false,
};
const PATIENCE: Duration = Duration::from_secs(100);

type Scene = fn(&mut Stage) -> Outcome<()>;

const SCENES: [(&str, Scene); 10] = [
    (
        "a sync fails until the disk has what it is about",
        syncs_fail,
    ),
    ("a disk without room fails syncs", no_room),
    ("what cannot be read fails the read", unreadable),
    (
        "a program that ends while its disk fails loses nothing",
        end_while_it_fails,
    ),
    ("a commit that nobody asked for fails", by_itself),
    ("the disk fails while the pool comes up", at_the_start),
    (
        "a disk behind that cannot be read fails the read",
        behind_unreadable,
    ),
    (
        "a disk behind that takes nothing loses nothing",
        behind_takes_nothing,
    ),
    (
        "a disk behind whose power is cut has what is there",
        behind_is_cut,
    ),
    (
        "what a killed process left under way is over before others commit",
        late_write,
    ),
];

/// `cargo xtask torture --disk-faults`.
pub fn command() -> Outcome<()> {
    canary()?;
    for (name, scene) in SCENES {
        let plan = Campaign::default();
        let mut stage = Stage::new(&plan)?;
        if !stage.is_volatile() {
            println!("torture: disk faults: NOT DONE");
            return Ok(());
        }
        stage.format()?;
        scene(&mut stage).map_err(|why| format!("{name}: {why}"))?;
        stage.disk.fail(Faults::default());
        println!("torture: {name}: ok");
    }
    Ok(())
}

/// A disk that does not flush must be found.
fn canary() -> Outcome<()> {
    let mut stage = Stage::new(&Campaign::forgetful())?;
    if !stage.is_volatile() {
        return Ok(());
    }
    stage.format()?;
    for scene in [syncs_fail, behind_is_cut] {
        match scene(&mut stage) {
            Ok(()) => return Err("a disk that does not flush was not found".to_string()),
            Err(found) => println!("torture: a disk that does not flush was found: {found}"),
        }
    }
    Ok(())
}

/// A program on the pool that does what it is told.
struct Puppet {
    program: Worker,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Puppet {
    fn start(stage: &Stage) -> Outcome<Puppet> {
        let mut command = stage.inside();
        command.args(["python3", "-B"]);
        command.arg(workspace_root().join("tests/torture/puppet.py"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        command.process_group(0);
        let supervisor = command.spawn().map_err(|error| error.to_string())?;
        let mut program = Worker { id: 0, supervisor };
        let (to, from) = (
            program.supervisor.stdin.take(),
            program.supervisor.stdout.take(),
        );
        let from = BufReader::new(from.ok_or("no output")?);
        Ok(Puppet { program, to, from })
    }

    fn ask(&mut self, line: &str) -> Outcome<String> {
        let failed = |error: std::io::Error| format!("{line}: {error}");
        let to = self.to.as_mut().ok_or("it has ended")?;
        writeln!(to, "{line}").map_err(failed)?;
        let mut answer = String::new();
        self.from.read_line(&mut answer).map_err(failed)?;
        Ok(answer.trim().to_string())
    }

    fn expect(&mut self, line: &str, wanted: &str) -> Outcome<()> {
        let answer = self.ask(line)?;
        match answer.starts_with(wanted) {
            true => Ok(()),
            false => Err(format!("{line}: {answer}, not {wanted}")),
        }
    }

    /// A file that is opened; what stands for it in later lines.
    fn open(&mut self, name: &str) -> Outcome<String> {
        let answer = self.ask(&format!("open /nacre/{name}"))?;
        let number = answer.strip_prefix("ok ");
        Ok(number.ok_or_else(|| format!("open: {answer}"))?.to_string())
    }

    /// Ends by itself.
    fn end(mut self) -> Outcome<()> {
        self.to = None;
        let ended = self.program.supervisor.wait();
        let ended = ended.map_err(|error| error.to_string())?;
        match ended.success() {
            true => Ok(()),
            false => Err(format!("the program ended with {ended}")),
        }
    }
}

impl Drop for Puppet {
    /// The program too, which would go on below its supervisor.
    fn drop(&mut self) {
        self.program.end();
    }
}

fn failed_commits(stage: &Stage) -> Outcome<u64> {
    let said = succeed(stage.command().args(["info", "--json"]).arg(stage.pool()))?;
    let (_, rest) = said.split_once("\"failed_commits\":").ok_or("info")?;
    let digits: String = rest
        .trim()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().map_err(|_| rest.to_string())
}

/// The disk loses all that was not flushed, memory is lost, and the file is as it was synced.
fn cut_and_compare(stage: &mut Stage, name: &str, wanted: &str) -> Outcome<()> {
    stage.cut(&mut Random::new(1))?;
    stage.come_up()?;
    succeed(stage.command().arg("check").arg(stage.pool()))?;
    compare(stage, name, wanted)
}

fn compare(stage: &Stage, name: &str, wanted: &str) -> Outcome<()> {
    let place = format!("{}:/{name}", stage.pool().display());
    let found = succeed(stage.command().arg("cat").arg(place))?;
    match found == wanted.repeat(1000) {
        true => Ok(()),
        false => Err(format!(
            "{} bytes of {name} are not as they were",
            found.len()
        )),
    }
}

/// Each open file of each process is told, as long as the disk fails, and none afterwards.
fn syncs_fail(stage: &mut Stage) -> Outcome<()> {
    let (mut one, mut other) = (Puppet::start(stage)?, Puppet::start(stage)?);
    let (first, second, third) = (one.open("a")?, one.open("a")?, other.open("b")?);
    one.expect(&format!("write {first} before"), "ok")?;
    one.expect(&format!("fsync {first}"), "ok")?;
    one.expect(&format!("write {first} behind"), "ok")?;
    other.expect(&format!("write {third} third"), "ok")?;
    stage.disk.fail(BROKEN);
    one.expect(&format!("fsync {first}"), "EIO")?;
    one.expect(&format!("fdatasync {second}"), "EIO")?;
    one.expect(&format!("syncfs {second}"), "EIO")?;
    other.expect(&format!("fsync {third}"), "EIO")?;
    other.expect("dsync /nacre/c lost", "EIO")?;
    one.expect(&format!("read {second}"), "ok behin")?;
    if failed_commits(stage)? == 0 {
        return Err("info knows of no failure".to_string());
    }
    stage.disk.fail(Faults::default());
    one.expect(&format!("fsync {second}"), "ok")?;
    other.expect(&format!("fsync {third}"), "ok")?;
    drop((one, other));
    cut_and_compare(stage, "a", "behind")?;
    compare(stage, "b", "third")
}

fn no_room(stage: &mut Stage) -> Outcome<()> {
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    stage.disk.fail(FULL);
    puppet.expect(&format!("write {file} kept"), "ok")?;
    puppet.expect(&format!("fsync {file}"), "E")?;
    stage.disk.fail(Faults::default());
    puppet.expect(&format!("fsync {file}"), "ok")?;
    drop(puppet);
    cut_and_compare(stage, "a", "kept")
}

/// Bytes that do not come are no zeros, and come when the disk can.
fn unreadable(stage: &mut Stage) -> Outcome<()> {
    let long = "there".repeat(100);
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    puppet.expect(&format!("write {file} {long}"), "ok")?;
    puppet.end()?;
    // The kernel has forgotten it, too.
    stage.come_up()?;
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    stage.disk.fail(UNREADABLE);
    puppet.expect(&format!("end {file}"), "EIO")?;
    stage.disk.fail(Faults::default());
    puppet.expect(&format!("end {file}"), "ok there")?;
    drop(puppet);
    compare(stage, "a", &long)
}

fn end_while_it_fails(stage: &mut Stage) -> Outcome<()> {
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    puppet.expect(&format!("write {file} kept"), "ok")?;
    stage.disk.fail(BROKEN);
    let _told = puppet.end();
    stage.disk.fail(Faults::default());
    compare(stage, "a", "kept")?;
    cut_and_compare(stage, "a", "kept")
}

fn by_itself(stage: &mut Stage) -> Outcome<()> {
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    puppet.expect(&format!("write {file} kept"), "ok")?;
    stage.disk.fail(BROKEN);
    let start = Instant::now();
    while failed_commits(stage)? == 0 {
        if start.elapsed() > PATIENCE {
            return Err("nobody tried".to_string());
        }
        sleep(Duration::from_millis(300));
    }
    stage.disk.fail(Faults::default());
    puppet.expect(&format!("fsync {file}"), "ok")?;
    drop(puppet);
    cut_and_compare(stage, "a", "kept")
}

/// A pool that cannot come up says so, and is as before when it can.
fn at_the_start(stage: &mut Stage) -> Outcome<()> {
    let mut puppet = Puppet::start(stage)?;
    let file = puppet.open("a")?;
    puppet.expect(&format!("write {file} kept"), "ok")?;
    puppet.expect(&format!("fsync {file}"), "ok")?;
    drop(puppet);
    stage.cut(&mut Random::new(1))?;
    stage.come_up()?;
    for faults in [BROKEN, UNREADABLE] {
        stage.disk.fail(faults);
        let refused = succeed(stage.command().arg("check").arg(stage.pool()));
        if refused.is_ok() {
            return Err(format!("check is content with {faults:?}"));
        }
    }
    stage.disk.fail(Faults::default());
    cut_and_compare(stage, "a", "kept")
}

/// A pool in memory with the disk behind it, which goes with this.
struct Front {
    path: PathBuf,
    nacre: Command,
}

impl Front {
    fn of(stage: &Stage) -> Outcome<Front> {
        let path = PathBuf::from(format!("/dev/shm/nacre-front-{}", std::process::id()));
        let mut create = stage.command();
        create.args(["create", "--force", "--size", "24M", "--behind"]);
        succeed(create.arg(stage.pool()).arg(&path))?;
        let mut nacre = stage.command();
        nacre.args(["delete", "--force"]).arg(&path);
        Ok(Front { path, nacre })
    }

    /// Runs a script in the pool.
    fn run(&self, stage: &Stage, script: &str) -> Outcome<String> {
        let mut command = stage.command();
        command.args(["run", "--quiet", "--pool"]).arg(&self.path);
        succeed(command.args(["--", "sh", "-c", script]))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.nacre.stdout(Stdio::null()).stderr(Stdio::null());
        let _best_effort = self.nacre.status();
    }
}

/// More than the front holds.
const FILL: &str = "for n in 1 2 3 4 5 6; do yes $n | head -c 4000000 >/nacre/$n; done";
const COMPARE: &str = "for n in 1 2 3 4 5 6; do yes $n | head -c 4000000 | cmp - /nacre/$n; done";

fn behind_unreadable(stage: &mut Stage) -> Outcome<()> {
    let front = Front::of(stage)?;
    front.run(stage, FILL)?;
    // The kernel forgets what it has read.
    stage.come_up()?;
    stage.disk.fail(UNREADABLE);
    if front.run(stage, COMPARE).is_ok() {
        return Err("nothing of what was written lies behind".to_string());
    }
    let overwritten = front.run(
        stage,
        "printf x | dd of=/nacre/1 bs=1 seek=5000 conv=notrunc",
    );
    if overwritten.is_ok() {
        return Err("a page was changed of which the rest cannot be read".to_string());
    }
    stage.disk.fail(Faults::default());
    stage.come_up()?;
    front.run(stage, COMPARE).map(drop)
}

fn behind_takes_nothing(stage: &mut Stage) -> Outcome<()> {
    let front = Front::of(stage)?;
    front.run(stage, "yes 1 | head -c 4000000 >/nacre/1")?;
    for faults in [BROKEN, FULL] {
        stage.disk.fail(faults);
        let script = "yes 2 | head -c 30000000 >/nacre/2 && exit 1; yes 1 | head -c 4000000 | cmp - /nacre/1 && rm /nacre/2";
        front.run(stage, script)?;
    }
    stage.disk.fail(Faults::default());
    front.run(stage, FILL)?;
    front.run(stage, COMPARE)?;
    succeed(stage.command().arg("check").arg(&front.path)).map(drop)
}

/// The front is memory that stays.
fn behind_is_cut(stage: &mut Stage) -> Outcome<()> {
    let front = Front::of(stage)?;
    front.run(stage, FILL)?;
    stage.cut(&mut Random::new(1))?;
    stage.come_up()?;
    succeed(stage.command().arg("check").arg(&front.path))?;
    front.run(stage, COMPARE).map(drop)
}

/// So long somebody who does not wait for a late write has time to show it.
const LATE: Duration = Duration::from_secs(2);

/// Reads from a process to memory that does not come before the disk lets it, and keeps the memory
/// of that process meanwhile.
const KEEP: &str = "import mmap, os, sys
place = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096, mmap.MAP_PRIVATE)
os.preadv(os.open(f'/proc/{sys.argv[2]}/cmdline', os.O_RDONLY), [place], 0)";

/// A process whose memory somebody keeps, and the disk that does not give him what he waits for.
struct Kept {
    disk: Arc<Disk>,
    _mounted: Mounted,
    reader: Worker,
}

impl Kept {
    fn new(stage: &Stage, process: &str) -> Outcome<Kept> {
        let error = |error: std::io::Error| error.to_string();
        let folder = stage.place("keeps");
        std::fs::create_dir_all(&folder).map_err(error)?;
        let disk = Arc::new(Disk::open(&stage.place("kept"), 1 << 20, true).map_err(error)?);
        let mounted = mount(&disk, &folder).map_err(error)?;
        disk.hold_read();
        let mut reader = Command::new("python3");
        reader
            .args(["-c", KEEP])
            .arg(folder.join(FILE))
            .arg(process);
        let reader = reader.process_group(0).spawn().map_err(error)?;
        let kept = Kept {
            disk,
            _mounted: mounted,
            reader: Worker {
                id: 0,
                supervisor: reader,
            },
        };
        await_true("a reader", || kept.disk.holds())?;
        Ok(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.disk.let_go();
        self.reader.end();
    }
}

fn late_write(stage: &mut Stage) -> Outcome<()> {
    let mut create = stage.command();
    create.args(["create", "--force", "--copies", "2", "--size", "48M"]);
    succeed(create.arg(stage.pool()).arg(stage.place("second")))?;
    let (mut one, mut other) = (Puppet::start(stage)?, Puppet::start(stage)?);
    let (first, second) = (one.open("a")?, other.open("b")?);
    one.expect(&format!("write {first} before"), "ok")?;
    let process = one.ask("pid")?.replace("ok ", "");
    let kept = Kept::new(stage, &process)?;
    stage.disk.hold_write();
    one.expect(&format!("beside {first}"), "ok")?;
    await_true("a write", || stage.disk.holds())?;
    succeed(Command::new("kill").args(["-KILL", &process]))?;
    let said = other.expect(&format!("write {second} behind"), "ok");
    let said = said.and_then(|()| other.expect(&format!("beside {second}"), "ok"));
    let begin = Instant::now();
    while begin.elapsed() < LATE && !stage.disk.was_crossed() {
        sleep(Duration::from_millis(10));
    }
    stage.disk.let_go();
    drop(kept);
    said?;
    if stage.disk.was_crossed() {
        return Err("somebody wrote beside it".to_string());
    }
    other.expect(&format!("fsync {second}"), "ok")?;
    drop((one, other));
    cut_and_compare(stage, "b", "behind")?;
    compare(stage, "a", "before")
}

fn await_true(what: &str, is_so: impl Fn() -> bool) -> Outcome<()> {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{what} did not come"));
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}
