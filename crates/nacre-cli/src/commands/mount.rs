//! `nacre mount` and `nacre umount`.
//!
//! The pool is served by a process of its own, which this program starts as itself with
//! `--foreground`; a byte on its standard output tells that the pool is mounted.

use crate::attached::Attached;
use crate::commands::run::kernel_mounts::{self, MOUNTED, STAYS};
use crate::commands::run::mounts::identity_of;
use crate::commands::{sync, upkeep};
use crate::every;
use crate::failure::{Failure, Result};
use crate::mode::Mode as WriteMode;
use crate::size;
use crate::tree_path::absolute;
use crate::users::users;
use crate::{ourselves, output};
use clap::{ArgAction, Args};
use nacre_fs::Fs;
use nacre_fuse::{FrontEnd, MountState, Mounted, Options, Unmount, mounted_at, state, unmount};
use nacre_volume::{Access, MediaError, Volume, VolumeError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::slice;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  nacre mount my.pool ~/p                 for every program, until `nacre umount ~/p`
  nacre mount --read-only --allow-other --foreground --pool my.pool /mnt/p

The same files are seen at the same time by programs that `nacre run` starts, which reach them \
without the kernel.";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  nacre umount ~/p
  nacre umount --lazy ~/p                 now, although programs use it; it is served until they end";

/// How often processes are looked for that died without leaving.
const REAP_EVERY: Duration = Duration::from_secs(1);
/// How long `umount` waits for the server to leave the pool.
const LEAVES_WITHIN: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};
/// What `mount -o` may name, and what of it changes nothing here.
const HEEDED: [&str; 5] = ["ro", "allow_other", "noexec", "noatime", "nonempty"];
const IGNORED: [&str; 13] = [
    "rw", "defaults", "auto", "noauto", "exec", "nouser", "user", "users", "nofail", "_netdev",
    "nodev", "nosuid", "relatime",
];
/// The one that has a value.
const CACHE: &str = "cache=";

/// Mount a pool for all programs, with the kernel's FUSE
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool, and the folder; with --pool, the folder alone
    #[arg(required = true, num_args = 1..=2, value_names = ["POOL", "DIR"])]
    places: Vec<PathBuf>,
    /// Any device of the pool
    #[arg(long, value_name = "POOL")]
    pool: Option<PathBuf>,
    /// No program may change anything
    #[arg(long)]
    read_only: bool,
    /// Other users may use the mount, too, as far as the permissions of its files let them
    #[arg(long)]
    allow_other: bool,
    /// Stay, and serve the pool until it is unmounted
    #[arg(long)]
    foreground: bool,
    /// Let the pool cover what is in the folder
    #[arg(long)]
    cover: bool,
    /// Pools with copies: how long after one scrub the next one begins [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = every::parse)]
    scrub_every: Option<Duration>,
    /// How much memory a pool on disks may use for what is on them, from now on; at least 1M
    /// [default: $NACRE_CACHE, or as the pool was made]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache: Option<u64>,
    /// Options as mount(8) gives them: ro, allow_other, noexec, noatime, nonempty, cache=SIZE
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// What mount(8) says to a helper besides
    #[arg(short = 's', short_aliases = ['n', 'v'], hide = true, action = ArgAction::Count)]
    said: u8,
    /// What a write call promises when it returns [default: as the pool was made]
    #[arg(long, value_enum)]
    mode: Option<WriteMode>,
    /// Leave the terminal when it is mounted, and say so on standard output
    #[arg(long, hide = true)]
    tell: bool,
    /// As --tell, for `nacre run`: until its end, which standard input shows, and that of all
    /// programs that expect the pool there
    #[arg(long, hide = true)]
    below: bool,
    /// The folder was made for this mount, and goes with it
    #[arg(long, hide = true)]
    made: bool,
}

/// Unmount a pool, also when the process that served it died
#[derive(Debug, Args)]
#[command(after_help = UMOUNT_EXAMPLES)]
pub struct UmountArguments {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Now, although programs use it; it is served until they end
    #[arg(short = 'z', long)]
    lazy: bool,
}

/// What is to be mounted where.
struct Mount {
    pool: PathBuf,
    /// Which file that is.
    identity: String,
    folder: PathBuf,
    read_only: bool,
    allow_other: bool,
    /// Further words behind `-o`.
    options: Vec<String>,
    mode: Option<WriteMode>,
    cache: Option<u64>,
    scrub_every: Option<Duration>,
    starter: Starter,
}

/// The process that started the server, and is told that it serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starter {
    /// Somebody who sees it himself.
    Other,
    /// `nacre mount`, which then ends.
    Mount,
    /// `nacre run`.
    Run,
}

impl Starter {
    fn of(arguments: &Arguments) -> Starter {
        match arguments {
            Arguments { below: true, .. } => Starter::Run,
            Arguments { tell: true, .. } => Starter::Mount,
            _ => Starter::Other,
        }
    }
}

/// Whether nobody but root may write the pool.
fn is_root_alone(fs: &Fs) -> bool {
    let place = fs.store().session().place();
    place.is_some_and(|place| place.folder().trust().is_root_alone())
}

impl Mount {
    fn new(arguments: &Arguments) -> Result<Mount> {
        let (pool, folder) = match (&arguments.pool, arguments.places.as_slice()) {
            (None, [pool, folder]) | (Some(pool), [folder]) => (pool, folder),
            (None, _) => return Err(Failure::Usage("name the pool, and the folder".into())),
            (Some(_), _) => return Err(Failure::Usage("name the pool once".into())),
        };
        let unknown = |option: &&String| !is_known(option);
        if let Some(option) = arguments.options.iter().find(unknown) {
            let heeded = HEEDED.join(", ");
            let text =
                format!("-o {option}: unknown; what means something here: {heeded}, cache=SIZE");
            return Err(Failure::Usage(text));
        }
        let pool = fs::canonicalize(pool).map_err(|error| not_found(pool, error))?;
        let vacant = vacant(folder)?;
        output::refuse_of_others(folder)?;
        let option = |name| has(&arguments.options, name);
        if !arguments.cover && !option("nonempty") {
            refuse_covering(folder, &vacant)?;
        }
        Ok(Mount {
            identity: identity_of(&pool).map_err(|error| Failure::io(pool.display(), error))?,
            pool,
            folder: vacant,
            read_only: arguments.read_only || option("ro"),
            allow_other: arguments.allow_other || option("allow_other"),
            options: arguments.options.clone(),
            mode: arguments.mode,
            cache: arguments
                .cache
                .map_or_else(|| cache_of(&arguments.options), |it| Ok(Some(it)))?,
            scrub_every: arguments.scrub_every,
            starter: Starter::of(arguments),
        })
    }

    fn attach(&self) -> Result<Attached> {
        let access = match self.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let mode = self.mode.map(WriteMode::write_mode);
        let attached = Attached::open(&self.pool, access, mode)?;
        attached.limit_cache(self.cache)?;
        Ok(attached)
    }

    fn options(&self, fs: &Fs) -> Options {
        Options {
            // Preloaded programs beside those of the mount may open them, too.
            devices: self.starter == Starter::Run && is_root_alone(fs),
            source: self.pool.display().to_string(),
            identity: self.identity.clone(),
            read_only: self.read_only,
            allow_other: self.allow_other,
            no_exec: has(&self.options, "noexec"),
            no_atime: has(&self.options, "noatime"),
        }
    }

    /// Serves the pool until it is unmounted.
    fn serve(&self) -> Result<()> {
        // Before the mount, so that no signal leaves it behind.
        let events = events(self.starter)
            .map_err(|error| Failure::io("waiting for signals (a thread)", error))?;
        let attached = self.attach()?;
        sync::commit_for_all(slice::from_ref(&attached));
        let Attached {
            path,
            fs,
            commit_every,
        } = attached;
        let front_end = FrontEnd::new(fs);
        let used = std::iter::once((path.as_path(), front_end.fs()));
        let served = upkeep::beside(used, self.scrub_every, || {
            self.serve_from(&front_end, events)
        });
        let fs = front_end.into_fs();
        let attached = Attached {
            path,
            fs,
            commit_every,
        };
        sync::leave_stand_in(&attached);
        served.and(attached.detach())
    }

    fn serve_from(
        &self,
        front_end: &FrontEnd,
        (sender, events): (Sender<Event>, Receiver<Event>),
    ) -> Result<()> {
        let mounted = front_end.mount(&self.folder, &self.options(front_end.fs()));
        let mounted = mounted.map_err(|error| self.failure(error))?;
        let started = || match self.starter {
            Starter::Other => Ok(()),
            starter => leave_terminal(starter),
        };
        let served = thread::scope(|scope| {
            let mounted = &mounted;
            let watch = move || self.watch(front_end.fs(), mounted, &events);
            let watching = thread::Builder::new().spawn_scoped(scope, watch);
            let served = watching.and_then(|_| mounted.serve(started));
            // The other thread has ended if nobody hears this.
            let _ended = sender.send(Event::Unmounted);
            served
        });
        served.map_err(|error| Failure::io(self.folder.display(), error))
    }

    /// Unmounts when a signal comes, and finishes what processes left that were killed.
    fn watch(&self, fs: &Fs, mounted: &Mounted<'_>, events: &Receiver<Event>) {
        let (mut orphaned, mut committed) = (false, Instant::now());
        let mut names = upkeep::Names::default();
        let every = fs.store().commit_every();
        loop {
            match events.recv_timeout(REAP_EVERY.min(every)) {
                // It goes with `nacre run`: a shutdown signals all, and programs still save.
                Ok(Event::Signal) if self.starter == Starter::Run => {}
                Ok(Event::Signal) => self.leave(),
                Ok(Event::StarterEnded) => {
                    orphaned = !self.leave_soon();
                    if orphaned || !mounted.is_gone() {
                        say_it_stays();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    // Once it is unmounted, what comes there is not ours.
                    orphaned = orphaned && !self.leave_if_unused();
                    let due = committed.elapsed() >= every;
                    if due {
                        committed = Instant::now();
                    }
                    self.tidy_up(fs, due);
                    names.look(fs);
                }
                Ok(Event::Unmounted) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Finishes what processes left that were killed; gives a disk what its cache holds.
    fn tidy_up(&self, fs: &Fs, commits: bool) {
        let pool = self.pool.display();
        // A copy that was overwritten is given up before more of it is read.
        let _told = fs.store().volume().check_copies();
        if let Err(error) = fs.reap_dead() {
            warn(&format!(
                "{pool}: cannot clean up after a dead process: {error}"
            ));
        }
        if commits && let Err(error) = fs.store().commit_now() {
            upkeep::tell_unwritten(&self.pool, &error);
        }
    }

    /// Whoever still expects the pool there goes on to see it. False: it stays mounted.
    fn leave_if_unused(&self) -> bool {
        !self.is_expected() && unmount(&self.folder, Unmount::Unused).is_ok()
    }

    fn is_expected(&self) -> bool {
        kernel_mounts::is_expected(&self.folder, &self.identity)
    }

    /// The last programs may be about to end, and so may a mount namespace that they had. Who looks
    /// at all mounts, as `df` does, holds each of them for a moment, too.
    fn leave_soon(&self) -> bool {
        let looks = [0, 1, 10, 50, 100].map(Duration::from_millis);
        looks.into_iter().any(|pause| {
            thread::sleep(pause);
            self.leave_if_unused()
        })
    }

    fn leave(&self) {
        let folder = self.folder.display();
        match unmount(&self.folder, Unmount::Unused) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                warn(&format!("{folder}: in use; served until its users end"));
                if let Err(error) = unmount(&self.folder, Unmount::Lazily) {
                    warn(&format!("{folder}: {error}"));
                }
            }
            Err(error) => warn(&format!("{folder}: {error}")),
            Ok(()) => {}
        }
    }

    fn failure(&self, error: io::Error) -> Failure {
        let remedy = match error.kind() {
            ErrorKind::NotFound => {
                "; is there a /dev/fuse? (`modprobe fuse`; containers: --device /dev/fuse) \
                 Ordinary users need the package fuse3, too"
            }
            ErrorKind::PermissionDenied if self.allow_other => {
                "; may ordinary users say --allow-other? (user_allow_other in /etc/fuse.conf)"
            }
            ErrorKind::PermissionDenied => "; who mounts must own the folder, and needs /dev/fuse",
            _ if self.allow_other => {
                "; ordinary users may say --allow-other if user_allow_other stands in \
                 /etc/fuse.conf"
            }
            _ => "",
        };
        // Those of fusermount3 end with a line break.
        let error = io::Error::new(error.kind(), error.to_string().trim_end().to_string());
        Failure::Mount {
            folder: self.folder.clone(),
            error,
            remedy,
        }
    }

    /// Starts the process that serves the pool, and waits until it is mounted.
    fn start(&self) -> Result<ExitCode> {
        let mut command = ourselves::command();
        // Whether it covers something is checked already.
        command.args(["mount", "--foreground", "--tell", "--cover"]);
        for option in &self.options {
            command.args(["-o", option]);
        }
        let flags = [
            ("--read-only", self.read_only),
            ("--allow-other", self.allow_other),
        ];
        command.args(flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag));
        if let Some(mode) = self.mode {
            command.args(["--mode", WriteMode::name(mode.write_mode())]);
        }
        if let Some(bytes) = self.cache {
            command.args(["--cache", &bytes.to_string()]);
        }
        if let Some(pause) = self.scrub_every {
            command.args(["--scrub-every", &every::argument(pause)]);
        }
        command.arg("--pool").arg(&self.pool).arg(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let failed = |error| Failure::io("/proc/self/exe", error);
        let mut child = command.spawn().map_err(failed)?;
        let mut told = [0];
        let mut output = child.stdout.take();
        let read = output
            .as_mut()
            .map_or(Ok(0), |output| output.read(&mut told));
        if read.map_err(failed)? == told.len() {
            return Ok(ExitCode::SUCCESS);
        }
        // It has said why.
        let status = child.wait().map_err(failed)?;
        Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
    }
}

enum Event {
    Signal,
    StarterEnded,
    Unmounted,
}

/// To the starter, which waits for the server's end. A copy of the mount elsewhere is served on.
fn say_it_stays() {
    let mut output = io::stdout();
    let _nobody_waits = output.write_all(&[STAYS]).and_then(|()| output.flush());
}

/// A channel of what happens from now on.
fn events(starter: Starter) -> io::Result<(Sender<Event>, Receiver<Event>)> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (sender, receiver) = channel();
    let of_signals = sender.clone();
    thread::Builder::new().spawn(move || {
        let mut all = signals.forever();
        all.all(|_| of_signals.send(Event::Signal).is_ok())
    })?;
    if starter == Starter::Run {
        let of_starter = sender.clone();
        thread::Builder::new().spawn(move || {
            let _nothing_comes = io::stdin().read(&mut [0]);
            of_starter.send(Event::StarterEnded)
        })?;
    }
    Ok((sender, receiver))
}

fn has(options: &[String], name: &str) -> bool {
    options.iter().any(|option| option == name)
}

fn is_known(option: &str) -> bool {
    let begins = |start| option.starts_with(start);
    HEEDED.contains(&option) || IGNORED.contains(&option) || begins("x-") || begins(CACHE)
}

/// What the options say of memory.
fn cache_of(options: &[String]) -> Result<Option<u64>> {
    let said = options.iter().find_map(|option| option.strip_prefix(CACHE));
    let parsed = said.map(size::parse).transpose();
    parsed.map_err(|why| Failure::Usage(format!("-o {CACHE}: {why}")))
}

/// Says something, if anybody hears it.
fn warn(text: &str) {
    let _nobody_hears = writeln!(io::stderr(), "nacre: {text}");
}

/// A folder at which nothing of ours is mounted.
fn vacant(folder: &Path) -> Result<PathBuf> {
    let failed = |error| Failure::io(folder.display(), error);
    let at = located(folder)?;
    if mounted_at(&at).map_err(failed)?.is_none() {
        let found = fs::metadata(&at).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::Usage(format!(
                "{}: there is no such folder; make it with mkdir, or choose another one",
                folder.display()
            )),
            _ => failed(error),
        })?;
        return match found.is_dir() {
            true => fs::canonicalize(&at).map_err(failed),
            false => Err(failed(ErrorKind::NotADirectory.into())),
        };
    }
    let what = match state(&at) {
        MountState::Served => "a pool is mounted there already",
        MountState::Dead => "a pool was mounted there, and the process that served it died",
    };
    let folder = folder.display();
    let text = format!("{folder}: {what}; unmount it with `nacre umount {folder}`");
    Err(Failure::Usage(text))
}

/// As all commands say it.
fn not_found(pool: &Path, error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => VolumeError::from(MediaError::NotFound(pool.to_owned())).into(),
        _ => Failure::io(pool.display(), error),
    }
}

/// As `nacre run` does; `name` is what the user calls the folder.
fn refuse_covering(name: &Path, folder: &Path) -> Result<()> {
    if !fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{} is not empty; the pool would cover what is there. Choose another folder, or add --cover",
        name.display()
    )))
}

/// The place of a folder without links. A dead mount must not be looked into.
fn located(folder: &Path) -> Result<PathBuf> {
    let at = absolute(folder)?;
    if mounted_at(&at).is_ok_and(|found| found.is_some()) {
        return Ok(at);
    }
    match (fs::canonicalize(&at), at.parent(), at.file_name()) {
        (Ok(at), ..) => Ok(at),
        (Err(_), Some(parent), Some(name)) => {
            let failed = |error| Failure::io(folder.display(), error);
            let parent = fs::canonicalize(parent).map_err(failed)?;
            Ok(parent.join(name))
        }
        (Err(error), ..) => Err(Failure::io(folder.display(), error)),
    }
}

/// Leaves the terminal and the starter's files, and tells it that the pool is mounted.
fn leave_terminal(starter: Starter) -> io::Result<()> {
    // Fails for who leads a session of his own already.
    let _leads_one = rustix::process::setsid();
    rustix::process::chdir("/")?;
    let nothing = open("/dev/null", OFlags::RDWR, Mode::empty())?;
    rustix::stdio::dup2_stderr(&nothing)?;
    let mut output = io::stdout();
    output.write_all(&[MOUNTED]).and_then(|()| output.flush())?;
    match starter {
        Starter::Run => Ok(()),
        _ => Ok(rustix::stdio::dup2_stdout(&nothing)?),
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mount = Mount::new(arguments)?;
    if !arguments.foreground {
        return mount.start();
    }
    let served = mount.serve();
    if arguments.made {
        kernel_mounts::remove(&mount.folder);
    }
    served.map(|()| ExitCode::SUCCESS)
}

pub fn run_umount(arguments: &UmountArguments) -> Result<ExitCode> {
    let given = arguments.folder.display();
    let folder = located(&arguments.folder)?;
    let failed = |error| Failure::io(given.to_string(), error);
    let Some(pool) = mounted_at(&folder).map_err(failed)? else {
        let text = format!("{given}: no pool is mounted there; /proc/mounts lists what is");
        return Err(Failure::Usage(text));
    };
    let servers = servers(&pool, &folder);
    let when = match arguments.lazy {
        true => Unmount::Lazily,
        false => Unmount::Unused,
    };
    unmount(&folder, when).map_err(|error| unmount_failure(&folder, error))?;
    if !arguments.lazy && !have_ended(&servers) {
        warn(&format!(
            "{given}: still served: a container or another mount namespace has the mount, too"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The processes that serve the pool at this folder.
fn servers(pool: &Path, folder: &Path) -> Vec<OwnedFd> {
    let serves = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|&byte| byte == 0);
        arguments.any(|one| one == folder.as_os_str().as_bytes())
    };
    let Ok(volume) = Volume::open(pool, Access::ReadOnly) else {
        return Vec::new();
    };
    let pids = users(&volume).into_iter().filter(serves);
    let pids = pids.filter_map(|pid| Pid::from_raw(pid as i32));
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .collect()
}

/// Waits until they have left the pool and ended, so that it can be checked or grown at once.
/// False: one takes longer.
fn have_ended(servers: &[OwnedFd]) -> bool {
    servers.iter().all(|server| {
        let mut end = [PollFd::new(server, PollFlags::IN)];
        poll(&mut end, Some(&LEAVES_WITHIN)) != Ok(0)
    })
}

fn unmount_failure(folder: &Path, error: io::Error) -> Failure {
    let remedy = match error.kind() {
        ErrorKind::ResourceBusy => {
            "; end the programs that use it (`fuser -vm` names them), or use --lazy"
        }
        _ => "",
    };
    let folder = folder.to_path_buf();
    Failure::Mount {
        folder,
        error,
        remedy,
    }
}
