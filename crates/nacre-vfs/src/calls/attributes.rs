//! chmod, chown, utimens.

use crate::abi::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use crate::error::{ErrorKind, VfsError};
use crate::kernel::shadow_name;
use crate::reply::{Answer, success};
use crate::resolve::subject::{Subject, follows};
use crate::state::Vfs;
use nacre_fs::{Events, FileType, SetTime};

const MODE_BITS: u32 = 0o7777;
const UNCHANGED: u32 = u32::MAX;
const KNOWN: i32 = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;

impl Vfs {
    /// `fchmodat2`; also `chmod` and `fchmodat`.
    pub fn fchmodat(&self, dirfd: i32, path: &[u8], mode: u32, flags: i32) -> Answer {
        self.on_path(dirfd, path, follows(flags), flags, |subject| {
            check_flags(flags)?;
            if subject.is_symlink {
                return Err(ErrorKind::Unsupported.into());
            }
            self.chmod_subject(subject, mode)
        })
    }

    /// `fchmod`.
    pub fn fchmod(&self, fd: i32, mode: u32) -> Answer {
        self.on_fd(fd, |subject| self.chmod_subject(subject, mode))
    }

    fn chmod_subject(&self, subject: Subject<'_>, mode: u32) -> Answer {
        subject.mount.check_writable()?;
        subject
            .mount
            .fs
            .chmod(self.cred(), subject.node, mode & MODE_BITS)?;
        self.dress_shadow(&subject)?;
        self.tell_of(&subject, Events::ATTRIB);
        success()
    }

    /// By the mode and owner of a shadow the kernel tells who may open or connect.
    fn dress_shadow(&self, subject: &Subject<'_>) -> Result<(), VfsError> {
        let stat = subject.mount.fs.getattr(subject.node)?;
        let stored_here = [FileType::Regular, FileType::Directory, FileType::Symlink];
        if stat
            .file_type()
            .is_some_and(|kind| !stored_here.contains(&kind))
        {
            let name = shadow_name(subject.node);
            let (kernel, pool) = (self.kernel(), subject.mount.index);
            kernel.dress_shadow(pool, &name, &stat);
        }
        Ok(())
    }

    /// `fchownat`; also `chown` and `lchown`. `u32::MAX` leaves an id unchanged.
    pub fn fchownat(&self, dirfd: i32, path: &[u8], uid: u32, gid: u32, flags: i32) -> Answer {
        self.on_path(dirfd, path, follows(flags), flags, |subject| {
            check_flags(flags)?;
            self.chown_subject(subject, uid, gid)
        })
    }

    /// `fchown`.
    pub fn fchown(&self, fd: i32, uid: u32, gid: u32) -> Answer {
        self.on_fd(fd, |subject| self.chown_subject(subject, uid, gid))
    }

    fn chown_subject(&self, subject: Subject<'_>, uid: u32, gid: u32) -> Answer {
        subject.mount.check_writable()?;
        let changed = |id: u32| (id != UNCHANGED).then_some(id);
        subject
            .mount
            .fs
            .chown(self.cred(), subject.node, changed(uid), changed(gid))?;
        self.dress_shadow(&subject)?;
        self.tell_of(&subject, Events::ATTRIB);
        success()
    }

    /// `utimensat`; also `utime`, `utimes`, `futimesat`. Without a path: the open file `dirfd`.
    pub fn utimensat(
        &self,
        dirfd: i32,
        path: Option<&[u8]>,
        atime: SetTime,
        mtime: SetTime,
        flags: i32,
    ) -> Answer {
        let set = |subject: Subject<'_>| {
            check_flags(flags)?;
            if matches!((&atime, &mtime), (SetTime::Omit, SetTime::Omit)) {
                return success();
            }
            subject.mount.check_writable()?;
            let events = Events::of_times(&atime, &mtime);
            subject
                .mount
                .fs
                .utimens(self.cred(), subject.node, atime, mtime)?;
            self.tell_of(&subject, events);
            success()
        };
        match path {
            Some(path) => self.on_path(dirfd, path, follows(flags), flags, set),
            None => self.on_fd(dirfd, set),
        }
    }
}

fn check_flags(flags: i32) -> Result<(), VfsError> {
    if flags & !KNOWN != 0 {
        return Err(ErrorKind::Invalid.into());
    }
    Ok(())
}
