//! Open files that preloaded programs hand on to programs that are not served.
//!
//! Such a file has a name of its own in the root of the mount, and a number of its own for the
//! kernel. It is a stream: reads and writes go by the position of the open file description, which
//! the programs share, and not by one of the kernel's.

use crate::errno::Answer;
use nacre_fs::{Cred, Fs, FsError, InodeRef, WriteAt};
use nacre_session::{Ofd, OfdId, OfdInit};
use nacre_types::{FileOffset, reach};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Marks numbers of descriptions; inodes have none so high.
const MARK: u64 = 1 << 63;

/// The descriptions that the kernel knows.
#[derive(Default)]
pub(crate) struct Descriptions(Mutex<HashMap<OfdId, Known>>);

/// One description, which is held.
#[derive(Default)]
struct Known {
    /// Times that the kernel was told of it.
    lookups: u64,
    /// Open files of it.
    open: u64,
}

/// The description that a number of the kernel means.
pub(crate) fn of_number(number: u64) -> Option<OfdId> {
    let identity = (number & MARK != 0).then_some(number & !MARK)?;
    OfdId::from_identity(identity)
}

/// The description that a name in the root means.
pub(crate) fn of_name(name: &[u8]) -> Option<OfdId> {
    let digits = name.strip_prefix(reach::DESCRIPTION.as_bytes())?;
    let digits = str::from_utf8(digits).ok()?;
    OfdId::from_identity(u64::from_str_radix(digits, 16).ok()?)
}

/// The number that the kernel gets for a description.
pub(crate) fn number(id: OfdId) -> u64 {
    MARK | id.identity()
}

pub(crate) fn find(fs: &Fs, id: OfdId) -> Answer<&Ofd> {
    Ok(fs.description(id).ok_or(Errno::STALE)?)
}

pub(crate) fn node(fs: &Fs, id: OfdId) -> Answer<InodeRef> {
    let ofd = find(fs, id)?;
    Ok(InodeRef {
        ino: ofd.ino(),
        generation: ofd.ino_generation(),
    })
}

/// Describes an inode for the mount itself: no program has it open. The caller has pinned it.
/// `None`: the session's table is full.
pub(crate) fn of_node(fs: &Fs, node: InodeRef) -> Result<Option<OfdId>, FsError> {
    fs.describe(&OfdInit {
        ino: node.ino,
        ino_generation: node.generation,
        flags: 0,
        mode: 0,
        parent: fs.root().ino,
        name: b"",
    })
}

impl Descriptions {
    fn table(&self) -> MutexGuard<'_, HashMap<OfdId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel knows none.
    pub(crate) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// The description, held. The kernel may remember one that was let go of.
    fn held<'t>(table: &'t mut HashMap<OfdId, Known>, fs: &Fs, id: OfdId) -> Answer<&'t mut Known> {
        match table.entry(id) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(free) if fs.hold(id, fs.slot()) => Ok(free.insert(Known::default())),
            Entry::Vacant(_) => Err(Errno::NOENT.into()),
        }
    }

    /// The kernel is told of a description once more.
    pub(crate) fn tell(&self, fs: &Fs, id: OfdId) -> Answer<()> {
        Self::held(&mut self.table(), fs, id)?.lookups += 1;
        Ok(())
    }

    /// A program opens it.
    pub(crate) fn open(&self, fs: &Fs, id: OfdId) -> Answer<()> {
        Self::held(&mut self.table(), fs, id)?.open += 1;
        Ok(())
    }

    /// A program has closed it. The kernel may remember it long after the last one has.
    pub(crate) fn close(&self, fs: &Fs, id: OfdId) -> Result<(), FsError> {
        self.release(fs, id, |known| {
            known.open = known.open.saturating_sub(1);
            known.open == 0
        })
    }

    /// The kernel forgets `lookups` of the times that it was told.
    pub(crate) fn forget(&self, fs: &Fs, id: OfdId, lookups: u64) -> Result<(), FsError> {
        self.release(fs, id, |known| {
            known.lookups = known.lookups.saturating_sub(lookups);
            known.lookups == 0 && known.open == 0
        })
    }

    /// Lets go of a description if this was the `last` that was known of it.
    fn release(
        &self,
        fs: &Fs,
        id: OfdId,
        last: impl FnOnce(&mut Known) -> bool,
    ) -> Result<(), FsError> {
        let mut table = self.table();
        if !table.get_mut(&id).is_some_and(last) {
            return Ok(());
        }
        table.remove(&id);
        drop(table);
        fs.let_go(id, fs.slot())
    }

    /// Nobody knows any more.
    pub(crate) fn forget_all(&self, fs: &Fs) -> Result<(), FsError> {
        let all: Vec<OfdId> = self.table().drain().map(|(id, _)| id).collect();
        let mut outcome = Ok(());
        for id in all {
            outcome = outcome.and(fs.let_go(id, fs.slot()));
        }
        outcome
    }
}

/// Reads where the description stands.
pub(crate) fn read(fs: &Fs, id: OfdId, into: &mut [u8]) -> Answer<usize> {
    let (node, ofd) = (node(fs, id)?, find(fs, id)?);
    let _position = fs.lock_position(ofd)?;
    let at = ofd.pos.load(Ordering::Relaxed);
    let len = fs.read(node, FileOffset(at), into.into())?;
    ofd.pos.store(at + len as u64, Ordering::Relaxed);
    Ok(len)
}

/// Writes where the description stands, or at the end.
pub(crate) fn write(fs: &Fs, cred: &Cred, id: OfdId, data: &[u8]) -> Answer<usize> {
    let (node, ofd) = (node(fs, id)?, find(fs, id)?);
    let _position = fs.lock_position(ofd)?;
    let at = ofd.pos.load(Ordering::Relaxed);
    let flags = OFlags::from_bits_retain(ofd.flags.load(Ordering::Relaxed));
    let to = match flags.contains(OFlags::APPEND) {
        true => WriteAt::Append,
        false => WriteAt::Offset(FileOffset(at)),
    };
    let written = fs.write(cred, node, to, data.into())?;
    ofd.pos.store(written.end.0, Ordering::Relaxed);
    Ok(written.len)
}

#[cfg(test)]
mod tests {
    use super::{number, of_name, of_number};
    use nacre_session::OfdId;

    #[test]
    fn descriptions_have_names_and_numbers() {
        let id = OfdId {
            index: 7,
            generation: 9,
        };
        assert_eq!(of_number(number(id)), Some(id));
        assert_eq!(of_number(id.identity()), None);
        let name = nacre_types::reach::description_name(id.identity());
        assert_eq!(of_name(&name), Some(id));
        assert_eq!(of_name(b".nacre-descriptor-x"), None);
        assert_eq!(of_name(b"f"), None);
    }
}
