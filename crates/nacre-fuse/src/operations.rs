//! What the kernel asks for, in terms of the file system.

use crate::descriptions::{self, Descriptions};
use crate::errno::Answer;
use crate::keeping::Keeping;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::wire::Caller;
use nacre_fs::{
    AllocateMode, Caps, Cred, DirEntry, Events, Found, Fs, FsError, FsStat, InodeRef, NewMode,
    RenameFlags, Seek, SetTime, Stat, WriteAt, XattrFlags,
};
use nacre_session::OfdId;
use nacre_types::FileOffset;
use nacre_types::mount_table::IDENTITY;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lookups of a name that others remove and make all the time.
const LOOKUP_TRIES: usize = 16;
const TARGET_MAX: usize = 4096;
/// The group of who is in none.
const NO_GROUP: u32 = u32::MAX;
/// Most bytes that one request copies, so that its answer can tell them.
const COPY_MAX: u64 = 1 << 30;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// An inode that the kernel is told of: its number for the kernel, and its attributes.
pub(crate) type Told = (u64, Stat);

/// A file that is opened for a program: its number, and how.
pub(crate) type Opened = (u64, u32);

/// A mounted pool.
pub(crate) struct Pool {
    pub(crate) fs: Fs,
    pub(crate) nodes: Nodes,
    pub(crate) descriptions: Descriptions,
    pub(crate) locks: Locks,
    pub(crate) keeping: Keeping,
    /// Number of the next open file.
    pub(crate) handles: AtomicU64,
    /// Requests to set an extended attribute have further flags.
    pub(crate) long_setxattr: AtomicBool,
    /// Reads leave the time of the last access as it is.
    pub(crate) no_atime: AtomicBool,
    /// Which file the pool is.
    pub(crate) identity: OnceLock<String>,
    /// The user who mounted it.
    pub(crate) user: u32,
}

/// New attributes; `None` leaves one as it is.
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: SetTime,
    pub(crate) mtime: SetTime,
}

impl Changes {
    fn events(&self) -> Events {
        if self.mode.is_some() || self.uid.is_some() || self.gid.is_some() {
            Events::ATTRIB
        } else if self.size.is_some() {
            Events::MODIFY
        } else {
            Events::of_times(&self.atime, &self.mtime)
        }
    }
}

/// The caller of a request. The kernel has checked that it may: it knows all its groups and
/// capabilities. What is made gets its user and group.
pub(crate) fn cred(caller: Caller) -> Cred {
    Cred {
        uid: caller.uid,
        gid: caller.gid,
        groups: Vec::new(),
        caps: Caps::all(),
    }
}

/// As [`cred`], for changes of contents, which take the set-id bits of a user's files. The kernel
/// takes those that it has heard of, and a preloaded program may have set them since.
pub(crate) fn writer(caller: Caller) -> Cred {
    let mut cred = cred(caller);
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
        match descriptions::of_number(ino) {
            Some(id) => descriptions::node(&self.fs, id),
            None => self.nodes.get(&self.fs, ino),
        }
    }

    /// A number for an open file.
    pub(crate) fn handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn lookup(&self, caller: Caller, dir: u64, name: &[u8]) -> Answer<Told> {
        let dir = self.node(dir)?;
        if dir == self.fs.root()
            && let Some(id) = descriptions::of_name(name)
        {
            return self.tell_description(caller, id);
        }
        for _ in 0..LOOKUP_TRIES {
            let Found { node, .. } = self.fs.lookup(&cred(caller), dir, name)?;
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
            Ok(stat) => Ok((node.ino.0, stat)),
            Err(error) => {
                self.forget(node.ino.0, 1);
                Err(error.into())
            }
        }
    }

    /// Only who mounted the pool gets what preloaded programs have open, whatever its permissions.
    fn tell_description(&self, caller: Caller, id: OfdId) -> Answer<Told> {
        if caller.uid != self.user {
            return Err(Errno::NOENT.into());
        }
        self.descriptions.tell(&self.fs, id)?;
        let number = descriptions::number(id);
        let stat = self.attributes(number);
        if stat.is_err() {
            self.forget(number, 1);
        }
        Ok((number, stat?))
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
        let _later = match descriptions::of_number(ino) {
            Some(id) => self.descriptions.forget(&self.fs, id, lookups),
            None => self.nodes.forget(&self.fs, ino, lookups),
        };
    }

    pub(crate) fn attributes(&self, ino: u64) -> Answer<Stat> {
        Ok(self.fs.getattr(self.node(ino)?)?)
    }

    /// Times come last, because all other changes move them.
    pub(crate) fn change(&self, caller: Caller, ino: u64, new: &Changes) -> Answer<Stat> {
        let node = self.node(ino)?;
        let cred = cred(caller);
        if new.uid.is_some() || new.gid.is_some() {
            self.fs.chown(&cred, node, new.uid, new.gid)?;
        }
        if let Some(mode) = new.mode {
            self.fs.chmod(&cred, node, mode)?;
        }
        if let Some(size) = new.size {
            self.fs.set_size(&writer(caller), node, size)?;
        }
        self.fs.utimens(&cred, node, new.atime, new.mtime)?;
        self.happened(node, new.events());
        self.attributes(ino)
    }

    /// Tells preloaded programs that watch an inode, or a directory where it is.
    pub(crate) fn happened(&self, node: InodeRef, events: Events) {
        if self.fs.is_watched() {
            self.fs.tell(node, None, events);
        }
    }

    /// As [`Pool::happened`], by the number that the kernel has for it.
    pub(crate) fn happened_to(&self, ino: u64, events: Events) {
        if self.fs.is_watched()
            && let Ok(node) = self.node(ino)
        {
            self.fs.tell(node, None, events);
        }
    }

    pub(crate) fn readlink(&self, ino: u64) -> Answer<Vec<u8>> {
        let mut target = vec![0; TARGET_MAX];
        let len = self.fs.readlink(self.node(ino)?, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    pub(crate) fn mknod(
        &self,
        caller: Caller,
        dir: u64,
        name: &[u8],
        mode: NewMode,
        device: u32,
    ) -> Answer<Told> {
        let (dir, cred) = (self.node(dir)?, cred(caller));
        self.tell_new(self.fs.mknod(&cred, dir, name, mode, u64::from(device)))
    }

    pub(crate) fn mkdir(
        &self,
        caller: Caller,
        dir: u64,
        name: &[u8],
        mode: NewMode,
    ) -> Answer<Told> {
        let dir = self.node(dir)?;
        self.tell_new(self.fs.mkdir(&cred(caller), dir, name, mode))
    }

    pub(crate) fn symlink(
        &self,
        caller: Caller,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Told> {
        let dir = self.node(dir)?;
        self.tell_new(self.fs.symlink(&cred(caller), dir, name, target))
    }

    pub(crate) fn link(&self, caller: Caller, ino: u64, dir: u64, name: &[u8]) -> Answer<Told> {
        let (node, dir) = (self.node(ino)?, self.node(dir)?);
        self.fs.link(&cred(caller), node, dir, name)?;
        self.tell(node)
    }

    /// Makes a file that the kernel has not found. If somebody else makes it at the same time, the
    /// kernel looks again (`ESTALE`) and opens it with all checks, except for `O_EXCL`.
    pub(crate) fn create(
        &self,
        caller: Caller,
        dir: u64,
        name: &[u8],
        mode: NewMode,
        flags: u32,
    ) -> Answer<(Told, Opened)> {
        let dir = self.node(dir)?;
        let exclusive = OFlags::from_bits_retain(flags).contains(OFlags::EXCL);
        let node = match self.fs.create(&cred(caller), dir, name, mode) {
            Err(FsError::Exists) if !exclusive => return Err(Errno::STALE.into()),
            made => made?,
        };
        self.tell_opened(node, flags)
    }

    /// Makes a file without a name.
    pub(crate) fn tmpfile(
        &self,
        caller: Caller,
        dir: u64,
        mode: NewMode,
        flags: u32,
    ) -> Answer<(Told, Opened)> {
        let linkable = !OFlags::from_bits_retain(flags).contains(OFlags::EXCL);
        let dir = self.node(dir)?;
        let node = self.fs.tmpfile(&cred(caller), dir, mode, linkable)?;
        self.tell_opened(node, flags)
    }

    fn open_new(&self, node: InodeRef, flags: u32) -> Answer<(Told, Opened)> {
        let told = self.tell(node)?;
        match self.open(node, flags) {
            Ok(opened) => Ok((told, opened)),
            Err(refusal) => {
                self.forget(node.ino.0, 1);
                Err(refusal)
            }
        }
    }

    /// Opens an inode that has a pin, which is given back, and tells of it.
    fn tell_opened(&self, node: InodeRef, flags: u32) -> Answer<(Told, Opened)> {
        // One without a name may be let go of in between, once in a while.
        let opened = self.open_new(node, flags);
        let opened = opened.or_else(|_| self.open_new(node, flags));
        let unpinned = self.fs.unpin(node.ino);
        if let Ok((_, (handle, _))) = opened
            && let Err(error) = unpinned
        {
            self.nodes.close(node.ino.0, handle);
            self.forget(node.ino.0, 1);
            return Err(error.into());
        }
        opened
    }

    pub(crate) fn unlink(&self, caller: Caller, dir: u64, name: &[u8]) -> Answer<()> {
        self.fs.unlink(&cred(caller), self.node(dir)?, name)?;
        self.nodes.names(|names| names.removed(&(dir, name.into())));
        Ok(())
    }

    pub(crate) fn rmdir(&self, caller: Caller, dir: u64, name: &[u8]) -> Answer<()> {
        self.fs.rmdir(&cred(caller), self.node(dir)?, name)?;
        self.nodes.names(|names| names.removed(&(dir, name.into())));
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        caller: Caller,
        (dir, name): (u64, &[u8]),
        (new_dir, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        let flags = RenameFlags::of_call(flags).ok_or(Errno::INVAL)?;
        let (from, to) = (self.node(dir)?, self.node(new_dir)?);
        let cred = cred(caller);
        self.fs.rename(&cred, from, name, to, new_name, flags)?;
        let (old, new) = ((dir, name.into()), (new_dir, new_name.into()));
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        self.nodes.names(|names| names.moved(old, new, exchanged));
        Ok(())
    }

    pub(crate) fn read(&self, ino: u64, start: u64, into: &mut [u8], flags: u32) -> Answer<usize> {
        let node = self.node(ino)?;
        let untouched = OFlags::from_bits_retain(flags).contains(OFlags::NOATIME)
            || self.no_atime.load(Ordering::Relaxed);
        Ok(if untouched {
            self.fs.read_noatime(node, FileOffset(start), into.into())?
        } else {
            self.fs.read(node, FileOffset(start), into.into())?
        })
    }

    /// The kernel's idea of the end of the file may be old: `append` writes behind the real one.
    pub(crate) fn write(
        &self,
        caller: Caller,
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
        let written = self.fs.write(&writer(caller), node, at, data.into())?;
        Ok(written.len as u32)
    }

    pub(crate) fn sync(&self, ino: u64) -> Answer<()> {
        Ok(self.fs.fsync(self.node(ino)?)?)
    }

    pub(crate) fn sync_all(&self) -> Answer<()> {
        Ok(self.fs.commit()?)
    }

    pub(crate) fn allocate(&self, caller: Caller, range: FileRange, mode: u32) -> Answer<()> {
        let node = self.node(range.ino)?;
        let mode = allocate_mode(mode)?;
        let cred = writer(caller);
        self.fs
            .allocate(&cred, node, mode, range.start, range.len)?;
        self.happened(node, Events::MODIFY);
        Ok(())
    }

    pub(crate) fn seek(&self, ino: u64, offset: u64, whence: u32) -> Answer<u64> {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let start = i64::try_from(offset).map_or(Err(Errno::NXIO), |_| Ok(offset))?;
        Ok(self.fs.seek(self.node(ino)?, what, start)?)
    }

    pub(crate) fn copy(&self, caller: Caller, from: FileRange, to: (u64, u64)) -> Answer<u32> {
        let (source, (target, target_start)) = (self.node(from.ino)?, to);
        let target = self.node(target)?;
        let (cred, len) = (writer(caller), from.len.min(COPY_MAX));
        let fs = &self.fs;
        let copied = fs.copy_range(&cred, (source, from.start), (target, target_start), len)?;
        if copied > 0 {
            self.happened(source, Events::ACCESS);
            self.happened(target, Events::MODIFY);
        }
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
        let mut take = |group: &[DirEntry<'_>]| {
            let last = group.len().saturating_sub(1);
            group.iter().enumerate().all(|(at, entry)| {
                // A group that is not taken as a whole is listed again from its start.
                let next = entry.next_cookie - u64::from(at < last);
                add(entry, next).is_continue()
            })
        };
        match self.no_atime.load(Ordering::Relaxed) {
            true => self.fs.readdir_noatime(dir, cookie, &mut take)?,
            false => self.fs.readdir(dir, cookie, &mut take)?,
        }
        Ok(())
    }

    pub(crate) fn space(&self) -> Answer<FsStat> {
        Ok(self.fs.statfs()?)
    }

    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kills_set_gid: bool,
    ) -> Answer<()> {
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let node = self.node(ino)?;
        let mut cred = cred(caller);
        if kills_set_gid {
            cred.caps.remove(Caps::FSETID);
            cred.gid = NO_GROUP;
        }
        self.fs.set_xattr(&cred, node, name, value, flags)?;
        self.happened(node, Events::ATTRIB);
        Ok(())
    }

    /// The length of the value, which is put into `to` if there is room.
    pub(crate) fn xattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        to: &mut [u8],
    ) -> Answer<usize> {
        let node = self.node(ino)?;
        if name == IDENTITY.to_bytes() {
            return self.tell_identity(to);
        }
        Ok(self.fs.get_xattr(&cred(caller), node, name, to)?)
    }

    fn tell_identity(&self, to: &mut [u8]) -> Answer<usize> {
        let identity = self.identity.get().map_or("", String::as_str);
        if !to.is_empty() {
            let room = to.get_mut(..identity.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(identity.as_bytes());
        }
        Ok(identity.len())
    }

    pub(crate) fn xattrs(&self, caller: Caller, ino: u64, to: &mut [u8]) -> Answer<usize> {
        let (node, cred) = (self.node(ino)?, cred(caller));
        // The kernel passes on all names, and trusted ones are for root.
        let cred = Cred {
            caps: if cred.uid == 0 {
                Caps::all()
            } else {
                Caps::empty()
            },
            ..cred
        };
        Ok(self.fs.list_xattr(&cred, node, to)?)
    }

    pub(crate) fn remove_xattr(&self, caller: Caller, ino: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(ino)?;
        self.fs.remove_xattr(&cred(caller), node, name)?;
        self.happened(node, Events::ATTRIB);
        Ok(())
    }
}

fn allocate_mode(mode: u32) -> Answer<AllocateMode> {
    let mode = FallocateFlags::from_bits_retain(mode);
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
