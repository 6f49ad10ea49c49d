//! Decodes requests of the kernel, has them served, and encodes the answers.

use crate::attributes::NOT_KEPT;
use crate::contents::Way;
use crate::descriptions;
use crate::errno::{Answer, Refusal};
use crate::locks::Wanted;
use crate::names::ABSENCE_KEPT;
use crate::operations::{Changes, FileRange, Opened, Pool, Told, writer};
use crate::wire::{Input, Opcode, Output, Request};
use nacre_fs::{Events, InodeRef, NewMode, SetTime};
use nacre_session::{LockKind, LockRange};
use nacre_types::Timestamp;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Nothing of a file's contents is kept by the kernel, except while it is mapped.
const DIRECT_IO: u32 = 1;
/// What it has kept so far is right.
const KEEP_CACHE: u32 = 1 << 1;
/// The kernel keeps no position.
const STREAM: u32 = 1 << 4;
/// Before a read: a program that asks for attributes does it by the inode.
const ASKED_BY_DESCRIPTOR: u32 = 1;
/// A read or write by a descriptor, and not of pages of a mapping.
const READ_BY_DESCRIPTOR: u32 = 1 << 1;
const WRITE_BY_MAPPING: u32 = 1;
/// `O_SYNC` holds its bit. (What rustix 1.1 calls so is `O_SYNC`.)
const O_DSYNC: u32 = 0o10_000;
const LOCK_IS_FLOCK: u32 = 1;
/// The caller is in no position to keep the set-group-id bit of what gets the list.
const ACL_KILLS_SET_GID: u32 = 1;
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

/// What `chattr` and `lsattr` ask for, and the bytes of the longest answer (`struct fsxattr`).
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FSXATTR_LEN: u32 = 28;
/// Bytes before what is told in the answer to an ioctl: its result and what is for retries.
const IOCTL_ANSWER: usize = 16;

/// A new name, and what it is of.
type Named<'r> = (&'r [u8], Told);

/// Which attributes a request changes.
mod change {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

impl Pool {
    /// The answer to a request that ends at once. Files that others have removed may take its room.
    pub(crate) fn serve(&self, request: Request<'_>) -> Answer<Output> {
        match self.serve_once(request) {
            Err(Refusal(Errno::NOSPC)) if self.has_room_of_removed() => self.serve_once(request),
            done => done,
        }
    }

    fn serve_once(&self, request: Request<'_>) -> Answer<Output> {
        let Request {
            opcode, node, body, ..
        } = request;
        match opcode {
            Opcode::GETATTR => self.serve_attributes(node, body),
            Opcode::READ => self.serve_read(node, body),
            Opcode::WRITE => self.serve_write(request),
            Opcode::OPEN => self.serve_open(node, body),
            Opcode::LOOKUP => self.serve_lookup(request),
            Opcode::CREATE | Opcode::TMPFILE => self.serve_create(request),
            Opcode::OPENDIR => self.node(node).and_then(|node| {
                self.happened(node, Events::OPEN);
                opened(0, 0)
            }),
            Opcode::READDIR => self.serve_list(node, body),
            Opcode::READLINK => self.serve_readlink(node),
            Opcode::SETATTR => self.serve_change(request),
            Opcode::STATX => self.serve_statx(node),
            Opcode::STATFS => self.serve_space(),
            Opcode::LSEEK => self.serve_seek(node, body),
            Opcode::GETXATTR | Opcode::LISTXATTR => self.serve_xattr(request),
            Opcode::GETLK => self.serve_test_lock(node, body),
            Opcode::COPY_FILE_RANGE => self.serve_copy(request),
            Opcode::IOCTL => serve_ioctl(body),
            Opcode::SYNCFS => self.sync_all().map(|()| Output::new()),
            Opcode::DESTROY => Ok(Output::new()),
            _ => match self.serve_new_name(request) {
                Some(told) => told,
                None => self.serve_without_answer(request).map(|()| Output::new()),
            },
        }
    }

    /// Requests that make a name.
    fn serve_new_name(&self, request: Request<'_>) -> Option<Answer<Output>> {
        let told = match request.opcode {
            Opcode::MKNOD => self.serve_mknod(request),
            Opcode::MKDIR => self.serve_mkdir(request),
            Opcode::SYMLINK => self.serve_symlink(request),
            Opcode::LINK => self.serve_link(request),
            _ => return None,
        };
        Some(told.map(|(name, (number, stat))| {
            let mut answer = Output::new();
            let good = self.good_name(request.node, name, number, true);
            answer.entry(number, &stat, [good, NOT_KEPT]);
            answer
        }))
    }

    fn serve_without_answer(&self, request: Request<'_>) -> Answer<()> {
        let Request {
            opcode,
            node,
            caller,
            mut body,
            ..
        } = request;
        match opcode {
            Opcode::UNLINK => self.unlink(caller, node, body.name()?),
            Opcode::RMDIR => self.rmdir(caller, node, body.name()?),
            Opcode::RENAME | Opcode::RENAME2 => self.serve_rename(request),
            Opcode::FSYNC | Opcode::FSYNCDIR => self.sync(node),
            Opcode::SETXATTR => {
                let (size, flags) = (body.u32()?, body.u32()?);
                let more = match self.long_setxattr.load(Ordering::Relaxed) {
                    true => (body.u32()?, body.u32()?).0,
                    false => 0,
                };
                let (name, value) = (body.name()?, body.bytes(size as usize)?);
                let kills_set_gid = more & ACL_KILLS_SET_GID != 0;
                self.set_xattr(caller, node, name, value, flags, kills_set_gid)
            }
            Opcode::REMOVEXATTR => self.remove_xattr(caller, node, body.name()?),
            Opcode::FALLOCATE => {
                let _handle = body.u64()?;
                let (start, len) = (body.u64()?, body.u64()?);
                let range = FileRange {
                    ino: self.number(node)?,
                    start,
                    len,
                };
                self.allocate(caller, range, body.u32()?)
            }
            Opcode::SETLK => {
                let wanted = wanted(node, body)?;
                self.locks.set(&self.fs, self.node(node)?, &wanted, None)
            }
            Opcode::FLUSH => self.serve_flush(node, body),
            Opcode::RELEASE => self.serve_release(node, body),
            Opcode::RELEASEDIR => {
                self.happened_to(node, Events::CLOSE_NOWRITE);
                Ok(())
            }
            _ => Err(Errno::NOSYS.into()),
        }
    }

    /// The inode number behind a number of the kernel.
    fn number(&self, node: u64) -> Answer<u64> {
        Ok(self.node(node)?.ino.0)
    }

    fn serve_attributes(&self, node: u64, mut body: Input<'_>) -> Answer<Output> {
        let (mut answer, mut stat) = (Output::new(), self.attributes(node)?);
        let mut good = self.keeping.good(node, &stat);
        if body.u32()? & ASKED_BY_DESCRIPTOR != 0 && self.is_left_over(node) {
            stat.mtime = self.keeping.another(stat.mtime);
            good = NOT_KEPT;
        }
        answer.attributes_now(&stat, good);
        Ok(answer)
    }

    fn serve_statx(&self, node: u64) -> Answer<Output> {
        let (mut answer, stat) = (Output::new(), self.attributes(node)?);
        answer.extended(&stat, self.keeping.good(node, &stat));
        Ok(answer)
    }

    fn serve_read(&self, node: u64, mut body: Input<'_>) -> Answer<Output> {
        let (_handle, start) = (body.u64()?, body.u64()?);
        let (size, how) = (body.u32()?, body.u32()?);
        let (_owner, flags) = (body.u64()?, body.u32()?);
        let stream = descriptions::of_number(node).filter(|_| how & READ_BY_DESCRIPTOR != 0);
        Output::filled(size as usize, |into| {
            let len = match stream {
                Some(id) => descriptions::read(&self.fs, id, into)?,
                None => self.read(node, start, into, flags)?,
            };
            if how & READ_BY_DESCRIPTOR != 0 && len > 0 {
                self.happened_to(node, Events::ACCESS);
            }
            Ok(len)
        })
    }

    fn serve_write(&self, request: Request<'_>) -> Answer<Output> {
        let (node, caller, mut body) = (request.node, request.caller, request.body);
        let (_handle, start) = (body.u64()?, body.u64()?);
        let (size, how) = (body.u32()?, body.u32()?);
        let (_owner, flags, _) = (body.u64()?, body.u32()?, body.u32()?);
        let data = body.bytes(size as usize)?;
        let by_mapping = how & WRITE_BY_MAPPING != 0;
        let append = OFlags::from_bits_retain(flags).contains(OFlags::APPEND) && !by_mapping;
        let stream = descriptions::of_number(node).filter(|_| !by_mapping);
        let written = match stream {
            Some(id) => descriptions::write(&self.fs, &writer(caller), id, data)? as u32,
            None => self.write(caller, node, start, data, append)?,
        };
        // Of direct I/O the kernel leaves `O_DSYNC`, `O_SYNC` and `RWF_DSYNC` to who serves it.
        if flags & O_DSYNC != 0 && !by_mapping {
            self.sync(node)?;
        }
        if written > 0 && !by_mapping {
            self.happened_to(node, Events::MODIFY);
        }
        let mut answer = Output::new();
        answer.u32(written).u32(0);
        Ok(answer)
    }

    fn serve_open(&self, node: u64, mut body: Input<'_>) -> Answer<Output> {
        let inode = self.node(node)?;
        let flags = body.u32()?;
        match descriptions::of_number(node) {
            Some(id) => {
                self.descriptions.open(&self.fs, id)?;
                opened(self.handle(), DIRECT_IO | STREAM)
            }
            None => {
                let (handle, how) = self.open(inode, flags)?;
                self.happened(inode, Events::OPEN);
                opened(handle, how)
            }
        }
    }

    fn serve_create(&self, request: Request<'_>) -> Answer<Output> {
        let (dir, caller, mut body) = (request.node, request.caller, request.body);
        let (flags, mode) = (body.u32()?, body.u32()?);
        let (umask, _) = (body.u32()?, body.u32()?);
        let mode = NewMode::masked(mode, umask);
        let (((number, stat), (handle, how)), good) = match request.opcode {
            Opcode::TMPFILE => (self.tmpfile(caller, dir, mode, flags)?, NOT_KEPT),
            _ => {
                let name = body.name()?;
                let made = self.create(caller, dir, name, mode, flags)?;
                let ((number, _), _) = made;
                (made, self.good_name(dir, name, number, true))
            }
        };
        self.happened_to(number, Events::OPEN);
        let mut answer = Output::new();
        let to_open = self.keeping.good_to_open(number, &stat);
        answer.entry(number, &stat, [good, to_open]);
        answer.u64(handle).u32(how).u32(0);
        Ok(answer)
    }

    /// Opens a file for a program.
    pub(crate) fn open(&self, node: InodeRef, flags: u32) -> Answer<Opened> {
        let handle = self.handle();
        let reads = OFlags::from_bits_retain(flags) & OFlags::ACCMODE == OFlags::RDONLY;
        let alone = || self.keeping.alone();
        let how = match self.nodes.open(node, handle, !reads, alone)? {
            Way::Direct => DIRECT_IO,
            Way::Cached { goes_on: true } => KEEP_CACHE,
            Way::Cached { goes_on: false } => 0,
        };
        Ok((handle, how))
    }

    fn serve_lookup(&self, request: Request<'_>) -> Answer<Output> {
        let (dir, mut body) = (request.node, request.body);
        let name = body.name()?;
        let mut answer = Output::new();
        match self.lookup(request.caller, dir, name) {
            Err(Refusal(Errno::NOENT)) if self.may_be_missed(dir, name) => {
                answer.no_entry(ABSENCE_KEPT);
            }
            told => {
                let (number, stat) = told?;
                let good = self.good_name(dir, name, number, false);
                answer.entry(number, &stat, [good, self.keeping.good(number, &stat)]);
            }
        }
        Ok(answer)
    }

    fn serve_mknod<'r>(&self, request: Request<'r>) -> Answer<Named<'r>> {
        let mut body = request.body;
        let (mode, device) = (body.u32()?, body.u32()?);
        let (umask, _) = (body.u32()?, body.u32()?);
        let (mode, name) = (NewMode::masked(mode, umask), body.name()?);
        let told = self.mknod(request.caller, request.node, name, mode, device)?;
        Ok((name, told))
    }

    fn serve_mkdir<'r>(&self, request: Request<'r>) -> Answer<Named<'r>> {
        let mut body = request.body;
        let mode = NewMode::masked(body.u32()?, body.u32()?);
        let name = body.name()?;
        let told = self.mkdir(request.caller, request.node, name, mode)?;
        Ok((name, told))
    }

    fn serve_symlink<'r>(&self, request: Request<'r>) -> Answer<Named<'r>> {
        let mut body = request.body;
        let (name, target) = (body.name()?, body.name()?);
        let told = self.symlink(request.caller, request.node, name, target)?;
        Ok((name, told))
    }

    fn serve_link<'r>(&self, request: Request<'r>) -> Answer<Named<'r>> {
        let mut body = request.body;
        let (ino, name) = (self.number(body.u64()?)?, body.name()?);
        let told = self.link(request.caller, ino, request.node, name)?;
        Ok((name, told))
    }

    fn serve_rename(&self, request: Request<'_>) -> Answer<()> {
        let mut body = request.body;
        let new_dir = body.u64()?;
        let flags = match request.opcode {
            Opcode::RENAME2 => (body.u32()?, body.u32()?).0,
            _ => 0,
        };
        let (name, new_name) = (body.name()?, body.name()?);
        let from = (request.node, name);
        self.rename(request.caller, from, (new_dir, new_name), flags)
    }

    fn serve_change(&self, request: Request<'_>) -> Answer<Output> {
        let changes = changes(request.body)?;
        let stat = self.change(request.caller, request.node, &changes)?;
        let mut answer = Output::new();
        answer.attributes_now(&stat, NOT_KEPT);
        Ok(answer)
    }

    fn serve_readlink(&self, node: u64) -> Answer<Output> {
        let mut answer = Output::new();
        answer.bytes(&self.readlink(node)?);
        Ok(answer)
    }

    fn serve_list(&self, node: u64, mut body: Input<'_>) -> Answer<Output> {
        let (_handle, from, room) = (body.u64()?, body.u64()?, body.u32()? as usize);
        let mut answer = Output::new();
        self.happened_to(node, Events::ACCESS);
        self.list(node, from, &mut |entry, next| {
            let len = (24 + entry.name.len()).next_multiple_of(8);
            if answer.len() + len > room {
                return ControlFlow::Break(());
            }
            answer.u64(entry.ino.0).u64(next);
            let padding = len - 24 - entry.name.len();
            answer.u32(entry.name.len() as u32);
            answer.u32(entry.file_type as u32);
            answer.bytes(entry.name).zeros(padding);
            ControlFlow::Continue(())
        })?;
        Ok(answer)
    }

    fn serve_space(&self) -> Answer<Output> {
        let space = self.space()?;
        let mut answer = Output::new();
        let (free, unit) = (space.free_units, space.unit_size);
        answer.u64(space.units).u64(free);
        answer.u64(space.available_units);
        answer.u64(space.objects).u64(space.free_objects);
        answer.u32(unit).u32(space.name_max).u32(unit).zeros(28);
        Ok(answer)
    }

    fn serve_seek(&self, node: u64, mut body: Input<'_>) -> Answer<Output> {
        let (_handle, offset, whence) = (body.u64()?, body.u64()?, body.u32()?);
        let mut answer = Output::new();
        answer.u64(self.seek(node, offset, whence)?);
        Ok(answer)
    }

    fn serve_copy(&self, request: Request<'_>) -> Answer<Output> {
        let mut body = request.body;
        let (_handle, start) = (body.u64()?, body.u64()?);
        let (target, _handle, target_start) = (body.u64()?, body.u64()?, body.u64()?);
        let from = FileRange {
            ino: request.node,
            start,
            len: body.u64()?,
        };
        let copied = self.copy(request.caller, from, (target, target_start))?;
        let mut answer = Output::new();
        answer.u32(copied).u32(0);
        Ok(answer)
    }

    /// A request without room asks for the length only.
    fn serve_xattr(&self, request: Request<'_>) -> Answer<Output> {
        let (node, caller, mut body) = (request.node, request.caller, request.body);
        let (room, _) = (body.u32()? as usize, body.u32()?);
        let name = match request.opcode {
            Opcode::GETXATTR => Some(body.name()?),
            _ => None,
        };
        let fill = |to: &mut [u8]| match name {
            Some(name) => self.xattr(caller, node, name, to),
            None => self.xattrs(caller, node, to),
        };
        if room > 0 {
            return Output::filled(room, fill);
        }
        let mut answer = Output::new();
        answer.u32(fill(&mut [])? as u32).u32(0);
        Ok(answer)
    }

    fn serve_test_lock(&self, node: u64, body: Input<'_>) -> Answer<Output> {
        let wanted = wanted(node, body)?;
        let conflict = self.locks.test(&self.fs, self.node(node)?, &wanted);
        let mut answer = Output::new();
        match conflict {
            Some((kind, range, pid)) => {
                let kind = match kind {
                    LockKind::Shared => F_RDLCK,
                    LockKind::Exclusive => F_WRLCK,
                };
                answer.u64(range.first).u64(range.last.min(i64::MAX as u64));
                answer.u32(kind).u32(pid)
            }
            None => answer
                .u64(wanted.range.first)
                .u64(wanted.range.last)
                .u32(F_UNLCK)
                .u32(0),
        };
        Ok(answer)
    }

    /// A descriptor is closed.
    fn serve_flush(&self, node: u64, mut body: Input<'_>) -> Answer<()> {
        let (_handle, _unused, owner) = (body.u64()?, body.u64()?, body.u64()?);
        self.locks.close(&self.fs, self.number(node)?, owner);
        Ok(())
    }

    /// An open file is closed for the last time.
    fn serve_release(&self, node: u64, mut body: Input<'_>) -> Answer<()> {
        let (handle, flags) = (body.u64()?, body.u32()?);
        self.locks.release(&self.fs, handle);
        self.nodes.close(node, handle);
        match descriptions::of_number(node) {
            Some(id) => Ok(self.descriptions.close(&self.fs, id)?),
            None => {
                self.happened_to(node, closed(flags));
                Ok(())
            }
        }
    }

    /// Takes a lock, however long that takes.
    pub(crate) fn wait_for_lock(&self, request: Request<'_>) -> Answer<Output> {
        let (node, wanted) = (
            self.node(request.node)?,
            wanted(request.node, request.body)?,
        );
        let wait = self.locks.wait(request.unique)?;
        let taken = self.locks.set(&self.fs, node, &wanted, Some(&wait));
        self.locks.has_waited(&wait);
        taken.map(|()| Output::new())
    }

    /// What needs no answer.
    pub(crate) fn forget_told(&self, request: Request<'_>) -> Answer<()> {
        let mut body = request.body;
        if request.opcode == Opcode::FORGET {
            self.forget(request.node, body.u64()?);
            return Ok(());
        }
        let (count, _) = (body.u32()?, body.u32()?);
        for _ in 0..count {
            let (node, lookups) = (body.u64()?, body.u64()?);
            self.forget(node, lookups);
        }
        Ok(())
    }

    /// The answer to an interrupt: none, or that the kernel is to say it again.
    pub(crate) fn interrupt(&self, request: Request<'_>) -> Option<Refusal> {
        let mut body = request.body;
        let unique = body.u64().ok()?;
        let found = self.locks.interrupt(unique);
        (!found).then_some(Errno::AGAIN.into())
    }
}

fn closed(flags: u32) -> Events {
    match OFlags::from_bits_retain(flags) & OFlags::ACCMODE {
        OFlags::RDONLY => Events::CLOSE_NOWRITE,
        _ => Events::CLOSE_WRITE,
    }
}

/// The attributes of `chattr`, of which a pool keeps none: as long as they are none they are told,
/// and may be set. All else is not for files.
fn serve_ioctl(mut body: Input<'_>) -> Answer<Output> {
    let (_handle, _flags, command) = (body.u64()?, body.u32()?, body.u32()?);
    let (_address, given, wanted) = (body.u64()?, body.u32()?, body.u32()?);
    match command {
        FS_IOC_GETFLAGS | FS_IOC_FSGETXATTR if wanted <= FSXATTR_LEN => {}
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR if wanted == 0 => {
            if body.bytes(given as usize)?.iter().any(|&byte| byte != 0) {
                return Err(Errno::OPNOTSUPP.into());
            }
        }
        _ => return Err(Errno::NOTTY.into()),
    }
    let mut answer = Output::new();
    answer.zeros(IOCTL_ANSWER + wanted as usize);
    Ok(answer)
}

fn opened(handle: u64, flags: u32) -> Answer<Output> {
    let mut answer = Output::new();
    answer.u64(handle).u32(flags).u32(0);
    Ok(answer)
}

fn wanted(node: u64, mut body: Input<'_>) -> Answer<Wanted> {
    let (handle, owner) = (body.u64()?, body.u64()?);
    let range = LockRange {
        first: body.u64()?,
        last: body.u64()?,
    };
    let (kind, _pid, flags) = (body.u32()?, body.u32()?, body.u32()?);
    Ok(Wanted {
        handle,
        owner,
        range,
        kind: match kind {
            F_RDLCK => Some(LockKind::Shared),
            F_WRLCK => Some(LockKind::Exclusive),
            F_UNLCK => None,
            _ => return Err(Errno::INVAL.into()),
        },
        flock: flags & LOCK_IS_FLOCK != 0,
        description: descriptions::of_number(node),
    })
}

fn changes(mut body: Input<'_>) -> Answer<Changes> {
    let (which, _padding, _handle) = (body.u32()?, body.u32()?, body.u64()?);
    let (size, _owner) = (body.u64()?, body.u64()?);
    let (atime, mtime, _ctime) = (body.u64()?, body.u64()?, body.u64()?);
    let (atime_rest, mtime_rest, _) = (body.u32()?, body.u32()?, body.u32()?);
    let (mode, _unused, uid, gid) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
    let time = |set: u32, now: u32, seconds: u64, rest: u32| {
        if which & now != 0 {
            SetTime::Now
        } else if which & set != 0 {
            SetTime::At(Timestamp::from_parts(seconds as i64, rest))
        } else {
            SetTime::Omit
        }
    };
    let given = |bit: u32| which & bit != 0;
    Ok(Changes {
        mode: given(change::MODE).then_some(mode),
        uid: given(change::UID).then_some(uid),
        gid: given(change::GID).then_some(gid),
        size: given(change::SIZE).then_some(size),
        atime: time(change::ATIME, change::ATIME_NOW, atime, atime_rest),
        mtime: time(change::MTIME, change::MTIME_NOW, mtime, mtime_rest),
    })
}
