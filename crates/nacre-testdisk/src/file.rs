//! The disk as the only file of a file system (FUSE).

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::volatile::Disk;

/// The name of the file.
pub const FILE: &str = "disk";

const INODE: INodeNo = INodeNo(2);
/// It stays what it is.
const TTL: Duration = Duration::from_secs(1000);
/// So that one request can wait while others go on.
const THREADS: usize = 4;
/// Writes with this flag, or with `O_SYNC`, which contains it, go through the cache.
const O_DSYNC: i32 = 0o10000;

/// A disk that is mounted; unmounted when dropped.
pub struct Mounted(Option<BackgroundSession>);

struct DiskFile(Arc<Disk>);

/// Mounts the disk at a folder. Fails where FUSE cannot be used.
pub fn mount(disk: &Arc<Disk>, folder: &Path) -> io::Result<Mounted> {
    let mut options = Config::default();
    options.mount_options = vec![MountOption::FSName("nacre-testdisk".to_string())];
    options.n_threads = Some(THREADS);
    let session = fuser::spawn_mount(DiskFile(Arc::clone(disk)), folder, &options)?;
    Ok(Mounted(Some(session)))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            // A program that still uses it keeps it; nothing else can be done about that here.
            let _ = session.umount_and_join();
        }
    }
}

impl DiskFile {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, perm, size) = match ino {
            INODE => (FileType::RegularFile, 0o600, self.0.len()),
            _ => (FileType::Directory, 0o755, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn answer(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

impl Filesystem for DiskFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Asynchronous calls do not wait. A kernel that cannot do that has them wait.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == FILE {
            true => reply.entry(&TTL, &self.attributes(INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Without `FOPEN_KEEP_CACHE`: after a power cut nobody sees what the kernel remembers.
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.0.len().saturating_sub(offset);
        let mut bytes = vec![0; left.min(size.into()) as usize];
        match self.0.read(offset, &mut bytes) {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let through = flags.0 & O_DSYNC != 0;
        match self.0.write(offset, data, through) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.0.flush());
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}
