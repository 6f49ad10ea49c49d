//! Listing directories.
//!
//! A cookie is a place in the order of name hashes: 0 is before `.`, 1 before `..`, others before
//! the first entry with at least this hash. So cookies stay good whatever is made or removed.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef, is_directory};
use crate::live::{LiveEntry, check_linked};
use nacre_store::{Attrs, Tree, layout};
use nacre_types::{Ino, ObjectId};
use std::ops::ControlFlow;

const COOKIE_DOT_DOT: u64 = 1;
/// No name hashes to less.
const COOKIE_NAMES: u64 = 2;
/// All names hash to less.
const COOKIE_END: u64 = 1 << 62;

/// One name of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Type of the inode.
    pub file_type: FileType,
    /// The name, without a terminator.
    pub name: &'a [u8],
    /// Where to go on behind this entry.
    pub next_cookie: u64,
}

/// Takes entries that must not be separated; false refuses all of them and ends the listing.
pub type DirSink<'s> = dyn FnMut(&[DirEntry<'_>]) -> bool + 's;

/// Entries with the same hash, until the next hash shows that they are complete.
#[derive(Default)]
struct Group {
    hash: u64,
    names: Vec<u8>,
    entries: Vec<(LiveEntry, usize)>,
}

impl Group {
    fn add(&mut self, hash: u64, name: &[u8], entry: LiveEntry) {
        self.hash = hash;
        self.names.extend_from_slice(name);
        self.entries.push((entry, self.names.len()));
    }

    /// Hands the group over; false when it was refused.
    fn deliver(&mut self, sink: &mut DirSink<'_>) -> bool {
        let mut start = 0;
        let hash = self.hash;
        let mut view = |&(entry, end): &(LiveEntry, usize)| {
            let name = &self.names[start..end];
            start = end;
            dir_entry(entry, name, hash)
        };
        let taken = match self.entries.as_slice() {
            [] => true,
            [only] => sink(&[view(only)]),
            several => sink(&several.iter().map(view).collect::<Vec<_>>()),
        };
        self.names.clear();
        self.entries.clear();
        taken
    }
}

impl Fs {
    /// Lists a directory from `cookie` on until the end or until `sink` refuses.
    pub fn readdir(&self, dir: InodeRef, cookie: u64, sink: &mut DirSink<'_>) -> Result<()> {
        let attrs = self.listable(dir)?;
        self.touch_atime(dir, attrs.atime, attrs.mtime.max(attrs.ctime))?;
        self.list(dir, &attrs, cookie, sink)
    }

    /// As [`Fs::readdir`]; the time of the last access stays.
    pub fn readdir_noatime(
        &self,
        dir: InodeRef,
        cookie: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        self.list(dir, &self.listable(dir)?, cookie, sink)
    }

    /// The attributes of what is a directory and has a name.
    fn listable(&self, dir: InodeRef) -> Result<Attrs> {
        let attrs = self.attrs(dir)?;
        if !is_directory(&attrs) {
            return Err(FsError::NotDirectory);
        }
        check_linked(&attrs)?;
        Ok(attrs)
    }

    fn list(
        &self,
        dir: InodeRef,
        attrs: &Attrs,
        cookie: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        let parent = self.parent_of(dir.object(), attrs.parent).ino();
        let dots = [(dir.ino, &b"."[..]), (parent, &b".."[..])];
        for (at, (ino, name)) in (0..=COOKIE_DOT_DOT).zip(dots) {
            let entry = DirEntry {
                ino,
                file_type: FileType::Directory,
                name,
                next_cookie: at + 1,
            };
            if at >= cookie && !sink(&[entry]) {
                return Ok(());
            }
        }
        self.list_names(dir, cookie.max(COOKIE_NAMES), sink)
    }

    fn list_names(&self, dir: InodeRef, from_hash: u64, sink: &mut DirSink<'_>) -> Result<()> {
        let mut group = Group::default();
        let mut failed = None;
        let mut refused = false;
        self.store.tree_scan(
            dir.object(),
            Tree::Entries,
            &from_hash.to_be_bytes(),
            &mut |key, value, next| {
                match collect(dir.object(), &mut group, key, value, next, sink) {
                    Ok(true) => return ControlFlow::Continue(()),
                    Ok(false) => refused = true,
                    Err(error) => failed = Some(error),
                }
                ControlFlow::Break(())
            },
        )?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !refused {
            group.deliver(sink);
        }
        Ok(())
    }
}

fn dir_entry(entry: LiveEntry, name: &[u8], hash: u64) -> DirEntry<'_> {
    DirEntry {
        ino: entry.object.ino(),
        file_type: entry.file_type,
        name,
        next_cookie: hash + 1,
    }
}

/// Adds an entry to its group, delivering the one before; an entry that the next key shows to be
/// alone goes straight to the sink. False: the sink refused.
#[inline]
fn collect(
    dir: ObjectId,
    group: &mut Group,
    key: &[u8],
    value: &[u8],
    next: Option<&[u8]>,
    sink: &mut DirSink<'_>,
) -> Result<bool> {
    let (hash, name) = layout::split_entry_key(key)
        .filter(|&(hash, name)| hash < COOKIE_END && layout::is_name(name))
        .ok_or_else(|| FsError::corrupt(dir, "a directory entry has no possible name"))?;
    let entry = LiveEntry::decode(dir, value)?;
    let waits = !group.entries.is_empty();
    if waits && hash != group.hash && !group.deliver(sink) {
        return Ok(false);
    }
    let alone = next
        .and_then(layout::split_entry_key)
        .is_some_and(|(next, _)| next != hash);
    if alone && group.entries.is_empty() {
        return Ok(sink(&[dir_entry(entry, name, hash)]));
    }
    group.add(hash, name, entry);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{Group, collect};
    use crate::inode::FileType;
    use crate::live::LiveEntry;
    use nacre_store::layout;
    use nacre_types::ObjectId;

    /// Offers entries with these hashes, refuses when `room` entries were taken; gives what was
    /// taken.
    fn deliver(hashes: &[u64], room: usize) -> Vec<(Vec<u8>, u64)> {
        let mut taken = Vec::new();
        let mut sink = |group: &[super::DirEntry<'_>]| {
            if taken.len() + group.len() > room {
                return false;
            }
            taken.extend(group.iter().map(|e| (e.name.to_vec(), e.next_cookie)));
            true
        };
        let mut group = Group::default();
        let mut going = true;
        let mut keys = vec![Vec::new(); hashes.len()];
        for (index, (key, &hash)) in keys.iter_mut().zip(hashes).enumerate() {
            layout::entry_key(hash, &[b'a' + index as u8], key);
        }
        for (index, key) in keys.iter().enumerate() {
            let object = ObjectId(index as u64 + 1);
            // Every third entry is the last of its leaf.
            let next = keys.get(index + 1).filter(|_| index % 3 != 2);
            let file_type = FileType::Regular;
            let value = LiveEntry { object, file_type }.encode();
            let next = next.map(Vec::as_slice);
            going = going
                && collect(ObjectId(1), &mut group, key, &value, next, &mut sink).expect("entry");
        }
        if going {
            group.deliver(&mut sink);
        }
        taken
    }

    #[test]
    fn equal_hashes_are_never_separated() {
        let a = (b"a".to_vec(), 6);
        let (b, c, d) = ((b"b".to_vec(), 8), (b"c".to_vec(), 8), (b"d".to_vec(), 10));
        assert_eq!(deliver(&[5, 7, 7, 9], 2), std::slice::from_ref(&a));
        assert_eq!(deliver(&[5, 7, 7, 9], 3), [a.clone(), b.clone(), c.clone()]);
        assert_eq!(deliver(&[5, 7, 7, 9], 4), [a, b, c, d]);
    }

    #[test]
    fn damaged_entries_are_refused() {
        let mut group = Group::default();
        assert!(collect(ObjectId(1), &mut group, b"short", &[], None, &mut |_| true).is_err());
        assert!(
            collect(
                ObjectId(1),
                &mut group,
                &[0; 20],
                &[1; 3],
                None,
                &mut |_| true
            )
            .is_err()
        );
        assert!(
            collect(
                ObjectId(1),
                &mut group,
                &[0; 20],
                &[9; 9],
                None,
                &mut |_| true
            )
            .is_err()
        );
    }

    #[test]
    fn names_and_hashes_that_cannot_be_are_refused() {
        let object = ObjectId(7);
        let file_type = FileType::Regular;
        let value = LiveEntry { object, file_type }.encode();
        let long = [b'n'; 256];
        let names: [&[u8]; 6] = [b"a/b", b"a\0b", b"", b".", b"..", &long];
        let mut key = Vec::new();
        for (hash, name) in names
            .map(|name| (5, name))
            .into_iter()
            .chain([(u64::MAX, &b"n"[..])])
        {
            layout::entry_key(hash, name, &mut key);
            let mut group = Group::default();
            let refused = collect(ObjectId(1), &mut group, &key, &value, None, &mut |_| true);
            assert!(refused.is_err(), "{hash} {name:?}");
        }
    }
}
