//! The users whose files are accepted.

use rustix::fs::Stat;

use crate::error::RuntimeError;
use crate::identity::{is_known_group, is_known_user, one_user};

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Those who may write a pool, told by the owner and permission bits of its file; or one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trust {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Trust {
    /// The user that the process is, in all of its ids, alone.
    pub fn user() -> Result<Trust, RuntimeError> {
        let uid = one_user().ok_or(RuntimeError::ManyUsers)?;
        Ok(Trust {
            uid,
            gid: u32::MAX,
            mode: 0o600,
        })
    }

    /// Whether only those who are trusted can have made a file or folder and can write it.
    pub fn accepts(&self, found: &Stat) -> bool {
        let beyond = found.st_mode & !self.mode & (GROUP_WRITES | OTHERS_WRITE);
        let foreign_group = found.st_mode & GROUP_WRITES != 0 && found.st_gid != self.gid;
        let alone = beyond == 0 && (!foreign_group || self.mode & OTHERS_WRITE != 0);
        ignores_checks() || self.made(found) && alone
    }

    /// As [`Trust::accepts`], of what is known already of an open file.
    pub fn accepts_owner(&self, uid: u32, gid: u32, mode: u32) -> bool {
        let writes = mode & (GROUP_WRITES | OTHERS_WRITE);
        let alone = writes & !self.mode == 0 && (writes & GROUP_WRITES == 0 || gid == self.gid);
        ignores_checks() || self.is_owner(uid) && alone
    }

    /// Whether only those who are trusted can have made a file or folder.
    ///
    /// Members of the pool's group give what they make to that group, which nobody else can.
    pub fn made(&self, found: &Stat) -> bool {
        let of_group = self.mode & GROUP_WRITES != 0;
        ignores_checks()
            || self.is_owner(found.st_uid)
            || self.mode & OTHERS_WRITE != 0
            || of_group && found.st_gid == self.gid && is_known_group(found.st_gid)
            || of_group && one_user() == Some(found.st_uid)
    }

    /// Whether nobody but root may write the pool, so that nobody else chooses its device nodes.
    pub fn is_root_alone(&self) -> bool {
        self.uid == 0 && self.mode & (GROUP_WRITES | OTHERS_WRITE) == 0
    }

    /// Root or the pool's owner.
    fn is_owner(&self, uid: u32) -> bool {
        [0, self.uid].contains(&uid) && is_known_user(uid)
    }

    /// The permission bits of files: reading and writing for those who may write the pool.
    pub const fn file_mode(&self) -> u32 {
        let group = if self.mode & GROUP_WRITES != 0 {
            0o060
        } else {
            0
        };
        let others = if self.mode & OTHERS_WRITE != 0 {
            0o006
        } else {
            0
        };
        0o600 | group | others
    }

    /// The permission bits of folders: where several may write, nobody removes what others made.
    pub const fn folder_mode(&self) -> u32 {
        match self.file_mode() {
            0o600 => 0o700,
            mode => mode | (mode & 0o444) >> 2 | 0o1000,
        }
    }
}

#[cfg(feature = "unchecked")]
mod canary {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    static IGNORED: AtomicBool = AtomicBool::new(false);

    /// For tests alone: from now on anybody's files are trusted, as a canary of the tests that
    /// attack.
    pub fn ignore_checks() {
        IGNORED.store(true, Relaxed);
    }

    pub(crate) fn ignores_checks() -> bool {
        IGNORED.load(Relaxed)
    }
}

#[cfg(feature = "unchecked")]
pub use canary::ignore_checks;
#[cfg(feature = "unchecked")]
pub(crate) use canary::ignores_checks;

#[cfg(not(feature = "unchecked"))]
pub(crate) const fn ignores_checks() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::Trust;

    #[test]
    fn modes_follow_who_may_write_the_pool() {
        let of = |mode| {
            let trust = Trust {
                uid: 1,
                gid: 2,
                mode,
            };
            (trust.file_mode(), trust.folder_mode())
        };
        assert_eq!(of(0o600), (0o600, 0o700));
        assert_eq!(of(0o644), (0o600, 0o700));
        assert_eq!(of(0o660), (0o660, 0o1770));
        assert_eq!(of(0o664), (0o660, 0o1770));
        assert_eq!(of(0o666), (0o666, 0o1777));
    }
}
