//! The inodes that the kernel knows, kept alive until it forgets them.
//!
//! The kernel calls an inode by its number alone, so the number must not get another meaning
//! meanwhile. Each known inode is pinned as an open file description of the session: whoever finds
//! this process dead gives the pins back.
//!
//! The kernel does not hear of names that preloaded programs remove, and would know their files
//! for as long as its memory suffices. So a file without names that is not open here is let go of
//! before: what the kernel asks of it is stale then, and it looks the name up again.

use crate::descriptions;
use crate::errno::Answer;
use nacre_fs::{FileType, Fs, FsError, InodeRef};
use nacre_session::OfdId;
use nacre_types::Ino;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most inodes that are held by descriptions: a part of the session's table, which preloaded
/// programs need, too. Further ones have plain pins, which end with the session at the latest.
const MOST_DESCRIPTIONS: usize = 16384;

/// One inode that the kernel knows.
struct Known {
    generation: u32,
    /// Times that the kernel was told of the number, for whichever inodes.
    lookups: u64,
    /// Open files of it.
    open: u64,
    /// What keeps it alive, until it is let go of.
    held: Option<Held>,
}

/// What keeps an inode alive.
#[derive(Clone, Copy)]
enum Held {
    Description(OfdId),
    Pin,
}

impl Known {
    fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

/// All inodes that the kernel knows, except the root.
#[derive(Default)]
pub(crate) struct Nodes {
    known: Mutex<HashMap<Ino, Known>>,
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, HashMap<Ino, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode that the kernel calls by this number.
    pub(crate) fn get(&self, fs: &Fs, ino: u64) -> Answer<InodeRef> {
        let ino = Ino(ino);
        if ino == fs.root().ino {
            return Ok(fs.root());
        }
        let table = self.table();
        let known = table.get(&ino).filter(|known| known.is_held());
        let known = known.ok_or(Errno::STALE)?;
        Ok(InodeRef {
            ino,
            generation: known.generation,
        })
    }

    /// The kernel is told of an inode once more. `Stale` if it is gone already.
    pub(crate) fn tell(&self, fs: &Fs, node: InodeRef) -> Result<(), FsError> {
        if node.ino == fs.root().ino || self.tell_again(node) {
            return Ok(());
        }
        let held = self.hold(fs, node)?;
        match self.enter(node, held) {
            Some(spare) => release(fs, node.ino, spare),
            None => Ok(()),
        }
    }

    fn tell_again(&self, node: InodeRef) -> bool {
        let mut table = self.table();
        let known = table.get_mut(&node.ino);
        let same = known.filter(|known| known.is_held() && known.generation == node.generation);
        same.map(|known| known.lookups += 1).is_some()
    }

    /// Enters an inode that is held. Returns what is not needed: another thread was faster.
    fn enter(&self, node: InodeRef, held: Held) -> Option<Held> {
        let mut table = self.table();
        let known = table.entry(node.ino).or_insert(Known {
            generation: node.generation,
            lookups: 0,
            open: 0,
            held: None,
        });
        known.lookups += 1;
        if known.is_held() {
            return Some(held);
        }
        // The inode that had the number before was let go of.
        known.generation = node.generation;
        known.held = Some(held);
        None
    }

    fn hold(&self, fs: &Fs, node: InodeRef) -> Result<Held, FsError> {
        fs.pin(node)?;
        if self.table().len() >= MOST_DESCRIPTIONS {
            return Ok(Held::Pin);
        }
        let described = descriptions::of_node(fs, node).ok().flatten();
        Ok(described.map_or(Held::Pin, Held::Description))
    }

    /// A file of the inode is opened. `Stale` if the inode was let go of.
    pub(crate) fn open(&self, fs: &Fs, node: InodeRef) -> Answer<()> {
        if node.ino == fs.root().ino {
            return Ok(());
        }
        let mut table = self.table();
        let known = table.get_mut(&node.ino);
        let known = known.filter(|known| known.is_held() && known.generation == node.generation);
        known.ok_or(Errno::STALE)?.open += 1;
        Ok(())
    }

    /// A file of the inode with this number is closed for the last time.
    pub(crate) fn close(&self, ino: u64) {
        if let Some(known) = self.table().get_mut(&Ino(ino)) {
            known.open = known.open.saturating_sub(1);
        }
    }

    /// Lets go of a file that has no name any more and is not open here.
    pub(crate) fn let_go_if_removed(&self, fs: &Fs, ino: u64) -> Result<(), FsError> {
        let Ok(node) = self.get(fs, ino) else {
            return Ok(());
        };
        let stat = fs.getattr(node)?;
        if stat.nlink > 0 || stat.file_type() != Some(FileType::Regular) {
            return Ok(());
        }
        let mut table = self.table();
        let known = table.get_mut(&node.ino);
        let unused = known.filter(|one| one.open == 0 && one.generation == node.generation);
        let held = unused.and_then(|known| known.held.take());
        drop(table);
        held.map_or(Ok(()), |held| release(fs, node.ino, held))
    }

    /// The kernel forgets `lookups` of the times that it was told of an inode.
    pub(crate) fn forget(&self, fs: &Fs, ino: u64, lookups: u64) -> Result<(), FsError> {
        let ino = Ino(ino);
        let mut table = self.table();
        let Some(known) = table.get_mut(&ino) else {
            return Ok(());
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return Ok(());
        }
        let held = known.held;
        table.remove(&ino);
        drop(table);
        held.map_or(Ok(()), |held| release(fs, ino, held))
    }

    /// The numbers of all that the kernel knows, without the root.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.table().keys().map(|ino| ino.0).collect()
    }

    /// Nobody knows anything any more.
    pub(crate) fn forget_all(&self, fs: &Fs) -> Result<(), FsError> {
        let all: Vec<(Ino, Known)> = self.table().drain().collect();
        let mut outcome = Ok(());
        for (ino, known) in all {
            let released = known.held.map_or(Ok(()), |held| release(fs, ino, held));
            outcome = outcome.and(released);
        }
        outcome
    }
}

/// A description that is not let go of before would stay in the session's table, and give its pin
/// back a second time when this process is found dead.
fn release(fs: &Fs, ino: Ino, held: Held) -> Result<(), FsError> {
    match held {
        Held::Description(id) => fs.let_go(id, fs.slot()),
        Held::Pin => fs.unpin(ino),
    }
}
