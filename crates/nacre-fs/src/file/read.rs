//! Reading files and symbolic links, and what reading does to the access time.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef, file_type};
use nacre_media::UserBytesMut;
use nacre_store::scrub::Verified;
use nacre_store::{CacheUpdates, FileHead, INLINE_MAX};
use nacre_types::FileOffset;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// relatime: an access time older than this is renewed in any case.
const ATIME_AGE: i64 = 24 * 60 * 60 * 1_000_000_000;
/// Of so many reads of known files, two in a row look at the clock in any case: the first may be
/// made again with more rights.
const AGE_READS: u32 = 128;

impl Fs {
    /// Contents from `start` on will be read soon: of a disk they are brought to memory.
    pub fn will_need(&self, node: InodeRef, start: u64, len: u64) -> Result<()> {
        let end = start.saturating_add(len);
        Ok(self.store.will_need(node.object(), start..end)?)
    }

    /// Contents from `start` on will not be read soon: memory lets go of what the disk has, too.
    pub fn will_not_need(&self, node: InodeRef, start: u64, len: u64) -> Result<()> {
        let end = start.saturating_add(len).min(self.attrs(node)?.size);
        Ok(self.store.will_not_need(node.object(), start..end)?)
    }

    /// Whether contents of `len` bytes from `start` on are in memory now.
    pub fn is_in_memory(&self, node: InodeRef, start: u64, len: u64) -> Result<bool> {
        let end = start.saturating_add(len).min(self.attrs(node)?.size);
        Ok(self.store.is_in_memory(node.object(), start..end)?)
    }

    /// Asks for these contents, none of which are in memory, to be told of by [`Fs::take_loaded`]
    /// with this tag. False if nothing will be told.
    pub fn begin_load(&self, node: InodeRef, start: u64, len: u64, tag: u64) -> Result<bool> {
        let end = start.saturating_add(len).min(self.attrs(node)?.size);
        Ok(self.store.begin_load(node.object(), start..end, tag)?)
    }

    /// Waits for some of what was asked for, but not longer than `most`; then tells the tag of each
    /// that has come.
    pub fn take_loaded(&self, most: Duration, tell: impl FnMut(u64)) {
        self.store.take_loaded(most, tell);
    }

    /// The fast path of [`Fs::read`]. Returns `None` if it does not apply.
    #[inline(always)]
    pub fn try_read_fast(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: &mut UserBytesMut<'_>,
    ) -> Option<usize> {
        let (head, len, look) = self.try_copy_fast(node, from, to, CacheUpdates::Left)?;
        if look {
            // A pool that cannot be written keeps its times.
            let _ = self.touch_atime(node, head.atime, head.mtime.max(head.ctime));
        }
        Some(len)
    }

    /// As [`Fs::try_read_fast`] for a caller that may be interrupted and never come back: nothing
    /// is held. None, too, when the access time may have to change.
    #[inline(always)]
    pub fn try_read_only_fast(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: &mut UserBytesMut<'_>,
    ) -> Option<usize> {
        let (_, len, look) = self.try_copy_fast(node, from, to, CacheUpdates::None)?;
        (!look || !self.store.is_writable()).then_some(len)
    }

    /// Reads a file that this process has read before; also whether its access time is to be looked
    /// at: whether it is a day old is asked now and then only.
    #[inline(always)]
    fn try_copy_fast(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: &mut UserBytesMut<'_>,
        updates: CacheUpdates,
    ) -> Option<(FileHead, usize, bool)> {
        let check = |mode, generation| Fs::is_the_file(node, mode, generation);
        let id = node.object();
        let (head, len) = self.store.try_read_fast(id, from, to, updates, check)?;
        let turn = self.reads.load(Relaxed).wrapping_add(1);
        self.reads.store(turn, Relaxed);
        let look = head.atime <= head.mtime.max(head.ctime) || turn % AGE_READS < 2;
        Some((head, len, look))
    }

    /// Reads into `to`; short at the end of the file, holes are zeros.
    #[inline]
    pub fn read(&self, node: InodeRef, from: FileOffset, to: UserBytesMut<'_>) -> Result<usize> {
        let (head, len) = self.read_head(node, from, to)?;
        self.touch_atime(node, head.atime, head.mtime.max(head.ctime))?;
        Ok(len)
    }

    /// Reads without touching the access time.
    pub fn read_noatime(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: UserBytesMut<'_>,
    ) -> Result<usize> {
        let (_, len) = self.read_head(node, from, to)?;
        Ok(len)
    }

    /// As [`Fs::read`], after what is sealed of the bytes was compared with its checksums, and
    /// repaired where a copy differed. Ends before the first byte that no copy has any more.
    pub fn read_verified(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: &mut [u8],
    ) -> Result<(usize, Verified)> {
        let room = to.len() as u64;
        let end = self.size(node)?.min(from.0.saturating_add(room));
        let bytes = from.0..end.max(from.0);
        self.store.read_verified(node.object(), bytes, |len| {
            let to = UserBytesMut::from(&mut to[..len as usize]);
            self.read(node, from, to)
        })
    }

    #[inline]
    fn read_head(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: UserBytesMut<'_>,
    ) -> Result<(FileHead, usize)> {
        let check = |head: &FileHead| Fs::check_head(node, head);
        self.store.read_checked(node.object(), from, to, check)
    }

    /// Bytes of a file.
    pub fn size(&self, node: InodeRef) -> Result<u64> {
        Ok(self.attrs(node)?.size)
    }

    /// Copies as much of a symbolic link's target as fits and returns how much that was.
    pub fn readlink(&self, node: InodeRef, to: &mut [u8]) -> Result<usize> {
        let attrs = self.attrs(node)?;
        if file_type(node.object(), &attrs)? != FileType::Symlink {
            return Err(FsError::Invalid);
        }
        let len = if attrs.size <= INLINE_MAX as u64 {
            let mut inline = [0; INLINE_MAX];
            let len = self.store.inline(node.object(), &mut inline)?.min(to.len());
            to[..len].copy_from_slice(&inline[..len]);
            len
        } else {
            self.store
                .read(node.object(), FileOffset(0), UserBytesMut::from(to))?
        };
        self.touch_atime(node, attrs.atime, attrs.mtime.max(attrs.ctime))?;
        Ok(len)
    }

    /// relatime: the access time moves when it is not after the last change, or a day old.
    #[inline(never)]
    pub(crate) fn touch_atime(&self, node: InodeRef, atime: i64, changed: i64) -> Result<()> {
        if !self.store.is_writable() {
            return Ok(());
        }
        let now = self.store.now().0;
        let due = atime <= changed || now.saturating_sub(atime) >= ATIME_AGE;
        if due && now != atime {
            self.store.set_atime_lazy(node.object(), now)?;
        }
        Ok(())
    }
}
