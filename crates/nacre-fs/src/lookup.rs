//! From names to inodes and, for directories, back.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, InodeRef, ROOT, is_directory};
use crate::live::{LiveEntry, check_linked};
use crate::name::check_name;
use crate::permission::{Access, Cred, Guarded, check_access};
use nacre_session::{Dentry, DentryBucket, DentryKey, DentryTarget, NameCounts, ValidityStamp};
use nacre_store::layout::{EntryKey, FLAG_ACL};
use nacre_store::{Attrs, Tree, layout};
use nacre_types::{Ino, ObjectId};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// The way up from a directory. In a damaged pool it may be a circle, which is noticed after at
/// most three rounds: a mark is moved to where the climb is after 1, 2, 4, 8 ... steps, and met
/// again.
#[derive(Default)]
pub(crate) struct Climb {
    mark: Option<ObjectId>,
    steps: u64,
}

impl Climb {
    /// Takes note of a directory on the way.
    pub(crate) fn pass(&mut self, here: ObjectId) -> Result<()> {
        if self.mark == Some(here) {
            return Err(FsError::corrupt(here, "the directory is its own ancestor"));
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.mark = Some(here);
        }
        Ok(())
    }
}

/// What the session knows of a name, or the stamp from which on it may be told.
pub(crate) enum Memory<'n> {
    Known(Dentry),
    /// `None`: the name is too long to be remembered.
    Unknown(Option<(DentryKey<'n>, ValidityStamp)>),
}

/// That a name of a directory stood for something, at a stamp: it still does as long as
/// [`Present::holds`].
#[derive(Clone, Copy, Debug)]
pub struct NameFact {
    bucket: DentryBucket,
    names: u64,
    dir: ObjectId,
    attribute_epoch: u64,
}

impl NameFact {
    /// As plain numbers.
    #[inline]
    pub fn to_words(self) -> [u64; 4] {
        [
            self.bucket.number(),
            self.names,
            self.dir.0,
            self.attribute_epoch,
        ]
    }

    /// From the numbers of [`NameFact::to_words`].
    #[inline]
    pub fn from_words([bucket, names, dir, attribute_epoch]: [u64; 4]) -> NameFact {
        NameFact {
            bucket: DentryBucket::from_number(bucket),
            names,
            dir: ObjectId(dir),
            attribute_epoch,
        }
    }
}

/// What is true of names now.
#[derive(Clone, Copy)]
pub struct Present<'f>(NameCounts<'f>);

impl Present<'_> {
    /// Whether nothing has changed since then of what a fact is about.
    #[inline(always)]
    pub fn holds(&self, fact: &NameFact) -> bool {
        let NameFact {
            bucket,
            names,
            dir,
            attribute_epoch,
        } = *fact;
        self.0.are(bucket, names, dir.0, attribute_epoch)
    }
}

/// Unlocked tries to look up a name in a directory that changes all the time.
const RESOLVE_TRIES: usize = 16;

impl Fs {
    /// The root directory.
    pub fn root(&self) -> InodeRef {
        InodeRef {
            ino: ROOT.ino(),
            generation: self.root_generation,
        }
    }

    /// The current incarnation of an existing inode.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef> {
        let attrs = self.store.attrs(ino.object())?;
        Ok(InodeRef {
            ino,
            generation: attrs.generation,
        })
    }

    /// Finds a name in a directory that the caller may search. `.` and `..` work; the root is its
    /// own parent.
    #[inline]
    pub fn lookup(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<Found> {
        match name {
            b"." => self.lookup_self(cred, dir),
            b".." => self.lookup_parent(cred, dir),
            _ => self.find(cred, dir, name)?.ok_or(FsError::NotFound),
        }
    }

    fn lookup_self(&self, cred: &Cred, dir: InodeRef) -> Result<Found> {
        self.check_search(cred, dir, &self.attrs(dir)?)?;
        Ok(Found {
            node: dir,
            file_type: FileType::Directory,
        })
    }

    fn lookup_parent(&self, cred: &Cred, dir: InodeRef) -> Result<Found> {
        let found = self.resolve(dir, || {
            let attrs = self.attrs(dir)?;
            self.check_search(cred, dir, &attrs)?;
            check_linked(&attrs)?;
            let object = self.parent_of(dir.object(), attrs.parent);
            Ok(Some(LiveEntry {
                object,
                file_type: FileType::Directory,
            }))
        })?;
        found.ok_or(FsError::NotFound)
    }

    pub(crate) fn parent_of(&self, dir: ObjectId, parent: u64) -> ObjectId {
        if dir == ROOT { ROOT } else { ObjectId(parent) }
    }

    /// As [`Fs::find`] for a caller who makes the name and is told then if it is taken: what nobody
    /// remembers counts as nothing.
    #[inline]
    pub fn recall(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<Option<Found>> {
        match self.memory_of(dir, name)? {
            Memory::Known(dentry) => judge(cred, &dentry),
            Memory::Unknown(_) => Ok(None),
        }
    }

    /// As [`Fs::lookup`] of a name that is remembered, with what was true of it; `None` for all
    /// others, and for failures.
    pub fn known(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Option<(Found, NameFact)> {
        let attribute_epoch = self
            .store
            .icore(dir.object())
            .ok()?
            .attribute_epoch
            .load(Ordering::Acquire);
        let key = DentryKey::new(dir.ino.0, dir.generation, name)?;
        let session = self.store.session();
        let (names, _) = session.validity_stamp(&key, attribute_epoch).counts();
        let dentry = session.dentry(&key, attribute_epoch).ok()?;
        let found = judge(cred, &dentry).ok()??;
        let fact = NameFact {
            bucket: session.dentry_bucket(&key),
            names,
            dir: dir.object(),
            attribute_epoch,
        };
        // Only then it was known at that stamp.
        self.present().holds(&fact).then_some((found, fact))
    }

    /// For looking at several facts.
    #[inline(always)]
    pub fn present(&self) -> Present<'_> {
        Present(self.store.session().name_counts())
    }

    /// As [`Fs::lookup`] of a name that is neither `.` nor `..`; `None` if it stands for nothing.
    /// For a change the result has to be checked again under the locks.
    #[inline(always)]
    pub fn find(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<Option<Found>> {
        match self.memory_of(dir, name)? {
            Memory::Known(dentry) => judge(cred, &dentry),
            Memory::Unknown(key) => self.find_entry(cred, dir, name, key),
        }
    }

    #[inline(always)]
    fn memory_of<'n>(&self, dir: InodeRef, name: &'n [u8]) -> Result<Memory<'n>> {
        let attribute_epoch = &self.store.icore(dir.object())?.attribute_epoch;
        let Some(key) = DentryKey::new(dir.ino.0, dir.generation, name) else {
            return Ok(Memory::Unknown(None));
        };
        let known = self
            .store
            .session()
            .dentry(&key, attribute_epoch.load(Ordering::Acquire));
        Ok(match known {
            Ok(dentry) => Memory::Known(dentry),
            Err(stamp) => Memory::Unknown(Some((key, stamp))),
        })
    }

    /// Looks a name up in the directory itself and has it remembered.
    #[cold]
    fn find_entry(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        key: Option<(DentryKey<'_>, ValidityStamp)>,
    ) -> Result<Option<Found>> {
        check_name(name)?;
        let mut room = EntryKey::room();
        let entry_key = room.of(self.seed, name);
        let guarded = Cell::new(None);
        let found = self.resolve(dir, || {
            let attrs = self.attrs(dir)?;
            self.check_search(cred, dir, &attrs)?;
            guarded.set(Some(Guarded::from(&attrs)));
            let entry = self.entry(dir.object(), entry_key)?;
            if entry.is_some_and(|entry| entry.object == dir.object()) {
                return Err(FsError::corrupt(
                    dir.object(),
                    "the directory contains itself",
                ));
            }
            Ok(entry)
        })?;
        if let (Some((key, stamp)), Some(guarded)) = (key, guarded.get())
            && guarded.flags & FLAG_ACL == 0
        {
            let dentry = dentry_of(guarded, found);
            self.store.session().remember_dentry(&key, stamp, &dentry);
        }
        Ok(found)
    }

    /// Has it remembered what a name of a locked directory at rest stands for.
    pub(crate) fn remember(
        &self,
        dir: InodeRef,
        name: &[u8],
        attrs: &Attrs,
        found: Found,
    ) -> Result<()> {
        let attribute_epoch = &self.store.icore(dir.object())?.attribute_epoch;
        if let Some(key) = DentryKey::new(dir.ino.0, dir.generation, name)
            && attrs.flags & FLAG_ACL == 0
        {
            let session = self.store.session();
            let stamp = session.validity_stamp(&key, attribute_epoch.load(Ordering::Acquire));
            let dentry = dentry_of(attrs.into(), Some(found));
            session.remember_dentry(&key, stamp, &dentry);
        }
        Ok(())
    }

    /// Reads an entry and then the incarnation of its inode. Both belong together if nobody changed
    /// the directory meanwhile.
    fn resolve(
        &self,
        dir: InodeRef,
        read: impl Fn() -> Result<Option<LiveEntry>>,
    ) -> Result<Option<Found>> {
        let version = &self.store.icore(dir.object())?.version;
        for _ in 0..RESOLVE_TRIES {
            let before = version.look();
            let found = read().and_then(|entry| entry.map(|entry| self.found(entry)).transpose());
            if before.is_some_and(|before| version.is_still(before)) {
                return found;
            }
        }
        self.resolve_locked(dir, read)
    }

    /// Does the same in a directory that never rests.
    fn resolve_locked(
        &self,
        dir: InodeRef,
        read: impl Fn() -> Result<Option<LiveEntry>>,
    ) -> Result<Option<Found>> {
        loop {
            let Some(entry) = self.stable(dir, &read)? else {
                return Ok(None);
            };
            let _guards = self.store.lock_pair(dir.object(), entry.object)?;
            if read()? == Some(entry) {
                return self.found(entry).map(Some);
            }
        }
    }

    /// One plain load: a number gets another generation only after the entry is gone, which shows
    /// in the version of the directory.
    fn found(&self, entry: LiveEntry) -> Result<Found> {
        let generation = self.store.generation(entry.object)?;
        let ino = entry.object.ino();
        Ok(Found {
            node: InodeRef { ino, generation },
            file_type: entry.file_type,
        })
    }

    /// Under the locks of the directory and of what was found: it is still there.
    pub(crate) fn still_found(
        &self,
        dir: InodeRef,
        name: &[u8],
        found: Option<Found>,
    ) -> Result<bool> {
        if let Memory::Known(dentry) = self.memory_of(dir, name)? {
            return Ok(target_of(&dentry)? == found);
        }
        let mut room = EntryKey::room();
        let entry = self.entry(dir.object(), room.of(self.seed, name))?;
        match (entry, found) {
            (None, None) => Ok(true),
            (Some(entry), Some(found)) if entry.object == found.node.object() => {
                Ok(self.found(entry)?.node == found.node)
            }
            _ => Ok(false),
        }
    }

    /// Absolute path of a directory inside the pool.
    pub fn path_of(&self, dir: Ino) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut here = dir.object();
        let mut climb = Climb::default();
        while here != ROOT {
            climb.pass(here)?;
            let (parent, name) = self.name_in_parent(here)?;
            names.push(name);
            here = parent;
        }
        Ok(join(&names))
    }

    /// Parent and own name of a directory other than the root. A rename in between shows as a
    /// missing entry, and then the parent is read again.
    fn name_in_parent(&self, dir: ObjectId) -> Result<(ObjectId, Vec<u8>)> {
        let version = &self.store.icore(dir)?.version;
        loop {
            let before = version.look();
            let attrs = self.store.attrs(dir)?;
            if !is_directory(&attrs) {
                return Err(FsError::NotDirectory);
            }
            check_linked(&attrs)?;
            let parent = ObjectId(attrs.parent);
            match self.scan_for(parent, attrs.parent_key, dir) {
                Ok(Some(name)) => return Ok((parent, name)),
                Ok(None) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
            // A rename in between shows in the version, also when it came back.
            if before.is_some_and(|before| version.is_still(before)) {
                return Err(FsError::corrupt(
                    dir,
                    "the directory is missing in its parent",
                ));
            }
        }
    }

    /// The name under which `dir` holds `child`, among the entries with the given hash.
    fn scan_for(&self, dir: ObjectId, hash: u64, child: ObjectId) -> Result<Option<Vec<u8>>> {
        let mut found = Ok(None);
        self.store.tree_scan(
            dir,
            Tree::Entries,
            &hash.to_be_bytes(),
            &mut |key, value, _| {
                match layout::split_entry_key(key) {
                    Some((key_hash, name)) if key_hash == hash => {
                        match LiveEntry::decode(dir, value) {
                            Ok(entry) if entry.object == child => found = Ok(Some(name.to_vec())),
                            Ok(_) => return ControlFlow::Continue(()),
                            Err(error) => found = Err(error),
                        }
                    }
                    _ => {}
                }
                ControlFlow::Break(())
            },
        )?;
        found
    }
}

/// What a remembered name means to the caller. Names of directories with an access control list
/// are not remembered: who may look them up is not told by a mode.
#[inline(always)]
fn judge(cred: &Cred, dentry: &Dentry) -> Result<Option<Found>> {
    let dir = Guarded {
        mode: dentry.mode,
        uid: dentry.uid,
        gid: dentry.gid,
        flags: 0,
    };
    check_access(cred, dir, Access::EXEC, |_| Ok(None))?;
    target_of(dentry)
}

#[inline(always)]
fn target_of(dentry: &Dentry) -> Result<Option<Found>> {
    let Some(target) = dentry.found else {
        return Ok(None);
    };
    let what = "a remembered name has no file type";
    let file_type = FileType::from_dirent(target.kind);
    Ok(Some(Found {
        node: InodeRef {
            ino: Ino(target.object),
            generation: target.generation,
        },
        file_type: file_type.ok_or_else(|| FsError::Corrupt(what.into()))?,
    }))
}

/// A fact about a name of a directory.
fn dentry_of(dir: Guarded, found: Option<Found>) -> Dentry {
    Dentry {
        mode: dir.mode,
        uid: dir.uid,
        gid: dir.gid,
        found: found.map(|found| DentryTarget {
            object: found.node.ino.0,
            generation: found.node.generation,
            kind: found.file_type.dirent_type(),
        }),
    }
}

fn join(names_upwards: &[Vec<u8>]) -> Vec<u8> {
    let mut path = Vec::new();
    for name in names_upwards.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}
