//! Sizes, space and durability of open files: truncate, fallocate, fsync and advice.

use crate::abi::{AT_FDCWD, O_PATH, S_IFDIR, S_IFREG};
use crate::calls::data::offset_of;
use crate::calls::open::writable;
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, success};
use crate::resolve::walk::Lookup;
use crate::state::Vfs;
use nacre_fs::{AllocateMode, Events, FileType};

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;
const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;
const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
const WILL_NEED: i32 = 3;
const DONT_NEED: i32 = 4;
const ADVICE_MAX: i32 = 5;
const SYNC_RANGE_FLAGS: u32 = 7;

impl Vfs {
    /// `truncate`.
    pub fn truncate(&self, path: &[u8], len: i64) -> Answer {
        self.at_target(AT_FDCWD, path, Lookup::FOLLOW, |target| {
            let len = offset_of(len)?;
            let found = target.existing()?;
            match found.file_type {
                FileType::Directory => return Err(ErrorKind::IsDirectory.into()),
                FileType::Regular => {}
                _ => return Err(ErrorKind::Invalid.into()),
            }
            target.mount.check_writable()?;
            self.check_size_limit(len)?;
            let fs = &target.mount.fs;
            fs.truncate(self.cred(), found.node, len)?;
            if fs.is_watched() {
                fs.tell(found.node, target.place(), Events::MODIFY);
            }
            success()
        })
    }

    /// `ftruncate`.
    pub fn ftruncate(&self, fd: i32, len: i64) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        let len = offset_of(len)?;
        if !writable(file.flags()) || file.format() != S_IFREG {
            return Err(ErrorKind::Invalid.into());
        }
        self.check_size_limit(len)?;
        file.mount.fs.set_size(self.cred(), file.node(), len)?;
        file.tell(Events::MODIFY);
        success()
    }

    /// `fallocate`.
    pub fn fallocate(&self, fd: i32, mode: i32, offset: i64, len: i64) -> Answer {
        let Some(file) = self.file_to_write(fd)? else {
            return Ok(Reply::Kernel);
        };
        let offset = offset_of(offset)?;
        let len = u64::try_from(len)
            .ok()
            .filter(|&len| len > 0)
            .ok_or(ErrorKind::Invalid)?;
        let end = offset
            .checked_add(len)
            .filter(|&end| i64::try_from(end).is_ok())
            .ok_or(ErrorKind::FileTooBig)?;
        match file.format() {
            S_IFREG => {}
            S_IFDIR => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::NoDevice.into()),
        }
        let mode = allocate_mode(mode)?;
        if matches!(
            mode,
            AllocateMode::Extend | AllocateMode::ZeroRange { keep_size: false }
        ) {
            self.check_size_limit(end)?;
        }
        file.mount
            .fs
            .allocate(self.cred(), file.node(), mode, offset, len)?;
        file.tell(Events::MODIFY);
        success()
    }

    /// `posix_fadvise`: on a disk contents come to memory, or go.
    pub fn fadvise(&self, fd: i32, offset: i64, len: i64, advice: i32) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        if len < 0 || !(0..=ADVICE_MAX).contains(&advice) {
            return Err(ErrorKind::Invalid.into());
        }
        let (start, len) = (offset.max(0) as u64, len as u64);
        let len = if len == 0 { u64::MAX } else { len };
        let fs = &file.mount.fs;
        // Advice cannot fail.
        let _taken_or_not = match advice {
            _ if file.is_directory() => Ok(()),
            WILL_NEED => fs.will_need(file.node(), start, len),
            DONT_NEED => fs.will_not_need(file.node(), start, len),
            _ => Ok(()),
        };
        success()
    }

    /// `readahead`: on a disk contents come to memory.
    pub fn readahead(&self, fd: i32, offset: i64, count: usize) -> Answer {
        match self.file_to_read(fd) {
            Ok(None) => Ok(Reply::Kernel),
            Ok(Some(file)) => {
                let start = offset.max(0) as u64;
                file.mount.fs.will_need(file.node(), start, count as u64)?;
                success()
            }
            Err(VfsError::Refused(ErrorKind::IsDirectory)) => Err(ErrorKind::Invalid.into()),
            Err(error) => Err(error),
        }
    }

    /// As `fsync` and `fdatasync`, if that is done at once and changes nothing, so that a handler
    /// may interrupt it and never come back. Returns `None` if the fast path does not apply.
    #[inline(always)]
    pub fn try_fsync_fast(&self, fd: i32) -> Option<()> {
        let file = self.snapshot(fd).filter(|file| file.flags & O_PATH == 0)?;
        file.fs.try_fsync_fast(file.node)
    }

    /// `fsync`.
    #[inline]
    pub fn fsync(&self, fd: i32) -> Answer {
        if self.try_fsync_fast(fd).is_some() {
            return success();
        }
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        file.mount.fs.fsync(file.node())?;
        success()
    }

    /// `fdatasync`.
    pub fn fdatasync(&self, fd: i32) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        file.mount.fs.fdatasync(file.node())?;
        success()
    }

    /// `sync`: the kernel does its part, too.
    pub fn sync(&self) -> Answer {
        // Also of pools that the program has not used: it may be the program `sync`.
        self.attach_all();
        for mount in self.attached() {
            // Nobody is told of failures here; `fsync` tells.
            let _ = mount.fs.sync_all_mapped();
        }
        Ok(Reply::Kernel)
    }

    /// `syncfs`.
    pub fn syncfs(&self, fd: i32) -> Answer {
        match self.io_file(fd)? {
            Some(file) => {
                file.mount.fs.sync_all_mapped()?;
                success()
            }
            None => Ok(Reply::Kernel),
        }
    }

    /// `sync_file_range`: written data is durable already.
    pub fn sync_file_range(&self, fd: i32, offset: i64, len: i64, flags: u32) -> Answer {
        if self.io_file(fd)?.is_none() {
            return Ok(Reply::Kernel);
        }
        if offset < 0 || len < 0 || flags & !SYNC_RANGE_FLAGS != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        success()
    }
}

fn allocate_mode(mode: i32) -> Result<AllocateMode, VfsError> {
    match mode {
        0 => Ok(AllocateMode::Extend),
        KEEP_SIZE => Ok(AllocateMode::KeepSize),
        PUNCH => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size: false }),
        ZERO_RANGE_KEEP_SIZE => Ok(AllocateMode::ZeroRange { keep_size: true }),
        _ => Err(ErrorKind::Unsupported.into()),
    }
}
