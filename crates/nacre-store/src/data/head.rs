//! What every read and write needs to know of an object: a few words instead of the whole onode.

use super::File;
use crate::error::Result;
use crate::layout::{
    ONODE_ATIME_AT, ONODE_CTIME_AT, ONODE_GENERATION_AT, ONODE_MODE_AT, ONODE_MTIME_AT,
    ONODE_ROOT_AT, ONODE_SIZE_AT,
};
use crate::lock::ObjectGuard;
use crate::store::Store;

/// Words of an onode up to the last one that a head is made of.
const HEAD_WORDS: usize = ONODE_GENERATION_AT as usize / 8 + 1;
// The two halves that are taken are the lower ones of their words, and all words are there.
const _: () = assert!(ONODE_MODE_AT.is_multiple_of(8) && ONODE_GENERATION_AT.is_multiple_of(8));
const _: () = assert!(ONODE_MODE_AT < ONODE_GENERATION_AT && ONODE_ATIME_AT < ONODE_GENERATION_AT);

/// A few attributes of an object. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Counts the lives of the object number.
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
    #[inline]
    pub(super) fn head(&self) -> Result<FileHead> {
        self.head_and_root().map(|(head, _)| head)
    }

    /// The head, and the root word of the block map.
    #[inline]
    pub(super) fn head_and_root(&self) -> Result<(FileHead, u64)> {
        let words: [u64; HEAD_WORDS] = self.store.volume().load_words(self.onode);
        let word = |field: u64| words[(field / 8) as usize];
        let head = FileHead {
            mode: word(ONODE_MODE_AT) as u32,
            generation: word(ONODE_GENERATION_AT) as u32,
            size: self.open_size(word(ONODE_SIZE_AT))?,
            atime: word(ONODE_ATIME_AT) as i64,
            mtime: word(ONODE_MTIME_AT) as i64,
            ctime: word(ONODE_CTIME_AT) as i64,
        };
        Ok((head, word(ONODE_ROOT_AT)))
    }
}

impl Store {
    /// The head of an object that the caller has locked.
    #[inline]
    pub fn head_locked(&self, guard: &ObjectGuard<'_>) -> Result<FileHead> {
        File::open(self, guard.id())?.head()
    }
}
