//! Reading the next part of the disk while what came is copied.
//!
//! It is read to memory of this process, so that a read which is still on its way when its process
//! dies stores to nothing that others use. What comes counts only if its units were absent all the
//! time: then the disk holds them as they were.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Acquire;

use nacre_types::UNIT_SIZE;
use rustix::io::{Errno, pread, pwrite};

use super::load::AHEAD_MAX;
use super::{CHUNK, DiskFds, Image, PAGE, units};
use crate::aio::{Context, Request};

/// Memory that the disk is read to: two parts in turn.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    memory: Vec<u8>,
    context: Context,
    /// Which part was used last.
    part: usize,
    next: Option<Next>,
}

/// What is on its way, to the other part.
#[derive(Clone, Debug)]
struct Next {
    range: Range<u64>,
    /// [`Image::epochs`] when it was asked for.
    epochs: u64,
}

impl Fetched {
    fn make_memory(&mut self, len: usize) {
        let needed = 2 * len.max(AHEAD_MAX as usize) + PAGE as usize;
        if self.memory.len() < needed {
            let _ = self.take_next();
            self.memory = vec![0; needed];
        }
    }

    /// The bytes of a part.
    fn part(&mut self, part: usize, len: usize) -> &mut [u8] {
        let skip = self.memory.as_ptr().align_offset(PAGE as usize);
        let half = (self.memory.len() - PAGE as usize) / 2;
        &mut self.memory[skip + part * half..][..len]
    }

    /// Waits for what is on its way. `None`: nothing is, or it did not come.
    fn take_next(&mut self) -> Option<Next> {
        let next = self.next.take()?;
        // Asked for by the process that this one was forked from, whose memory it comes to.
        if !self.context.is_ours() {
            return None;
        }
        let (mut came, len) = (0, (next.range.end - next.range.start) as i64);
        if self.context.wait(1, |_, result| came = result).is_err() {
            // Its end waits for the call.
            self.context = Context::default();
        }
        (came == len).then_some(next)
    }

    /// Reads a range of the disk, which is `back` further in front there, unless it has come.
    fn read(
        &mut self,
        image: &Image,
        (direct, back): (BorrowedFd<'_>, u64),
        range: &Range<u64>,
    ) -> io::Result<()> {
        self.make_memory((range.end - range.start) as usize);
        if let Some(next) = self.take_next()
            && next.range == *range
            && image.epochs(range) == next.epochs
        {
            self.part = 1 - self.part;
            return Ok(());
        }
        let len = (range.end - range.start) as usize;
        let part = self.part;
        match pread(direct, self.part(part, len), range.start.wrapping_sub(back))? {
            done if done == len => Ok(()),
            _ => Err(Errno::AGAIN.into()),
        }
    }

    /// Asks for a range of which nothing is there.
    fn ask(&mut self, image: &Image, (direct, back): (BorrowedFd<'_>, u64), range: Range<u64>) {
        let epochs = image.epochs(&range);
        if range.is_empty() || image.present.has_any(units(range.clone())) {
            return;
        }
        let (part, len) = (1 - self.part, (range.end - range.start) as usize);
        let to = self.part(part, len).as_mut_ptr();
        let request = Request::read(direct, range.start.wrapping_sub(back), to, len);
        // SAFETY: the file stays open as long as the image, and the memory until somebody has
        // waited: whoever replaces or drops it does.
        if unsafe { self.context.begin(&mut [request]) } == 1 {
            self.next = Some(Next { range, epochs });
        }
    }
}

#[cfg(test)]
impl Fetched {
    /// What is on its way.
    pub(super) fn asked(&self) -> Option<Range<u64>> {
        self.next.as_ref().map(|next| next.range.clone())
    }

    /// Waits for it, and keeps it.
    pub(super) fn let_it_come(&mut self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let asked = self.asked().unwrap();
        let (part, len) = (1 - self.part, (asked.end - asked.start) as usize);
        let last = &raw const self.part(part, len)[len - 1];
        // SAFETY: a byte of this memory, which the kernel stores to.
        while unsafe { last.read_volatile() } == 0 {
            assert!(std::time::Instant::now() < deadline, "it does not come");
            std::thread::yield_now();
        }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let _ = self.take_next();
    }
}

impl Image {
    /// Reads a range of the disk to memory that is kept, and writes that to its place. So the
    /// kernel need not clear fresh memory before: a quarter of the processor's time for much at
    /// once (D69). The holder of the lock of its region calls it.
    pub(super) fn fetch_by_buffer(&self, disk: DiskFds<'_>, range: &Range<u64>) -> io::Result<()> {
        let direct = (disk.direct.ok_or(Errno::AGAIN)?, disk.back);
        // Not waited for: it may have been held when this process was forked.
        let kept = self.fetched.try_lock();
        let mut kept = kept.map_err(|_| io::Error::from(Errno::AGAIN))?;
        kept.read(self, direct, range)?;
        // Who got so much at once reads one behind the other. Of several disks another one may have
        // the next.
        if range.end - range.start == AHEAD_MAX && self.legs.is_none() {
            let end = (range.end + AHEAD_MAX).min(self.window.end);
            kept.ask(self, direct, range.end..end.max(range.end));
        }
        let (part, len) = (kept.part, (range.end - range.start) as usize);
        match pwrite(&self.file, kept.part(part, len), range.start)? {
            done if done == len => Ok(()),
            _ => Err(Errno::AGAIN.into()),
        }
    }

    /// Stays as it is as long as no unit of the range goes.
    fn epochs(&self, range: &Range<u64>) -> u64 {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        let epochs = chunks.map(|chunk| self.epoch(chunk * CHUNK / UNIT_SIZE).load(Acquire));
        epochs.fold(0, u64::wrapping_add)
    }
}
