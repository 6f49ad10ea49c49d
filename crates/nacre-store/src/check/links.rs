//! Directory entries against link counts, and directories against their parents.

use std::collections::HashMap;

use nacre_types::ObjectId;

use super::Check;
use crate::keyed::layout::{Kind, Link};
use crate::keyed::may_stand_below;
use crate::object::onode::Attrs;

const TYPE_MASK: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// No type: entries for one object say different ones.
const MIXED: u8 = u8::MAX;

/// What is known of an object number after all objects were looked at.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Entries that name it.
    links: u32,
    /// Its type as in `d_type`; 0: there is no such object.
    kind: u8,
    /// The type that entries say; 0: none yet, [`MIXED`]: they do not agree.
    named_kind: u8,
}

/// A directory: what it says of itself and what entries say of it.
#[derive(Clone, Copy, Default)]
struct Directory {
    parent: u64,
    parent_key: u64,
    named_in: u64,
    named_key: u64,
    subdirectories: u32,
    has_entries: bool,
}

/// Links of all objects.
pub(super) struct Links {
    known: Vec<Known>,
    nlinks: Vec<u32>,
    directories: HashMap<u64, Directory>,
    layers: HashMap<u64, Layer>,
}

/// What is above a layer, and which kinds it names.
#[derive(Clone, Default)]
struct Layer {
    above: u64,
    names: Vec<Kind>,
}

impl Links {
    pub(super) fn new(objects: u64) -> Self {
        Self {
            known: vec![Known::default(); objects as usize],
            nlinks: vec![0; objects as usize],
            directories: HashMap::new(),
            layers: HashMap::new(),
        }
    }

    /// Notes what an onode of this kind names.
    pub(super) fn link(&mut self, of: ObjectId, kind: Kind, link: Link) -> bool {
        if link.kind == Kind::Layer {
            self.layers.entry(link.object.0).or_default().above = of.0;
        }
        if kind == Kind::Layer {
            let names = &mut self.layers.entry(of.0).or_default().names;
            if !names.contains(&link.kind) {
                names.push(link.kind);
            }
        }
        self.entry(of, 0, link.object, link.kind as u8)
    }

    /// Layers in circles, and those that name what cannot be there.
    fn misplaced_layers(&self) -> Vec<u64> {
        let above = |layer: &Layer| {
            let mut above = layer.above;
            for _ in 0..=self.layers.len() {
                match self.layers.get(&above) {
                    Some(layer) => above = layer.above,
                    None => return Kind::from_number(self.known.get(above as usize)?.kind),
                }
            }
            None
        };
        let misplaced = |layer: &Layer| {
            let above = above(layer);
            let fits = |&kind: &Kind| above.is_some_and(|above| may_stand_below(above, kind));
            !layer.names.iter().all(fits)
        };
        let layers = self.layers.iter().filter(|(_, layer)| misplaced(layer));
        layers.map(|(&id, _)| id).collect()
    }

    /// Notes an object that exists.
    pub(super) fn object(&mut self, id: ObjectId, attrs: &Attrs) {
        self.known[id.0 as usize].kind = kind_of(attrs.mode);
        self.nlinks[id.0 as usize] = attrs.nlink;
        if is_directory(attrs.mode) {
            let directory = self.directories.entry(id.0).or_default();
            directory.parent = attrs.parent;
            directory.parent_key = attrs.parent_key;
            directory.has_entries = attrs.has_entries;
        }
    }

    /// Notes an entry; `false` when it names a number that no object can have.
    pub(super) fn entry(
        &mut self,
        parent: ObjectId,
        hash: u64,
        target: ObjectId,
        kind: u8,
    ) -> bool {
        let Some(known) = self.known.get_mut(target.0 as usize) else {
            return false;
        };
        known.links = known.links.saturating_add(1);
        known.named_kind = match known.named_kind {
            0 => kind,
            same if same == kind => kind,
            _ => MIXED,
        };
        if kind == kind_of(DIRECTORY) {
            let directory = self.directories.entry(target.0).or_default();
            directory.named_in = parent.0;
            directory.named_key = hash;
            self.directories.entry(parent.0).or_default().subdirectories += 1;
        }
        true
    }
}

/// The type bits of a mode as in `d_type`.
pub(crate) fn kind_of(mode: u32) -> u8 {
    (mode >> 12 & 15) as u8
}

pub(super) fn is_directory(mode: u32) -> bool {
    mode & TYPE_MASK == DIRECTORY
}

impl Check<'_> {
    pub(super) fn check_links(&mut self) {
        for index in 1..self.links.known.len() {
            let id = ObjectId(index as u64);
            let known = self.links.known[index];
            if known.kind == 0 {
                if known.links > 0 {
                    let what = format!("does not exist, but {} entries name it", known.links);
                    self.report.problem(Some(id), None, what);
                }
            } else if known.kind == kind_of(DIRECTORY) {
                self.check_directory(id, known);
            } else if known.links > 1 && Kind::from_number(known.kind).is_some() {
                let what = format!("is named {} times instead of once", known.links);
                self.wrong(id, what);
            } else {
                self.check_file(id, known);
            }
        }
        for id in self.links.misplaced_layers() {
            let what = "layer leads in a circle or names what cannot be there";
            self.wrong(ObjectId(id), what.to_owned());
        }
        self.check_reachable();
    }

    fn check_file(&mut self, id: ObjectId, known: Known) {
        let nlink = self.links.nlinks[id.0 as usize];
        if known.links > 0 && known.named_kind != known.kind {
            self.wrong(id, "a directory entry says another type".to_owned());
        }
        self.expect_links(id, nlink, known.links);
        self.report.counts.unlinked += u64::from(nlink == 0);
    }

    fn check_directory(&mut self, id: ObjectId, known: Known) {
        self.report.counts.directories += 1;
        let directory = self
            .links
            .directories
            .get(&id.0)
            .copied()
            .unwrap_or_default();
        let nlink = self.links.nlinks[id.0 as usize];
        if nlink == 0 && known.links == 0 && id != ObjectId::ROOT && !directory.has_entries {
            self.report.counts.unlinked += 1;
            return;
        }
        let named = u32::from(id != ObjectId::ROOT);
        if known.links != named {
            self.wrong(
                id,
                format!(
                    "directory is named by {} entries instead of {named}",
                    known.links
                ),
            );
        } else if named == 1 && known.named_kind != known.kind {
            self.wrong(id, "a directory entry says another type".to_owned());
        } else if named == 1
            && (directory.parent, directory.parent_key) != (directory.named_in, directory.named_key)
        {
            let Directory {
                parent, named_in, ..
            } = directory;
            self.wrong(
                id,
                format!("directory says its parent is {parent}, but {named_in} names it"),
            );
        }
        self.expect_links(id, nlink, directory.subdirectories.saturating_add(2));
    }

    fn expect_links(&mut self, id: ObjectId, nlink: u32, found: u32) {
        if nlink != found {
            self.wrong(
                id,
                format!("link count is {nlink}, but {found} links were found"),
            );
        }
    }

    fn wrong(&mut self, id: ObjectId, what: String) {
        self.report.problem(Some(id), None, what);
    }

    /// Every directory must lead to the root by its parents.
    fn check_reachable(&mut self) {
        let parents: HashMap<u64, u64> = self
            .links
            .directories
            .iter()
            .filter(|(_, directory)| directory.named_in != 0)
            .map(|(&id, directory)| (id, directory.named_in))
            .collect();
        let mut reached: HashMap<u64, bool> = HashMap::from([(ObjectId::ROOT.0, true)]);
        let mut lost = Vec::new();
        for &id in parents.keys() {
            if !reaches_root(id, &parents, &mut reached) {
                lost.push(ObjectId(id));
            }
        }
        lost.sort();
        for id in lost {
            self.wrong(id, "directory cannot be reached from the root".to_owned());
        }
    }
}

fn reaches_root(start: u64, parents: &HashMap<u64, u64>, reached: &mut HashMap<u64, bool>) -> bool {
    let mut path = Vec::new();
    let mut at = start;
    let answer = loop {
        if let Some(&known) = reached.get(&at) {
            break known;
        }
        // Until the answer is known, meeting this directory again means a circle.
        reached.insert(at, false);
        path.push(at);
        match parents.get(&at) {
            Some(&parent) => at = parent,
            None => break false,
        }
    };
    for id in path {
        reached.insert(id, answer);
    }
    answer
}
