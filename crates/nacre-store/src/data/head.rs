//! What every read and write needs to know of an object: a few words instead of the whole onode.

use super::{CTIME_WORD, File, MTIME_WORD, word_of};
use crate::block_map::layout::Root;
use crate::error::Result;
use crate::layout::{ONODE_ATIME_AT, ONODE_GENERATION_AT, ONODE_MODE_AT, ONODE_ROOT_AT};

pub(super) const ATIME_WORD: usize = word_of(ONODE_ATIME_AT);
const ROOT_WORD: usize = word_of(ONODE_ROOT_AT);
const MODE_WORD: usize = word_of(ONODE_MODE_AT);
const GENERATION_WORD: usize = word_of(ONODE_GENERATION_AT);

// Of these words the lower halves count.
const _: () = assert!(ONODE_MODE_AT.is_multiple_of(8) && ONODE_GENERATION_AT.is_multiple_of(8));

/// A few attributes of an object. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Counts the generations of the object number.
    pub generation: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of last read.
    pub atime: i64,
    /// Time of last change of the contents.
    pub mtime: i64,
    /// Time of last change of the onode.
    pub ctime: i64,
}

impl File<'_> {
    /// The head of a file of this mode and generation.
    #[inline(always)]
    pub(super) fn head_of(&self, mode: u32, generation: u32) -> Result<FileHead> {
        Ok(FileHead {
            mode,
            generation,
            size: self.size()?,
            atime: self.hot.word(ATIME_WORD) as i64,
            mtime: self.hot.word(MTIME_WORD) as i64,
            ctime: self.hot.word(CTIME_WORD) as i64,
        })
    }

    /// The root word of the block map.
    #[inline]
    pub(super) fn root(&self) -> Result<Root> {
        self.map.open_root(self.hot.word(ROOT_WORD))
    }

    #[inline]
    pub(super) fn mode(&self) -> u32 {
        self.hot.word(MODE_WORD) as u32
    }

    /// Counts the generations of the object number.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.hot.word(GENERATION_WORD) as u32
    }
}
