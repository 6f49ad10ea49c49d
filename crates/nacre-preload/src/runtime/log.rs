//! `NACRE_LOG`: one line for each intercepted call. `NACRE_DEBUG`: what start-up did.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use nacre_media::UserBytes;

use crate::entry::call::Verdict;
use crate::entry::errno::Stop;
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
    ENABLED.store(PATH.set(path).is_ok(), Relaxed);
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

fn append(path: &[u8], line: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    let args = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        flags as usize,
        0o600,
    ];
    if let Ok(fd) = kernel::checked(libc::SYS_openat, &args) {
        kernel::write_all(fd as i32, line);
        kernel::call(libc::SYS_close, &[fd]);
    }
}
