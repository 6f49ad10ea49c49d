//! What collections, objects and layers name, in a pool whose structures are sound.

use std::collections::HashMap;
use std::ops::ControlFlow;

use nacre_types::{ObjectId, Timestamp};

use super::names::{Known, Names};
use crate::error::Result;
use crate::keyed::layout::{Kind, Link};
use crate::keyed::{may_stand_below, named_by, registry_of};
use crate::layout::Tree;
use crate::object::onode::NewObject;

const ROOT: ObjectId = ObjectId::ROOT;
/// Name of the collection of objects that had none.
const LOST: &[u8] = b"lost+found";

/// What to do with a key.
struct Change {
    of: ObjectId,
    tree: Tree,
    key: Vec<u8>,
    /// The right value; `None`: it goes.
    instead: Option<Link>,
    why: &'static str,
}

/// What names a layer, and what it names.
struct Layer {
    above: ObjectId,
    key: Vec<u8>,
    names: Vec<Kind>,
}

impl Names<'_> {
    /// Puts right what onodes of collections name; true when something was, or would be, changed.
    pub(super) fn put_links_right(&mut self) -> Result<bool> {
        let mut changes = Vec::new();
        let mut layers = HashMap::new();
        let registry = self.count_registry()?;
        if registry.is_none() {
            return Ok(true);
        }
        for (number, kind) in self.keyed() {
            self.links_of(ObjectId(number), kind, &mut changes, &mut layers)?;
        }
        self.misplaced_layers(&layers, &mut changes);
        for change in &changes {
            self.change_key(change)?;
        }
        Ok(!changes.is_empty())
    }

    /// Counts what the root directory's onode names; `None` when that had to be changed.
    fn count_registry(&mut self) -> Result<Option<()>> {
        let Some(link) = registry_of(self.store) else {
            return Ok(Some(()));
        };
        let known = self.known.get_mut(link.object.0 as usize);
        let there = known.filter(|known| known.kind == Kind::Registry as u8);
        let right = match there {
            Some(known) if self.store.generation(link.object)? == link.generation => {
                known.links += 1;
                return Ok(Some(()));
            }
            Some(_) => Some(self.link(link.object, Kind::Registry)?),
            None => None,
        };
        self.name_registry(right, "what it said of a registry was wrong")?;
        Ok(None)
    }

    fn name_registry(&mut self, link: Option<Link>, why: &str) -> Result<()> {
        let what = match link {
            Some(link) => format!("names registry {}: {why}", link.object),
            None => format!("names no registry: {why}"),
        };
        self.outcome.note(Some(ROOT), None, what);
        if self.dry_run {
            return Ok(());
        }
        let _guard = self.store.lock(ROOT)?;
        let mut tx = self.store.begin()?;
        let bytes = link.map(Link::encode_registry);
        tx.set_inline(ROOT, bytes.as_ref().map_or(&[], |bytes| &bytes[..]))?;
        tx.commit()
    }

    fn keyed(&self) -> Vec<(u64, Kind)> {
        let all = (0..).zip(&self.known);
        all.filter_map(|(id, known)| Some((id, Kind::from_number(known.kind)?)))
            .collect()
    }

    fn link(&self, object: ObjectId, kind: Kind) -> Result<Link> {
        let generation = self.store.generation(object)?;
        Ok(Link {
            object,
            generation,
            kind,
        })
    }

    fn links_of(
        &mut self,
        of: ObjectId,
        kind: Kind,
        changes: &mut Vec<Change>,
        layers: &mut HashMap<u64, Layer>,
    ) -> Result<()> {
        for tree in [Tree::Entries, Tree::Xattrs] {
            let mut found = Vec::new();
            self.store.tree_scan(of, tree, &[], &mut |key, item, _| {
                match named_by(kind, tree, key, item) {
                    Ok(None) => {}
                    Ok(Some(link)) => found.push((key.to_vec(), Some(link))),
                    Err(()) => found.push((key.to_vec(), None)),
                }
                ControlFlow::Continue(())
            })?;
            for (key, link) in found {
                let wrong = self.judge(link)?;
                if let (None, Some(link)) = (&wrong, link) {
                    note_layer(layers, of, kind, &key, link);
                }
                changes.extend(wrong.map(|(instead, why)| Change {
                    of,
                    tree,
                    key,
                    instead,
                    why,
                }));
            }
        }
        Ok(())
    }

    /// Counts what a key names; what it should name instead, if that is wrong.
    fn judge(&mut self, link: Option<Link>) -> Result<Option<(Option<Link>, &'static str)>> {
        let Some(link) = link else {
            return Ok(Some((None, "its value cannot be")));
        };
        let target = self.known.get_mut(link.object.0 as usize);
        let Some(target) = target.filter(|target| target.kind == link.kind as u8) else {
            return Ok(Some((None, "what it names does not exist")));
        };
        if target.links > 0 {
            return Ok(Some((None, "what it names has another place")));
        }
        target.links += 1;
        let right = self.link(link.object, link.kind)?;
        Ok((right != link).then_some((Some(right), "it named an earlier object")))
    }

    /// Layers in circles, and those that name what cannot be there.
    fn misplaced_layers(&self, layers: &HashMap<u64, Layer>, changes: &mut Vec<Change>) {
        // Those that nothing names are removed later.
        for layer in layers.values().filter(|layer| layer.above.0 != 0) {
            let above = self.kind_above(layers, layer);
            let fits = |&kind: &Kind| above.is_some_and(|above| may_stand_below(above, kind));
            if !layer.names.iter().all(fits) {
                changes.push(Change {
                    of: layer.above,
                    tree: Tree::Entries,
                    key: layer.key.clone(),
                    instead: None,
                    why: "the layer below it leads in a circle or names what cannot be there",
                });
            }
        }
    }

    fn kind_above(&self, layers: &HashMap<u64, Layer>, layer: &Layer) -> Option<Kind> {
        let mut above = layer.above;
        for _ in 0..=layers.len() {
            match layers.get(&above.0) {
                Some(layer) => above = layer.above,
                None => return Kind::from_number(self.known[above.0 as usize].kind),
            }
        }
        None
    }

    fn change_key(&mut self, change: &Change) -> Result<()> {
        let key = String::from_utf8_lossy(&change.key).into_owned();
        let done = if change.instead.is_some() {
            "put right"
        } else {
            "dropped"
        };
        let what = format!("key {key:?} {done}: {}", change.why);
        self.outcome.note(Some(change.of), None, what);
        if self.dry_run {
            return Ok(());
        }
        let _guard = self.store.lock(change.of)?;
        let mut tx = self.store.begin()?;
        match change.instead {
            Some(link) => {
                tx.tree_insert(change.of, change.tree, &change.key, &link.encode())?;
            }
            None => {
                tx.tree_remove(change.of, change.tree, &change.key)?;
            }
        }
        tx.commit()
    }

    /// An onode that nothing names gets a place again; layers and values, whose keys are lost, are
    /// removed.
    pub(super) fn find_place(&mut self, id: ObjectId, kind: Kind) -> Result<()> {
        match kind {
            Kind::Layer | Kind::Value => self.remove(id),
            Kind::Registry if registry_of(self.store).is_some() => self.remove(id),
            Kind::Registry => {
                let link = self.link(id, Kind::Registry)?;
                self.name_registry(Some(link), "nothing else did")
            }
            Kind::Collection => {
                let registry = self.a_registry()?;
                let name = [LOST, format!(" #{id}").as_bytes()].concat();
                self.give_name(registry, &name, id, kind)
            }
            Kind::Object => {
                let lost = self.lost_collection()?;
                self.give_name(lost, format!("#{id}").as_bytes(), id, kind)
            }
        }
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        let _guard = self.store.lock(id)?;
        let mut tx = self.store.begin()?;
        tx.remove(id)?;
        tx.commit()
    }

    fn give_name(&self, within: ObjectId, name: &[u8], id: ObjectId, kind: Kind) -> Result<()> {
        let _guards = self.store.lock_many(&[within, id])?;
        let link = self.link(id, kind)?;
        let mut tx = self.store.begin()?;
        let mut free = name.to_vec();
        while tx.tree_get(within, Tree::Entries, &free, &mut Vec::new())? {
            free.push(b'+');
        }
        tx.tree_insert(within, Tree::Entries, &free, &link.encode())?;
        tx.set_attrs(id, |attrs| attrs.nlink = 1)?;
        tx.commit()
    }

    fn create(&mut self, kind: Kind, within: ObjectId, name: &[u8]) -> Result<ObjectId> {
        let _guard = self.store.lock(within)?;
        let mut tx = self.store.begin()?;
        let object = tx.create(&NewObject {
            mode: kind.mode(),
            nlink: 1,
            time: Timestamp::now().0,
            ..NewObject::default()
        })?;
        let generation = tx.generation(object)?;
        let link = Link {
            object,
            generation,
            kind,
        };
        match kind {
            Kind::Registry => tx.set_inline(within, &link.encode_registry())?,
            _ => drop(tx.tree_insert(within, Tree::Entries, name, &link.encode())?),
        }
        tx.commit()?;
        let len = self.known.len().max(object.0 as usize + 1);
        self.known.resize(len, Known::default());
        Ok(object)
    }

    fn a_registry(&mut self) -> Result<ObjectId> {
        match registry_of(self.store) {
            Some(link) => Ok(link.object),
            None => self.create(Kind::Registry, ROOT, &[]),
        }
    }

    /// The collection for what had no name, made if there is none.
    fn lost_collection(&mut self) -> Result<ObjectId> {
        let registry = self.a_registry()?;
        let mut item = Vec::new();
        let tree = Tree::Entries;
        if self.store.tree_get(registry, tree, LOST, &mut item)?
            && let Ok(Some(link)) = named_by(Kind::Registry, tree, LOST, &item)
        {
            return Ok(link.object);
        }
        self.create(Kind::Collection, registry, LOST)
    }
}

fn note_layer(layers: &mut HashMap<u64, Layer>, of: ObjectId, kind: Kind, key: &[u8], link: Link) {
    if link.kind == Kind::Layer {
        let layer = layers.entry(link.object.0).or_insert_with(new_layer);
        (layer.above, layer.key) = (of, key.to_vec());
    }
    if kind == Kind::Layer {
        let layer = layers.entry(of.0).or_insert_with(new_layer);
        if !layer.names.contains(&link.kind) {
            layer.names.push(link.kind);
        }
    }
}

fn new_layer() -> Layer {
    Layer {
        above: ObjectId(0),
        key: Vec::new(),
        names: Vec::new(),
    }
}
