//! The same pools through the kernel, for programs that the preload library cannot serve.
//!
//! They are mounted when the first such program is about to start: the preload library, which sees
//! each exec, connects to a socket of the supervisor and waits until it hangs up. A `nacre mount`
//! for each pool serves them. It ends when the supervisor and all programs that see
//! the pool there have, also when the supervisor is killed: it sees the end of its standard input.

use super::hidden_mounts;
use super::mounts::{self, Mount};
use crate::attached::Attached;
use crate::mode::Mode;
use crate::ourselves;
use nacre_fuse::{MountState, Unmount, mounted_at, state, unmount};
use nacre_runtime::may_be_of_others;
use nacre_store::WriteMode;
use nacre_types::{Uuid, reach};
use nacre_volume::Volume;
use rustix::fs::{Access, XattrFlags, access, getxattr, setxattr};
use std::env;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a server says on its standard output.
pub const MOUNTED: u8 = b'm';
pub const STAYS: u8 = b's';

/// Tells a server that a `nacre run` started it.
const BELOW: &str = "--below";

/// An attribute of folders that were made for a mount.
const MADE: &str = "user.nacre.made";

/// Within this time a server leaves that nobody needs any more: it looks every second.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// How the pools are mounted.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub read_only: bool,
    pub allow_other: bool,
    pub mode: Option<WriteMode>,
}

/// The mounts of one `nacre run`.
pub struct KernelMounts {
    /// Name of the socket.
    name: String,
    places: Arc<Places>,
}

struct Places {
    choice: Choice,
    all: Mutex<Vec<MountPlace>>,
}

struct MountPlace {
    mount: Mount,
    /// The pool that it was at the start.
    uuid: Uuid,
    /// The folder, without links.
    real: PathBuf,
    /// It was not there, and goes with the mount.
    is_made: bool,
    server: Option<Server>,
}

/// A `nacre mount`. It goes on until the other end of its standard input is closed.
struct Server {
    _input: ChildStdin,
    said: Receiver<Said>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    Mounted,
    Stays,
    Ended,
}

impl KernelMounts {
    /// Makes ready to mount at those folders that are empty, or not there and can be made. `None`
    /// if nothing can be mounted. All are attached.
    pub fn offer(mounts: &[Mount], attached: &[Attached], choice: Choice) -> Option<KernelMounts> {
        let pools = mounts.iter().zip(attached);
        let places = pools.filter_map(|(mount, pool)| {
            let uuid = pool.fs.store().volume().uuid();
            MountPlace::new(mount, uuid)
        });
        let places: Vec<MountPlace> = places.collect();
        if places.is_empty() || !Path::new("/dev/fuse").exists() {
            return None;
        }
        let name = unique_name();
        let address = SocketAddr::from_abstract_name(&name).ok()?;
        let listener = UnixListener::bind_addr(&address).ok()?;
        let places = Arc::new(Places {
            choice,
            all: Mutex::new(places),
        });
        let served = Arc::clone(&places);
        let answer = move || served.answer(&listener);
        thread::Builder::new().spawn(answer).ok()?;
        Some(KernelMounts { name, places })
    }

    /// The variable for programs below. Offers of a surrounding `nacre run` stay good unless one
    /// of our pools takes the place of one of its.
    pub fn setting(&self, mounts: &[Mount]) -> String {
        match outer(mounts) {
            Some(outer) => format!("{};{outer}", self.name),
            None => self.name.clone(),
        }
    }

    /// Mounts what is not mounted yet.
    pub fn mount(&self) {
        self.places.mount();
    }

    /// Lets the servers go, and waits for those that nothing uses any more.
    pub fn end(self) {
        for place in self.places.lock().iter_mut() {
            if let Some(Server { _input, said }) = place.server.take() {
                drop(_input);
                while said.recv().is_ok_and(|said| said == Said::Mounted) {}
            }
        }
    }
}

/// The offers of a surrounding `nacre run` that programs below this one may use, too.
pub fn outer(mounts: &[Mount]) -> Option<String> {
    let offers = env::var(reach::BY_KERNEL).ok()?;
    let taken = mounts.iter().any(|mount| mounts::is_outer(&mount.folder));
    (!taken && !offers.is_empty()).then_some(offers)
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Vec<MountPlace>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mount(&self) {
        for place in self.lock().iter_mut() {
            place.mount(self.choice);
        }
    }

    /// Answers everybody who asks, by hanging up.
    fn answer(&self, listener: &UnixListener) {
        for asked in listener.incoming() {
            self.mount();
            drop(asked);
        }
    }
}

impl MountPlace {
    /// `None` if a mount would hide something.
    fn new(mount: &Mount, uuid: Uuid) -> Option<MountPlace> {
        let real = without_links(&mount.folder)?;
        // Of a run that was killed with its server.
        clear_dead(&real);
        await_leaving(mount, &real);
        let free = || is_vacant(&real) || can_be_made(&real) || mount.by_kernel().is_some();
        let others = may_be_of_others(&real) == Ok(true);
        let possible = !mounts::is_outer(&mount.folder) && !others && free();
        possible.then(|| MountPlace {
            mount: mount.clone(),
            uuid,
            real,
            is_made: false,
            server: None,
        })
    }

    /// Mounts the pool unless it is. Another `nacre run` may have done so. A server whose mount is
    /// gone has ended, or is about to.
    fn mount(&mut self, choice: Choice) {
        let same = uuid_at(&self.mount.pool) == Some(self.uuid);
        if same && self.mount.by_kernel().is_none() {
            clear_dead(&self.real);
            self.is_made |= make(&self.real);
            self.server = self.start(choice);
            if self.server.is_some() {
                hidden_mounts::watch(&self.real);
            }
            if self.is_made && self.server.is_none() {
                remove(&self.real);
            }
        }
    }

    fn start(&self, choice: Choice) -> Option<Server> {
        let mut command = self.command(choice);
        Server::start(&mut command, &self.real)
    }

    fn command(&self, choice: Choice) -> Command {
        let mut command = ourselves::command();
        command.args(["mount", "--foreground", BELOW]);
        if choice.read_only {
            command.arg("--read-only");
        }
        if choice.allow_other {
            command.arg("--allow-other");
        }
        if let Some(mode) = choice.mode {
            command.args(["--mode", Mode::name(mode)]);
        }
        if self.is_made {
            command.arg("--made");
        }
        command.arg("--pool").arg(&self.mount.pool).arg(&self.real);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Signals from the keyboard are for the program.
        command.process_group(0).current_dir("/");
        command
    }
}

impl Server {
    /// Starts it and waits until the pool is mounted. What goes wrong it says itself.
    fn start(command: &mut Command, folder: &Path) -> Option<Server> {
        let mut child = command.spawn().ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        let (sender, said) = channel();
        let folder = folder.to_path_buf();
        let follow = move || follow(child, output, &folder, &sender);
        thread::Builder::new().spawn(follow).ok()?;
        let mounted = said.recv() == Ok(Said::Mounted);
        mounted.then_some(Server {
            _input: input,
            said,
        })
    }
}

/// Hears what a server says until it ends. A mount that it leaves behind would be an error for
/// everybody.
fn follow(mut child: Child, mut output: ChildStdout, folder: &Path, to: &Sender<Said>) {
    let mut byte = [0];
    while output.read_exact(&mut byte).is_ok() {
        let said = match byte[0] {
            STAYS => Said::Stays,
            _ => Said::Mounted,
        };
        let _nobody_waits = to.send(said);
    }
    let _gone = child.wait();
    clear_dead(folder);
    let _nobody_waits = to.send(Said::Ended);
}

/// Takes a mount away whose server died.
fn clear_dead(folder: &Path) {
    let is_left = mounted_at(folder).is_ok_and(|pool| pool.is_some());
    if is_left && state(folder) == MountState::Dead {
        let _somebody_else_did = unmount(folder, Unmount::Lazily);
    }
}

/// The pool that has this name by now (D88).
fn uuid_at(pool: &Path) -> Option<Uuid> {
    Volume::inspect(pool).ok().map(|label| label.pool)
}

/// The folder, which need not be there, without links.
fn without_links(folder: &Path) -> Option<PathBuf> {
    let there = fs::canonicalize(folder).ok();
    there.or_else(|| {
        let parent = fs::canonicalize(folder.parent()?).ok()?;
        Some(parent.join(folder.file_name()?))
    })
}

fn can_be_made(folder: &Path) -> bool {
    let missing = folder
        .symlink_metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let parent = folder.parent().filter(|_| missing);
    parent.is_some_and(|parent| access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

/// Makes a folder for a mount. True also if it was made by somebody who was killed.
fn make(folder: &Path) -> bool {
    let is_made = DirBuilder::new().mode(0o755).create(folder).is_ok();
    if is_made {
        let _stays_unmarked = setxattr(folder, MADE, b"1", XattrFlags::empty());
    }
    is_made || getxattr(folder, MADE, &mut [0; 0]).is_ok()
}

/// Removes a folder that was made for a mount. Whoever uses it by now keeps it.
pub fn remove(folder: &Path) {
    let _is_used = fs::remove_dir(folder);
}

/// Whether mounting there hides nothing.
fn is_vacant(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Waits for a mount of another pool, or by another of its devices, whose programs have ended: its
/// server is about to find that out. One that no `nacre run` made stays.
fn await_leaving(mount: &Mount, real: &Path) {
    let until = Instant::now() + LEAVES_WITHIN;
    let is_left = || {
        mount.taken().is_some()
            && is_below_run(real)
            && !any_program(|all| mounts::names_folder(all, &mount.folder))
    };
    while is_left() && Instant::now() < until {
        thread::sleep(LOOKS_EVERY);
    }
}

/// Whether a server that a `nacre run` started serves this folder.
fn is_below_run(folder: &Path) -> bool {
    of_processes("cmdline").any(|text| {
        let mut words = text.split(|&byte| byte == 0);
        let below = words.any(|word| word == BELOW.as_bytes());
        below && words.any(|word| word == folder.as_os_str().as_bytes())
    })
}

/// A file of each process below /proc, of those that may be read.
fn of_processes(file: &str) -> impl Iterator<Item = Vec<u8>> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(move |entry| fs::read(entry.path().join(file)).ok())
}

/// Whether any program still expects this pool at this folder.
pub fn is_expected(folder: &Path, identity: &str) -> bool {
    any_program(|mounts| mounts::names(mounts, folder, identity))
}

/// Whether any program has pools of which this is true.
fn any_program(of_mounts: impl Fn(&[u8]) -> bool) -> bool {
    of_processes("environ").any(|text| {
        let mut settings = text.split(|&byte| byte == 0);
        settings
            .find_map(mounts::of_setting)
            .is_some_and(&of_mounts)
    })
}

/// A name that no other process has, nor can foresee.
fn unique_name() -> String {
    let number = RandomState::new().build_hasher().finish();
    format!("nacre-run-{}-{number:016x}", std::process::id())
}
