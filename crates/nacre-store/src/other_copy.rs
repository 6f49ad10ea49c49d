//! Metadata that is damaged on the copy that is read comes from another one (D113).
//!
//! Whoever finds a structure damaged asks for it and looks once more, in the same call. All of this
//! is off the way of what is sound: it is called where an error would be made.

use nacre_types::{ObjectId, UNIT_SIZE, UnitNo, VolumeOffset};
use zerocopy::FromBytes;

use crate::error::{Result, StoreError};
use crate::layout::{ONODE_SIZE, RawOnode, Tree, owner_of_map};
use crate::node::{NODE_BYTES, NodeBytes, verify};
use crate::placed_word::repair;
use crate::store::Store;
use crate::tree::{LongValue, TreeId, TreePart, walk};
use crate::worth::is_sound;

impl Store {
    /// As [`repair`], not for who may only read.
    #[cold]
    fn repair_copies(&self, at: VolumeOffset, len: u64, is_right: &dyn Fn(&[u8]) -> bool) -> bool {
        self.writable && repair(&self.volume, at, len, is_right)
    }

    /// Repairs the onode of an object, of which any part is at `at`.
    #[cold]
    #[inline(never)]
    pub(crate) fn repair_onode_copies(&self, id: ObjectId, at: VolumeOffset) -> bool {
        let onode = VolumeOffset(at.0 / ONODE_SIZE as u64 * ONODE_SIZE as u64);
        self.repair_copies(onode, ONODE_SIZE as u64, &|copy| {
            let raw = RawOnode::read_from_bytes(copy);
            raw.is_ok_and(|raw| raw.mode.get() != 0 && is_sound(owner_of_map(id), &raw))
        })
    }

    /// Repairs a node of a tree.
    #[cold]
    #[inline(never)]
    pub(crate) fn repair_node_copies(&self, which: TreeId, unit: UnitNo) -> bool {
        self.is_unit(unit.0)
            && self.repair_copies(unit.offset(), NODE_BYTES as u64, &|copy| {
                let node: std::result::Result<&NodeBytes, _> = copy.try_into();
                node.is_ok_and(|node| verify(node, unit, which.object, which.tree).is_ok())
            })
    }

    /// Repairs a value that lies out of line.
    #[cold]
    #[inline(never)]
    pub(crate) fn repair_value_copies(&self, value: LongValue) -> bool {
        let bytes = value.run().count * UNIT_SIZE;
        self.repair_copies(value.start.offset(), bytes, &|copy| value.is_in(copy))
    }

    /// Repairs a word of a block map, which `is_right` knows to be one now.
    #[cold]
    #[inline(never)]
    pub(crate) fn repair_map_copies(
        &self,
        at: VolumeOffset,
        is_right: &dyn Fn(u64) -> bool,
    ) -> bool {
        self.repair_copies(at, size_of::<u64>() as u64, &|copy| {
            u64::read_from_bytes(copy).is_ok_and(|word| is_right(u64::from_le(word)))
        })
    }

    /// Repairs what describes an object: its onode and its trees, all of them. For who finds that
    /// what it reads of an object cannot be, though no checksum was wrong: each is compared when it
    /// is read first, and damage may come later. Answers whether anything was repaired.
    #[cold]
    pub fn repair_object_copies(&self, id: ObjectId) -> bool {
        if !self.volume.has_copies() {
            return false;
        }
        let Ok(onode) = self.onode_at(id) else {
            return false;
        };
        let mut repaired = self.repair_onode_copies(id, onode);
        for tree in [Tree::Entries, Tree::Xattrs] {
            let which = TreeId { object: id, tree };
            let Ok(Some(root)) = self.tree_root(id, onode, tree) else {
                continue;
            };
            let mut seen = std::collections::HashSet::from([root]);
            repaired |= self.repair_node_copies(which, UnitNo(root));
            let mut visit = |part| match part {
                TreePart::Node(unit, level) => {
                    repaired |= self.repair_node_copies(which, unit);
                    level > 0 && (seen.insert(unit.0) || unit.0 == root)
                }
                TreePart::Value(_) => true,
            };
            walk(self, id, tree, UnitNo(root), &mut visit, &mut |_| ());
        }
        repaired
    }

    /// Does once more what met damage, which may be repaired by now.
    #[cold]
    #[inline(never)]
    pub(crate) fn once_more<T>(
        &self,
        error: StoreError,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match error {
            StoreError::Corrupt(_) if self.volume.has_copies() => work(),
            error => Err(error),
        }
    }
}
