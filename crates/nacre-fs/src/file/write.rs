//! Writing files, and making what was written durable.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::InodeRef;
use crate::permission::Cred;
use nacre_media::UserBytes;
use nacre_store::{ObjectGuard, WriteMode};
use nacre_types::FileOffset;

/// The bits of a mode that a write may take away.
const SET_ID: u32 = 0o6000;

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAt {
    /// To this offset.
    Offset(FileOffset),
    /// To the end of the file, wherever it is then.
    Append,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes written.
    pub len: usize,
    /// Offset behind the last one.
    pub end: FileOffset,
}

impl Fs {
    /// Writes one buffer; durable on return. May be short when space runs out.
    #[inline]
    pub fn write(
        &self,
        cred: &Cred,
        node: InodeRef,
        at: WriteAt,
        from: UserBytes<'_>,
    ) -> Result<Written> {
        let (guard, start) = self.begin_write(cred, node, at, from.len())?;
        let len = self.write_piece(&guard, start, from)?;
        Ok(Written {
            len,
            end: FileOffset(start + len as u64),
        })
    }

    /// Writes several buffers one behind the other as one write.
    pub fn write_vectored(
        &self,
        cred: &Cred,
        node: InodeRef,
        at: WriteAt,
        from: &[UserBytes<'_>],
    ) -> Result<Written> {
        let total = from
            .iter()
            .try_fold(0usize, |total, piece| total.checked_add(piece.len()));
        let total = total.ok_or(FsError::Invalid)?;
        if let [only] = from {
            return self.write(cred, node, at, *only);
        }
        if self.write_mode == WriteMode::Atomic {
            let gathered = gather(from, total)?;
            return self.write(cred, node, at, UserBytes::from(&gathered[..]));
        }
        let (guard, start) = self.begin_write(cred, node, at, total)?;
        let len = self.write_pieces(&guard, start, from)?;
        Ok(Written {
            len,
            end: FileOffset(start + len as u64),
        })
    }

    /// An error after the first bytes makes the write short instead of failing.
    fn write_pieces(
        &self,
        guard: &ObjectGuard<'_>,
        start: u64,
        from: &[UserBytes<'_>],
    ) -> Result<usize> {
        let mut done = 0;
        for piece in from {
            match self.write_piece(guard, start + done as u64, *piece) {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            if done == 0 && !piece.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    #[inline]
    fn begin_write(
        &self,
        cred: &Cred,
        node: InodeRef,
        at: WriteAt,
        len: usize,
    ) -> Result<(ObjectGuard<'_>, u64)> {
        let guard = self.store.lock(node.object())?;
        let head = self.store.head_locked(&guard)?;
        Fs::check_head(node, &head)?;
        self.check_writable()?;
        if len != 0 && head.mode & SET_ID != 0 {
            self.drop_set_id(cred, &guard, &self.store.attrs_locked(&guard)?)?;
        }
        let start = match at {
            WriteAt::Offset(offset) => offset.0,
            WriteAt::Append => head.size,
        };
        Ok((guard, start))
    }

    #[inline]
    fn write_piece(
        &self,
        guard: &ObjectGuard<'_>,
        start: u64,
        from: UserBytes<'_>,
    ) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        Ok(self
            .store
            .write(guard, FileOffset(start), from, self.write_mode)?)
    }

    /// Makes data, size and times durable.
    #[inline]
    pub fn fsync(&self, node: InodeRef) -> Result<()> {
        if self.store.generation(node.object())? != node.generation {
            return Err(FsError::Stale);
        }
        Ok(self.store.persist(node.object())?)
    }

    /// Makes data and size durable. They are already; only a failed device shows here.
    #[inline]
    pub fn fdatasync(&self, node: InodeRef) -> Result<()> {
        self.fsync(node)
    }
}

fn gather(from: &[UserBytes<'_>], total: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; total];
    let mut rest = &mut bytes[..];
    for piece in from {
        let (now, later) = rest.split_at_mut(piece.len());
        piece.copy_to_slice(now).map_err(|_| FsError::UserFault)?;
        rest = later;
    }
    Ok(bytes)
}
