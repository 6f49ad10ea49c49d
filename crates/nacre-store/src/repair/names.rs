//! Names, links and counts of a pool whose structures are sound.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

use nacre_types::{ObjectId, StoreKind, Timestamp, VolumeOffset};
use zerocopy::IntoBytes;

use super::Outcome;
use crate::check::kind_of;
use crate::error::Result;
use crate::keyed::layout::Kind;
use crate::layout::{
    EntryValue, ONODES_PER_BLOCK, RawOnode, Tree, entry_hash, entry_key, is_name, split_entry_key,
};
use crate::object::onode::{NewObject, onode_crc};
use crate::recovery::scan::for_each_object;
use crate::store::Store;
use crate::tx::Tx;

const DIRECTORY: u8 = 4;
const ROOT: u64 = ObjectId::ROOT.0;

/// What is known of an object number.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub(super) kind: u8,
    nlink: u32,
    pub(super) links: u32,
    subdirectories: u32,
    /// Directories: whether there is anything in it.
    full: bool,
    /// Directories: who names it, by which key.
    named: Option<(u64, Vec<u8>)>,
}

/// What to do with an entry.
struct Change {
    dir: u64,
    key: Vec<u8>,
    /// Under which key and with which value it stays.
    instead: Option<(Vec<u8>, EntryValue)>,
    what: String,
}

impl Change {
    fn dropping(dir: u64, key: Vec<u8>, why: &str) -> Change {
        let name = lossy(key.get(8..).unwrap_or_default());
        let what = format!("entry {name:?} dropped: {why}");
        Change {
            dir,
            key,
            instead: None,
            what,
        }
    }
}

/// One round; true when something was, or would be, changed.
pub(super) fn put_right(store: &Store, dry_run: bool, outcome: &mut Outcome) -> Result<bool> {
    let mut names = Names {
        store,
        dry_run,
        outcome,
        known: vec![Known::default(); (store.block_count() * ONODES_PER_BLOCK) as usize],
    };
    names.objects();
    let changes = names.entries()?;
    if !changes.is_empty() {
        changes.iter().try_for_each(|change| names.change(change))?;
        return Ok(true);
    }
    let changes = names.circles();
    if !changes.is_empty() {
        changes.iter().try_for_each(|change| names.change(change))?;
        return Ok(true);
    }
    if names.put_links_right()? {
        return Ok(true);
    }
    let lost = names.lost();
    if !lost.is_empty() {
        names.find_again(&lost)?;
        return Ok(true);
    }
    names.counts()
}

pub(super) struct Names<'n> {
    pub(super) store: &'n Store,
    pub(super) dry_run: bool,
    pub(super) outcome: &'n mut Outcome,
    pub(super) known: Vec<Known>,
}

impl Names<'_> {
    fn each(&self, visit: &mut dyn FnMut(ObjectId, VolumeOffset, RawOnode)) {
        for_each_object(self.store, &mut |id, at| {
            if let Ok(raw) = self.store.raw_onode(at) {
                visit(id, at, raw);
            }
        });
    }

    fn objects(&mut self) {
        let mut known = std::mem::take(&mut self.known);
        self.each(&mut |id, _, raw| {
            let known = &mut known[id.0 as usize];
            (known.kind, known.nlink) = (kind_of(raw.mode.get()), raw.nlink.get());
        });
        self.known = known;
    }

    fn directories(&self) -> impl Iterator<Item = u64> + use<> {
        let found = self.known.iter().enumerate();
        let found = found.filter(|(_, known)| known.kind == DIRECTORY);
        found
            .map(|(id, _)| id as u64)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Looks at all entries; counts those that stay.
    fn entries(&mut self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for dir in self.directories() {
            let mut all = Vec::new();
            let id = ObjectId(dir);
            self.store
                .tree_scan(id, Tree::Entries, &[], &mut |key, value, _| {
                    all.push((key.to_vec(), value.to_vec()));
                    ControlFlow::Continue(())
                })?;
            self.known[dir as usize].full = !all.is_empty();
            for (key, value) in all {
                changes.extend(self.entry(dir, key, &value)?);
            }
        }
        Ok(changes)
    }

    /// What is to be done with an entry; counts it if it stays.
    fn entry(&mut self, dir: u64, key: Vec<u8>, value: &[u8]) -> Result<Option<Change>> {
        let (hash, name, value) = match self.possible(dir, &key, value) {
            Ok(possible) => possible,
            Err(why) => return Ok(Some(Change::dropping(dir, key, why))),
        };
        let correct = EntryValue {
            kind: self.known[value.object.0 as usize].kind,
            ..value
        };
        if entry_hash(self.store.dir_seed(), name) != hash {
            let name = name.to_vec();
            return self
                .put_under_right_hash(dir, key, &name, correct)
                .map(Some);
        }
        let what = format!("entry {:?} given the type of its object", lossy(name));
        self.count(dir, &key, correct);
        Ok((correct != value).then(|| Change {
            dir,
            instead: Some((key.clone(), correct)),
            key,
            what,
        }))
    }

    /// Hash, name and value of an entry that may stand there; else why it may not.
    fn possible<'k>(
        &self,
        dir: u64,
        key: &'k [u8],
        value: &[u8],
    ) -> std::result::Result<(u64, &'k [u8], EntryValue), &'static str> {
        let (hash, name) = split_entry_key(key)
            .filter(|(_, name)| is_name(name))
            .ok_or("no directory may hold such a name")?;
        let value = EntryValue::decode(value).ok_or("it cannot be decoded")?;
        let target = self
            .known
            .get(value.object.0 as usize)
            .ok_or("no object can have its number")?;
        if target.kind == 0 {
            return Err("its object does not exist");
        }
        let again = target.kind == DIRECTORY && target.named.is_some();
        match value.object.0 == ROOT || value.object.0 == dir || again {
            true => Err("its directory has another place"),
            false => Ok((hash, name, value)),
        }
    }

    fn put_under_right_hash(
        &self,
        dir: u64,
        key: Vec<u8>,
        name: &[u8],
        value: EntryValue,
    ) -> Result<Change> {
        let (mut fresh, mut there) = (Vec::new(), Vec::new());
        entry_key(entry_hash(self.store.dir_seed(), name), name, &mut fresh);
        let id = ObjectId(dir);
        if self.store.tree_get(id, Tree::Entries, &fresh, &mut there)? {
            let why = "its hash is wrong and the name is taken";
            return Ok(Change::dropping(dir, key, why));
        }
        let what = format!("entry {:?} put under its right hash", lossy(name));
        let instead = Some((fresh, value));
        Ok(Change {
            dir,
            key,
            instead,
            what,
        })
    }

    /// An entry stays where it is.
    fn count(&mut self, dir: u64, key: &[u8], value: EntryValue) {
        let target = &mut self.known[value.object.0 as usize];
        target.links += 1;
        if target.kind == DIRECTORY {
            target.named = Some((dir, key.to_vec()));
            self.known[dir as usize].subdirectories += 1;
        }
    }

    fn change(&mut self, change: &Change) -> Result<()> {
        self.outcome
            .note(Some(ObjectId(change.dir)), None, change.what.clone());
        if self.dry_run {
            return Ok(());
        }
        let id = ObjectId(change.dir);
        let _guard = self.store.lock(id)?;
        let mut tx = self.store.begin()?;
        tx.tree_remove(id, Tree::Entries, &change.key)?;
        if let Some((key, value)) = &change.instead {
            tx.tree_insert(id, Tree::Entries, key, &value.encode())?;
        }
        tx.commit()
    }

    /// Directories that lead in a circle: one entry of each is dropped.
    fn circles(&self) -> Vec<Change> {
        let mut done = HashSet::from([ROOT]);
        let mut changes = Vec::new();
        for start in self.directories() {
            let mut way = Vec::new();
            let mut here = start;
            while done.insert(here) {
                way.push(here);
                match &self.known[here as usize].named {
                    Some((parent, _)) => here = *parent,
                    None => break,
                }
            }
            let Some(first) = way.iter().position(|id| *id == here) else {
                continue;
            };
            if let Some((dir, key)) = &self.known[way[first] as usize].named {
                changes.push(Change {
                    dir: *dir,
                    key: key.clone(),
                    instead: None,
                    what: format!("entry for object {} dropped: it is in a circle", way[first]),
                });
            }
        }
        changes
    }

    /// Objects that no entry names, and that nobody wanted to remove.
    fn lost(&self) -> Vec<u64> {
        let all = (0..).zip(&self.known);
        all.filter(|(id, known)| {
            let wanted = known.nlink > 0 || known.full;
            known.kind != 0 && known.links == 0 && wanted && *id != ROOT
        })
        .map(|(id, _)| id)
        .collect()
    }

    fn find_again(&mut self, lost: &[u64]) -> Result<()> {
        let kind_of = |id: u64| Kind::from_number(self.known[id as usize].kind);
        let kinds: Vec<_> = lost.iter().map(|&id| (ObjectId(id), kind_of(id))).collect();
        for &(id, kind) in &kinds {
            let what = match kind {
                Some(Kind::Layer | Kind::Value) => "removed: its key was lost",
                Some(Kind::Registry) => "nothing named it",
                _ => "had no name: put into lost+found",
            };
            self.outcome.note(Some(id), None, what.to_owned());
        }
        if self.dry_run {
            return Ok(());
        }
        let mut folder = None;
        for (id, kind) in kinds {
            match (kind, folder) {
                (Some(kind), _) => self.find_place(id, kind)?,
                (None, Some(folder)) => self.adopt(folder, id)?,
                (None, None) => {
                    let made = self.lost_and_found()?;
                    folder = Some(made);
                    self.adopt(made, id)?;
                }
            }
        }
        Ok(())
    }

    /// The folder for what had no name, made if there is none.
    fn lost_and_found(&mut self) -> Result<ObjectId> {
        for number in 0u64.. {
            let name = match number {
                0 => "lost+found".to_owned(),
                _ => format!("lost+found {number}"),
            };
            let (hash, key) = self.key(name.as_bytes());
            let mut value = Vec::new();
            let root = ObjectId::ROOT;
            if !self.store.tree_get(root, Tree::Entries, &key, &mut value)? {
                return self.make_folder(hash, &key);
            }
            let found = EntryValue::decode(&value).map(|value| value.object);
            if let Some(id) = found
                && self
                    .known
                    .get(id.0 as usize)
                    .is_some_and(|k| k.kind == DIRECTORY)
            {
                return Ok(id);
            }
        }
        Err(crate::error::StoreError::NoObjects)
    }

    fn key(&self, name: &[u8]) -> (u64, Vec<u8>) {
        let hash = entry_hash(self.store.dir_seed(), name);
        let mut key = Vec::new();
        entry_key(hash, name, &mut key);
        (hash, key)
    }

    fn make_folder(&self, hash: u64, key: &[u8]) -> Result<ObjectId> {
        let root = ObjectId::ROOT;
        let _guard = self.store.lock(root)?;
        let mut tx = self.store.begin()?;
        let id = tx.create(&NewObject {
            mode: 0o040_700,
            nlink: 2,
            parent: ROOT,
            parent_key: hash,
            time: Timestamp::now().0,
            ..NewObject::default()
        })?;
        let value = EntryValue {
            object: id,
            kind: DIRECTORY,
        };
        tx.tree_insert(root, Tree::Entries, key, &value.encode())?;
        tx.set_attrs(root, |attrs| attrs.nlink += 1)?;
        tx.commit()?;
        Ok(id)
    }

    /// Gives an object a name in a folder, and the links that it then has.
    fn adopt(&mut self, folder: ObjectId, id: ObjectId) -> Result<()> {
        let kind = self.known[id.0 as usize].kind;
        let _guards = self.store.lock_many(&[folder, id])?;
        let mut tx = self.store.begin()?;
        let hash = self.free_name(&mut tx, folder, id, kind)?;
        if kind == DIRECTORY {
            tx.set_attrs(folder, |attrs| attrs.nlink = attrs.nlink.saturating_add(1))?;
        }
        tx.set_attrs(id, |attrs| match kind {
            DIRECTORY => (attrs.parent, attrs.parent_key) = (folder.0, hash),
            _ => attrs.nlink = 1,
        })?;
        tx.commit()
    }

    fn free_name(&self, tx: &mut Tx<'_>, folder: ObjectId, id: ObjectId, kind: u8) -> Result<u64> {
        let value = EntryValue { object: id, kind };
        for number in 0u64.. {
            let name = match number {
                0 => format!("#{id}"),
                _ => format!("#{id} {number}"),
            };
            let (hash, key) = self.key(name.as_bytes());
            let mut there = Vec::new();
            if !self
                .store
                .tree_get(folder, Tree::Entries, &key, &mut there)?
            {
                tx.tree_insert(folder, Tree::Entries, &key, &value.encode())?;
                return Ok(hash);
            }
        }
        Err(crate::error::StoreError::NoObjects)
    }

    /// Link counts, parents, counts of keys.
    fn counts(&mut self) -> Result<bool> {
        let mut wrong = BTreeMap::new();
        let mut failed = Ok(());
        self.each(&mut |id, at, raw| {
            let mut right = raw;
            let done = self.count_one(id, &mut right);
            if failed.is_ok() {
                failed = done;
            }
            if right.as_bytes() != raw.as_bytes() {
                wrong.insert(id, (at, raw, right));
            }
        });
        failed?;
        for (&id, (at, before, after)) in &mut wrong {
            let what = format!(
                "links {} -> {}, attributes {} -> {}, parent {} -> {}",
                before.nlink, after.nlink, before.xattrs, after.xattrs, before.parent, after.parent
            );
            self.outcome.note(Some(id), Some(*at), what);
            if self.dry_run {
                continue;
            }
            after.crc = onode_crc(after).into();
            let mut tx = self.store.begin()?;
            tx.put_bytes(at.add(64), &after.as_bytes()[64..], StoreKind::Metadata);
            tx.commit()?;
        }
        Ok(!wrong.is_empty())
    }

    fn count_one(&self, id: ObjectId, raw: &mut RawOnode) -> Result<()> {
        let known = &self.known[id.0 as usize];
        let mut keys = 0;
        self.store
            .tree_scan(id, Tree::Xattrs, &[], &mut |_, _, _| {
                keys += 1;
                ControlFlow::Continue(())
            })?;
        raw.xattrs = keys.into();
        if known.links == 0 && known.nlink == 0 && id.0 != ROOT {
            return Ok(());
        }
        if known.kind != DIRECTORY {
            raw.nlink = known.links.into();
            return Ok(());
        }
        raw.nlink = known.subdirectories.saturating_add(2).into();
        match &known.named {
            _ if id.0 == ROOT => raw.parent = ROOT.into(),
            Some((dir, key)) => {
                raw.parent = (*dir).into();
                let hash = split_entry_key(key).map_or(0, |(hash, _)| hash);
                raw.parent_key = hash.into();
            }
            None => {}
        }
        Ok(())
    }
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
