//! The usual case of a read, and of a write in direct mode: bytes below EOF, in written pages of one run that this process
//! remembers. Everything else is for the long way, and so is whatever goes wrong.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use nacre_types::{CheckedWord, FileOffset, ObjectId, StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Span, UserBytes, UserBytesMut};

use super::head::{ATIME_WORD, FileHead};
use super::{CTIME_WORD, HOT_SIZE, MTIME_WORD, SIZE_WORD, settle, stamp};
use crate::layout::size_salt;
use crate::lock::PART;
use crate::store::Store;

/// Bytes of an object that lie in one piece.
struct Piece<'s> {
    hot: Span<'s, HOT_SIZE>,
    size_word: u64,
    size: u64,
    mode: u32,
    generation: u32,
    at: VolumeOffset,
    /// As many as lie behind `at`.
    room: u64,
    /// Whether other objects may have the same units.
    may_be_shared: bool,
}

impl Store {
    /// What this process remembers of the bytes at `offset` under a layout. The caller makes sure afterwards that it still holds.
    #[inline(always)]
    fn piece(&self, id: ObjectId, layout: u64, offset: FileOffset) -> Option<Piece<'_>> {
        let known = self.lookaside.get(id, layout, offset.page())?;
        if !known.run.entry.is_written() {
            return None;
        }
        let hot: Span<'_, HOT_SIZE> = self.volume().span(known.onode);
        let size_word = hot.word(SIZE_WORD);
        let skip = offset.page() - known.run.page;
        let unit = known.run.entry.advance(skip).unit();
        Some(Piece {
            hot,
            size_word,
            size: CheckedWord(size_word).open(size_salt(id))?,
            mode: known.mode,
            generation: known.generation,
            at: unit.offset().add(offset.in_page()),
            room: (known.run.count - skip) * UNIT_SIZE - offset.in_page(),
            may_be_shared: known.run.entry.may_be_shared(),
        })
    }

    /// Reads bytes from `offset` on, as many as fit and lie below EOF, if that is done at once; `check` sees mode and generation first.
    /// None says nothing: [`Store::read_checked`] knows.
    #[inline(always)]
    pub fn read_at_once(
        &self,
        id: ObjectId,
        offset: FileOffset,
        to: &mut UserBytesMut<'_>,
        check: impl Fn(u32, u32) -> bool,
    ) -> Option<(FileHead, usize)> {
        let icore = self.icore(id).ok()?;
        let layout = icore.layout.load(Acquire);
        let version = icore.version.load(Acquire);
        let piece = self.piece(id, layout, offset)?;
        let len = (to.len() as u64).min(piece.size.saturating_sub(offset.0));
        let sound = version.is_multiple_of(2);
        if !sound || len == 0 || len > piece.room || !check(piece.mode, piece.generation) {
            return None;
        }
        let part = to.slice(0..len as usize);
        self.volume().read_user(piece.at, part).ok()?;
        let head = FileHead {
            mode: piece.mode,
            generation: piece.generation,
            size: piece.size,
            atime: piece.hot.word(ATIME_WORD) as i64,
            mtime: piece.hot.word(MTIME_WORD) as i64,
            ctime: piece.hot.word(CTIME_WORD) as i64,
        };
        fence(Acquire);
        (icore.version.load(Relaxed) == version).then_some((head, len as usize))
    }

    /// Overwrites bytes from `offset` on that lie below EOF, in direct mode, if that is done at once; `check` sees mode and generation
    /// first. Durable on return. None says nothing: [`Store::write_checked`] knows.
    ///
    /// It excludes other writes and changes, of the object or, where several writers meet, of the part of it.
    #[inline(always)]
    pub fn overwrite_at_once(
        &self,
        id: ObjectId,
        offset: FileOffset,
        from: UserBytes<'_>,
        check: impl Fn(u32, u32) -> bool,
    ) -> Option<usize> {
        let icore = self.icore(id).ok()?;
        let layout = icore.layout.load(Acquire);
        let piece = self.piece(id, layout, offset)?;
        let still =
            || icore.layout.load(Relaxed) == layout && piece.hot.word(SIZE_WORD) == piece.size_word;
        let len = from.len() as u64;
        let fits = len > 0
            && len <= piece.room
            && offset.0 + len <= piece.size
            && self.is_writable()
            && !piece.may_be_shared;
        if !fits || !check(piece.mode, piece.generation) {
            return None;
        }
        let part = offset.0 / PART;
        if (offset.0 + len - 1) / PART == part
            && let Some(_part) = self.lock_part(icore, id, part).ok()?
        {
            return self.store_piece(&piece, from, still);
        }
        let (guard, waited) = self.lock_and_tell(icore, id).ok()?;
        let mark = guard.begin_store();
        let done = self.store_piece(&piece, from, still);
        drop(mark);
        if waited && done.is_some() {
            guard.stripe();
        }
        done
    }

    /// Stores bytes into a piece that was found before its lock was taken.
    #[inline(always)]
    fn store_piece(
        &self,
        piece: &Piece<'_>,
        from: UserBytes<'_>,
        still: impl Fn() -> bool,
    ) -> Option<usize> {
        if !still() {
            return None;
        }
        let len = from.len();
        let stored = self.volume().write_user(piece.at, from, StoreKind::Data);
        let stored = stored.ok()?;
        stamp(&piece.hot);
        settle(self, stored).ok()?;
        Some(len)
    }
}
