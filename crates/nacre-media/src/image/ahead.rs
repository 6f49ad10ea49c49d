//! Reading the next part of the disk while what came is copied.
//!
//! It is read to memory of this process, so that a read which is still on its way when its process
//! dies stores to nothing that others use. What comes counts only if its units were absent all the
//! time: then the disk holds them as they were.

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering::Acquire;

use nacre_types::{PAGE_SIZE, UNIT_SIZE};
use rustix::io::{Errno, pread, pwrite};

use super::readers::AHEAD_MAX;
use super::{CHUNK, DiskFds, Image, REGION, units};
use crate::aio::{self, Context, Request};
use crate::own_writes::is_beyond_limit;

/// From so many bytes on units come by a buffer, and fewer if they are on their way to one.
const BY_BUFFER: u64 = CHUNK;
/// So much may be on its way at a time: readers of several files or disks go on in turns.
const MOST_AHEAD: usize = 4;
const _: () = assert!(MOST_AHEAD <= aio::MOST);
/// One more than that: what came is copied meanwhile.
const PARTS: usize = MOST_AHEAD + 1;

/// Memory that the disk is read to, in parts. The first ones are used most, the others hardly ever.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    memory: Vec<u8>,
    context: Context,
    /// Which part was used last; nothing is on its way to it.
    part: usize,
    /// What is on its way to each of the others, or has come.
    next: [Option<Next>; PARTS],
    /// How often something was asked for.
    asked: u64,
}

/// What is on its way to a part, or has come.
#[derive(Clone, Debug)]
struct Next {
    range: Range<u64>,
    /// The disk that was asked.
    disk: RawFd,
    /// [`Image::epochs`] when it was asked for.
    epochs: u64,
    /// What was asked for before it has a lower one.
    number: u64,
    /// What the call gave.
    result: Option<i64>,
}

impl Next {
    fn came(&self) -> bool {
        self.result == Some((self.range.end - self.range.start) as i64)
    }
}

/// Zeros; `None` if the program may have no more memory.
pub(super) fn zeroed(len: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(len).ok().filter(|_| len > 0)?;
    // SAFETY: the length is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    // SAFETY: it has that many bytes, all of them 0, and is allocated as a vector's is.
    (!memory.is_null()).then(|| unsafe { Vec::from_raw_parts(memory, len, len) })
}

impl Fetched {
    fn make_memory(&mut self, len: usize) -> io::Result<()> {
        let needed = PARTS * len.max(AHEAD_MAX as usize) + PAGE_SIZE as usize;
        if self.memory.len() < needed {
            self.forget();
            self.memory = zeroed(needed).ok_or(Errno::NOMEM)?;
        }
        Ok(())
    }

    /// The bytes of a part.
    fn part(&mut self, part: usize, len: usize) -> &mut [u8] {
        let skip = self.memory.as_ptr().align_offset(PAGE_SIZE as usize);
        let each = (self.memory.len() - PAGE_SIZE as usize) / PARTS / PAGE_SIZE as usize
            * PAGE_SIZE as usize;
        &mut self.memory[skip + part * each..][..len]
    }

    /// Waits for what is on its way to a part. `None`: nothing is, or it did not come.
    fn take(&mut self, part: usize) -> Option<Next> {
        // Asked for by the process that this one was forked from, whose memory it comes to.
        if !self.context.is_ours() {
            self.next = Default::default();
        }
        while self.next[part].as_ref()?.result.is_none() {
            let next = &mut self.next;
            let waited = self.context.wait(1, |part, result| {
                if let Some(next) = next.get_mut(part).and_then(Option::as_mut) {
                    next.result = Some(result);
                }
            });
            if waited.is_err() {
                // Its end waits for the calls.
                self.context = Context::default();
                self.next = Default::default();
            }
        }
        self.next[part].take().filter(Next::came)
    }

    /// Nothing is on its way any more.
    fn forget(&mut self) {
        for part in 0..PARTS {
            let _ = self.take(part);
        }
    }

    fn part_of(&self, range: &Range<u64>) -> Option<usize> {
        let is_it = |next: &Option<Next>| next.as_ref().is_some_and(|next| next.range == *range);
        self.next.iter().position(is_it)
    }

    /// A part that something can come to: a free one, or else the one that was asked for first.
    fn free_part(&mut self) -> usize {
        let order = |part: &usize| self.next[*part].as_ref().map(|next| next.number);
        let others = (0..PARTS).filter(|part| *part != self.part);
        let part = others.min_by_key(order).unwrap_or(0);
        let _ = self.take(part);
        part
    }

    /// Reads a range of the disk, which is `back` further in front there, unless it has come.
    fn read(
        &mut self,
        image: &Image,
        (direct, back): (BorrowedFd<'_>, u64),
        range: &Range<u64>,
    ) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        self.make_memory(len)?;
        if let Some(part) = self.part_of(range)
            && let Some(next) = self.take(part)
            && image.epochs(range) == next.epochs
            && next.disk == direct.as_raw_fd()
        {
            self.part = part;
            return Ok(());
        }
        let part = self.part;
        match pread(direct, self.part(part, len), range.start.wrapping_sub(back))? {
            done if done == len => Ok(()),
            _ => Err(Errno::AGAIN.into()),
        }
    }

    /// Asks for a range of which nothing is there.
    fn ask(&mut self, image: &Image, (direct, back): (BorrowedFd<'_>, u64), range: Range<u64>) {
        let epochs = image.epochs(&range);
        let is_there = || image.present.has_any(units(range.clone()));
        if range.is_empty() || self.part_of(&range).is_some() || is_there() {
            return;
        }
        let (part, len) = (self.free_part(), (range.end - range.start) as usize);
        let to = self.part(part, len).as_mut_ptr();
        let request = Request::read(direct, range.start.wrapping_sub(back), to, len);
        // SAFETY: the kernel keeps the file open, and the memory stays until somebody has waited:
        // whoever replaces or drops it does.
        if unsafe { self.context.begin(&mut [request.numbered(part)]) } == 1 {
            self.asked += 1;
            self.next[part] = Some(Next {
                range,
                disk: direct.as_raw_fd(),
                epochs,
                number: self.asked,
                result: None,
            });
        }
    }
}

#[cfg(test)]
impl Fetched {
    /// What was asked for last.
    pub(super) fn asked(&self) -> Option<Range<u64>> {
        let next = self.next.iter().flatten();
        let last = next.max_by_key(|next| next.number);
        last.map(|next| next.range.clone())
    }

    /// All that was asked for and not used, in the order of places.
    pub(super) fn all(&self) -> Vec<Range<u64>> {
        let next = self.next.iter().flatten();
        let mut all: Vec<_> = next.map(|next| next.range.clone()).collect();
        all.sort_by_key(|range| range.start);
        all
    }

    /// Waits for all, and keeps it.
    pub(super) fn let_all_come(&mut self) {
        for range in self.all() {
            let part = self.part_of(&range).unwrap();
            let came = self.take(part).unwrap();
            self.next[part] = Some(came);
        }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Image {
    /// Reads a range of the disk to memory that is kept, and writes that to its place. So the
    /// kernel need not clear fresh memory before: a quarter of the processor's time for much at
    /// once (D69). The holder of the lock of its region calls it.
    pub(super) fn fetch_by_buffer(&self, disk: DiskFds<'_>, range: &Range<u64>) -> io::Result<()> {
        if is_beyond_limit(range.end) {
            return Err(Errno::AGAIN.into());
        }
        let direct = (disk.direct.ok_or(Errno::AGAIN)?, disk.back);
        // Not waited for: it may have been held when this process was forked.
        let kept = self.fetched.try_lock();
        let mut kept = kept.map_err(|_| io::Error::from(Errno::AGAIN))?;
        if range.end - range.start < BY_BUFFER && kept.part_of(range).is_none() {
            return Err(Errno::AGAIN.into());
        }
        kept.read(self, direct, range)?;
        // Who got so much at once reads one behind the other.
        if range.end - range.start == AHEAD_MAX {
            let behind = (range.end + AHEAD_MAX).min(self.window.end);
            self.ask_for(&mut kept, range.end..behind.max(range.end));
        }
        let (part, len) = (kept.part, (range.end - range.start) as usize);
        match pwrite(&self.file, kept.part(part, len), range.start)? {
            done if done == len => Ok(()),
            _ => Err(Errno::AGAIN.into()),
        }
    }

    /// Asks for what a reader in strides comes to next, behind or in front of these units.
    pub(super) fn ask_along(&self, stride: i64, units: &Range<u64>) {
        let len = (units.end - units.start) * UNIT_SIZE;
        // What is longer is of several regions.
        if self.mapped.is_some() || len > AHEAD_MAX {
            return;
        }
        let Ok(mut kept) = self.fetched.try_lock() else {
            return;
        };
        if kept.make_memory(len as usize).is_err() {
            return;
        }
        for step in 1..=MOST_AHEAD as i64 {
            let first = units.start.wrapping_add_signed(step.wrapping_mul(stride));
            let start = first.saturating_mul(UNIT_SIZE);
            self.ask_for(&mut kept, start..start.saturating_add(len));
        }
    }

    /// Asks for a range, unless it is not of one region; of several disks any may have it.
    fn ask_for(&self, kept: &mut Fetched, range: Range<u64>) {
        let at = range.start;
        let regions = (at / REGION, range.end.saturating_sub(1) / REGION);
        if at < self.window.start || range.end > self.window.end || regions.0 != regions.1 {
            return;
        }
        let mut ask = |disk: DiskFds<'_>| {
            if let Some(direct) = disk.direct {
                kept.ask(self, (direct, disk.back), range.clone());
            }
            Ok(())
        };
        let _asked = match &self.legs {
            Some(legs) => legs.read(at, &mut ask),
            None => ask(self.disk_fds()),
        };
    }

    /// Stays as it is as long as no unit of the range goes, or is made right on a disk.
    pub(super) fn epochs(&self, range: &Range<u64>) -> u64 {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        let epochs = chunks.map(|chunk| self.epoch(chunk * CHUNK / UNIT_SIZE).load(Acquire));
        epochs.fold(0, u64::wrapping_add)
    }
}
