//! A device that the kernel writes: past the page cache where the journal is, through it elsewhere.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::{Arc, OnceLock};

use nacre_cache::{Buffer, Disk, DiskFailed};
use nacre_media::{
    Device, FileCall, Results, SharedLegs, discard, is_beyond_limit, lifted, write_at, write_back,
};
use rustix::fs::{Advice, Mode, OFlags, fadvise, fdatasync, open};
use rustix::io::{Errno, pread, pwrite};

use super::calls::{at_once, each_of};

/// So many writes are under way at the same time.
const AT_ONCE: usize = 8;
/// Offsets, lengths and addresses of direct I/O are multiples of this.
const BLOCK: usize = 4096;
/// So many bytes of records go home at once. The explorer has small files.
const HOME_BATCH: u64 = if cfg!(feature = "explore") {
    1
} else {
    512 << 10
};
/// `O_DSYNC`: the size of a device does not change, so its times are all that `O_SYNC` adds, at the
/// price of a commit of its file system. (What rustix 1.1 calls so is `O_SYNC` on Linux.)
const DSYNC: OFlags = OFlags::from_bits_retain(0o10_000);

/// A device that is written by system calls.
#[derive(Debug)]
pub(crate) struct FileDisk {
    device: Arc<Device>,
    /// Writes are durable when they return, and direct where the file system can do that.
    through: Option<Arc<OwnedFd>>,
    /// Direct, and durable after the next sync: for several long writes, which are flushed once.
    direct: Option<Arc<OwnedFd>>,
    /// What processes share of its calls, where it is alone behind an image.
    calls: OnceLock<SharedLegs>,
    takes_changing_memory: OnceLock<bool>,
}

impl FileDisk {
    /// Opens it once more for its journal, if it may be written.
    pub fn new(device: &Arc<Device>, writable: bool) -> Self {
        let with = |more: OFlags| opened_again(device, DSYNC | more);
        let through = match writable {
            true => with(OFlags::DIRECT).or_else(|| with(OFlags::empty())),
            false => None,
        };
        Self {
            device: Arc::clone(device),
            through,
            direct: None,
            calls: OnceLock::new(),
            takes_changing_memory: OnceLock::new(),
        }
    }

    /// As `new`, opened once more for what is long.
    pub fn with_long_writes(device: &Arc<Device>, writable: bool) -> Self {
        let direct = || opened_again(device, OFlags::DIRECT);
        Self {
            direct: writable.then(direct).flatten(),
            ..Self::new(device, writable)
        }
    }

    /// For who reads it too.
    pub fn shared(&self) -> Option<Arc<OwnedFd>> {
        self.through.clone()
    }

    /// What writes through the cache, to be done together with others, if that is possible.
    pub fn call_through<'c>(&'c self, at: u64, bytes: &'c [u8]) -> Option<FileCall<'c>> {
        let fd = self.through_until(at + bytes.len() as u64)?;
        Some(FileCall::Write(fd, at, bytes))
    }

    /// The fd for its journal, if the program may write as far as that.
    fn through_until(&self, end: u64) -> Option<BorrowedFd<'_>> {
        self.through().filter(|_| !is_beyond_limit(end))
    }

    /// Processes share from now on what it is told to do; it is alone behind an image.
    pub fn share(&self, shared: SharedLegs) {
        // A second one is refused: the first goes on.
        let _ = self.calls.set(shared);
    }

    /// What processes share, if they do.
    pub fn shared_calls(&self) -> Option<&SharedLegs> {
        self.calls.get()
    }

    /// Writes pieces of memory that others may change meanwhile, durably. Answers those that have
    /// to be written from a copy.
    pub fn write_shared(
        &self,
        pieces: &[Range<u64>],
        memory: impl Fn(&Range<u64>) -> *const [u8],
    ) -> Result<Vec<Range<u64>>, DiskFailed> {
        if !self.takes_changing_memory() {
            return Ok(pieces.to_vec());
        }
        let together = self.direct.as_deref().filter(|_| pieces.len() > 1);
        let call = |piece: &Range<u64>| {
            let through = self.through_until(piece.end)?;
            let fd = together.map_or(through, AsFd::as_fd);
            Some(FileCall::WriteShared(fd, piece.start, memory(piece)))
        };
        let mut to_copy = Vec::new();
        for pieces in pieces.chunks(AT_ONCE) {
            let calls: Option<Vec<FileCall<'_>>> = pieces.iter().map(call).collect();
            let done = self.make_all(calls.as_deref(), pieces.len());
            let alone = |place: usize| Some(calls.as_ref()?[place].make_alone());
            for (place, (piece, done)) in pieces.iter().zip(done).enumerate() {
                match done.or_else(|| alone(place)) {
                    Some(Ok(len)) if len as u64 == piece.end - piece.start => {}
                    // A file system that opens for direct I/O and then refuses it, or a signal.
                    Some(Err(Errno::INVAL | Errno::INTR)) => to_copy.push(piece.clone()),
                    Some(Err(errno)) => return Err(failed(errno)),
                    _ => to_copy.push(piece.clone()),
                }
            }
        }
        match together {
            Some(_) => self.settle(pieces).map(|()| to_copy),
            None => Ok(to_copy),
        }
    }

    fn takes_changing_memory(&self) -> bool {
        let ask = || self.device.takes_changing_memory();
        *self.takes_changing_memory.get_or_init(ask)
    }

    /// Makes calls at the same time, if the next one who commits can wait for that, should this
    /// process die (D99). Answers what each of so many gave.
    fn make_all(&self, calls: Option<&[FileCall<'_>]>, count: usize) -> Results {
        let made = self.calls.get().zip(calls).and_then(|(shared, calls)| {
            let done = shared.make_calls(|| at_once(calls))?;
            Some(each_of(done, calls))
        });
        made.unwrap_or_else(|| vec![None; count])
    }

    /// Writes pieces one after the other, and waits once until all are durable.
    fn write_and_flush(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        let mut waits_for = Vec::new();
        for &(at, bytes) in pieces {
            let range = at..at + bytes.len() as u64;
            match self.write_directly(range.clone(), bytes)? {
                true => waits_for.push(range),
                false => self.write_through(at, bytes)?,
            }
        }
        self.settle(&waits_for)
    }

    /// Writes past the page cache, not durably, where that can be done.
    fn write_directly(&self, range: Range<u64>, bytes: &[u8]) -> Result<bool, DiskFailed> {
        let Some(fd) = self.direct.as_deref() else {
            return Ok(false);
        };
        if is_beyond_limit(range.end) || !bytes.as_ptr().addr().is_multiple_of(BLOCK) {
            return Ok(false);
        }
        match write_all(range.start, bytes, |bytes, at| pwrite(fd, bytes, at)) {
            // A file system that opens for direct I/O and then refuses it.
            Err(error) if error == failed(Errno::INVAL) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// What syncs it, to be done together with others.
    pub fn call_sync(&self) -> FileCall<'_> {
        FileCall::Sync(self.device.fd())
    }

    /// Fills `to` with what the device holds, whatever the kernel remembers of it, where that can
    /// be told, by way of memory that direct I/O takes. Both are whole blocks.
    pub fn read_medium(&self, at: u64, to: &mut [u8], room: &mut Buffer) -> Result<(), DiskFailed> {
        let Some(fd) = self.through() else {
            return self.read(at, to);
        };
        // Where the fd is not direct.
        self.forget(at, to.len() as u64);
        room.set_len(to.len());
        let place = room.bytes_mut();
        match read_all(fd, at, place) {
            // A file system that opens for direct I/O and then refuses it.
            Err(error) if error == failed(Errno::INVAL) => return self.read(at, to),
            done => done?,
        }
        to.copy_from_slice(place);
        self.check_len()
    }

    /// Fails if its file was cut: what was read may be a hole that a write left behind the cut, and
    /// what was written may have left one.
    pub fn check_len(&self) -> Result<(), DiskFailed> {
        let checked = self.device.check_len();
        checked.map_err(|_| DiskFailed("it was cut".into()))
    }

    /// Kernel fds that it has besides its device's.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = [&self.through, &self.direct].into_iter().flatten();
        all.map(|fd| fd.as_fd())
    }

    /// Whether its device is told what it need not keep.
    pub fn is_told(&self, files: bool) -> bool {
        files || !self.device.is_file()
    }

    /// Its device need not keep what it holds in a range, if it can be told. Files keep their room
    /// unless `files` is set. Answers how many bytes that are.
    pub fn discard(&self, range: &Range<u64>, files: bool) -> Result<u64, DiskFailed> {
        if !self.is_told(files) {
            return Ok(0);
        }
        match discard(self.device.fd(), range) {
            Ok(true) => Ok(range.end - range.start),
            Ok(false) => Ok(0),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The fd for its journal.
    pub fn through(&self) -> Option<BorrowedFd<'_>> {
        self.through.as_deref().map(AsFd::as_fd)
    }
}

/// The device, by another description.
fn opened_again(device: &Device, flags: OFlags) -> Option<Arc<OwnedFd>> {
    let path = format!("/proc/self/fd/{}", device.fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
    let opened = open(&path, flags, Mode::empty()).ok()?;
    Some(Arc::new(lifted(opened)))
}

/// What the system said, and what to do where that is known.
pub(super) fn failed(errno: Errno) -> DiskFailed {
    let text = errno.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    DiskFailed(match errno {
        Errno::NOSPC | Errno::DQUOT => format!(
            "{words}; make room on its file system, then use `nacre sync`. Meanwhile memory keeps what was stored"
        ),
        _ => words.to_owned(),
    })
}

fn read_all(fd: impl AsFd, mut at: u64, mut to: &mut [u8]) -> Result<(), DiskFailed> {
    while !to.is_empty() {
        match pread(&fd, &mut *to, at) {
            Ok(0) => return Err(DiskFailed("it ends too early".into())),
            Ok(len) => (at, to) = (at + len as u64, &mut to[len..]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

fn write_all(
    mut at: u64,
    mut bytes: &[u8],
    write: impl Fn(&[u8], u64) -> Result<usize, Errno>,
) -> Result<(), DiskFailed> {
    while !bytes.is_empty() {
        match write(bytes, at) {
            Ok(0) => return Err(failed(Errno::IO)),
            Ok(len) => (at, bytes) = (at + len as u64, &bytes[len..]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

/// The bytes, or a copy of them, at an address that direct I/O takes.
pub(super) fn with_aligned<T>(bytes: &[u8], work: impl FnOnce(&[u8]) -> T) -> T {
    if bytes.as_ptr().addr().is_multiple_of(BLOCK) {
        return work(bytes);
    }
    let mut copy = vec![0; bytes.len() + BLOCK];
    let skip = copy.as_ptr().align_offset(BLOCK);
    let place = &mut copy[skip..skip + bytes.len()];
    place.copy_from_slice(bytes);
    work(place)
}

impl Disk for FileDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        read_all(self.device.fd(), at, to)?;
        self.check_len()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        write_all(at, bytes, |bytes, at| write_at(self.device.fd(), bytes, at))
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let Some(fd) = self.through.as_deref() else {
            return Err(DiskFailed("it is open for reading only".into()));
        };
        let range = at..at + bytes.len() as u64;
        if !is_beyond_limit(range.end) {
            match with_aligned(bytes, |bytes| {
                write_all(at, bytes, |bytes, at| pwrite(fd, bytes, at))
            }) {
                // A file system that opens for direct I/O and then refuses it.
                Err(error) if error == failed(Errno::INVAL) => {}
                done => return done,
            }
        }
        self.write(at, bytes)?;
        self.settle(slice::from_ref(&range))
    }

    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        let is_aligned = |bytes: &[u8]| bytes.as_ptr().addr().is_multiple_of(BLOCK);
        let call = |&(at, bytes)| self.call_through(at, bytes).filter(|_| is_aligned(bytes));
        let calls: Option<Vec<FileCall<'_>>> = pieces.iter().map(call).collect();
        let done = self.make_all(calls.as_deref(), pieces.len());
        let mut left = Vec::new();
        for (&(at, bytes), done) in pieces.iter().zip(done) {
            match done {
                Some(Ok(len)) if len == bytes.len() => {}
                Some(Err(errno)) => return Err(failed(errno)),
                _ => left.push((at, bytes)),
            }
        }
        match &left[..] {
            [(at, bytes)] => self.write_through(*at, bytes),
            several => self.write_and_flush(several),
        }
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        loop {
            match fdatasync(self.device.fd()) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    fn settle(&self, ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        match write_back::settle(self.device.fd(), ranges) {
            // A file system that cannot do it for a part of a file.
            Err(Errno::NODEV | Errno::INVAL | Errno::NOSYS) => self.sync(),
            done => done.map_err(failed),
        }
    }

    fn gathers(&self) -> Option<u64> {
        Some(HOME_BATCH)
    }

    fn prepare_write(&self, range: Range<u64>) {
        // Pages that are written in part are read first: now, beside what is done meanwhile.
        let page = BLOCK as u64;
        let ends = [range.start, range.end];
        for at in ends.into_iter().filter(|end| !end.is_multiple_of(page)) {
            let place = at / page * page;
            let _ = fadvise(
                self.device.fd(),
                place,
                NonZeroU64::new(page),
                Advice::WillNeed,
            );
        }
    }

    fn begin_writing(&self, range: Range<u64>) {
        // A hint: the next sync does what was not begun.
        let _ = write_back::begin_write_back(self.device.fd(), range);
    }

    fn forget(&self, at: u64, len: u64) {
        // A hint: pages that stay are thrown away one by one when the journal is written there.
        let _ = fadvise(self.device.fd(), at, NonZeroU64::new(len), Advice::DontNeed);
    }
}
