//! Handles: files named by number, whatever they are called.

use crate::abi::AT_FDCWD;
use crate::error::{ErrorKind, VfsError};
use crate::path::mount::Mount;
use crate::reply::{Answer, Reply, done};
use crate::resolve::walk::Target;
use crate::state::Vfs;
use nacre_fs::{Caps, Found, FsError, InodeRef};
use nacre_types::Ino;

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHandle {
    /// Identity of the pool.
    pub pool: u64,
    /// Inode number.
    pub ino: u64,
    /// Which of the inodes that have had the number.
    pub generation: u32,
}

impl Vfs {
    /// `name_to_handle_at`: the handle, and a number of the mount that no mount of the kernel has.
    pub fn name_to_handle(
        &self,
        dirfd: i32,
        path: &[u8],
        follow: bool,
        flags: i32,
    ) -> Answer<(FileHandle, i32)> {
        const ABOVE_THE_KERNELS: i32 = 1 << 30;
        self.on_path(dirfd, path, follow, flags, |subject| {
            let node = subject.mount.fs.getattr(subject.node)?.node();
            let handle = FileHandle {
                pool: subject.mount.fs.statfs()?.id,
                ino: node.ino.0,
                generation: node.generation,
            };
            done((handle, ABOVE_THE_KERNELS + subject.mount.index as i32))
        })
    }

    /// `open_by_handle_at` with a file or folder of the pool.
    pub fn open_by_handle(&self, mount_fd: i32, handle: FileHandle, flags: i32) -> Answer {
        let file = match mount_fd {
            AT_FDCWD => self.cwd_file()?,
            fd => self.file(fd)?,
        };
        let Some(file) = file else {
            return Ok(Reply::Kernel);
        };
        if !self.cred().has(Caps::DAC_READ_SEARCH) {
            return Err(ErrorKind::NotPermitted.into());
        }
        let found = find(file.mount, handle)?;
        self.open_found(&Target::of_number(file.mount, found), flags as u32)
    }
}

/// The file of a handle, if it is of this pool and there still.
fn find(mount: &Mount, handle: FileHandle) -> Result<Found, VfsError> {
    if mount.fs.statfs()?.id != handle.pool {
        return Err(ErrorKind::Stale.into());
    }
    let node = InodeRef {
        ino: Ino(handle.ino),
        generation: handle.generation,
    };
    let stat = mount.fs.getattr(node).map_err(|error| match error {
        FsError::Io => VfsError::from(error),
        _ => ErrorKind::Stale.into(),
    })?;
    let file_type = stat.file_type().filter(|_| stat.nlink > 0);
    let file_type = file_type.ok_or(ErrorKind::Stale)?;
    Ok(Found { node, file_type })
}
