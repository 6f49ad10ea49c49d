//! Torture of pools on disks: workers change a pool and sync it, until all of them are killed at
//! once or the power goes. The disk is one with a volatile cache (nacre-testdisk). The workers and
//! their logs: tests/torture/synced.c.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nacre_testdisk::{Disk, FILE, Mounted, mount};

use crate::torture::{Outcome, Random, Worker, compile, nacre, succeed};

const USAGE: &str = "options of --disk: --minutes N | --seconds N, --seed S, --workers N,
         --canary (planted bugs must be found)";
const SIZE: u64 = 48 << 20;
/// A worker ends with this when its disk is gone.
const DISK_IS_GONE: i32 = 4;
/// `nacre run` ends with this where it cannot open a pool.
const CANNOT_START: i32 = 125;
const CANARY_SECONDS: u64 = 120;

/// What a run is to do.
#[derive(Clone, Copy)]
pub struct Campaign {
    seconds: u64,
    seed: u64,
    workers: usize,
    /// The first worker says that it syncs, and does not.
    lies: bool,
    /// The disk says that it flushes, and does not.
    forgets: bool,
}

impl Default for Campaign {
    fn default() -> Campaign {
        Campaign {
            seconds: 30,
            seed: 1,
            workers: 6,
            lies: false,
            forgets: false,
        }
    }
}

impl Campaign {
    /// On a disk that does not flush.
    pub fn forgetful() -> Campaign {
        Campaign {
            forgets: true,
            ..Campaign::default()
        }
    }

    fn parse(options: &[String]) -> Outcome<Campaign> {
        let mut plan = Campaign::default();
        for pair in options.chunks(2) {
            let value = pair.get(1).and_then(|value| value.parse().ok());
            match (pair[0].as_str(), value) {
                ("--minutes", Some(value)) => plan.seconds = value * 60,
                ("--seconds", Some(value)) => plan.seconds = value,
                ("--seed", Some(value)) => plan.seed = value,
                ("--workers", Some(value)) => plan.workers = value as usize,
                _ => return Err(USAGE.to_string()),
            }
        }
        Ok(plan)
    }
}

/// `cargo xtask torture --disk`; the options behind it.
pub fn command(options: &[String]) -> Outcome<()> {
    let canary = |option: &String| option == "--canary";
    let rest: Vec<String> = options.iter().filter(|one| !canary(one)).cloned().collect();
    let plan = Campaign::parse(&rest)?;
    match options.iter().any(canary) {
        true => canaries(plan),
        false => run(&plan),
    }
}

fn canaries(plan: Campaign) -> Outcome<()> {
    let seconds = CANARY_SECONDS;
    let (lies, forgets) = (
        Campaign {
            lies: true,
            seconds,
            ..plan
        },
        Campaign {
            forgets: true,
            seconds,
            ..plan
        },
    );
    for (what, plan) in [
        ("a worker that does not sync", lies),
        ("a disk that does not flush", forgets),
    ] {
        if plan.forgets && !Stage::new(&plan)?.is_volatile() {
            continue;
        }
        match run(&plan) {
            Err(found) => println!("torture: {what} was found: {}", found.trim()),
            Ok(()) => return Err(format!("{what} was not found")),
        }
    }
    Ok(())
}

/// A pool on a disk, and all that belongs to it.
pub struct Stage {
    folder: PathBuf,
    nacre: PathBuf,
    pub disk: Arc<Disk>,
    mounted: Option<Mounted>,
}

impl Stage {
    pub fn new(plan: &Campaign) -> Outcome<Stage> {
        let name = format!("nacre-disk-torture-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for part in ["logs", "memory", "mount"] {
            fs::create_dir_all(folder.join(part)).map_err(|error| error.to_string())?;
        }
        let backing = folder.join("backing");
        let disk = Disk::open(&backing, SIZE, !plan.forgets).map_err(|error| error.to_string())?;
        let mut stage = Stage {
            folder,
            nacre: nacre()?,
            disk: Arc::new(disk),
            mounted: None,
        };
        compile("synced.c", &stage.worker())?;
        stage.mount();
        Ok(stage)
    }

    /// Without FUSE the pool is the backing file, of which a power cut loses nothing but memory.
    fn mount(&mut self) {
        match mount(&self.disk, &self.folder.join("mount")) {
            Ok(mounted) => self.mounted = Some(mounted),
            Err(error) => println!("torture: no disk with a volatile cache here: FUSE: {error}"),
        }
    }

    pub const fn is_volatile(&self) -> bool {
        self.mounted.is_some()
    }

    fn worker(&self) -> PathBuf {
        self.folder.join("synced")
    }

    pub fn pool(&self) -> PathBuf {
        match self.is_volatile() {
            true => self.folder.join("mount").join(FILE),
            false => self.folder.join("backing"),
        }
    }

    /// A place for something further.
    pub fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn memory(&self) -> PathBuf {
        self.folder.join("memory")
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.nacre);
        command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
        command.env("NACRE_SESSION_DIR", self.memory());
        command
    }

    pub fn inside(&self) -> Command {
        let mut command = self.command();
        command.args(["run", "--quiet", "--pool"]);
        command.arg(self.pool()).arg("--");
        command
    }

    pub fn format(&self) -> Outcome<()> {
        let mut create = self.command();
        succeed(create.args(["create", "--force"]).arg(self.pool()))?;
        let mut folders = self.inside();
        let script = "mkdir /nacre/t /nacre/t/0 /nacre/t/1 && sync -f /nacre/t";
        succeed(folders.args(["sh", "-c", script])).map(drop)
    }

    fn start(&self, plan: &Campaign, id: usize, seed: u64) -> Outcome<Worker> {
        let errors = fs::File::create(self.errors(id)).map_err(|error| error.to_string())?;
        let honesty = if plan.lies && id == 0 { "lie" } else { "-" };
        let mut command = self.inside();
        command.arg(self.worker()).args(["work", "/nacre/t"]);
        command.arg(self.folder.join("logs"));
        command.args([plan.workers, id].map(|number| number.to_string()));
        command.args([&seed.to_string(), honesty]).process_group(0);
        command.env("TORTURE", std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let supervisor = command.stderr(errors).spawn();
        let supervisor = supervisor.map_err(|error| error.to_string())?;
        Ok(Worker { id, supervisor })
    }

    fn errors(&self, id: usize) -> PathBuf {
        self.folder.join(format!("errors-{id}"))
    }

    /// What a worker complained about, unless it was killed or its disk had gone.
    fn complaint(&self, worker: &mut Worker, off: bool) -> Option<String> {
        let status = worker.supervisor.try_wait().ok()??;
        let killed = matches!(status.code(), Some(137) | None);
        if killed || (off && status.code() == Some(DISK_IS_GONE)) {
            return None;
        }
        let text = fs::read_to_string(self.errors(worker.id)).unwrap_or_default();
        if off && status.code() == Some(CANNOT_START) && text.contains("I/O error") {
            return None;
        }
        Some(format!("worker {} ended with {status}: {text}", worker.id))
    }

    /// The power goes, and memory with it.
    pub fn cut(&self, random: &mut Random) -> Outcome<()> {
        let cut = self.disk.cut(|limit| random.below(limit));
        cut.map_err(|error| error.to_string())
    }

    /// The power goes once more, while the disk is brought up.
    fn cut_early(&mut self, random: &mut Random) -> Outcome<()> {
        let mut check = self.command();
        check.arg("check").arg(self.pool()).process_group(0);
        check.stdout(Stdio::null()).stderr(Stdio::null());
        let check = check.spawn().map_err(|error| error.to_string())?;
        sleep(Duration::from_millis(random.below(30)));
        self.cut(random)?;
        let mut check = Worker {
            id: 0,
            supervisor: check,
        };
        check.end();
        self.come_up()
    }

    /// Comes up again after a cut.
    pub fn come_up(&mut self) -> Outcome<()> {
        let error = |error: std::io::Error| error.to_string();
        fs::remove_dir_all(self.memory()).map_err(error)?;
        fs::create_dir_all(self.memory()).map_err(error)?;
        if self.mounted.take().is_some() {
            self.mount();
        }
        self.disk.power_on();
        Ok(())
    }

    /// Sums over all workers: changes begun, surely there, found.
    fn verify(&self, plan: &Campaign, lost: bool) -> Outcome<[u64; 3]> {
        succeed(self.command().arg("check").arg(self.pool()))?;
        let mut verify = self.inside();
        verify.arg(self.worker()).args(["verify", "/nacre/t"]);
        verify.arg(self.folder.join("logs"));
        verify.arg(plan.workers.to_string());
        let said = succeed(verify.arg(if lost { "lost" } else { "kept" }))?;
        Ok(sums(&said))
    }
}

/// Adds up the numbers of lines such as `worker 0: 7 begun, 5 surely there, 6 found`.
fn sums(said: &str) -> [u64; 3] {
    let mut all = [0; 3];
    for line in said.lines().filter_map(|line| line.split_once(": ")) {
        let words = line.1.split_whitespace();
        let numbers = words.filter_map(|word| word.parse::<u64>().ok());
        all.iter_mut()
            .zip(numbers)
            .for_each(|(sum, one)| *sum += one);
    }
    all
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::env::var_os("KEEP").is_some() {
            println!("kept: {}", self.folder.display());
            return;
        }
        self.mounted = None;
        let _best_effort = fs::remove_dir_all(&self.folder);
    }
}

/// What a run has seen.
#[derive(Default)]
struct Seen {
    kills: u64,
    cuts: u64,
    /// Of those before the pool was up again.
    early: u64,
    changes: u64,
    synced: u64,
    lost: u64,
}

fn run(plan: &Campaign) -> Outcome<()> {
    let mut stage = Stage::new(plan)?;
    stage.format()?;
    let (mut random, mut seen) = (Random::new(plan.seed), Seen::default());
    let start = Instant::now();
    while start.elapsed().as_secs() < plan.seconds {
        round(&mut stage, plan, &mut random, &mut seen)?;
    }
    let traffic = stage.disk.traffic();
    println!(
        "torture: disk: seed {} {} s: {} kills, {} power cuts and {} while \
         it came up; {} changes, {} of them synced; \
         nothing synced lost, {} others lost by cuts; {} flushes, {} bytes written",
        plan.seed,
        plan.seconds,
        seen.kills,
        seen.cuts,
        seen.early,
        seen.changes,
        seen.synced,
        seen.lost,
        traffic.flushes,
        traffic.written
    );
    Ok(())
}

/// Lets the workers work for a while, ends them, and looks at what is there.
fn round(stage: &mut Stage, plan: &Campaign, random: &mut Random, seen: &mut Seen) -> Outcome<()> {
    let mut workers = Vec::new();
    let mut started = Ok(());
    for id in 0..plan.workers {
        match stage.start(plan, id, random.below(u64::MAX)) {
            Ok(worker) => workers.push(worker),
            Err(error) => started = Err(error),
        }
    }
    sleep(Duration::from_millis(random.below(1500)));
    let early = workers
        .iter_mut()
        .find_map(|one| stage.complaint(one, false));
    let lost = random.below(3) > 0;
    if lost {
        stage.cut(random)?;
    }
    end(&mut workers);
    let late = workers
        .iter_mut()
        .find_map(|one| stage.complaint(one, lost));
    started?;
    if let Some(complaint) = early.or(late) {
        return Err(complaint);
    }
    if lost {
        stage.come_up()?;
    }
    while lost && random.below(3) == 0 {
        stage.cut_early(random)?;
        seen.early += 1;
    }
    let [begun, sure, found] = stage.verify(plan, lost)?;
    seen.changes += begun;
    seen.synced += if lost { sure } else { 0 };
    seen.lost += begun.saturating_sub(found);
    *(if lost {
        &mut seen.cuts
    } else {
        &mut seen.kills
    }) += 1;
    Ok(())
}

/// Kills all at once.
fn end(workers: &mut [Worker]) {
    workers.iter().for_each(Worker::kill_group);
    workers.iter_mut().for_each(Worker::end);
}
