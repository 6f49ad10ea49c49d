//! Writing files, and making what was written durable.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::InodeRef;
use crate::permission::Cred;
use nacre_media::UserBytes;
use nacre_store::{ObjectGuard, StoreError, WriteMode, WritePosition};
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
    /// Whether the file ended before that.
    pub grown: bool,
}

impl Written {
    /// Both as one write.
    fn and(self, more: Written) -> Written {
        Written {
            len: self.len + more.len,
            end: more.end,
            grown: self.grown | more.grown,
        }
    }
}

/// Whether a write of so many bytes may have ended early as there was no room.
fn lacks_room(done: &Result<Written>, wanted: usize) -> bool {
    match done {
        Ok(written) => written.len < wanted,
        Err(error) => *error == FsError::NoSpace,
    }
}

impl Fs {
    /// Overwrites what is there; durable on return. Returns `None` if the fast path does not
    /// apply; use [`Fs::write`].
    #[inline(always)]
    pub fn try_overwrite_fast(
        &self,
        node: InodeRef,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Option<Result<usize>> {
        if self.write_mode != WriteMode::Direct {
            return None;
        }
        let check = |mode, generation| plainly_writable(node, mode, generation);
        let id = node.object();
        let done = self.store.try_overwrite_fast(id, offset, from, check)?;
        Some(done.map_err(FsError::from))
    }

    /// Appends, if the end of the file is at `end`; durable on return. Returns `None` if the fast
    /// path does not apply; use [`Fs::write`].
    #[inline]
    pub fn try_append_fast(
        &self,
        node: InodeRef,
        end: FileOffset,
        from: UserBytes<'_>,
    ) -> Option<Result<usize>> {
        if self.write_mode != WriteMode::Direct {
            return None;
        }
        let check = |mode, generation| plainly_writable(node, mode, generation);
        match self
            .store
            .try_append_fast(node.object(), end, from, check)?
        {
            Ok(len) if len == from.len() => Some(Ok(len)),
            done => self.append_moving(node, done, from),
        }
    }

    /// Writes one buffer; durable on return. May be short when space runs out.
    #[inline]
    pub fn write(
        &self,
        cred: &Cred,
        node: InodeRef,
        at: WriteAt,
        from: UserBytes<'_>,
    ) -> Result<Written> {
        match self.write_once(cred, node, at, from) {
            Ok(written) if written.len == from.len() => Ok(written),
            done => self.write_moving(cred, node, (at, from), done),
        }
    }

    /// Goes on with a write that found no room, as long as something of the pool can move behind.
    #[cold]
    fn write_moving(
        &self,
        cred: &Cred,
        node: InodeRef,
        (at, from): (WriteAt, UserBytes<'_>),
        mut done: Result<Written>,
    ) -> Result<Written> {
        while lacks_room(&done, from.len()) && self.store.make_room()? {
            let (len, next) = match (&done, at) {
                (Ok(written), WriteAt::Offset(_)) => (written.len, WriteAt::Offset(written.end)),
                (Ok(written), WriteAt::Append) => (written.len, at),
                (Err(_), _) => (0, at),
            };
            let more = self.write_once(cred, node, next, from.slice(len..from.len()));
            done = match (done, more) {
                (Ok(before), Ok(more)) => Ok(before.and(more)),
                (Ok(before), Err(FsError::NoSpace)) => Ok(before),
                // An error after some bytes makes the write short.
                (Ok(before), Err(_)) => return Ok(before),
                (Err(_), more) => more,
            };
        }
        done
    }

    /// As [`Fs::write_moving`], of an append. `None`: it is begun again, the other way.
    #[cold]
    fn append_moving(
        &self,
        node: InodeRef,
        done: nacre_store::Result<usize>,
        from: UserBytes<'_>,
    ) -> Option<Result<usize>> {
        let moves = self.store.volume().has_behind();
        match done {
            Err(StoreError::NoSpace) if moves => None,
            Ok(len) if moves => {
                let rest = from.slice(len..from.len());
                let more = self.write(&Cred::root(), node, WriteAt::Append, rest);
                Some(Ok(len + more.map_or(0, |more| more.len)))
            }
            done => Some(done.map_err(FsError::from)),
        }
    }

    #[inline]
    fn write_once(
        &self,
        cred: &Cred,
        node: InodeRef,
        at: WriteAt,
        from: UserBytes<'_>,
    ) -> Result<Written> {
        let guard = self.store.lock(node.object())?;
        self.write_first(cred, (node, &guard), at, from, from.is_empty())
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
        if self.store.volume().has_behind() {
            return self.write_each(cred, node, at, from);
        }
        let Some((first, rest)) = from.split_first() else {
            return self.write(cred, node, at, UserBytes::from(&[][..]));
        };
        let guard = self.store.lock(node.object())?;
        let mut written = self.write_first(cred, (node, &guard), at, *first, total == 0)?;
        if written.len == first.len() {
            let more = self.write_rest(&guard, written.end, rest, written.len > 0)?;
            written.len += more;
            written.end = written.end.add(more as u64);
        }
        Ok(written)
    }

    /// Writes several buffers, for each of which room may have to be made.
    #[cold]
    fn write_each(
        &self,
        cred: &Cred,
        node: InodeRef,
        mut at: WriteAt,
        from: &[UserBytes<'_>],
    ) -> Result<Written> {
        let mut all: Option<Written> = None;
        for piece in from {
            let written = match (self.write(cred, node, at, *piece), all) {
                (Ok(written), _) => written,
                (Err(error), None) => return Err(error),
                (Err(_), Some(_)) => break,
            };
            if let WriteAt::Offset(_) = at {
                at = WriteAt::Offset(written.end);
            }
            all = Some(all.map_or(written, |before: Written| before.and(written)));
            if written.len < piece.len() {
                break;
            }
        }
        match all {
            Some(written) => Ok(written),
            None => self.write(cred, node, at, UserBytes::from(&[][..])),
        }
    }

    /// Writes the first buffer of a call after looking at the file. `empty`: no buffer of the call
    /// has bytes.
    #[inline]
    fn write_first(
        &self,
        cred: &Cred,
        (node, guard): (InodeRef, &ObjectGuard<'_>),
        at: WriteAt,
        from: UserBytes<'_>,
        empty: bool,
    ) -> Result<Written> {
        let ticket = self.store.begin_write(guard)?;
        let head = ticket.head();
        Fs::check_head(node, head)?;
        self.check_writable()?;
        let size = head.size;
        if head.mode & SET_ID != 0 && !empty {
            self.drop_set_id(cred, guard, &self.store.attrs_locked(guard)?)?;
        }
        let place = match at {
            WriteAt::Offset(offset) => WritePosition::At(offset),
            WriteAt::Append => WritePosition::End,
        };
        let (start, len) = ticket.write(place, from, self.write_mode)?;
        let end = start.add(len as u64);
        Ok(Written {
            len,
            end,
            grown: end.0 > size,
        })
    }

    /// Writes further buffers. An error after the first bytes of the call makes the write short
    /// instead of failing.
    fn write_rest(
        &self,
        guard: &ObjectGuard<'_>,
        start: FileOffset,
        from: &[UserBytes<'_>],
        mut some: bool,
    ) -> Result<usize> {
        let mut done = 0;
        for piece in from {
            match self
                .store
                .write(guard, start.add(done as u64), *piece, self.write_mode)
            {
                Ok(len) => {
                    done += len;
                    some |= len > 0;
                    if len < piece.len() {
                        break;
                    }
                }
                Err(error) if !some => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// As [`Fs::fsync`] of a file that is open, on the fast path, which may end at any
    /// instruction. Returns `None` if it does not apply.
    #[inline(always)]
    pub fn try_fsync_fast(&self, node: InodeRef) -> Option<()> {
        self.store.persist_now(node.object())
    }

    /// Makes data, size and times durable.
    #[inline]
    pub fn fsync(&self, node: InodeRef) -> Result<()> {
        match self.store.persist(node.object(), node.generation)? {
            true => Ok(self.store.commit()?),
            false => Err(FsError::Stale),
        }
    }

    /// Whether what is written is durable only after [`Fs::fsync`] and the like.
    pub fn is_cached(&self) -> bool {
        self.store.volume().is_cached()
    }

    /// Makes all durable that was done before, where it is not already.
    pub fn commit(&self) -> Result<()> {
        Ok(self.store.commit()?)
    }

    /// Makes data and size durable. Where they are already, only a failed device shows here.
    #[inline]
    pub fn fdatasync(&self, node: InodeRef) -> Result<()> {
        self.fsync(node)
    }
}

/// Whether that is the file, and a write need not change its mode.
#[inline(always)]
fn plainly_writable(node: InodeRef, mode: u32, generation: u32) -> bool {
    mode & SET_ID == 0 && Fs::is_the_file(node, mode, generation)
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
