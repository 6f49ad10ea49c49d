//! Who waits long for a lock on a pool is told who holds it: whoever may read a pool's file may
//! lock it for ever.

use crate::output::harmless;
use rustix::fs::{Stat, fstat, major, minor};
use std::any::Any;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(2);

/// Begins a wait for a lock on a file, which ends as the answer is dropped. If that takes long, it
/// is said once.
pub fn wait(path: &Path, file: BorrowedFd<'_>) -> Box<dyn Any> {
    let (waits, ended) = channel::<()>();
    let (name, found) = (path.display().to_string(), fstat(file).ok());
    // Without a thread it waits in silence.
    let _watched = Builder::new().spawn(move || watch(&ended, &name, found.as_ref()));
    Box::new(waits)
}

fn watch(ended: &Receiver<()>, name: &str, file: Option<&Stat>) {
    if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
        let holder = file.and_then(holder);
        let name = harmless(name);
        eprintln!("nacre: waiting for {name}, which {}", text(holder.as_ref()));
    }
}

/// A process that holds a lock.
struct Holder {
    pid: u32,
    name: String,
}

fn text(holder: Option<&Holder>) -> String {
    match holder {
        Some(Holder { pid, name }) => {
            let name = harmless(name.trim());
            format!("process {pid} ({name}) has locked; wait for it, or end it")
        }
        None => "another process has locked (see /proc/locks); wait for it, or end it".to_owned(),
    }
}

fn holder(file: &Stat) -> Option<Holder> {
    let pid = locked_by(&fs::read_to_string("/proc/locks").ok()?, file)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Holder { pid, name })
}

/// Who has locked a file as a whole, by the kernel's table of locks.
fn locked_by(locks: &str, file: &Stat) -> Option<u32> {
    let (major, minor) = (major(file.st_dev), minor(file.st_dev));
    let number = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
    let of = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = words.next()?;
        let mut rest = words.skip(2);
        let pid = rest.next()?.parse().ok()?;
        (kind == "FLOCK" && rest.next()? == number).then_some(pid)
    };
    locks.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::locked_by;
    use rustix::fs::{fstat, makedev};

    #[test]
    fn the_holder_of_a_lock_is_found_in_the_kernels_table() {
        let mut file = fstat(std::io::stdin()).expect("a file");
        (file.st_dev, file.st_ino) = (makedev(0xfe, 0), 780_532);
        let others = "1: FLOCK  ADVISORY  WRITE 7 fe:01:780532 0 EOF\n\
                      2: POSIX  ADVISORY  WRITE 8 fe:00:780532 0 EOF\n\
                      3: -> FLOCK  ADVISORY  WRITE 9 fe:00:780532 0 EOF\n";
        assert_eq!(locked_by(others, &file), None);
        let all = format!("{others}3: FLOCK  ADVISORY  READ  10 fe:00:780532 0 EOF\n");
        assert_eq!(locked_by(&all, &file), Some(10));
    }
}
