//! The inodes that the kernel knows, kept alive until it forgets them.
//!
//! The kernel calls an inode by its number alone, so the number must not get another meaning
//! meanwhile. Each known inode is pinned as an open file description of the session: whoever finds
//! this process dead gives the pins back.
//!
//! The kernel does not hear of names that preloaded programs remove, and would know their files
//! for as long as its memory suffices. So a file without names that is not open here is let go of
//! before: what the kernel asks of it is stale then, and it looks the name up again.

use crate::contents::{Contents, Way};
use crate::descriptions;
use crate::errno::Answer;
use crate::names::Names;
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
    /// What keeps it alive, until it is let go of.
    held: Option<Held>,
    contents: Contents,
}

/// What keeps an inode alive.
#[derive(Clone, Copy)]
enum Held {
    Description(OfdId),
    Pin,
}

impl Known {
    fn is(&self, node: InodeRef) -> bool {
        self.held.is_some() && self.generation == node.generation
    }
}

/// All inodes that the kernel knows, except the root, and their names.
#[derive(Default)]
pub(crate) struct Nodes(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: HashMap<Ino, Known>,
    names: Names,
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names that the kernel knows. No inode is forgotten meanwhile.
    pub(crate) fn names<T>(&self, with: impl FnOnce(&mut Names) -> T) -> T {
        with(&mut self.table().names)
    }

    /// The inode that the kernel calls by this number.
    pub(crate) fn get(&self, fs: &Fs, ino: u64) -> Answer<InodeRef> {
        let ino = Ino(ino);
        if ino == fs.root().ino {
            return Ok(fs.root());
        }
        let table = self.table();
        let known = table.known.get(&ino).filter(|known| known.held.is_some());
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
        let known = table.known.get_mut(&node.ino);
        let same = known.filter(|known| known.is(node));
        same.map(|known| known.lookups += 1).is_some()
    }

    /// Enters an inode that is held. Returns what is not needed: another thread was faster.
    fn enter(&self, node: InodeRef, held: Held) -> Option<Held> {
        let mut table = self.table();
        let known = table.known.entry(node.ino).or_insert(Known {
            generation: node.generation,
            lookups: 0,
            held: None,
            contents: Contents::default(),
        });
        known.lookups += 1;
        if known.held.is_some() {
            return Some(held);
        }
        // The inode that had the number before was let go of.
        known.generation = node.generation;
        known.contents = Contents::default();
        known.held = Some(held);
        None
    }

    fn hold(&self, fs: &Fs, node: InodeRef) -> Result<Held, FsError> {
        fs.pin(node)?;
        if self.table().known.len() >= MOST_DESCRIPTIONS {
            return Ok(Held::Pin);
        }
        let described = descriptions::of_node(fs, node).ok().flatten();
        Ok(described.map_or(Held::Pin, Held::Description))
    }

    /// Lets go of a file that has no name any more and is not open here. `false`: there is none.
    pub(crate) fn let_go_if_removed(&self, fs: &Fs, ino: u64) -> Result<bool, FsError> {
        let Ok(node) = self.get(fs, ino) else {
            return Ok(false);
        };
        let stat = fs.getattr(node)?;
        if stat.nlink > 0 || stat.file_type() != Some(FileType::Regular) {
            return Ok(false);
        }
        let mut table = self.table();
        let known = table.known.get_mut(&node.ino);
        let unused = known.filter(|known| known.is(node) && !known.contents.is_open());
        let held = unused.and_then(|known| known.held.take());
        drop(table);
        match held {
            Some(held) => release(fs, node.ino, held).map(|()| true),
            None => Ok(false),
        }
    }

    /// The kernel forgets `lookups` of the times that it was told of an inode.
    pub(crate) fn forget(&self, fs: &Fs, ino: u64, lookups: u64) -> Result<(), FsError> {
        let ino = Ino(ino);
        let mut table = self.table();
        let Some(known) = table.known.get_mut(&ino) else {
            return Ok(());
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return Ok(());
        }
        let held = known.held;
        table.known.remove(&ino);
        table.names.dropped(ino.0);
        drop(table);
        held.map_or(Ok(()), |held| release(fs, ino, held))
    }

    /// The numbers of all that the kernel knows, without the root.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.table().known.keys().map(|ino| ino.0).collect()
    }

    /// Opens a file; see [`Contents::open`]. `Stale` if the inode was let go of.
    pub(crate) fn open(
        &self,
        node: InodeRef,
        handle: u64,
        writes: bool,
        alone: impl FnOnce() -> Option<u64>,
    ) -> Answer<Way> {
        let mut table = self.table();
        let known = table.known.get_mut(&node.ino);
        let known = known.filter(|known| known.is(node)).ok_or(Errno::STALE)?;
        Ok(known.contents.open(handle, writes, alone()))
    }

    pub(crate) fn close(&self, number: u64, handle: u64) {
        if let Some(known) = self.table().known.get_mut(&Ino(number)) {
            known.contents.close(handle);
        }
    }

    /// Whether something that is asked of the contents of an inode is true.
    pub(crate) fn contents(&self, number: u64, asked: impl FnOnce(&Contents) -> bool) -> bool {
        let table = self.table();
        let known = table.known.get(&Ino(number));
        known.is_some_and(|known| asked(&known.contents))
    }

    /// Nobody knows anything any more.
    pub(crate) fn forget_all(&self, fs: &Fs) -> Result<(), FsError> {
        let all: Vec<(Ino, Known)> = self.table().known.drain().collect();
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
