//! Writing: what both modes have in common.

use std::sync::atomic::Ordering::Relaxed;

use nacre_session::ICore;
use nacre_types::{FileOffset, ObjectId, StoreKind, UNIT_SIZE};
use nacre_volume::{Unfenced, UserBytes};

use super::{Change, File, FileHead, MAX_FILE_SIZE, page_start};
use crate::alloc::Run;
use crate::block_map::PageRun;
use crate::error::{Fast, Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;
use crate::write_mode::WriteMode;

impl Store {
    /// Writes bytes at `offset`, moves EOF and sets the times. Returns how many bytes were written.
    ///
    /// Durable on return. Short when the pool gets full or the program's memory faults after some
    /// bytes. In atomic mode the bytes that a call reports are there after a crash as a whole or
    /// not at all.
    #[inline]
    pub fn write(
        &self,
        guard: &ObjectGuard<'_>,
        offset: FileOffset,
        from: UserBytes<'_>,
        mode: WriteMode,
    ) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let ticket = self.begin_write(guard)?;
        let (_, len) = ticket.write(WritePosition::At(offset), from, mode)?;
        Ok(len)
    }

    /// Begins a write: the caller looks at the object's head, decides, and writes or drops the
    /// ticket. Until then nothing has happened.
    #[inline]
    pub fn begin_write<'g>(&'g self, guard: &'g ObjectGuard<'_>) -> Result<WriteTicket<'g>> {
        let file = File::open(self, guard.id())?;
        let head = file.head_of(file.mode(), file.generation())?;
        Ok(WriteTicket {
            file,
            icore: guard.icore(),
            guard,
            head,
        })
    }
}

/// A write that may begin; made by [`Store::begin_write`].
#[must_use = "nothing is written before `write`"]
pub struct WriteTicket<'g> {
    file: File<'g>,
    icore: &'g ICore,
    guard: &'g ObjectGuard<'g>,
    head: FileHead,
}

impl WriteTicket<'_> {
    /// The object as it is before the write. Its mode may change meanwhile, its size not.
    #[inline]
    pub fn head(&self) -> &FileHead {
        &self.head
    }

    /// As [`Store::write`], also to the end of the object. Also gives the offset of the first byte.
    #[inline]
    pub fn write(
        self,
        place: WritePosition,
        from: UserBytes<'_>,
        mode: WriteMode,
    ) -> Result<(FileOffset, usize)> {
        if !self.file.store.is_writable() {
            return Err(StoreError::ReadOnly);
        }
        let offset = match place {
            WritePosition::At(offset) => offset,
            WritePosition::End => FileOffset(self.head.size),
        };
        if from.is_empty() {
            return Ok((offset, 0));
        }
        let change = Change {
            file: self.file,
            icore: self.icore,
            _mark: self.guard.begin_store(),
        };
        let len = change.write(self.head.size, offset, from, mode)?;
        Ok((offset, len))
    }
}

impl Store {
    /// Writes bytes behind the end of an object, which is at `end`, in direct mode, if nobody else
    /// is at it; `check` sees mode and generation first. Durable on return.
    /// Returns `None` if the fast path does not apply; use [`Store::begin_write`].
    #[inline]
    pub fn try_append_fast(
        &self,
        id: ObjectId,
        end: FileOffset,
        from: UserBytes<'_>,
        check: impl Fn(u32, u32) -> bool,
    ) -> Fast<usize> {
        let icore = self.session().icore_if_any(id.0)?;
        let guard = self.try_lock_fast(icore, id)?;
        let Ok(file) = File::open(self, id) else {
            return None;
        };
        let fits = !from.is_empty()
            && self.is_writable()
            && file.size().ok()? == end.0
            && end.0 + from.len() as u64 <= MAX_FILE_SIZE
            && check(file.mode(), file.generation());
        if !fits {
            return None;
        }
        let change = Change {
            file,
            icore,
            _mark: guard.begin_store(),
        };
        Some(change.write_direct(end.0, end, from))
    }
}

/// Where bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePosition {
    /// At this offset.
    At(FileOffset),
    /// At EOF.
    End,
}

impl Change<'_> {
    #[inline]
    fn write(
        &self,
        size: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
        mode: WriteMode,
    ) -> Result<usize> {
        let room = MAX_FILE_SIZE
            .saturating_sub(offset.0)
            .min(from.len() as u64);
        if room == 0 {
            return Err(StoreError::FileTooBig);
        }
        let from = from.slice(0..room as usize);
        if size < offset.0 {
            self.move_mapping_epoch();
            self.clear_gap(size, offset.0)?;
        }
        match mode {
            WriteMode::Direct | WriteMode::Cached => self.write_direct(size, offset, from),
            WriteMode::Atomic => self.write_atomic(size, offset, from),
        }
    }

    /// How many of `len` bytes the map can take, after growing it if it can grow.
    #[inline(always)]
    pub(super) fn room_for(
        &self,
        offset: FileOffset,
        len: u64,
        linked: &mut Unfenced,
    ) -> Result<u64> {
        let last = FileOffset(offset.0 + len - 1).page();
        if last == offset.page() {
            // One page fits or does not; whoever makes its leaf finds out.
            return Ok(len);
        }
        self.room_up_to(last, offset, len, linked)
    }

    #[inline(never)]
    fn room_up_to(
        &self,
        last: u64,
        offset: FileOffset,
        len: u64,
        linked: &mut Unfenced,
    ) -> Result<u64> {
        match self.file.map.grow_to(last, linked) {
            Ok(()) => Ok(len),
            Err(StoreError::NoSpace) => {
                let reach = page_start(self.file.map.reach()?);
                let room = reach.saturating_sub(offset.0);
                if room > 0 {
                    Ok(room)
                } else {
                    Err(StoreError::NoSpace)
                }
            }
            Err(error) => Err(error),
        }
    }

    /// What the last life of the object's number or its old contents took is no place to go on at.
    #[inline]
    pub(super) fn forget_place(&self, size: u64) {
        if size == 0 {
            self.icore.alloc_hint.store(0, Relaxed);
        }
    }

    /// Gives bytes `from..to` of a page of `units`, which the write does not cover, what they held
    /// where `old` lies, or zeros.
    #[inline]
    pub(super) fn fill_edge(
        &self,
        old: PageRun,
        units: Run,
        bytes: (u64, u64),
    ) -> Result<Unfenced> {
        if bytes.0 == bytes.1 {
            return Ok(Unfenced::nothing());
        }
        self.fill_bytes(old, units, bytes)
    }

    /// Whether disks may differ in what was reserved, so that what a write does not cover must be
    /// zeroed behind EOF, too.
    pub(super) fn may_differ_behind(&self, old: PageRun) -> bool {
        old.entry.is_unwritten() && self.file.store.volume().has_alike_disks()
    }

    #[inline(never)]
    fn fill_bytes(&self, old: PageRun, units: Run, (from, to): (u64, u64)) -> Result<Unfenced> {
        let in_run = from - page_start(old.page);
        let at = units.start.offset().add(in_run);
        let volume = self.file.store.volume();
        if old.entry.is_written() {
            let mut buffer = [0; UNIT_SIZE as usize];
            let part = &mut buffer[..(to - from) as usize];
            let kept = old.entry.unit().offset().add(in_run);
            self.file.store.read_contents(kept, part)?;
            Ok(volume.write(at, part, StoreKind::Data))
        } else {
            Ok(volume.zero(at, to - from, StoreKind::Data))
        }
    }
}
