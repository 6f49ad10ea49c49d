//! Which processes live: pid plus start time, read from /proc.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat_raw, statat};
use rustix::io::{Errno, read};
use rustix::process::{Pid, getpid, test_kill_process};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// One process for all time: process numbers recur, but not with the same start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Clock ticks since the system started.
    pub(crate) start: u64,
}

/// This process is in another pid namespace than its session. /proc shows the session's, under
/// whose numbers all are known, this process too; the kernel takes numbers of our own.
static FAR: AtomicBool = AtomicBool::new(false);
/// This process as /proc showed it then: as long as it does, /proc is the session's still.
static OWN_PID: AtomicU32 = AtomicU32::new(0);
static OWN_START: AtomicU64 = AtomicU64::new(0);

/// Whether this process, or one that it was forked from, may have gone to other namespaces, or
/// said that its children do.
static MOVED: AtomicBool = AtomicBool::new(false);

/// From now on children of this process may be in other namespaces than it.
pub fn namespaces_may_differ() {
    MOVED.store(true, Relaxed);
}

/// Whether this process is, or has been, where namespaces may differ.
pub fn has_moved() -> bool {
    MOVED.load(Relaxed) || is_far()
}

/// /proc as this process, or one that it was forked from, saw it before its root directory changed.
static PROC: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// From now on /proc is reached by the descriptor that `open` gives, if any: a new root directory
/// may have no /proc. What the first call found stays.
pub fn keep_proc(open: impl FnOnce() -> Option<OwnedFd>) {
    PROC.get_or_init(open);
}

/// A path below /proc, as `openat` and the like take it.
pub(crate) fn in_proc(path: &str) -> (BorrowedFd<'static>, &str) {
    match PROC.get() {
        Some(Some(proc)) => (proc.as_fd(), path.strip_prefix("/proc/").unwrap_or(path)),
        _ => (CWD, path),
    }
}

/// What a process has found out of itself, while it attaches: it does not change then.
struct Known {
    /// How many are looking.
    lookers: AtomicU32,
    /// The namespaces, 0 while not known, and pid and start time.
    words: [AtomicU64; 4],
}

static KNOWN: Known = Known {
    lookers: AtomicU32::new(0),
    words: [const { AtomicU64::new(0) }; 4],
};

/// Until it is dropped, what the kernel says of this process is asked once. The process does not
/// fork meanwhile.
pub struct LookOnce(());

/// Begins to remember what the kernel says of this process.
#[must_use]
pub fn look_once() -> LookOnce {
    KNOWN.lookers.fetch_add(1, SeqCst);
    LookOnce(())
}

impl Drop for LookOnce {
    fn drop(&mut self) {
        if KNOWN.lookers.fetch_sub(1, SeqCst) == 1 {
            KNOWN.words.iter().for_each(|word| word.store(0, SeqCst));
        }
    }
}

impl Known {
    /// Two words that are remembered from `first` on, or found out now.
    fn or(&self, first: usize, find: impl FnOnce() -> Option<(u64, u64)>) -> Option<(u64, u64)> {
        if self.lookers.load(SeqCst) == 0 {
            return find();
        }
        let [one, other] = [&self.words[first], &self.words[first + 1]];
        let (known, second) = (one.load(SeqCst), other.load(SeqCst));
        // The first word is stored last, and cleared first.
        if known != 0 && one.load(SeqCst) == known {
            return Some((known, second));
        }
        let found = find()?;
        other.store(found.1, SeqCst);
        one.store(found.0, SeqCst);
        Some(found)
    }
}

/// Whether this process sees the session's by /proc only.
pub(crate) fn is_far() -> bool {
    FAR.load(Relaxed)
}

/// From now on processes are looked for in /proc only, if it shows `witness`, who lives, and this
/// one, which is given.
pub(crate) fn look_from_afar(witness: impl FnOnce(Process) -> bool) -> Option<Process> {
    let own = Process::current()?;
    if !witness(own) {
        return None;
    }
    OWN_PID.store(own.pid, Relaxed);
    OWN_START.store(own.start, Relaxed);
    FAR.store(true, Relaxed);
    Some(own)
}

/// Whether what /proc says of a process counts: in a far one, while it shows that one as before.
fn proc_counts() -> bool {
    !is_far() || Process::current().is_some_and(|own| own == Process::remembered())
}

/// Whether /proc shows this very process.
pub(crate) fn is_shown(process: Process) -> bool {
    stat_of(process.pid).is_some_and(|stat| stat.start == process.start)
}

/// The fields of /proc/PID/stat that tell whether a process lives.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// As the namespace sees it whose /proc is mounted.
    pid: u32,
    state: u8,
    /// It is on its way out; its other threads may still run.
    exits: bool,
    threads: u64,
    start: u64,
}

/// In the flags of /proc/PID/stat: the thread ends (`PF_EXITING`).
const EXITING: u64 = 4;

impl Process {
    /// The calling process. Not remembered beyond [`LookOnce`], so that it is right after fork.
    pub(crate) fn current() -> Option<Process> {
        let asked = || read_stat("/proc/self/stat").map(|stat| (u64::from(stat.pid), stat.start));
        let (pid, start) = KNOWN.or(2, asked)?;
        Some(Process {
            pid: pid as u32,
            start,
        })
    }

    /// The calling process, if it was forked in the namespaces of a session that its parent uses.
    pub(crate) fn forked_there() -> Option<Process> {
        if MOVED.load(Relaxed) || is_far() {
            return None;
        }
        Process::current().filter(|process| process.pid == own_number())
    }

    fn remembered() -> Process {
        Process {
            pid: OWN_PID.load(Relaxed),
            start: OWN_START.load(Relaxed),
        }
    }

    /// False only when the process is surely gone: what cannot be found out counts as running.
    pub(crate) fn is_running(self) -> bool {
        let runs = exists(self.pid)
            && match stat_of(self.pid) {
                Some(stat) => stat.start == self.start && stat.is_running(),
                None => exists(self.pid),
            };
        runs || !proc_counts()
    }
}

impl Stat {
    /// The first thread of a process may end before the others (state Z, more than one thread).
    fn is_running(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }
}

/// Whether the first thread of a process has not begun to end.
pub(crate) fn goes_on(pid: u32) -> bool {
    let goes_on = |stat: Stat| !stat.exits && !matches!(stat.state, b'Z' | b'X' | b'x');
    stat_of(pid).is_some_and(goes_on) && proc_counts()
}

/// The number of the calling process in its own namespace.
pub(crate) fn own_number() -> u32 {
    getpid().as_raw_nonzero().get() as u32
}

/// Whether the process is stopped by a signal or a debugger.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat_of(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Whether this process is the debugger of a process.
pub(crate) fn is_traced_by_us(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() == getpid().to_string())
}

/// Whether any process has this number and is more than a zombie. For numbers whose start time is
/// not known. Allocates nothing.
pub fn is_number_running(pid: u32) -> bool {
    exists(pid) && stat_of(pid).is_none_or(|stat| stat.is_running()) || !proc_counts()
}

fn exists(pid: u32) -> bool {
    if is_far() {
        let mut path = [0; 32];
        return path_of(pid, "", &mut path).is_none_or(|path| {
            let (proc, path) = in_proc(path);
            !matches!(statat(proc, path, AtFlags::empty()), Err(Errno::NOENT))
        });
    }
    match Pid::from_raw(pid as i32) {
        Some(pid) => test_kill_process(pid) != Err(Errno::SRCH),
        None => false,
    }
}

/// The namespaces that give pids and start times their meaning: inodes of the pid and the time
/// namespace, the latter 0 where the kernel has none.
pub(crate) fn namespaces() -> Option<(u64, u64)> {
    KNOWN.or(0, || {
        let pid = namespace("/proc/self/ns/pid")?;
        Some((pid, namespace("/proc/self/ns/time").unwrap_or(0)))
    })
}

/// Its inode, as its link says: `pid:[4026531836]`. To ask for the inode itself takes the kernel
/// twice as long.
fn namespace(path: &str) -> Option<u64> {
    let mut text = [0; 64];
    let (proc, path) = in_proc(path);
    let len = readlinkat_raw(proc, path, &mut text[..]).ok()?;
    let (_, number) = std::str::from_utf8(&text[..len]).ok()?.split_once(":[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// Where the kernel tells [`boot_id`].
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The identity of this run of the system.
pub(crate) fn boot_id() -> Result<[u64; 2], Errno> {
    let mut text = [0; 64];
    let len = read_small(BOOT_ID, &mut text)?;
    let id = text[..len].iter().filter_map(|&c| (c as char).to_digit(16));
    let id = id.fold(0u128, |id, digit| id << 4 | u128::from(digit));
    Ok([id as u64, (id >> 64) as u64])
}

fn stat_of(pid: u32) -> Option<Stat> {
    let mut path = [0; 32];
    read_stat(path_of(pid, "stat", &mut path)?)
}

fn path_of<'p>(pid: u32, name: &str, room: &'p mut [u8; 32]) -> Option<&'p str> {
    write!(&mut room[..], "/proc/{pid}/{name}").ok()?;
    let end = room.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&room[..end]).ok()
}

fn read_stat(path: &str) -> Option<Stat> {
    let mut text = [0; 1024];
    let len = read_small(path, &mut text).ok()?;
    parse_stat(&text[..len])
}

/// The name of the program stands in parentheses and may itself contain anything.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let space = text.iter().position(|&c| c == b' ')?;
    let pid = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
    let close = text.iter().rposition(|&c| c == b')')?;
    let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let threads = fields.nth(10)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Stat {
        pid,
        state,
        exits: flags & EXITING != 0,
        threads,
        start,
    })
}

fn read_small(path: &str, into: &mut [u8]) -> Result<usize, Errno> {
    let (proc, path) = in_proc(path);
    let fd = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        match read(&fd, &mut *into) {
            Ok(0) => return Err(Errno::NODATA),
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        KNOWN, Process, SeqCst, Stat, boot_id, is_number_running, look_once, namespaces, parse_stat,
    };

    #[test]
    fn a_program_name_with_parentheses_and_spaces_is_skipped() {
        let text = b"7 (a) R (b) S 1 7 7 0 -1 68 1 2 3 4 5 6 7 8 20 0 3 0 8812 1 2";
        assert_eq!(
            parse_stat(text),
            Some(Stat {
                pid: 7,
                state: b'S',
                exits: true,
                threads: 3,
                start: 8812
            })
        );
    }

    #[test]
    fn cut_text_is_no_stat() {
        assert_eq!(parse_stat(b"7 (a"), None);
        assert_eq!(parse_stat(b"7 (a) S 1 2 3"), None);
    }

    #[test]
    fn a_zombie_leader_with_other_threads_still_runs() {
        assert!(
            Stat {
                pid: 1,
                state: b'Z',
                exits: false,
                threads: 2,
                start: 0
            }
            .is_running()
        );
        assert!(
            !Stat {
                pid: 1,
                state: b'Z',
                exits: false,
                threads: 1,
                start: 0
            }
            .is_running()
        );
        assert!(
            Stat {
                pid: 1,
                state: b'S',
                exits: false,
                threads: 1,
                start: 0
            }
            .is_running()
        );
    }

    #[test]
    fn this_process_runs_and_its_number_with_another_start_time_does_not() {
        let me = Process::current().unwrap();
        assert!(me.is_running() && is_number_running(me.pid));
        assert!(
            !Process {
                start: me.start + 1,
                ..me
            }
            .is_running()
        );
    }

    #[test]
    fn number_zero_never_runs() {
        assert!(!Process { pid: 0, start: 0 }.is_running());
    }

    #[test]
    fn the_system_tells_its_run_and_namespace() {
        assert_ne!(boot_id().unwrap(), [0, 0]);
        assert_ne!(namespaces().unwrap().0, 0);
    }

    #[test]
    fn what_is_remembered_while_a_process_attaches_is_forgotten_afterwards() {
        let words = || KNOWN.words.each_ref().map(|word| word.load(SeqCst));
        let (seen, own) = (namespaces(), Process::current());
        let outer = look_once();
        let inner = look_once();
        assert_eq!((namespaces(), Process::current()), (seen, own));
        let (pid, start) = (u64::from(own.unwrap().pid), own.unwrap().start);
        let all = [seen.unwrap().0, seen.unwrap().1, pid, start];
        assert_eq!(words(), all);
        drop(inner);
        assert_eq!(words(), all);
        assert_eq!((namespaces(), Process::current()), (seen, own));
        drop(outer);
        assert_eq!(words(), [0; 4]);
    }
}
