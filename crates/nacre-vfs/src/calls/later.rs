//! Calls that are asked for now and made later, by another thread: they are on the file that was
//! behind the descriptor, whatever becomes of that.

use crate::abi::{RWF_SYNCED, S_IFREG};
use crate::error::VfsError;
use crate::reply::Answer;
use crate::state::{OpenFile, Vfs};
use nacre_media::{UserBytes, UserBytesMut};
use nacre_session::OFD_SYNCED;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a call is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Read so many bytes at an offset.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Write, with these `RWF_...`.
    Write {
        /// The flags.
        flags: u32,
    },
    /// Make durable what was written.
    Sync,
}

/// A use of an open file description of a pool.
pub struct Held<'v>(OpenFile<'v>);

impl Vfs {
    /// Holds the file behind a descriptor if what is wished would wait for a disk now. `None`: make
    /// the call. Who gives it to another thread says first that there are some.
    pub fn hold_for_later(&self, fd: i32, wish: Wish) -> Option<Held<'_>> {
        let file = match wish {
            Wish::Read { .. } => self.file_to_read(fd),
            Wish::Write { .. } => self.file_to_write(fd),
            Wish::Sync => self.io_file(fd),
        };
        let file = file.ok().flatten()?;
        // Who exceeds the limit gets a signal, and is to get it itself.
        let limited = self.file_size_limit.load(Ordering::Relaxed) != u64::MAX;
        let waits = !limited && file.format() == S_IFREG && file.would_wait(wish);
        waits.then(|| Held(file.counted()))
    }

    /// Waits for some of what [`Held::begin_load`] has asked for in a pool, but not longer than
    /// `most`; then tells the tag of each that has come. One thread calls it at a time.
    pub fn take_loaded(&self, pool: usize, most: Duration, tell: impl FnMut(u64)) {
        self.mount(pool).fs.take_loaded(most, tell);
    }
}

impl OpenFile<'_> {
    /// Whether what is wished would wait for a disk now.
    pub(crate) fn would_wait(&self, wish: Wish) -> bool {
        let fs = &self.mount.fs;
        fs.is_cached()
            && match wish {
                Wish::Read { offset, len } => {
                    fs.is_in_memory(self.node(), offset, len) == Ok(false)
                }
                Wish::Write { flags } => flags & RWF_SYNCED != 0 || self.flags() & OFD_SYNCED != 0,
                Wish::Sync => true,
            }
    }
}

impl Held<'_> {
    /// The pool that the file is in, by its number.
    pub fn pool(&self) -> usize {
        self.0.id.pool
    }

    /// Asks for contents that are to be read, to be told of by [`Vfs::take_loaded`] with this tag.
    /// False if nothing will be told: the read itself waits.
    pub fn begin_load(&self, offset: u64, len: u64, tag: u64) -> bool {
        let begun = self.0.mount.fs.begin_load(self.0.node(), offset, len, tag);
        begun == Ok(true)
    }

    /// As `preadv2`.
    pub fn read(&self, buffers: &mut [UserBytesMut<'_>], offset: i64, flags: u32) -> Answer {
        self.0.preadv2(buffers, offset, flags)
    }

    /// As `pwritev2`.
    pub fn write(&self, parts: &[UserBytes<'_>], offset: i64, flags: u32) -> Answer {
        self.0.pwritev2(parts, offset, flags)
    }

    /// As `fsync`.
    pub fn sync(&self) -> Result<(), VfsError> {
        Ok(self.0.mount.fs.fsync(self.0.node())?)
    }
}
