//! Making and removing names: mkdir, mknod, symlink, unlink, rmdir.

use crate::abi::{AT_REMOVEDIR, PATH_MAX, S_IFDIR, S_IFMT, S_IFREG};
use crate::error::{ErrorKind, VfsError};
use crate::kernel::shadow_name;
use crate::reply::{Answer, success, unless_stale};
use crate::resolve::walk::{Last, Lookup, Target};
use crate::state::Vfs;
use nacre_fs::FileType;

const DIRECTORY_MODE: u32 = 0o1777;
const NODE_MODE: u32 = 0o7777;

impl Vfs {
    /// `mkdirat`.
    pub fn mkdirat(&self, dirfd: i32, path: &[u8], mode: u32) -> Answer {
        self.at_target(dirfd, path, Lookup::NEW, |target| {
            self.mkdir_target(target, mode)?;
            success()
        })
    }

    /// As `mkdirat`, if that is done at once. Returns `None` if the fast path does not apply.
    #[inline(always)]
    pub fn try_mkdir_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        mode: u32,
    ) -> Option<Result<(), VfsError>> {
        let target = self.plain_spot(dirfd, path, Lookup::NEW)?.target(None);
        unless_stale(self.mkdir_target(&target, mode))
    }

    fn mkdir_target(&self, target: &Target<'_, '_>, mode: u32) -> Result<(), VfsError> {
        let mode = self.masked(mode & DIRECTORY_MODE);
        let name = target.new_name(true)?;
        target.mount.fs.mkdir(self.cred(), target.dir, name, mode)?;
        Ok(())
    }

    /// `mknodat`. `dev` in the kernel's 64-bit encoding.
    pub fn mknodat(&self, dirfd: i32, path: &[u8], mode: u32, dev: u64) -> Answer {
        self.at_target(dirfd, path, Lookup::NEW, |target| {
            let mode = self.masked(node_format(mode)? | mode & NODE_MODE);
            let name = target.new_name(false)?;
            target
                .mount
                .fs
                .mknod(self.cred(), target.dir, name, mode, dev)?;
            success()
        })
    }

    /// `symlinkat`.
    pub fn symlinkat(&self, text: &[u8], dirfd: i32, path: &[u8]) -> Answer {
        self.at_target(dirfd, path, Lookup::NEW, |target| {
            if text.is_empty() {
                return Err(ErrorKind::NotFound.into());
            }
            if text.len() >= PATH_MAX {
                return Err(ErrorKind::NameTooLong.into());
            }
            let name = target.new_name(false)?;
            target
                .mount
                .fs
                .symlink(self.cred(), target.dir, name, text)?;
            success()
        })
    }

    /// `unlinkat`; also `unlink`, and `rmdir` with `AT_REMOVEDIR`.
    pub fn unlinkat(&self, dirfd: i32, path: &[u8], flags: i32) -> Answer {
        self.at_target(dirfd, path, Lookup::ENTRY, |target| {
            match flags {
                0 => self.unlink_target(target)?,
                AT_REMOVEDIR => self.rmdir_target(target)?,
                _ => return Err(ErrorKind::Invalid.into()),
            }
            success()
        })
    }

    /// As `unlinkat`, if that is done at once. Returns `None` if the fast path does not apply.
    #[inline(always)]
    pub fn try_unlink_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        flags: i32,
    ) -> Option<Result<(), VfsError>> {
        let target = self.plain_spot(dirfd, path, Lookup::ENTRY)?.target(None);
        // Their shadows are the kernel's to remove.
        if target.is_type(FileType::Fifo) || target.is_type(FileType::Socket) {
            return None;
        }
        unless_stale(match flags {
            0 => self.unlink_target(&target),
            AT_REMOVEDIR => self.rmdir_target(&target),
            _ => return None,
        })
    }

    fn unlink_target(&self, target: &Target<'_, '_>) -> Result<(), VfsError> {
        let Last::Name(name) = &target.last else {
            return Err(ErrorKind::IsDirectory.into());
        };
        let found = target.existing()?;
        if target.slash {
            return Err(match found.file_type {
                FileType::Directory => ErrorKind::IsDirectory.into(),
                _ => ErrorKind::NotDirectory.into(),
            });
        }
        let fs = &target.mount.fs;
        target.mount.check_writable()?;
        let shadowed = matches!(found.file_type, FileType::Fifo | FileType::Socket);
        let last_name = shadowed && fs.getattr(found.node).is_ok_and(|stat| stat.nlink == 1);
        fs.remove_found(self.cred(), target.dir, name, false, found)?;
        if last_name {
            self.kernel()
                .remove_shadow(target.mount.index, &shadow_name(found.node));
        }
        Ok(())
    }

    fn rmdir_target(&self, target: &Target<'_, '_>) -> Result<(), VfsError> {
        let name = match &target.last {
            Last::Name(name) => name,
            Last::Dot => return Err(ErrorKind::Invalid.into()),
            Last::DotDot => return Err(ErrorKind::NotEmpty.into()),
            Last::Root | Last::Open => return Err(ErrorKind::Busy.into()),
        };
        let found = target.existing()?;
        target.mount.check_writable()?;
        let fs = &target.mount.fs;
        fs.remove_found(self.cred(), target.dir, name, true, found)?;
        Ok(())
    }
}

/// The type of a node that `mknod` may make.
fn node_format(mode: u32) -> Result<u32, VfsError> {
    match mode & S_IFMT {
        0 => Ok(S_IFREG),
        S_IFDIR => Err(ErrorKind::NotPermitted.into()),
        format => match FileType::from_mode(format) {
            None | Some(FileType::Symlink) => Err(ErrorKind::Invalid.into()),
            Some(_) => Ok(format),
        },
    }
}
