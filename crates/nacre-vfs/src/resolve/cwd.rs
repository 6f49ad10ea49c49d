//! The current directory.
//!
//! While it lies in a pool, the kernel's own current directory is cached in a directory where
//! nothing can be made and nothing is found, so that a relative path which somehow reaches the
//! kernel fails instead of meaning another file. The slot remembers the open file description
//! across exec.

use crate::abi::{AT_FDCWD, O_DIRECTORY, O_PATH, PATH_MAX, S_IFDIR};
use crate::error::{ErrorKind, VfsError};
use crate::fd::table::{FdEntry, FileId};
use crate::path::mount::Mount;
use crate::reply::{Answer, Reply, done, success};
use crate::resolve::walk::Lookup;
use crate::state::Vfs;
use nacre_fs::{Access, FileType, InodeRef};
use nacre_media::UserBytesMut;
use nacre_session::OfdInit;
use std::sync::atomic::Ordering;

/// Always empty, and nobody can create anything in it; then the second choice, where only numbers
/// are found.
const PARKING: [&[u8]; 2] = [b"/proc/tty/ldisc", b"/proc/self/fdinfo"];

impl Vfs {
    /// `chdir`. When the answer is the kernel's and it succeeds, `host_chdir_done` must follow.
    pub fn chdir(&self, path: &[u8]) -> Answer {
        self.at_target(AT_FDCWD, path, Lookup::FOLLOW, |target| {
            let found = target.existing()?;
            if found.file_type != FileType::Directory {
                return Err(ErrorKind::NotDirectory.into());
            }
            target
                .mount
                .fs
                .access(self.cred(), found.node, Access::EXEC)?;
            let id = self.directory_description(target.mount, found.node)?;
            self.stand_in(id)
        })
    }

    /// `fchdir`; as `chdir`.
    pub fn fchdir(&self, fd: i32) -> Answer {
        let Some(file) = self.file(fd)? else {
            return Ok(Reply::Kernel);
        };
        if !file.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        file.mount
            .fs
            .access(self.cred(), file.node(), Access::EXEC)?;
        self.uses.add(file.id, self.alone());
        self.stand_in(file.id)
    }

    /// A description of a directory that no fd stands for, with one use.
    fn directory_description(&self, mount: &Mount, node: InodeRef) -> Result<FileId, VfsError> {
        mount.fs.pin(node)?;
        let init = OfdInit {
            ino: node.ino,
            ino_generation: node.generation,
            flags: O_PATH | O_DIRECTORY,
            mode: S_IFDIR,
            parent: node.ino,
            name: b"",
        };
        let described = self.describe(mount, &init);
        if described.is_err() {
            mount.fs.unpin(node.ino)?;
        }
        described
    }

    /// Makes a description, whose use is counted already, the current directory.
    fn stand_in(&self, id: FileId) -> Answer {
        let _gate = self.close_gate();
        if let Err(error) = self.park() {
            self.release(id);
            return Err(error);
        }
        let old = self.cwd.swap(FdEntry::Pool(id).pack(), Ordering::AcqRel);
        self.leave(old);
        self.remember_cwd();
        success()
    }

    fn park(&self) -> Result<(), VfsError> {
        if self.cwd.load(Ordering::Acquire) != FdEntry::Unknown.pack() {
            return Ok(());
        }
        self.go_back_out()
    }

    /// Takes the kernel's current directory out of the pool, which the caller has moved there.
    pub fn go_back_out(&self) -> Result<(), VfsError> {
        let [first, second] = PARKING;
        self.kernel()
            .chdir(first)
            .or_else(|_| self.kernel().chdir(second))?;
        Ok(())
    }

    fn leave(&self, old: u64) {
        if let FdEntry::Pool(old) = FdEntry::unpack(old) {
            self.release(old);
        }
    }

    /// Writes the current directory into the slots, for the next program of this process.
    pub(crate) fn remember_cwd(&self) {
        let cwd = FdEntry::unpack(self.cwd.load(Ordering::Acquire));
        for mount in self.attached() {
            mount.fs.remember_directory(match cwd {
                FdEntry::Pool(id) if id.pool == mount.index => Some(id.ofd),
                _ => None,
            });
        }
    }

    /// Finds the current directory of the program that ran in this process before exec.
    pub(crate) fn recall_cwd(&self) {
        let mut here = vec![0; PATH_MAX];
        for mount in self.attached() {
            let holder = self.holder(mount.index);
            let Some(ofd) = mount.fs.remembered_directory() else {
                continue;
            };
            let cached = self
                .kernel()
                .getcwd(&mut here)
                .is_ok_and(|len| is_parking(&here[..len]));
            if cached && mount.fs.hold(ofd, holder) {
                let id = FileId {
                    pool: mount.index,
                    ofd,
                };
                self.note_use(id);
                self.leave(self.cwd.swap(FdEntry::Pool(id).pack(), Ordering::AcqRel));
            }
        }
        self.remember_cwd();
    }

    /// The kernel has changed the current directory.
    pub fn host_chdir_done(&self) {
        if self.cwd.load(Ordering::Relaxed) == FdEntry::Unknown.pack() {
            return;
        }
        let _gate = self.close_gate();
        let old = self.cwd.swap(FdEntry::Unknown.pack(), Ordering::AcqRel);
        self.leave(old);
        self.remember_cwd();
    }

    /// `getcwd`. Answers the length with the NUL.
    pub fn getcwd(&self, mut buffer: UserBytesMut<'_>) -> Answer {
        let Some(file) = self.cwd_file()? else {
            return Ok(Reply::Kernel);
        };
        let mut path = file.mount.absolute(&file.mount.fs.path_of(file.ofd.ino())?);
        path.push(0);
        // The C library asks for more room after `ERANGE`, and the kernel never gives more than
        // this.
        if path.len() > PATH_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        if path.len() > buffer.len() {
            return Err(ErrorKind::RangeTooSmall.into());
        }
        buffer.slice(0..path.len()).copy_from_slice(&path)?;
        done(path.len() as i64)
    }

    /// `umask`: noted; the kernel keeps it too and gives the answer.
    pub fn umask(&self, mask: u32) -> Answer {
        self.umask.store(mask & 0o777, Ordering::Relaxed);
        Ok(Reply::Kernel)
    }
}

/// /proc/self reads as /proc/PID, and PID may be a former process's.
fn is_parking(path: &[u8]) -> bool {
    path == PARKING[0] || (path.starts_with(b"/proc/") && path.ends_with(b"/fdinfo"))
}
