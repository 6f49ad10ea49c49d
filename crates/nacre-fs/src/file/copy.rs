//! Copies between files, by reference where units can be shared.

use super::check_regular;
use crate::Fs;
use crate::error::{FsError, Result};
use crate::file::WriteAt;
use crate::inode::InodeRef;
use crate::permission::Cred;
use nacre_media::{UserBytes, UserBytesMut};
use nacre_store::{MAX_FILE_SIZE, ObjectGuard, StoreError};
use nacre_types::{FileOffset, UNIT_SIZE};

/// Bytes copied at a time when units cannot be shared.
const PIECE: u64 = 256 << 10;

/// Bytes `from_start..` of one file to `to_start..` of another or the same.
#[derive(Clone, Copy)]
struct Copy {
    from: InodeRef,
    from_start: u64,
    to: InodeRef,
    to_start: u64,
    len: u64,
}

impl Copy {
    fn check_ends(&self) -> Result<()> {
        let limit = MAX_FILE_SIZE - self.len.min(MAX_FILE_SIZE);
        if self.to_start > limit {
            return Err(FsError::FileTooBig);
        }
        let apart = self.from_start.abs_diff(self.to_start) >= self.len;
        if self.from.ino == self.to.ino && !apart {
            return Err(FsError::Invalid);
        }
        Ok(())
    }

    fn starts_aligned(&self) -> bool {
        (self.from_start | self.to_start).is_multiple_of(UNIT_SIZE)
    }
}

impl Fs {
    /// Copies up to `len` bytes between two files, each from an offset on, and returns how many; 0
    /// at the end of the source.
    pub fn copy_range(
        &self,
        cred: &Cred,
        from: (InodeRef, u64),
        to: (InodeRef, u64),
        len: u64,
    ) -> Result<u64> {
        let (copy, size) = self.copy_of(from, to, len)?;
        let len = len.min(size.saturating_sub(copy.from_start));
        let copy = Copy { len, ..copy };
        copy.check_ends()?;
        let shared = self.share_whole_units(cred, &copy)?;
        match self.copy_bytes(cred, &copy, shared) {
            Err(error) if shared == 0 => Err(error),
            Err(_) => Ok(shared),
            Ok(copied) => Ok(shared + copied),
        }
    }

    /// A copy between files that may take part in one, and the size of its source.
    fn copy_of(&self, from: (InodeRef, u64), to: (InodeRef, u64), len: u64) -> Result<(Copy, u64)> {
        let attrs = self.attrs(from.0)?;
        check_regular(&attrs)?;
        check_regular(&self.attrs(to.0)?)?;
        self.check_writable()?;
        let copy = Copy {
            from: from.0,
            from_start: from.1,
            to: to.0,
            to_start: to.1,
            len,
        };
        Ok((copy, attrs.size))
    }

    /// Shares the whole units at the start of the range; 0 if that cannot be done.
    fn share_whole_units(&self, cred: &Cred, copy: &Copy) -> Result<u64> {
        let len = copy.len - copy.len % UNIT_SIZE;
        if len == 0 || !copy.starts_aligned() {
            return Ok(0);
        }
        match self.share(cred, &Copy { len, ..*copy }) {
            Ok(shared) => Ok(shared),
            Err(FsError::Busy | FsError::Invalid | FsError::Unsupported) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn copy_bytes(&self, cred: &Cred, copy: &Copy, skip: u64) -> Result<u64> {
        let mut buffer = vec![0; PIECE.min(copy.len - skip) as usize];
        let mut done = skip;
        while done < copy.len {
            let want = PIECE.min(copy.len - done) as usize;
            let source = FileOffset(copy.from_start + done);
            let got = self.read(copy.from, source, UserBytesMut::from(&mut buffer[..want]))?;
            if got == 0 {
                break;
            }
            let at = WriteAt::Offset(FileOffset(copy.to_start + done));
            match self.write(cred, copy.to, at, UserBytes::from(&buffer[..got])) {
                Ok(written) if written.len == got => done += got as u64,
                Ok(written) => return Ok(done - skip + written.len as u64),
                Err(error) if done == skip => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done - skip)
    }

    /// Lets `to` share the units of a range of `from`, each from an offset on. Offsets are
    /// multiples of 4 KiB; `len` too, unless the range ends with the source; 0 means up to there.
    pub fn clone_range(
        &self,
        cred: &Cred,
        from: (InodeRef, u64),
        to: (InodeRef, u64),
        len: u64,
    ) -> Result<()> {
        let (copy, _) = self.copy_of(from, to, len)?;
        if !copy.starts_aligned() {
            return Err(FsError::Invalid);
        }
        self.with_room(|| self.share(cred, &copy).map(drop))
    }

    fn share(&self, cred: &Cred, copy: &Copy) -> Result<u64> {
        let (first, second) = self.store.lock_pair(copy.from.object(), copy.to.object())?;
        let from_attrs = self.attrs(copy.from)?;
        let to_attrs = self.attrs(copy.to)?;
        let rest = from_attrs
            .size
            .checked_sub(copy.from_start)
            .ok_or(FsError::Invalid)?;
        let len = if copy.len == 0 { rest } else { copy.len };
        let copy = Copy { len, ..*copy };
        if len == 0 {
            return Ok(0);
        }
        copy.check_ends()?;
        let whole = len.is_multiple_of(UNIT_SIZE);
        let replaces_end = copy.to_start + len >= to_attrs.size;
        if len > rest || !whole && (len != rest || !replaces_end) {
            return Err(FsError::Invalid);
        }
        let target = second.as_ref().unwrap_or(&first);
        self.drop_set_id(cred, target, &to_attrs)?;
        let shared = self
            .store
            .clone_range(&first, copy.from_start, target, copy.to_start, len);
        match shared {
            Err(StoreError::Busy) => self.copy_locked(&copy, target),
            other => Ok(other?),
        }
    }
    /// Copies what cannot be shared, as somebody has it mapped. Both files are locked, so that
    /// nobody writes to them meanwhile but through mappings.
    fn copy_locked(&self, copy: &Copy, target: &ObjectGuard<'_>) -> Result<u64> {
        let mut buffer = vec![0; PIECE.min(copy.len) as usize];
        let mut done = 0;
        while done < copy.len {
            let want = PIECE.min(copy.len - done) as usize;
            let source = FileOffset(copy.from_start + done);
            let got = self.read_noatime(copy.from, source, (&mut buffer[..want]).into())?;
            let at = FileOffset(copy.to_start + done);
            let bytes = UserBytes::from(&buffer[..got]);
            let written = self.store.write(target, at, bytes, self.write_mode)?;
            if written == 0 {
                return Err(FsError::NoSpace);
            }
            done += written as u64;
        }
        Ok(done)
    }
}
