//! The file system: inodes, directories and file data on top of the store's objects.
//!
//! Every operation works on an [`InodeRef`] and, where POSIX checks permissions, on behalf of a
//! [`Cred`]. What must happen together is one transaction of the store; objects are locked in
//! ascending order, so that any process may be killed at any instruction.
#![forbid(unsafe_code)]

mod acl;
mod attributes;
mod create;
mod error;
mod file;
mod inode;
mod kept;
mod live;
mod lookup;
mod name;
mod paths;
mod permission;
mod pin;
mod process;
mod readdir;
mod remove;
mod rename;
mod watch;
mod whole;
mod xattr;

pub use attributes::{FsStat, SetTime};
pub use create::NewMode;
pub use error::{FsError, Result};
pub use file::{
    AllocateMode, MapAccess, MapRun, MappedPages, PrivatePages, Seek, WriteAt, Written,
};
pub use inode::{FileType, Found, InodeRef, Stat};
pub use lookup::{NameFact, Present};
pub use permission::{Access, Caps, Cred, SET_GID, SET_UID, STICKY};
pub use readdir::{DirEntry, DirSink};
pub use rename::{NamePlace, RenameFlags};
pub use watch::{Events, NameIn, NewWatch, Watcher};
pub use whole::{Planted, SNAPSHOTS, Snapshot, TreeSpace};
pub use xattr::XattrFlags;

use nacre_session::SlotRef;
use nacre_store::{CHUNK_PAGES, Store, WriteMode};
pub use nacre_store::{Extent, Holes, OwnedGuard, ShownPage};
use nacre_types::UNIT_SIZE;
use std::sync::atomic::AtomicU32;

/// The file system of one attached pool.
pub struct Fs {
    store: Store,
    /// Seed of the name hashes.
    seed: u64,
    root_generation: u32,
    write_mode: WriteMode,
    map_granule: u64,
    /// Counts reads of known files.
    reads: AtomicU32,
}

impl Fs {
    /// Serves the pool in its own write mode.
    pub fn new(store: Store) -> Fs {
        let write_mode = store.mode();
        Fs::with_mode(store, write_mode)
    }

    /// Serves the pool in another write mode than the one it was made with.
    pub fn with_mode(store: Store, write_mode: WriteMode) -> Fs {
        let seed = store.dir_seed();
        let root_generation = store.attrs(inode::ROOT).map_or(0, |attrs| attrs.generation);
        let map_granule = store.volume().granule();
        let write_mode = match write_mode {
            WriteMode::Cached => WriteMode::Direct,
            mode => mode,
        };
        Fs {
            store,
            seed,
            root_generation,
            write_mode,
            map_granule,
            reads: AtomicU32::new(0),
        }
    }

    /// Does what may find no room and holds no lock when it returns, again as long as something
    /// else can move behind.
    pub(crate) fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let mut done = work();
        while matches!(done, Err(FsError::NoSpace)) && self.store.make_room()? {
            done = work();
        }
        done
    }

    /// The same for a child that runs in this process's memory ([`Store::for_child`]).
    pub fn for_child(&self, slot: SlotRef) -> Fs {
        Fs {
            store: self.store.for_child(slot),
            reads: AtomicU32::new(0),
            ..*self
        }
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Gives the store back, to detach it.
    pub fn into_store(self) -> Store {
        self.store
    }

    /// Shared mappings show the file in pieces that begin and end at multiples of this: 4096, or 2
    /// MiB if the pool has a device that maps 2 MiB pages only.
    #[inline]
    pub fn map_granule(&self) -> u64 {
        self.map_granule
    }

    /// Maps as if the pool had such a device, for tests.
    pub fn map_chunks_only(&mut self) {
        self.map_granule = CHUNK_PAGES * UNIT_SIZE;
    }

    /// What a completed write call promises.
    pub fn write_mode(&self) -> WriteMode {
        self.write_mode
    }
}
