//! What collections, objects and layers name.

use std::ops::ControlFlow;

use nacre_types::{ObjectId, VolumeOffset};

use super::Check;
use crate::keyed::layout::{Kind, Link};
use crate::keyed::{named_by, registry_of};
use crate::layout::Tree;

/// Most damaged keys of an onode that are reported.
const MAX_BROKEN: usize = 16;

impl Check<'_> {
    /// The root directory's onode may name the registry.
    pub(super) fn check_registry(&mut self, id: ObjectId, onode: VolumeOffset) {
        if let Some(link) = registry_of(self.store) {
            let hash = 0;
            let sound = self.links.entry(id, hash, link.object, link.kind as u8);
            if !sound || !self.is_generation(link) {
                self.problem(
                    id,
                    onode,
                    "names a registry of collections that does not exist",
                );
            }
        }
    }

    /// Notes what the trees of an onode name.
    pub(super) fn check_links_of(&mut self, id: ObjectId, onode: VolumeOffset, kind: Kind) {
        self.report.counts.keyed += u64::from(kind == Kind::Object);
        let mut broken = Vec::new();
        for tree in [Tree::Entries, Tree::Xattrs] {
            let mut found = Vec::new();
            // An error was reported by the tree's own check.
            let _reported = self.store.tree_scan(id, tree, &[], &mut |key, item, _| {
                match named_by(kind, tree, key, item) {
                    Ok(Some(link)) => found.push((key.to_vec(), link)),
                    Ok(None) => {}
                    Err(()) => broken.push(key.to_vec()),
                }
                ControlFlow::Continue(())
            });
            for (key, link) in found {
                let sound = self.links.link(id, kind, link);
                if !sound || !self.is_generation(link) {
                    broken.push(key);
                }
            }
        }
        for key in broken.into_iter().take(MAX_BROKEN) {
            let key = String::from_utf8_lossy(&key).into_owned();
            self.problem(id, onode, format!("what key {key:?} stands for is damaged"));
        }
    }

    fn is_generation(&self, link: Link) -> bool {
        let generation = self.store.generation(link.object);
        generation.is_ok_and(|generation| generation == link.generation)
    }
}
