//! Extended attributes.

use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, done, success};
use crate::resolve::subject::{Subject, follows};
use crate::state::Vfs;
use nacre_fs::{Events, XattrFlags};
use nacre_media::{UserBytes, UserBytesMut};

/// Longest value, and longest list of names, in bytes.
const SIZE_MAX: usize = 65536;

impl Vfs {
    /// `getxattrat` and its relatives; an empty buffer asks for the length. `flags`: AT_*.
    pub fn getxattr(
        &self,
        dir: i32,
        path: &[u8],
        flags: i32,
        name: &[u8],
        mut buffer: UserBytesMut<'_>,
    ) -> Answer {
        self.on_path(dir, path, follows(flags), flags, |subject| {
            self.get(subject, name, &mut buffer)
        })
    }

    /// `fgetxattr`.
    pub fn fgetxattr(&self, fd: i32, name: &[u8], mut buffer: UserBytesMut<'_>) -> Answer {
        self.on_fd(fd, |subject| self.get(subject, name, &mut buffer))
    }

    fn get(&self, subject: Subject<'_>, name: &[u8], buffer: &mut UserBytesMut<'_>) -> Answer {
        fill(buffer, |space| {
            Ok(subject
                .mount
                .fs
                .get_xattr(self.cred(), subject.node, name, space)?)
        })
    }

    /// `listxattrat` and its relatives; an empty buffer asks for the length. `flags`: AT_*.
    pub fn listxattr(
        &self,
        dir: i32,
        path: &[u8],
        flags: i32,
        mut buffer: UserBytesMut<'_>,
    ) -> Answer {
        self.on_path(dir, path, follows(flags), flags, |subject| {
            self.list(subject, &mut buffer)
        })
    }

    /// `flistxattr`.
    pub fn flistxattr(&self, fd: i32, mut buffer: UserBytesMut<'_>) -> Answer {
        self.on_fd(fd, |subject| self.list(subject, &mut buffer))
    }

    fn list(&self, subject: Subject<'_>, buffer: &mut UserBytesMut<'_>) -> Answer {
        fill(buffer, |space| {
            Ok(subject
                .mount
                .fs
                .list_xattr(self.cred(), subject.node, space)?)
        })
    }

    /// `setxattrat` and its relatives. `flags`: AT_*; `how`: XATTR_*.
    pub fn setxattr(
        &self,
        dir: i32,
        path: &[u8],
        flags: i32,
        (name, value, how): (&[u8], UserBytes<'_>, i32),
    ) -> Answer {
        self.on_path(dir, path, follows(flags), flags, |subject| {
            self.set(subject, name, value, how)
        })
    }

    /// `fsetxattr`.
    pub fn fsetxattr(&self, fd: i32, name: &[u8], value: UserBytes<'_>, flags: i32) -> Answer {
        self.on_fd(fd, |subject| self.set(subject, name, value, flags))
    }

    fn set(&self, subject: Subject<'_>, name: &[u8], value: UserBytes<'_>, flags: i32) -> Answer {
        let flags = u32::try_from(flags).ok().and_then(XattrFlags::from_bits);
        let flags = flags.ok_or(ErrorKind::Invalid)?;
        if value.len() > SIZE_MAX {
            return Err(ErrorKind::ArgumentTooBig.into());
        }
        let mut bytes = vec![0; value.len()];
        value.copy_to_slice(&mut bytes)?;
        subject.mount.check_writable()?;
        subject
            .mount
            .fs
            .set_xattr(self.cred(), subject.node, name, &bytes, flags)?;
        self.tell_of(&subject, Events::ATTRIB);
        success()
    }

    /// `removexattrat` and its relatives. `flags`: AT_*.
    pub fn removexattr(&self, dir: i32, path: &[u8], flags: i32, name: &[u8]) -> Answer {
        self.on_path(dir, path, follows(flags), flags, |subject| {
            self.remove(subject, name)
        })
    }

    /// `fremovexattr`.
    pub fn fremovexattr(&self, fd: i32, name: &[u8]) -> Answer {
        self.on_fd(fd, |subject| self.remove(subject, name))
    }

    fn remove(&self, subject: Subject<'_>, name: &[u8]) -> Answer {
        subject.mount.check_writable()?;
        subject
            .mount
            .fs
            .remove_xattr(self.cred(), subject.node, name)?;
        self.tell_of(&subject, Events::ATTRIB);
        success()
    }
}

/// Lets `produce` fill a copy of the program's buffer, or only say the length if that is empty.
fn fill(
    buffer: &mut UserBytesMut<'_>,
    produce: impl FnOnce(&mut [u8]) -> Result<usize, VfsError>,
) -> Answer {
    let mut space = vec![0; buffer.len().min(SIZE_MAX)];
    let len = produce(&mut space)?;
    if !space.is_empty() {
        buffer.slice(0..len).copy_from_slice(&space[..len])?;
    }
    done(len as i64)
}
