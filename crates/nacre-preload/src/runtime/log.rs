//! `NACRE_LOG`: one line for each intercepted call. `NACRE_DEBUG`: what start-up did.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use nacre_media::UserBytes;
use nacre_runtime::{Trust, one_user};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat};

use crate::entry::call::Verdict;
use crate::entry::dispatch;
use crate::entry::errno::Stop;
use crate::program::host::may_be_placeholder;
use crate::program::process;
use crate::rewrite::signature;
use crate::runtime::kernel;

static ENABLED: AtomicBool = AtomicBool::new(false);
/// Path of the log with its NUL; empty for standard error.
static PATH: OnceLock<Vec<u8>> = OnceLock::new();

/// Switches the log on: `1` for standard error, else a path that lines are appended to.
pub fn start(target: &[u8]) {
    let path = if target == b"1" {
        Vec::new()
    } else {
        [target, b"\0"].concat()
    };
    if PATH.set(path).is_ok() {
        ENABLED.store(true, Relaxed);
        dispatch::log_calls();
    }
}

/// Whether calls are logged.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// Logs a served call.
#[cold]
pub fn call(name: &str, args: &[usize; 6], verdict: &Verdict) {
    let mut line = String::with_capacity(160);
    let _ = write!(line, "nacre[{}] {name}(", kernel::gettid());
    let _ = signature::arguments(&mut line, name, args);
    let _ = match *verdict {
        Ok(value) => signature::result(&mut line, value),
        Err(Stop::Errno(errno)) => signature::result(&mut line, -(errno as isize)),
        Err(Stop::Native) => write!(line, ") passed on"),
    };
    line.push('\n');
    emit(line.as_bytes());
}

/// Logs a line about start-up.
#[cold]
pub fn note(text: &str) {
    emit(format!("nacre[{}] {text}\n", kernel::getpid()).as_bytes());
}

/// Tells the user of the program what was refused, once for each text that comes again and again.
#[cold]
pub fn warn(text: &str) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let hash = text.bytes().fold(1u64, |hash, byte| {
        hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte)
    });
    if LAST.swap(hash, Relaxed) != hash {
        let line = format!("nacre[{}] {text}\n", kernel::getpid());
        kernel::write_all(2, line.as_bytes());
    }
}

/// Tells the user of the program what was refused, each time.
#[cold]
pub fn tell(text: &str) {
    standard_error(format!("nacre: {text}\n").as_bytes());
}

/// Tells the user of a program that it cannot attach its pools. Where standard error is a file of
/// one, its terminal is left, if it has any.
#[cold]
pub fn tell_without_pools(text: &str) {
    let line = format!("nacre: {text}\n");
    let terminal = may_be_placeholder(2).then(open_terminal).flatten();
    kernel::write_all(terminal.unwrap_or(2), line.as_bytes());
    if let Some(terminal) = terminal {
        kernel::call(libc::SYS_close, &[terminal as usize]);
    }
}

fn open_terminal() -> Option<i32> {
    let path = c"/dev/tty".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_NOCTTY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path, flags];
    let opened = kernel::checked(libc::SYS_openat, &args);
    opened.ok().map(|fd| fd as i32)
}

fn emit(line: &[u8]) {
    match PATH.get() {
        Some(path) if !path.is_empty() => append(path, line),
        _ => standard_error(line),
    }
}

/// Standard error may be a file of a pool.
fn standard_error(line: &[u8]) {
    match process::vfs().filter(|vfs| vfs.ours(2)) {
        Some(vfs) => drop(vfs.write(2, UserBytes::from(line))),
        None => kernel::write_all(2, line),
    }
}

/// Another user may have put a link or a file of its own under the name.
fn append(path: &[u8], line: &[u8]) {
    let user = one_user();
    let made = if user.is_some() { libc::O_CREAT } else { 0 };
    let careful = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let flags = libc::O_WRONLY | libc::O_APPEND | careful | made;
    let at = path.as_ptr() as usize;
    let args = [libc::AT_FDCWD as usize, at, flags as usize, 0o600];
    match kernel::checked(libc::SYS_openat, &args) {
        Ok(fd) => {
            match is_log_of(fd, user) {
                true => kernel::write_all(fd as i32, line),
                false => refuse(path),
            }
            kernel::call(libc::SYS_close, &[fd]);
        }
        Err(libc::ELOOP) => refuse(path),
        Err(_) => {}
    }
}

/// Whether an fd is of a file without other names, or of a device, of the user or of root.
fn is_log_of(fd: usize, user: Option<u32>) -> bool {
    // SAFETY: the caller has just opened it, and closes it later.
    let fd = unsafe { BorrowedFd::borrow_raw(fd as i32) };
    let trust = Trust {
        uid: user.unwrap_or(0),
        gid: u32::MAX,
        mode: 0o600,
    };
    fstat(fd).is_ok_and(|found| {
        let kind = FileType::from_raw_mode(found.st_mode);
        let file = kind == FileType::RegularFile && found.st_nlink == 1;
        trust.made(&found) && (file || kind == FileType::CharacterDevice)
    })
}

#[cold]
fn refuse(path: &[u8]) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Relaxed) {
        let path = String::from_utf8_lossy(path.strip_suffix(b"\0").unwrap_or(path));
        warn(&format!(
            "NACRE_LOG: {path} is a link, or no file of this user alone; nothing is logged there"
        ));
    }
}
