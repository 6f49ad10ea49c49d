//! Kill torture: many processes change one pool through the preload library and are killed at
//! random times; what they had acknowledged must be there. The workers and what they remember:
//! tests/torture/worker.c. Beside them others change objects of the same pool by transactions:
//! crates/nacre-objects/examples/torture.rs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    waitpgid,
};

use crate::{target_folder, workspace_root};

pub type Outcome<T> = Result<T, String>;

/// Place of the worker's pid in its model file.
const PID_AT: u64 = 16 + 4 * 128 + 16;
/// Workers that change objects, besides those that change files.
const OBJECT_WORKERS: usize = 3;
/// How long a killed process may take to be gone: on a machine that is too busy it dies late.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a worker is stopped at most.
const PAUSE: Duration = Duration::from_secs(1);

/// What a run is to do.
struct Campaign {
    seconds: u64,
    seed: u64,
    workers: usize,
    mode: String,
    /// There is a disk behind, and somebody who moves there what is cold, and is killed too.
    behind: bool,
    /// This worker acknowledges what it did not do.
    liar: Option<usize>,
}

const USAGE: &str =
    "options: --minutes N | --seconds N, --seed S, --workers N, --mode direct|atomic|cached,
         --behind (a disk stands behind the pool, and things move there),
         --canary (a planted bug must be found), --canary-objects (one of objects), --steps (instead: die at every step),
         --disk (instead, and first: a pool on a disk whose power is cut),
         --disk-faults (instead: disks that fail)";

impl Campaign {
    fn parse(options: &[String]) -> Outcome<Campaign> {
        let mut plan = Campaign {
            seconds: 30,
            seed: 1,
            workers: 16,
            mode: "direct".to_string(),
            behind: false,
            liar: None,
        };
        let mut words = options.iter();
        while let Some(word) = words.next() {
            if word == "--canary" || word == "--canary-objects" {
                plan.liar = Some(0);
                continue;
            }
            if word == "--behind" {
                plan.behind = true;
                continue;
            }
            let value = words.next().ok_or_else(|| USAGE.to_string())?;
            let number = || value.parse::<u64>().map_err(|_| USAGE.to_string());
            match word.as_str() {
                "--minutes" => plan.seconds = number()? * 60,
                "--seconds" => plan.seconds = number()?,
                "--seed" => plan.seed = number()?,
                "--workers" => plan.workers = number()? as usize,
                "--mode" => plan.mode.clone_from(value),
                _ => return Err(USAGE.to_string()),
            }
        }
        if options.iter().any(|word| word == "--canary-objects") {
            plan.liar = Some(plan.workers);
        }
        Ok(plan)
    }

    /// The worker that moves what is cold, if there is one.
    const fn mover(&self) -> usize {
        self.workers + OBJECT_WORKERS
    }
}

/// `cargo xtask torture`.
pub fn command(options: &[String]) -> Outcome<()> {
    if options.iter().any(|option| option == "--steps") {
        return die_at_every_step();
    }
    let plan = Campaign::parse(options)?;
    match (run(&plan), plan.liar.is_some()) {
        (Err(found), true) => {
            println!("torture: the planted bug was found: {}", found.trim());
            Ok(())
        }
        (Ok(()), true) => Err("the planted bug was not found".to_string()),
        (outcome, false) => outcome,
    }
}

fn die_at_every_step() -> Outcome<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(workspace_root())
        .args(["test", "--quiet", "-p", "nacre-preload", "--test", "steps"])
        .args(["--", "--ignored", "--nocapture"])
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    Err(status.to_string())
}

/// Where cargo puts the worker that changes objects.
fn build_objects_worker() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(workspace_root())
        .args(["build", "--quiet", "--release"]);
    succeed(build.args(["-p", "nacre-objects", "--example", "torture"]))?;
    Ok(target_folder(&workspace_root()).join("release/examples/torture"))
}

struct Stage {
    folder: PathBuf,
    /// The pool is not in memory as all else.
    on_disk: bool,
    nacre: PathBuf,
    worker: PathBuf,
    /// The worker that changes objects.
    objects: PathBuf,
}

pub struct Worker {
    pub id: usize,
    /// The supervisor; the worker runs in its process group.
    pub supervisor: Child,
}

/// Small and seeded; quality does not matter.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

impl Stage {
    fn new(plan: &Campaign) -> Outcome<Stage> {
        let mode = plan.mode.as_str();
        let nacre = nacre()?;
        let folder = PathBuf::from(format!("/dev/shm/torture-of-nacre-{}", std::process::id()));
        fs::create_dir_all(folder.join("models")).map_err(|error| error.to_string())?;
        let worker = folder.join("worker");
        let stage = Stage {
            folder,
            on_disk: mode == "cached",
            nacre,
            worker,
            objects: build_objects_worker()?,
        };
        compile("worker.c", &stage.worker)?;
        let mut create = Command::new(&stage.nacre);
        create.args(["create", "--size", "256M", "--mode", mode]);
        if plan.behind {
            let place = target_folder(&workspace_root());
            let place = place.join(format!("torture-behind-{}", std::process::id()));
            create
                .arg("--behind")
                .arg(format!("{}=256M", place.display()));
        }
        succeed(create.arg(stage.pool()))?;
        Ok(stage)
    }

    fn pool(&self) -> PathBuf {
        match self.on_disk {
            true => {
                target_folder(&workspace_root()).join(format!("torture-{}", std::process::id()))
            }
            false => self.folder.join("pool"),
        }
    }

    fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    fn inside(&self) -> Command {
        let mut command = Command::new(&self.nacre);
        command
            .args(["run", "--quiet", "--pool"])
            .arg(self.pool())
            .arg("--");
        command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
        command
    }

    fn start(&self, id: usize, seed: u64, plan: &Campaign) -> Outcome<Worker> {
        let errors = fs::File::create(self.folder.join(format!("errors-{id}")));
        let errors = errors.map_err(|error| error.to_string())?;
        let lies = plan.liar == Some(id);
        let mut command = match id < plan.workers {
            true => self.files(id, seed, lies),
            false if id == plan.mover() => self.objects("move", id),
            false => self.objects(if lies { "lie" } else { "work" }, id),
        };
        command
            .process_group(0)
            .env("TORTURE", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let supervisor = command.spawn().map_err(|error| error.to_string())?;
        Ok(Worker { id, supervisor })
    }

    /// A worker that changes files.
    fn files(&self, id: usize, seed: u64, lies: bool) -> Command {
        let mut command = self.inside();
        command.arg(&self.worker).arg("work").arg(self.models());
        let honesty = if lies { "lie" } else { "-" };
        command.args([id.to_string(), seed.to_string(), honesty.to_string()]);
        command
    }

    /// A worker that changes objects; it opens the pool by itself.
    fn objects(&self, what: &str, id: usize) -> Command {
        let mut command = Command::new(&self.objects);
        command.arg(what).arg(self.pool());
        command.arg(self.folder.join(format!("objects-{id}")));
        command.arg(id.to_string());
        command
    }

    /// The worker's own pid, if it got so far.
    fn pid(&self, id: usize) -> Option<Pid> {
        let model = fs::File::open(self.models().join(id.to_string())).ok()?;
        let mut bytes = [0; 4];
        model.read_exact_at(&mut bytes, PID_AT).ok()?;
        Pid::from_raw(i32::from_le_bytes(bytes))
    }

    fn forget_pid(&self, id: usize) {
        let path = self.models().join(id.to_string());
        if let Ok(model) = fs::OpenOptions::new().write(true).open(path) {
            let _new_file = model.write_all_at(&[0; 4], PID_AT);
        }
    }

    /// What a worker complained about, unless it was killed.
    fn complaint(&self, worker: &mut Worker) -> Option<String> {
        let status = worker.supervisor.try_wait().ok()??;
        if status.code() == Some(137) || status.code().is_none() {
            return None;
        }
        let path = self.folder.join(format!("errors-{}", worker.id));
        let text = fs::read_to_string(path).unwrap_or_default();
        Some(format!("worker {} ended with {status}: {text}", worker.id))
    }

    /// Free units of the pool, as a program sees them.
    fn free_units(&self) -> Outcome<i64> {
        let mut command = self.inside();
        let output = command.args(["stat", "-f", "-c", "%f", "/nacre"]).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim()
            .parse()
            .map_err(|_| format!("stat -f: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Workers whose supervisor died are this program's children from now on. An init that seldom looks
/// for the dead would be waited for at each kill.
pub fn adopt_orphans() -> Outcome<()> {
    set_child_subreaper(Some(getpid())).map_err(|error| error.to_string())
}

/// The program under test: $NACRE, else as `make build` leaves it.
pub fn nacre() -> Outcome<PathBuf> {
    let built = || target_folder(&workspace_root()).join("release/nacre");
    let nacre = std::env::var_os("NACRE").map_or_else(built, PathBuf::from);
    if nacre.is_file() {
        return Ok(nacre);
    }
    Err(format!("{} is missing: run `make build`", nacre.display()))
}

/// Compiles a worker of tests/torture.
pub fn compile(source: &str, program: &Path) -> Outcome<()> {
    let source = workspace_root().join("tests/torture").join(source);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-o"]).args([program, &source]);
    succeed(&mut gcc).map(drop)
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::env::var_os("KEEP").is_some() {
            println!("kept: {}", self.folder.display());
            return;
        }
        let _best_effort = Command::new(&self.nacre)
            .args(["delete", "--force"])
            .arg(self.pool())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _best_effort = fs::remove_dir_all(&self.folder);
    }
}

impl Worker {
    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.supervisor.id() as i32)
    }

    /// Kills supervisor and worker at once.
    pub fn kill_group(&self) {
        if let Some(group) = self.group() {
            let _gone = kill_process_group(group, Signal::KILL);
        }
    }

    /// Stops supervisor and worker for a moment, whatever they are doing, as a busy machine does.
    /// They go on by themselves: whoever waits for others may wait for these.
    fn pause(&self, random: &mut Random) {
        let Some(group) = self.group() else { return };
        // Mostly short.
        let length = PAUSE / (1 + random.below(16) as u32).pow(2);
        let _gone = kill_process_group(group, Signal::STOP);
        spawn(move || {
            sleep(length);
            let _gone = kill_process_group(group, Signal::CONT);
        });
    }

    /// Ends supervisor and worker and waits until both are gone.
    pub fn end(&mut self) {
        let Some(group) = self.group() else { return };
        let killed = Instant::now();
        self.kill_group();
        let _ended = self.supervisor.wait();
        // The worker is this program's child once its supervisor is gone (`adopt_orphans`).
        while let Ok(ended) = waitpgid(group, WaitOptions::NOHANG) {
            // Whoever went on now would look beside a worker that still works.
            let late = killed.elapsed() > PATIENCE;
            assert!(!late, "process group {group} outlives SIGKILL");
            if ended.is_none() {
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// One of the ways to die: both at once, the worker alone, the supervisor first.
    fn kill(&mut self, pid: Option<Pid>, random: &mut Random) {
        match (random.below(8), pid) {
            (0 | 1, _) | (_, None) => {}
            (2, Some(_)) => {
                let _gone = self.supervisor.kill();
                let _ended = self.supervisor.wait();
                sleep(Duration::from_millis(random.below(30)));
            }
            (_, Some(pid)) => {
                let _gone = kill_process(pid, Signal::KILL);
                let _ended = self.supervisor.wait();
            }
        }
        self.end();
    }
}

/// Runs and reports; the error is what went wrong.
fn run(plan: &Campaign) -> Outcome<()> {
    let stage = Stage::new(plan)?;
    // Holds the session for the whole run, so that leaks can be seen.
    let mut holder = stage.inside();
    let until = format!("--pid={}", std::process::id());
    let holder = holder.args(["tail", &until, "-f", "/dev/null"]);
    let holder = holder.process_group(0).spawn();
    let supervisor = holder.map_err(|error| error.to_string())?;
    let mut holder = Worker {
        id: usize::MAX,
        supervisor,
    };
    let mut workers = Vec::new();
    let killed = torture(&stage, plan, &mut workers);
    workers.iter_mut().for_each(Worker::end);
    let complaints = workers
        .iter_mut()
        .filter_map(|worker| stage.complaint(worker));
    let complaint = complaints.reduce(|all, one| all + &one);
    let live = stage.free_units();
    holder.end();
    let kills = killed?;
    if let Some(complaint) = complaint {
        return Err(complaint);
    }
    conclude(&stage, plan, kills, live?)
}

/// Kills workers and starts them again until the time is over. Number of kills.
fn torture(stage: &Stage, plan: &Campaign, workers: &mut Vec<Worker>) -> Outcome<u64> {
    let mut random = Random::new(plan.seed);
    for id in 0..plan.mover() + usize::from(plan.behind) {
        workers.push(stage.start(id, random.below(u64::MAX), plan)?);
    }
    let (start, mut kills) = (Instant::now(), 0);
    while start.elapsed().as_secs() < plan.seconds {
        sleep(Duration::from_millis(random.below(80)));
        if random.below(4) == 0 {
            let which = random.below(workers.len() as u64) as usize;
            workers[which].pause(&mut random);
        }
        if let Some(complaint) = workers.iter_mut().find_map(|one| stage.complaint(one)) {
            return Err(complaint);
        }
        let victim = random.below(workers.len() as u64) as usize;
        let worker = &mut workers[victim];
        worker.kill(stage.pid(victim), &mut random);
        kills += 1;
        stage.forget_pid(victim);
        *worker = stage.start(victim, random.below(u64::MAX), plan)?;
    }
    Ok(kills)
}

fn conclude(stage: &Stage, plan: &Campaign, kills: u64, live: i64) -> Outcome<()> {
    succeed(
        Command::new(&stage.nacre)
            .arg("check")
            .arg(stage.pool())
            .stdout(Stdio::null()),
    )?;
    let recovered = stage.free_units()?;
    let mut verify = stage.inside();
    verify.arg(&stage.worker).arg("verify").arg(stage.models());
    let said = succeed(&mut verify)?;
    for id in plan.workers..plan.mover() {
        succeed(&mut stage.objects("verify", id))?;
    }
    println!(
        "torture: seed {} mode {}{} {} s, {kills} kills; {}; check clean; {} units leaked until the session ended",
        plan.seed,
        plan.mode,
        if plan.behind { ", a disk behind," } else { "" },
        plan.seconds,
        said.trim(),
        recovered - live
    );
    Ok(())
}

/// Standard output of a command that must succeed.
pub fn succeed(command: &mut Command) -> Outcome<String> {
    let output = command
        .stdout(Stdio::piped())
        .output()
        .map_err(|error| format!("{}: {error}", name_of(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{}: {}: {text}{errors}",
        name_of(command),
        output.status
    ))
}

fn name_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words
        .map(|word| Path::new(word).display().to_string())
        .collect();
    words.join(" ")
}
