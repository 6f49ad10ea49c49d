//! Decodes requests of the kernel and encodes the answers.

use crate::attributes::{NOT_KEPT, kind};
use crate::errno::Answer;
use crate::operations::{Changes, FileRange, Pool};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Nothing of a file's contents is kept by the kernel, except while it is mapped.
const OPENED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;
/// Files are found by their inodes alone.
const NO_HANDLE: FileHandle = FileHandle(0);
/// What is wanted of the kernel if it can do it.
const WANTED: [InitFlags; 3] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

pub(crate) struct Server(pub(crate) Arc<Pool>);

impl Server {
    /// Serves one request. A bug in the layers below fails this request and no other.
    fn serve<T>(&self, serve: impl FnOnce(&Pool) -> Answer<T>) -> Result<T, Errno> {
        let answer = catch_unwind(AssertUnwindSafe(|| serve(&self.0)));
        answer.map_or(Err(Errno::EIO), |answer| answer.map_err(Errno::from))
    }
}

/// Sends an answer, or why there is none.
macro_rules! answer {
    ($reply:ident, $served:expr, $send:expr) => {
        match $served {
            Ok(answer) => $send($reply, answer),
            Err(errno) => $reply.error(errno),
        }
    };
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            let _older_kernel = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let told = self.serve(|pool| pool.lookup(request, parent.0, name.as_bytes()));
        answer!(reply, told, |reply: ReplyEntry, (attr, generation)| reply
            .entry(&NOT_KEPT, &attr, generation));
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let _answered_by_nothing = self.serve(|pool| {
            pool.forget(ino.0, lookups);
            Ok(())
        });
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.serve(|pool| pool.attributes(ino.0));
        answer!(reply, found, |reply: ReplyAttr, attr| reply
            .attr(&NOT_KEPT, &attr));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
        };
        let changed = self.serve(|pool| pool.change(request, ino.0, &changes));
        answer!(reply, changed, |reply: ReplyAttr, attr| reply
            .attr(&NOT_KEPT, &attr));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.serve(|pool| pool.readlink(ino.0));
        answer!(reply, target, |reply: ReplyData, target: Vec<u8>| reply
            .data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let made = self.serve(|pool| pool.mknod(request, parent.0, name, mode, device));
        answer!(reply, made, |reply: ReplyEntry, (attr, generation)| reply
            .entry(&NOT_KEPT, &attr, generation));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let made = self.serve(|pool| pool.mkdir(request, parent.0, name.as_bytes(), mode));
        answer!(reply, made, |reply: ReplyEntry, (attr, generation)| reply
            .entry(&NOT_KEPT, &attr, generation));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.serve(|pool| pool.unlink(request, parent.0, name.as_bytes()));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.serve(|pool| pool.rmdir(request, parent.0, name.as_bytes()));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        let made = self.serve(|pool| pool.symlink(request, parent.0, name, target));
        answer!(reply, made, |reply: ReplyEntry, (attr, generation)| reply
            .entry(&NOT_KEPT, &attr, generation));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = (parent.0, name.as_bytes());
        let to = (new_parent.0, new_name.as_bytes());
        let done = self.serve(|pool| pool.rename(request, from, to, flags.bits()));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = new_name.as_bytes();
        let made = self.serve(|pool| pool.link(request, ino.0, new_parent.0, name));
        answer!(reply, made, |reply: ReplyEntry, (attr, generation)| reply
            .entry(&NOT_KEPT, &attr, generation));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let found = self.serve(|pool| pool.node(ino.0));
        answer!(reply, found, |reply: ReplyOpen, _| reply
            .opened(NO_HANDLE, OPENED));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.as_bytes();
        let made = self.serve(|pool| pool.create(request, parent.0, name, mode, flags));
        answer!(reply, made, |reply: ReplyCreate, (attr, generation)| reply
            .created(&NOT_KEPT, &attr, generation, NO_HANDLE, OPENED));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = FileRange {
            ino: ino.0,
            start: offset,
            len: u64::from(size),
        };
        let data = self.serve(|pool| pool.read(range, flags.0));
        answer!(reply, data, |reply: ReplyData, data: Vec<u8>| reply
            .data(&data));
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let of_a_mapping = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let append = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let append = append && !of_a_mapping;
        let written = self.serve(|pool| pool.write(request, ino.0, offset, data, append));
        answer!(reply, written, |reply: ReplyWrite, len| reply.written(len));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let done = self.serve(|pool| pool.sync(ino.0));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    /// Names are durable already.
    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let found = self.serve(|pool| pool.node(ino.0));
        answer!(reply, found, |reply: ReplyEmpty, _| reply.ok());
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.serve(|pool| {
            pool.list(ino.0, offset, &mut |entry, next| {
                let (ino, kind) = (INodeNo(entry.ino.0), kind(entry.file_type));
                match reply.add(ino, next, kind, OsStr::from_bytes(entry.name)) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
        });
        answer!(reply, listed, |reply: ReplyDirectory, ()| reply.ok());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let space = self.serve(Pool::space);
        answer!(
            reply,
            space,
            |reply: ReplyStatfs, space: nacre_fs::FsStat| {
                let (free, unit) = (space.free_units, space.unit_size);
                let (objects, free_objects) = (space.objects, space.free_objects);
                let name_max = space.name_max;
                reply.statfs(
                    space.units,
                    free,
                    free,
                    objects,
                    free_objects,
                    unit,
                    name_max,
                    unit,
                );
            }
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes();
        let done = self.serve(|pool| pool.set_xattr(request, ino.0, name, value, flags));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, to: ReplyXattr) {
        let value = self.serve(|pool| pool.xattr(request, ino.0, name.as_bytes(), size));
        answer!(to, value, |to, value| send_xattr(to, size, value));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, to: ReplyXattr) {
        let names = self.serve(|pool| pool.xattrs(request, ino.0, size));
        answer!(to, names, |to, names| send_xattr(to, size, names));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.serve(|pool| pool.remove_xattr(request, ino.0, name.as_bytes()));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = FileRange {
            ino: ino.0,
            start: offset,
            len: length,
        };
        let done = self.serve(|pool| pool.allocate(request, range, mode));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.serve(|pool| pool.seek(ino.0, offset, whence));
        answer!(reply, found, |reply: ReplyLseek, at| reply.offset(at));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = FileRange {
            ino: ino_in.0,
            start: offset_in,
            len,
        };
        let copied = self.serve(|pool| pool.copy(request, from, (ino_out.0, offset_out)));
        answer!(reply, copied, |reply: ReplyWrite, len| reply.written(len));
    }
}

/// A request without room asks for the length only.
fn send_xattr(reply: ReplyXattr, room: u32, value: Vec<u8>) {
    match room {
        0 => reply.size(value.len() as u32),
        _ => reply.data(&value),
    }
}
