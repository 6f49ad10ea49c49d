//! The owner of a path, judged by its first bytes.

use crate::path::mount::Mount;

/// Beginnings of paths that may stand for open files of the process.
pub(crate) const LINKED: [&[u8]; 3] = [b"/proc/", b"/dev/fd", b"/dev/std"];

/// The owner of a path, judged by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathOwner {
    /// Nobody's or a pool's, if anything.
    Unknown,
    /// The host's, unless `.`, `..` or empty components follow.
    Host,
    /// The host's if its text says so.
    Text,
}

/// The side of each relative path by its first byte, and of each absolute one by its second.
pub(crate) struct PathOwners {
    relative: [PathOwner; 256],
    absolute: [PathOwner; 256],
}

impl PathOwners {
    pub(crate) fn new(mounts: &[Mount]) -> PathOwners {
        let mut owners = PathOwners {
            relative: [PathOwner::Host; 256],
            absolute: [PathOwner::Host; 256],
        };
        // Nothing, and what is no relative path.
        owners.relative[0] = PathOwner::Unknown;
        owners.relative[usize::from(b'/')] = PathOwner::Unknown;
        owners.relative[usize::from(b'.')] = PathOwner::Text;
        for path in LINKED {
            owners.absolute[usize::from(path[1])] = PathOwner::Text;
        }
        for mount in mounts {
            owners.absolute[usize::from(mount.start)] = PathOwner::Unknown;
            for name in mount.components() {
                owners.relative[usize::from(name[0])] = PathOwner::Text;
            }
        }
        owners
    }

    /// The owner by a path's first byte, or by the second of one that begins with a slash.
    #[inline(always)]
    pub(crate) fn by(&self, byte: u8, absolute: bool) -> PathOwner {
        let owners = match absolute {
            true => &self.absolute,
            false => &self.relative,
        };
        owners[usize::from(byte)]
    }
}
