//! What the kernel refuses in folders that all may write, and of names that somebody else has put
//! there, where the system is set so (`fs.protected_*`). Only root changes the settings; they are
//! asked for when it comes to them, which is seldom.

use crate::error::{ErrorKind, VfsError};
use crate::kernel::Protection;
use crate::path::mount::Mount;
use crate::state::Vfs;
use nacre_fs::{Access, Caps, FileType, InodeRef, Stat};

const SET_UID: u32 = 0o4000;
/// A program of its group's rights; without the right to execute the bit means something else.
const SET_GID: u32 = 0o2010;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;

impl Vfs {
    /// Before a symbolic link at the end of a path is followed.
    pub(crate) fn check_follow(
        &self,
        mount: &Mount,
        dir: InodeRef,
        link: InodeRef,
    ) -> Result<(), VfsError> {
        let folder = mount.fs.getattr(dir)?;
        if folder.mode & (STICKY | OTHERS_WRITE) != STICKY | OTHERS_WRITE {
            return Ok(());
        }
        let link = mount.fs.getattr(link)?;
        self.refuse_of_others(&folder, &link, Protection::Symlinks, 1)
    }

    /// Before a file that is there is opened with `O_CREAT`.
    pub(crate) fn check_sticky(
        &self,
        mount: &Mount,
        dir: InodeRef,
        file: InodeRef,
    ) -> Result<(), VfsError> {
        let folder = mount.fs.getattr(dir)?;
        let written_by = folder.mode & (OTHERS_WRITE | GROUP_WRITES);
        if folder.mode & STICKY == 0 || written_by == 0 {
            return Ok(());
        }
        let file = mount.fs.getattr(file)?;
        let which = match file.file_type() {
            Some(FileType::Regular) => Protection::Regular,
            Some(FileType::Fifo) => Protection::Fifos,
            _ => return Ok(()),
        };
        // Where only a group may write it takes the stricter setting.
        let least = if written_by & OTHERS_WRITE != 0 { 1 } else { 2 };
        self.refuse_of_others(&folder, &file, which, least)
    }

    /// Refuses what is neither the caller's nor that of the folder's owner.
    fn refuse_of_others(
        &self,
        folder: &Stat,
        found: &Stat,
        which: Protection,
        least: u32,
    ) -> Result<(), VfsError> {
        let trusted = [self.cred().uid, folder.uid].contains(&found.uid);
        self.refuse_if(!trusted, which, least, ErrorKind::Denied)
    }

    /// Before a file gets one more name.
    pub(crate) fn check_link(&self, mount: &Mount, node: InodeRef) -> Result<(), VfsError> {
        let cred = self.cred();
        if cred.has(Caps::FOWNER) {
            return Ok(());
        }
        let file = mount.fs.getattr(node)?;
        let both = Access::READ | Access::WRITE;
        let own = file.uid == cred.uid;
        let trusted = own || is_harmless(&file) && mount.fs.access(cred, node, both).is_ok();
        self.refuse_if(!trusted, Protection::Hardlinks, 1, ErrorKind::NotPermitted)
    }

    fn refuse_if(
        &self,
        strange: bool,
        which: Protection,
        least: u32,
        error: ErrorKind,
    ) -> Result<(), VfsError> {
        match strange && self.kernel.protection(which) >= least {
            true => Err(error.into()),
            false => Ok(()),
        }
    }
}

/// Whether nobody gets rights by the file.
fn is_harmless(file: &Stat) -> bool {
    let gives = file.mode & SET_UID != 0 || file.mode & SET_GID == SET_GID;
    file.file_type() == Some(FileType::Regular) && !gives
}
