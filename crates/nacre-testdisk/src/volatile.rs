//! The disk itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const SECTOR: usize = 512;
/// What makes bytes durable takes so long, so that cuts fall into it.
const LATENCY: Duration = Duration::from_micros(50);
/// Numbers of errors, as Linux has them.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

type Sector = [u8; SECTOR];

/// What the disk refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads fail with `EIO`.
    pub reads: bool,
    /// Writes fail with `EIO`.
    pub writes: bool,
    /// Flushes fail with `EIO`; what was written stays in the cache.
    pub flushes: bool,
    /// Writes fail with `ENOSPC`.
    pub no_room: bool,
}

/// What was asked of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Requests that had to be durable: flushes, and writes through the cache.
    pub flushes: u64,
}

/// A disk with a volatile cache, in a file.
#[derive(Debug)]
pub struct Disk {
    file: File,
    len: u64,
    /// It flushes when it is asked to.
    honest: bool,
    state: Mutex<State>,
    let_go: Condvar,
}

/// A request that is kept from being done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    No,
    /// The next one to read.
    NextRead,
    /// The next one to write that goes through the cache.
    NextWrite,
    At(Range<u64>),
}

#[derive(Debug, Default)]
struct State {
    /// What was written since the last flush, the oldest first.
    cached: BTreeMap<u64, Vec<Sector>>,
    off: bool,
    faults: Faults,
    traffic: Traffic,
    held: Held,
    /// Others were written where one is held.
    crossed: bool,
}

impl Disk {
    /// A disk of zeros, or what an earlier one left in the file. One that is not honest says that
    /// it flushes and does not.
    pub fn open(path: &Path, len: u64, honest: bool) -> io::Result<Disk> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        file.set_len(len)?;
        Ok(Disk {
            file,
            len,
            honest,
            state: Mutex::default(),
            let_go: Condvar::new(),
        })
    }

    /// Bytes of it.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no room at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it refuses these.
    pub fn fail(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The next write through the cache is not done before [`Disk::let_go`].
    pub fn hold_write(&self) {
        self.state().held = Held::NextWrite;
    }

    /// The next read is not done before [`Disk::let_go`].
    pub fn hold_read(&self) {
        self.state().held = Held::NextRead;
    }

    /// Whether a request is held.
    pub fn holds(&self) -> bool {
        matches!(self.state().held, Held::At(_))
    }

    /// Whether others wrote where a request was held at the time.
    pub fn was_crossed(&self) -> bool {
        self.state().crossed
    }

    /// What is held is done.
    pub fn let_go(&self) {
        self.state().held = Held::No;
        self.let_go.notify_all();
    }

    fn wait_if_held(&self, range: Range<u64>, kind: &Held) {
        let mut state = self.state();
        if state.held == *kind {
            state.held = Held::At(range);
            let is_held = |state: &mut State| state.held != Held::No;
            drop(self.let_go.wait_while(state, is_held));
        }
    }

    /// Notes what is written where another request is held.
    fn cross(&self, range: &Range<u64>) {
        let mut state = self.state();
        if let Held::At(held) = &state.held {
            state.crossed |= range.start < held.end && held.start < range.end;
        }
    }

    /// What was asked of it so far.
    pub fn traffic(&self) -> Traffic {
        self.state().traffic
    }

    /// Fills `to` with the bytes from `at` on.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.wait_if_held(at..at + to.len() as u64, &Held::NextRead);
        let mut state = self.state();
        state.traffic.reads += 1;
        refuse(state.off || state.faults.reads)?;
        self.file.read_exact_at(to, at)?;
        let end = at + to.len() as u64;
        let sectors = at / SECTOR as u64..end.div_ceil(SECTOR as u64);
        for (number, versions) in state.cached.range(sectors) {
            if let Some(newest) = versions.last() {
                overlay(to, at, number * SECTOR as u64, newest);
            }
        }
        Ok(())
    }

    /// Writes to the cache; durable on return if it goes `through`.
    pub fn write(&self, at: u64, bytes: &[u8], through: bool) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        self.cross(&(at..end));
        if through {
            self.wait_if_held(at..end, &Held::NextWrite);
        }
        let sectors = at / SECTOR as u64..end.div_ceil(SECTOR as u64);
        {
            let mut state = self.state();
            refuse(state.off || state.faults.writes)?;
            if state.faults.no_room {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            state.traffic.writes += 1;
            state.traffic.written += bytes.len() as u64;
            for number in sectors.clone() {
                let sector = self.changed(&state, number, at, bytes)?;
                state.cached.entry(number).or_default().push(sector);
            }
        }
        match through {
            true => self.make_durable(sectors),
            false => Ok(()),
        }
    }

    /// A sector with those of the bytes that fall into it.
    fn changed(&self, state: &State, number: u64, at: u64, bytes: &[u8]) -> io::Result<Sector> {
        let start = number * SECTOR as u64;
        let newest = state.cached.get(&number).and_then(|all| all.last());
        let mut sector = match newest {
            Some(newest) => *newest,
            None => {
                let mut old = [0; SECTOR];
                self.file.read_exact_at(&mut old, start)?;
                old
            }
        };
        overlay(&mut sector, start, at, bytes);
        Ok(sector)
    }

    /// All that was written before is durable on return.
    pub fn flush(&self) -> io::Result<()> {
        self.make_durable(0..u64::MAX)
    }

    fn make_durable(&self, sectors: Range<u64>) -> io::Result<()> {
        thread::sleep(LATENCY);
        let mut state = self.state();
        state.traffic.flushes += 1;
        refuse(state.off || state.faults.flushes)?;
        if !self.honest {
            return Ok(());
        }
        let numbers: Vec<u64> = state.cached.range(sectors).map(|(at, _)| *at).collect();
        for number in numbers {
            let newest = state.cached.remove(&number).and_then(|mut all| all.pop());
            if let Some(newest) = newest {
                self.file.write_all_at(&newest, number * SECTOR as u64)?;
            }
        }
        Ok(())
    }

    /// The power goes off. Of each sector that was not flushed the disk has what it had, or any of
    /// what was written to it, as `below(n)` decides, which answers a number below n.
    pub fn cut(&self, mut below: impl FnMut(u64) -> u64) -> io::Result<()> {
        let mut state = self.state();
        state.off = true;
        // Few or most of them, not only half.
        let kept = below(101);
        for (number, versions) in std::mem::take(&mut state.cached) {
            if below(100) >= kept {
                continue;
            }
            let which = below(versions.len() as u64) as usize;
            let place = number * SECTOR as u64;
            self.file.write_all_at(&versions[which], place)?;
        }
        Ok(())
    }

    /// The power is back.
    pub fn power_on(&self) {
        self.state().off = false;
    }
}

fn refuse(whether: bool) -> io::Result<()> {
    match whether {
        true => Err(io::Error::from_raw_os_error(EIO)),
        false => Ok(()),
    }
}

/// Puts those bytes of `from`, which stands at `from_at`, into `to` that lie in it.
fn overlay(to: &mut [u8], to_at: u64, from_at: u64, from: &[u8]) {
    let start = to_at.max(from_at);
    let end = (to_at + to.len() as u64).min(from_at + from.len() as u64);
    if start < end {
        let len = (end - start) as usize;
        let (to_skip, from_skip) = ((start - to_at) as usize, (start - from_at) as usize);
        to[to_skip..to_skip + len].copy_from_slice(&from[from_skip..from_skip + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::{Disk, Faults, SECTOR};

    fn disk(honest: bool) -> Disk {
        let file = tempfile::NamedTempFile::new().expect("a file");
        Disk::open(file.path(), 1 << 16, honest).expect("a disk")
    }

    fn bytes(disk: &Disk, at: u64, len: usize) -> Vec<u8> {
        let mut to = vec![0; len];
        disk.read(at, &mut to).expect("reads");
        to
    }

    /// All are kept in their newest state, or none.
    fn cut(disk: &Disk, kept: bool) {
        disk.cut(|n| if kept { n - 1 } else { 0 }).expect("cut");
        disk.power_on();
    }

    #[test]
    fn what_was_written_is_read_across_sectors() {
        let disk = disk(true);
        disk.write(500, &[7; 600], false).expect("writes");
        assert_eq!(bytes(&disk, 499, 602)[..2], [0, 7]);
        assert_eq!(bytes(&disk, 499, 602)[600..], [7, 0]);
        disk.flush().expect("flushes");
        assert_eq!(bytes(&disk, 1099, 2), [7, 0]);
    }

    #[test]
    fn a_cut_loses_what_was_not_flushed_by_sectors() {
        let disk = disk(true);
        disk.write(0, &[1; 2 * SECTOR], false).expect("writes");
        disk.flush().expect("flushes");
        disk.write(0, &[2; SECTOR], false).expect("writes");
        disk.write(SECTOR as u64, &[3; SECTOR], true)
            .expect("writes");
        cut(&disk, false);
        assert_eq!(bytes(&disk, 511, 2), [1, 3]);
        disk.write(0, &[4; SECTOR], false).expect("writes");
        cut(&disk, true);
        assert_eq!(bytes(&disk, 511, 2), [4, 3]);
    }

    #[test]
    fn a_liar_loses_what_was_flushed() {
        let disk = disk(false);
        disk.write(0, &[1; SECTOR], true).expect("writes");
        disk.flush().expect("flushes");
        cut(&disk, false);
        assert_eq!(bytes(&disk, 0, 1), [0]);
    }

    #[test]
    fn it_refuses_what_it_is_told_to_and_loses_nothing_by_that() {
        let disk = disk(true);
        disk.write(0, &[1; SECTOR], false).expect("writes");
        disk.fail(Faults {
            writes: true,
            flushes: true,
            ..Faults::default()
        });
        assert!(disk.write(0, &[2; SECTOR], false).is_err());
        assert!(disk.flush().is_err());
        disk.fail(Faults::default());
        disk.flush().expect("flushes");
        cut(&disk, false);
        assert_eq!(bytes(&disk, 0, 1), [1]);
    }

    #[test]
    fn what_is_written_beside_a_write_that_is_held_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(&folder.path().join("disk"), 1 << 20, true).unwrap();
        disk.hold_write();
        disk.write(0, &[1; 4096], false).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| disk.write(4096, &[2; 4096], true).unwrap());
            while !disk.holds() {
                std::thread::yield_now();
            }
            disk.write(0, &[3; 4096], true).unwrap();
            assert!(!disk.was_crossed());
            disk.write(8000, &[4; 4096], true).unwrap();
            assert!(disk.was_crossed());
            disk.let_go();
        });
        let mut last = [0];
        disk.read(8100, &mut last).unwrap();
        assert_eq!(last, [2], "it came last");
    }
}
