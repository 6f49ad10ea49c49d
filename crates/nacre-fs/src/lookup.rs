//! From names to inodes and, for directories, back.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, InodeRef, ROOT, ino_of, is_directory, object_of};
use crate::live::{Entry, check_linked, check_search};
use crate::name::{EntryKey, check_name};
use crate::permission::{Access, Cred, Guarded, check_access};
use nacre_session::{Dentry, DentryKey, DentryTarget};
use nacre_store::{Tree, layout};
use nacre_types::{Ino, ObjectId};
use std::ops::ControlFlow;
use std::sync::atomic::{Ordering, fence};

/// The way up from a directory. In a damaged pool it may be a circle, which is noticed after at most three rounds:
/// a mark is moved to where the climb is after 1, 2, 4, 8 ... steps, and met again.
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

/// The version of no object at rest.
const NO_VERSION: u64 = u64::MAX;

/// What a name stood for, and the version of the directory at that time.
pub(crate) struct Seen {
    pub(crate) found: Option<Found>,
    version: u64,
}

/// Unlocked tries to look up a name in a directory that changes all the time.
const RESOLVE_TRIES: usize = 16;

impl Fs {
    /// The root directory.
    pub fn root(&self) -> InodeRef {
        InodeRef {
            ino: ino_of(ROOT),
            generation: self.root_generation,
        }
    }

    /// The current incarnation of an existing inode.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef> {
        let attrs = self.store.attrs(object_of(ino))?;
        Ok(InodeRef {
            ino,
            generation: attrs.generation,
        })
    }

    /// Finds a name in a directory that the caller may search. `.` and `..` work; the root is its
    /// own parent.
    pub fn lookup(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<Found> {
        match name {
            b"." => self.lookup_self(cred, dir),
            b".." => self.lookup_parent(cred, dir),
            _ => self.lookup_entry(cred, dir, name),
        }
    }

    fn lookup_self(&self, cred: &Cred, dir: InodeRef) -> Result<Found> {
        check_search(cred, &self.attrs(dir)?)?;
        Ok(Found {
            node: dir,
            file_type: FileType::Directory,
        })
    }

    fn lookup_parent(&self, cred: &Cred, dir: InodeRef) -> Result<Found> {
        let seen = self.resolve(dir, || {
            let attrs = self.attrs(dir)?;
            check_search(cred, &attrs)?;
            check_linked(&attrs)?;
            let object = self.parent_of(dir.object(), attrs.parent);
            Ok(Some(Entry {
                object,
                file_type: FileType::Directory,
            }))
        })?;
        seen.found.ok_or(FsError::NotFound)
    }

    pub(crate) fn parent_of(&self, dir: ObjectId, parent: u64) -> ObjectId {
        if dir == ROOT { ROOT } else { ObjectId(parent) }
    }

    fn lookup_entry(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<Found> {
        let known = DentryKey::new(dir.ino.0, dir.generation, name);
        if let Some(known) = &known
            && let Some(dentry) = self.remembered(dir, known)?
        {
            return judge(cred, &dentry);
        }
        check_name(name)?;
        let seen = self.find(cred, dir, &EntryKey::new(self.seed, name))?;
        if let Some(known) = &known {
            self.remember(dir, known, &seen)?;
        }
        seen.found.ok_or(FsError::NotFound)
    }

    /// What the session knows of a name. It was true at the version that the directory has now, so no
    /// second look is needed.
    #[inline]
    fn remembered(&self, dir: InodeRef, key: &DentryKey<'_>) -> Result<Option<Dentry>> {
        let version = &self.store.icore(dir.object())?.version;
        let version = version.load(Ordering::Acquire);
        Ok(self.store.session().dentry(key, version))
    }

    /// Tells the session what was seen, if the directory is still as it was then.
    fn remember(&self, dir: InodeRef, key: &DentryKey<'_>, seen: &Seen) -> Result<()> {
        let attrs = self.attrs(dir)?;
        fence(Ordering::Acquire);
        let version = &self.store.icore(dir.object())?.version;
        if version.load(Ordering::Relaxed) != seen.version {
            return Ok(());
        }
        let found = seen.found.map(|found| DentryTarget {
            object: found.node.ino.0,
            generation: found.node.generation,
            kind: found.file_type.dirent_type(),
        });
        let dentry = Dentry {
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            found,
        };
        self.store
            .session()
            .remember_dentry(key, seen.version, &dentry);
        Ok(())
    }

    /// Looks a name up. For a change the result has to be checked again under the locks.
    pub(crate) fn find(&self, cred: &Cred, dir: InodeRef, key: &EntryKey) -> Result<Seen> {
        self.resolve(dir, || {
            check_search(cred, &self.attrs(dir)?)?;
            let entry = self.entry(dir.object(), key)?;
            if entry.is_some_and(|entry| entry.object == dir.object()) {
                return Err(FsError::corrupt(
                    dir.object(),
                    "the directory contains itself",
                ));
            }
            Ok(entry)
        })
    }

    /// Reads an entry and then the incarnation of its inode. Both belong together if nobody changed
    /// the directory meanwhile.
    fn resolve(&self, dir: InodeRef, read: impl Fn() -> Result<Option<Entry>>) -> Result<Seen> {
        let version = &self.store.icore(dir.object())?.version;
        for _ in 0..RESOLVE_TRIES {
            let before = version.load(Ordering::Acquire);
            let found = read().and_then(|entry| entry.map(|entry| self.found(entry)).transpose());
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && version.load(Ordering::Relaxed) == before {
                return found.map(|found| Seen {
                    found,
                    version: before,
                });
            }
        }
        self.resolve_locked(dir, read)
    }

    /// Does the same in a directory that never rests.
    fn resolve_locked(
        &self,
        dir: InodeRef,
        read: impl Fn() -> Result<Option<Entry>>,
    ) -> Result<Seen> {
        let version = NO_VERSION;
        loop {
            let Some(entry) = self.stable(dir, &read)? else {
                let found = None;
                return Ok(Seen { found, version });
            };
            let _guards = self.store.lock_pair(dir.object(), entry.object)?;
            if read()? == Some(entry) {
                let found = Some(self.found(entry)?);
                return Ok(Seen { found, version });
            }
        }
    }

    /// One plain load: a number gets another generation only after the entry is gone, which shows
    /// in the version of the directory.
    fn found(&self, entry: Entry) -> Result<Found> {
        let generation = self.store.generation(entry.object)?;
        let ino = ino_of(entry.object);
        Ok(Found {
            node: InodeRef { ino, generation },
            file_type: entry.file_type,
        })
    }

    /// Under the locks of the directory and of what was found: it is still there.
    pub(crate) fn still_found(&self, dir: InodeRef, key: &EntryKey, seen: &Seen) -> Result<bool> {
        let version = &self.store.icore(dir.object())?.version;
        if version.load(Ordering::Relaxed) == seen.version {
            return Ok(true);
        }
        let entry = self.entry(dir.object(), key)?;
        match (entry, seen.found) {
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
        let mut here = object_of(dir);
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
            let before = version.load(Ordering::Acquire);
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
            if before.is_multiple_of(2) && version.load(Ordering::Acquire) == before {
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
                    Some((key_hash, name)) if key_hash == hash => match Entry::decode(dir, value) {
                        Ok(entry) if entry.object == child => found = Ok(Some(name.to_vec())),
                        Ok(_) => return ControlFlow::Continue(()),
                        Err(error) => found = Err(error),
                    },
                    _ => {}
                }
                ControlFlow::Break(())
            },
        )?;
        found
    }
}

/// What a remembered name means to the caller.
#[inline]
fn judge(cred: &Cred, dentry: &Dentry) -> Result<Found> {
    let dir = Guarded {
        mode: dentry.mode,
        uid: dentry.uid,
        gid: dentry.gid,
    };
    check_access(cred, dir, Access::EXEC)?;
    let target = dentry.found.ok_or(FsError::NotFound)?;
    let what = "a remembered name has no file type";
    let file_type = FileType::from_dirent(target.kind);
    Ok(Found {
        node: InodeRef {
            ino: Ino(target.object),
            generation: target.generation,
        },
        file_type: file_type.ok_or_else(|| FsError::Corrupt(what.into()))?,
    })
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
