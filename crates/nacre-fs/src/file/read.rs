//! Reading files and symbolic links, and what reading does to the access time.

use super::check_regular;
use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef, file_type};
use nacre_media::UserBytesMut;
use nacre_store::{Attrs, INLINE_MAX};
use nacre_types::{FileOffset, Timestamp};

/// relatime: an access time older than this is renewed in any case.
const ATIME_AGE: i64 = 24 * 60 * 60 * 1_000_000_000;

impl Fs {
    /// Reads into `to`; short at the end of the file, holes are zeros.
    pub fn read(&self, node: InodeRef, from: FileOffset, to: UserBytesMut<'_>) -> Result<usize> {
        let attrs = self.attrs(node)?;
        check_regular(&attrs)?;
        let len = self.store.read(node.object(), from, to)?;
        self.touch_atime(node, &attrs)?;
        Ok(len)
    }

    /// Reads without touching the access time.
    pub fn read_noatime(
        &self,
        node: InodeRef,
        from: FileOffset,
        to: UserBytesMut<'_>,
    ) -> Result<usize> {
        check_regular(&self.attrs(node)?)?;
        Ok(self.store.read(node.object(), from, to)?)
    }

    /// Bytes of a file.
    pub fn size(&self, node: InodeRef) -> Result<u64> {
        Ok(self.attrs(node)?.size)
    }

    /// Copies as much of a symbolic link's target as fits and returns how much that was.
    pub fn readlink(&self, node: InodeRef, to: &mut [u8]) -> Result<usize> {
        let attrs = self.attrs(node)?;
        if file_type(&attrs)? != FileType::Symlink {
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
        self.touch_atime(node, &attrs)?;
        Ok(len)
    }

    /// relatime: the access time moves when it is not after the last change, or a day old.
    pub(crate) fn touch_atime(&self, node: InodeRef, attrs: &Attrs) -> Result<()> {
        if !self.store.is_writable() {
            return Ok(());
        }
        let now = Timestamp::now().0;
        let unseen_change = attrs.atime <= attrs.mtime || attrs.atime <= attrs.ctime;
        if unseen_change || now.saturating_sub(attrs.atime) >= ATIME_AGE {
            self.store.set_atime_lazy(node.object(), now)?;
        }
        Ok(())
    }
}
