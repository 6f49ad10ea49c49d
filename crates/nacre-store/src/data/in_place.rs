//! The usual case of a read, and of a write in direct mode: bytes below EOF, in written pages of
//! one run that this process remembers. Everything else is for the long way, and so is whatever
//! goes wrong.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use nacre_session::ICore;
use nacre_types::{CheckedWord, FileOffset, ObjectId, StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{CheckedRange, CheckedSlice, UserBytes, UserBytesMut};

use super::head::{ATIME_WORD, FileHead};
use super::{CTIME_WORD, HOT_SIZE, MTIME_WORD, SIZE_WORD, copy_error, stamp};
use crate::error::Fast;
use crate::layout::size_salt;
use crate::object::lock::PART;
use crate::store::Store;

/// Bytes of an object that lie in one piece.
struct Piece<'s> {
    hot: CheckedRange<'s, HOT_SIZE>,
    mapping_epoch: u64,
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

/// Whether a read may improve what this process remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheUpdates {
    /// It may.
    Left,
    /// It may end at any instruction and never come back.
    None,
}

impl Store {
    /// What this process remembers of the bytes at `offset` under a mapping epoch. The caller makes
    /// sure afterwards that it still holds.
    #[inline(always)]
    fn piece(
        &self,
        id: ObjectId,
        mapping_epoch: u64,
        offset: FileOffset,
        updates: CacheUpdates,
    ) -> Option<Piece<'_>> {
        let known = self.extent_cache.get(id, mapping_epoch, offset)?;
        let hot: CheckedRange<'_, HOT_SIZE> = self.volume().checked_range(known.onode);
        let size_word = hot.word(SIZE_WORD);
        let size = if size_word == known.size_word {
            CheckedWord(size_word).opened_before()
        } else {
            self.open_new_size(id, offset.page(), size_word, updates)?
        };
        let in_run = offset.0 - known.start.0;
        Some(Piece {
            hot,
            mapping_epoch,
            size_word,
            size,
            mode: known.mode,
            generation: known.generation,
            at: known.entry.unit().offset().add(in_run),
            room: known.pages * UNIT_SIZE - in_run,
            may_be_shared: known.entry.may_be_shared(),
        })
    }

    /// The size in a word that is not remembered with a page.
    #[cold]
    #[inline(never)]
    fn open_new_size(
        &self,
        id: ObjectId,
        page: u64,
        size_word: u64,
        updates: CacheUpdates,
    ) -> Option<u64> {
        let size = CheckedWord(size_word).open(size_salt(id))?;
        if updates == CacheUpdates::Left {
            self.extent_cache.put_size(id, page, size_word);
        }
        Some(size)
    }

    /// Reads bytes from `offset` on, as many as fit and lie below EOF, if that is done at once;
    /// `check` sees mode and generation first. Returns `None` if the fast path does not apply; use
    /// [`Store::read_checked`]. It holds nothing; `to` may hold anything after `None`.
    #[inline(always)]
    pub fn try_read_fast(
        &self,
        id: ObjectId,
        offset: FileOffset,
        to: &mut UserBytesMut<'_>,
        updates: CacheUpdates,
        check: impl Fn(u32, u32) -> bool,
    ) -> Option<(FileHead, usize)> {
        let icore = self.session().icore_if_any(id.0)?;
        let mapping_epoch = icore.mapping_epoch.load(Acquire);
        let version = icore.version.look()?;
        let piece = self.piece(id, mapping_epoch, offset, updates)?;
        let len = (to.len() as u64).min(piece.size.saturating_sub(offset.0));
        if len == 0 || len > piece.room || !check(piece.mode, piece.generation) {
            return None;
        }
        let part = to.slice(0..len as usize);
        match self.volume().checked_slice(piece.at, len as usize) {
            Some(slice) => slice.read_user(part).ok()?,
            None => {
                let may_find_out = updates == CacheUpdates::Left;
                self.volume().read_unsliced(piece.at, part, may_find_out)?;
            }
        }
        let head = FileHead {
            mode: piece.mode,
            generation: piece.generation,
            size: piece.size,
            atime: piece.hot.word(ATIME_WORD) as i64,
            mtime: piece.hot.word(MTIME_WORD) as i64,
            ctime: piece.hot.word(CTIME_WORD) as i64,
        };
        icore
            .version
            .is_still(version)
            .then_some((head, len as usize))
    }

    /// Overwrites bytes from `offset` on that lie below EOF, in direct mode, if that is done at
    /// once; `check` sees mode and generation first. Durable on return. Returns `None` if the fast
    /// path does not apply; use [`Store::begin_write`].
    ///
    /// It excludes other writes and changes, of the object or, where several writers meet, of the
    /// part of it.
    #[inline(always)]
    pub fn try_overwrite_fast(
        &self,
        id: ObjectId,
        offset: FileOffset,
        from: UserBytes<'_>,
        check: impl Fn(u32, u32) -> bool,
    ) -> Fast<usize> {
        let icore = self.session().icore_if_any(id.0)?;
        let mapping_epoch = icore.mapping_epoch.load(Acquire);
        let piece = self.own_piece(id, mapping_epoch, offset, from.len())?;
        if !check(piece.mode, piece.generation) {
            return None;
        }
        if let Some(slice) = self.volume().checked_slice(piece.at, from.len()) {
            // The memory's answer is waited for in the end, so it is asked first.
            slice.expect_store();
            if let Some(guard) = self.try_lock_fast(icore, id) {
                let _mark = guard.begin_store();
                return self.store_piece(icore, &piece, Some(slice), from);
            }
        }
        self.overwrite_locked((icore, id), mapping_epoch, offset, from)
    }

    /// The piece of `len` bytes at `offset`, all below EOF, if they may be overwritten where they
    /// lie.
    #[inline(always)]
    fn own_piece(
        &self,
        id: ObjectId,
        mapping_epoch: u64,
        offset: FileOffset,
        len: usize,
    ) -> Option<Piece<'_>> {
        let piece = self.piece(id, mapping_epoch, offset, CacheUpdates::Left)?;
        let len = len as u64;
        let fits = len > 0
            && len <= piece.room
            && offset.0 + len <= piece.size
            && self.is_writable()
            && !piece.may_be_shared;
        fits.then_some(piece)
    }

    /// As [`Store::try_overwrite_fast`], under a mapping epoch for which `check` was content, when
    /// somebody else has or had the lock, and of a pool with copies or behind an image. What had
    /// better move to fresh units there is for the long way (D75).
    #[inline(never)]
    fn overwrite_locked(
        &self,
        (icore, id): (&ICore, ObjectId),
        mapping_epoch: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Fast<usize> {
        let piece = self.own_piece(id, mapping_epoch, offset, from.len())?;
        let slice = self.volume().checked_slice(piece.at, from.len());
        let may_move = slice.is_none() && from.len() as u64 >= UNIT_SIZE;
        if may_move && self.volume().had_better_move(from.len()) {
            return None;
        }
        let part = offset.0 / PART;
        if (offset.0 + from.len() as u64 - 1) / PART == part
            && let Some(_part) = self.lock_part(icore, id, part).ok()?
        {
            return self.store_piece(icore, &piece, slice, from);
        }
        let (guard, waited) = self.lock_and_tell(icore, id).ok()?;
        let mark = guard.begin_store();
        let done = self.store_piece(icore, &piece, slice, from);
        drop(mark);
        if waited && matches!(done, Some(Ok(_))) {
            guard.range_lock();
        }
        done
    }

    /// Stores bytes into a piece that was found before its lock was taken. Behind the first store
    /// every answer is final.
    #[inline(always)]
    fn store_piece(
        &self,
        icore: &ICore,
        piece: &Piece<'_>,
        slice: Option<CheckedSlice<'_>>,
        from: UserBytes<'_>,
    ) -> Fast<usize> {
        let still = icore.mapping_epoch.load(Relaxed) == piece.mapping_epoch
            && piece.hot.word(SIZE_WORD) == piece.size_word;
        if !still {
            return None;
        }
        let len = from.len();
        let now = self.now();
        let stored = match slice {
            Some(slice) => slice.write_user(from, StoreKind::Data),
            None => self.volume().overwrite_user(piece.at, from),
        };
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => return Some(Err(copy_error(error))),
        };
        stamp(&piece.hot, now);
        match self.volume().fence(stored) {
            Ok(()) => Some(Ok(len)),
            Err(failed) => Some(Err(failed.into())),
        }
    }
}
