//! What the kernel asks for, in terms of the file system.

use crate::attributes::{file_attr, set_time};
use crate::errno::Answer;
use crate::nodes::Nodes;
use fuser::{FileAttr, Generation, Request, TimeOrNow};
use nacre_fs::{
    AllocateMode, Caps, Cred, DirEntry, Found, Fs, FsError, FsStat, InodeRef, RenameFlags, Seek,
    WriteAt, XattrFlags,
};
use nacre_types::FileOffset;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::ops::ControlFlow;

/// Lookups of a name that others remove and make all the time.
const LOOKUP_TRIES: usize = 16;
const TARGET_MAX: usize = 4096;
/// Most bytes that one request copies, so that its answer can tell them.
const COPY_MAX: u64 = 1 << 30;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// An inode that the kernel is told of.
pub(crate) type Told = (FileAttr, Generation);

/// A mounted pool.
pub(crate) struct Pool {
    pub(crate) fs: Fs,
    pub(crate) nodes: Nodes,
}

/// New attributes; `None` leaves one as it is.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

/// Who makes a request. The kernel has checked that he may: it knows all his groups and
/// capabilities. What is made gets his user and group.
pub(crate) fn cred(request: &Request) -> Cred {
    Cred {
        uid: request.uid(),
        gid: request.gid(),
        groups: Vec::new(),
        caps: Caps::all(),
    }
}

/// As [`cred`], for changes of contents, which take the set-id bits of a user's files. The kernel
/// takes those that it has heard of, and a preloaded program may have set them since.
fn writer(request: &Request) -> Cred {
    let mut cred = cred(request);
    if cred.uid != 0 {
        cred.caps.remove(Caps::FSETID);
    }
    cred
}

/// The parts of a request that concern a range of a file.
#[derive(Clone, Copy)]
pub(crate) struct FileRange {
    pub(crate) ino: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Pool {
    pub(crate) fn node(&self, ino: u64) -> Answer<InodeRef> {
        self.nodes.get(&self.fs, ino)
    }

    pub(crate) fn lookup(&self, request: &Request, dir: u64, name: &[u8]) -> Answer<Told> {
        let dir = self.node(dir)?;
        for _ in 0..LOOKUP_TRIES {
            let Found { node, .. } = self.fs.lookup(&cred(request), dir, name)?;
            match self.tell(node) {
                Err(refusal) if refusal.0 == Errno::STALE => {}
                told => return told,
            }
        }
        Err(Errno::STALE.into())
    }

    /// Tells the kernel of an inode; it is kept until the kernel forgets it.
    fn tell(&self, node: InodeRef) -> Answer<Told> {
        self.nodes.tell(&self.fs, node)?;
        match self.fs.getattr(node) {
            Ok(stat) => Ok((file_attr(&stat), Generation(u64::from(node.generation)))),
            Err(error) => {
                self.forget(node.ino.0, 1);
                Err(error.into())
            }
        }
    }

    /// Tells of an inode that was just made. It may be removed already.
    fn tell_new(&self, made: Result<InodeRef, FsError>) -> Answer<Told> {
        self.tell(made?).map_err(|refusal| match refusal.0 {
            Errno::STALE => Errno::NOENT.into(),
            _ => refusal,
        })
    }

    /// What cannot be let go of now goes with the session.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let _later = self.nodes.forget(&self.fs, ino, lookups);
    }

    pub(crate) fn attributes(&self, ino: u64) -> Answer<FileAttr> {
        Ok(file_attr(&self.fs.getattr(self.node(ino)?)?))
    }

    /// Times come last, because all other changes move them.
    pub(crate) fn change(&self, request: &Request, ino: u64, new: &Changes) -> Answer<FileAttr> {
        let node = self.node(ino)?;
        let cred = cred(request);
        if new.uid.is_some() || new.gid.is_some() {
            self.fs.chown(&cred, node, new.uid, new.gid)?;
        }
        if let Some(mode) = new.mode {
            self.fs.chmod(&cred, node, mode)?;
        }
        if let Some(size) = new.size {
            self.fs.set_size(&writer(request), node, size)?;
        }
        let (atime, mtime) = (set_time(new.atime), set_time(new.mtime));
        self.fs.utimens(&cred, node, atime, mtime)?;
        self.attributes(ino)
    }

    pub(crate) fn readlink(&self, ino: u64) -> Answer<Vec<u8>> {
        let mut target = vec![0; TARGET_MAX];
        let len = self.fs.readlink(self.node(ino)?, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    pub(crate) fn mknod(
        &self,
        request: &Request,
        dir: u64,
        name: &[u8],
        mode: u32,
        device: u32,
    ) -> Answer<Told> {
        let (dir, cred) = (self.node(dir)?, cred(request));
        self.tell_new(self.fs.mknod(&cred, dir, name, mode, u64::from(device)))
    }

    pub(crate) fn mkdir(
        &self,
        request: &Request,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Answer<Told> {
        let dir = self.node(dir)?;
        self.tell_new(self.fs.mkdir(&cred(request), dir, name, mode))
    }

    pub(crate) fn symlink(
        &self,
        request: &Request,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Told> {
        let dir = self.node(dir)?;
        self.tell_new(self.fs.symlink(&cred(request), dir, name, target))
    }

    pub(crate) fn link(&self, request: &Request, ino: u64, dir: u64, name: &[u8]) -> Answer<Told> {
        let (node, dir) = (self.node(ino)?, self.node(dir)?);
        self.fs.link(&cred(request), node, dir, name)?;
        self.tell(node)
    }

    /// Makes a file that the kernel has not found. If somebody else makes it at the same time, the
    /// kernel looks again (`ESTALE`) and opens it with all checks, except for `O_EXCL`.
    pub(crate) fn create(
        &self,
        request: &Request,
        dir: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Answer<Told> {
        let dir = self.node(dir)?;
        let exclusive = OFlags::from_bits_retain(flags as u32).contains(OFlags::EXCL);
        let node = match self.fs.create(&cred(request), dir, name, mode) {
            Err(FsError::Exists) if !exclusive => return Err(Errno::STALE.into()),
            made => made?,
        };
        let told = self.tell(node);
        let unpinned = self.fs.unpin(node.ino);
        if told.is_ok()
            && let Err(error) = unpinned
        {
            self.forget(node.ino.0, 1);
            return Err(error.into());
        }
        told
    }

    pub(crate) fn unlink(&self, request: &Request, dir: u64, name: &[u8]) -> Answer<()> {
        Ok(self.fs.unlink(&cred(request), self.node(dir)?, name)?)
    }

    pub(crate) fn rmdir(&self, request: &Request, dir: u64, name: &[u8]) -> Answer<()> {
        Ok(self.fs.rmdir(&cred(request), self.node(dir)?, name)?)
    }

    pub(crate) fn rename(
        &self,
        request: &Request,
        (dir, name): (u64, &[u8]),
        (new_dir, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (from, to) = (self.node(dir)?, self.node(new_dir)?);
        let cred = cred(request);
        Ok(self.fs.rename(&cred, from, name, to, new_name, flags)?)
    }

    pub(crate) fn read(&self, range: FileRange, flags: i32) -> Answer<Vec<u8>> {
        let node = self.node(range.ino)?;
        let len = usize::try_from(range.len).map_err(|_| Errno::INVAL)?;
        let mut data = vec![0; len];
        let to = data.as_mut_slice().into();
        let untouched = OFlags::from_bits_retain(flags as u32).contains(OFlags::NOATIME);
        let got = if untouched {
            self.fs.read_noatime(node, FileOffset(range.start), to)?
        } else {
            self.fs.read(node, FileOffset(range.start), to)?
        };
        data.truncate(got);
        Ok(data)
    }

    /// The kernel's idea of the end of the file may be old: `append` writes behind the real one.
    pub(crate) fn write(
        &self,
        request: &Request,
        ino: u64,
        start: u64,
        data: &[u8],
        append: bool,
    ) -> Answer<u32> {
        let node = self.node(ino)?;
        let at = match append {
            true => WriteAt::Append,
            false => WriteAt::Offset(FileOffset(start)),
        };
        let written = self.fs.write(&writer(request), node, at, data.into())?;
        Ok(written.len as u32)
    }

    pub(crate) fn sync(&self, ino: u64) -> Answer<()> {
        Ok(self.fs.fsync(self.node(ino)?)?)
    }

    pub(crate) fn allocate(&self, request: &Request, range: FileRange, mode: i32) -> Answer<()> {
        let node = self.node(range.ino)?;
        let mode = allocate_mode(mode)?;
        let cred = writer(request);
        Ok(self
            .fs
            .allocate(&cred, node, mode, range.start, range.len)?)
    }

    pub(crate) fn seek(&self, ino: u64, offset: i64, whence: i32) -> Answer<i64> {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let start = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let found = self.fs.seek(self.node(ino)?, what, start)?;
        i64::try_from(found).map_err(|_| Errno::OVERFLOW.into())
    }

    pub(crate) fn copy(&self, request: &Request, from: FileRange, to: (u64, u64)) -> Answer<u32> {
        let (source, (target, target_start)) = (self.node(from.ino)?, to);
        let target = self.node(target)?;
        let (cred, len) = (writer(request), from.len.min(COPY_MAX));
        let fs = &self.fs;
        let copied = fs.copy_range(&cred, source, from.start, target, target_start, len)?;
        Ok(copied as u32)
    }

    /// Lists a directory until `add` breaks, which takes each entry and where to go on behind it.
    pub(crate) fn list(
        &self,
        ino: u64,
        cookie: u64,
        add: &mut dyn FnMut(&DirEntry<'_>, u64) -> ControlFlow<()>,
    ) -> Answer<()> {
        let dir = self.node(ino)?;
        Ok(self.fs.readdir(dir, cookie, &mut |group| {
            let last = group.len().saturating_sub(1);
            group.iter().enumerate().all(|(at, entry)| {
                // A group that is not taken as a whole is listed again from its start.
                let next = entry.next_cookie - u64::from(at < last);
                add(entry, next).is_continue()
            })
        })?)
    }

    pub(crate) fn space(&self) -> Answer<FsStat> {
        Ok(self.fs.statfs()?)
    }

    pub(crate) fn set_xattr(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        let flags = XattrFlags::from_bits(flags as u32).ok_or(Errno::INVAL)?;
        let node = self.node(ino)?;
        Ok(self
            .fs
            .set_xattr(&cred(request), node, name, value, flags)?)
    }

    /// The value; at most `room` bytes of it if that is not 0.
    pub(crate) fn xattr(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        room: u32,
    ) -> Answer<Vec<u8>> {
        let (node, cred) = (self.node(ino)?, cred(request));
        filled(room, |to| self.fs.get_xattr(&cred, node, name, to))
    }

    pub(crate) fn xattrs(&self, request: &Request, ino: u64, room: u32) -> Answer<Vec<u8>> {
        let (node, cred) = (self.node(ino)?, cred(request));
        // The kernel passes on all names, and trusted ones are for root.
        let cred = Cred {
            caps: if cred.uid == 0 {
                Caps::all()
            } else {
                Caps::empty()
            },
            ..cred
        };
        filled(room, |to| self.fs.list_xattr(&cred, node, to))
    }

    pub(crate) fn remove_xattr(&self, request: &Request, ino: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(ino)?;
        Ok(self.fs.remove_xattr(&cred(request), node, name)?)
    }
}

/// Fills a buffer of `room` bytes. Without room, it has the length of what would be filled in.
fn filled(room: u32, fill: impl Fn(&mut [u8]) -> Result<usize, FsError>) -> Answer<Vec<u8>> {
    let mut value = vec![0; room as usize];
    let len = fill(&mut value)?;
    value.resize(len, 0);
    Ok(value)
}

fn allocate_mode(mode: i32) -> Answer<AllocateMode> {
    let mode = FallocateFlags::from_bits_retain(mode as u32);
    let keep = FallocateFlags::KEEP_SIZE;
    let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    if mode.is_empty() {
        Ok(AllocateMode::Extend)
    } else if mode == keep {
        Ok(AllocateMode::KeepSize)
    } else if mode == keep | punch {
        Ok(AllocateMode::PunchHole)
    } else if mode | keep == zero | keep {
        let keep_size = mode.contains(keep);
        Ok(AllocateMode::ZeroRange { keep_size })
    } else {
        Err(Errno::OPNOTSUPP.into())
    }
}
