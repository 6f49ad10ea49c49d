//! Space of files: allocation, holes, and finding them.

use super::check_regular;
use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::InodeRef;
use crate::permission::Cred;
use nacre_store::{EndOfFile, Extent, MAX_FILE_SIZE};
use std::ops::ControlFlow;

/// What `allocate` does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Give it units and extend the file over it.
    Extend,
    /// Give it units, also behind the end, and leave the size.
    KeepSize,
    /// Make it a hole.
    PunchHole,
    /// Make it read as zeros.
    ZeroRange {
        /// Do not extend the file.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

impl Fs {
    /// Allocates or empties the `len` bytes from `start`.
    pub fn allocate(
        &self,
        cred: &Cred,
        node: InodeRef,
        mode: AllocateMode,
        start: u64,
        len: u64,
    ) -> Result<()> {
        if len == 0 {
            return Err(FsError::Invalid);
        }
        if start.checked_add(len).is_none_or(|end| end > MAX_FILE_SIZE) {
            return Err(FsError::FileTooBig);
        }
        let once = || self.allocate_once(cred, node, mode, (start, len));
        // For what cannot succeed nothing moves.
        match len <= self.store.volume().front_len() {
            true => self.with_room(once),
            false => once(),
        }
    }

    fn allocate_once(
        &self,
        cred: &Cred,
        node: InodeRef,
        mode: AllocateMode,
        (start, len): (u64, u64),
    ) -> Result<()> {
        let (guard, attrs) = self.lock(node)?;
        check_regular(&attrs)?;
        self.check_writable()?;
        self.drop_set_id(cred, &guard, &attrs)?;
        match mode {
            AllocateMode::Extend => {
                let eof = EndOfFile::Moves;
                self.store.preallocate(&guard, start, len, eof)?
            }
            AllocateMode::KeepSize => {
                let eof = EndOfFile::Stays;
                self.store.preallocate(&guard, start, len, eof)?
            }
            AllocateMode::PunchHole => self.store.punch(&guard, start, len)?,
            AllocateMode::ZeroRange { keep_size } => {
                let eof = match keep_size {
                    true => EndOfFile::Stays,
                    false => EndOfFile::Moves,
                };
                self.store.zero_range(&guard, start, len, eof)?
            }
        }
        Ok(())
    }

    /// Tells `visit` where the units of a file lie, in order, until it breaks off.
    pub fn extents(
        &self,
        node: InodeRef,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let attrs = self.attrs(node)?;
        check_regular(&attrs)?;
        let size = attrs.size;
        Ok(self.store.extents(node.object(), 0, size, visit)?)
    }

    /// The first data or hole at or behind `start`; `NoSuchOffset` at or behind the end.
    pub fn seek(&self, node: InodeRef, what: Seek, start: u64) -> Result<u64> {
        let attrs = self.attrs(node)?;
        check_regular(&attrs)?;
        if start >= attrs.size {
            return Err(FsError::NoSuchOffset);
        }
        let found = match what {
            Seek::Data => self.store.seek_data(node.object(), start)?,
            Seek::Hole => self.store.seek_hole(node.object(), start)?,
        };
        found.ok_or(FsError::NoSuchOffset)
    }
}
