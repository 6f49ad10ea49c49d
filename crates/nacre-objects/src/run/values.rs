//! Values of any length: short ones lie in the tree, long ones in onodes of their own.

use std::ops::ControlFlow;

use nacre_store::Tree;
use nacre_store::keyed::layout::{Item, Kind, LONG_KEY_MAX, PART_MAX, PLAIN_VALUE_MAX};
use nacre_types::{ObjectId, UNIT_SIZE};

use super::Run;
use super::keys::Before;
use crate::error::{Error, Result};

impl Run<'_, '_> {
    /// What stands for a value in a tree. The buffer is to be given back.
    fn store_value(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        let mut item = std::mem::take(&mut self.item);
        if value.len() <= PLAIN_VALUE_MAX {
            Item::encode_plain(value, &mut item);
            return Ok(item);
        }
        let link = self.create_onode(Kind::Value)?;
        self.tx.data_write(link.object, 0, value)?;
        item.clear();
        item.extend_from_slice(&link.encode());
        Ok(item)
    }

    /// What a key stood for does not stand anywhere any more.
    fn drop_before(&mut self, of: ObjectId, before: &Before) -> Result<()> {
        match before.item() {
            Some(item) => self.drop_value(of, item),
            None => Ok(()),
        }
    }

    /// What stood for a value does not any more.
    pub(super) fn drop_value(&mut self, of: ObjectId, item: &[u8]) -> Result<()> {
        if let Some(Item::Link(_)) = Item::decode(item) {
            let link = self.follow(of, item, Kind::Value)?;
            self.tx.remove(link.object)?;
        }
        Ok(())
    }

    /// The same value once more.
    pub(super) fn copy_value(&mut self, of: ObjectId, item: &[u8]) -> Result<Vec<u8>> {
        match Item::decode(item) {
            Some(Item::Plain(_)) => Ok(item.to_vec()),
            Some(Item::Link(_)) => {
                let link = self.follow(of, item, Kind::Value)?;
                let copy = self.create_onode(Kind::Value)?;
                let len = self.tx.data_size(link.object)?;
                self.tx
                    .data_clone((link.object, 0), len, (copy.object, 0))?;
                Ok(copy.encode().to_vec())
            }
            None => Err(Error::Damaged(of)),
        }
    }

    /// Whether a tree has this value, or with `None` none, where it has `item`.
    pub(super) fn is_value(
        &mut self,
        of: ObjectId,
        item: Option<&[u8]>,
        wanted: Option<&[u8]>,
    ) -> Result<bool> {
        let (item, wanted) = match (item, wanted) {
            (Some(item), Some(wanted)) => (item, wanted),
            (item, wanted) => return Ok(item.is_none() && wanted.is_none()),
        };
        match Item::decode(item) {
            Some(Item::Plain(bytes)) => Ok(bytes == wanted),
            Some(Item::Link(_)) => {
                let link = self.follow(of, item, Kind::Value)?;
                self.has_bytes(link.object, wanted)
            }
            None => Err(Error::Damaged(of)),
        }
    }

    fn has_bytes(&mut self, id: ObjectId, wanted: &[u8]) -> Result<bool> {
        if self.tx.data_size(id)? != wanted.len() as u64 {
            return Ok(false);
        }
        let mut piece = [0; UNIT_SIZE as usize];
        for (number, wanted) in wanted.chunks(piece.len()).enumerate() {
            let piece = &mut piece[..wanted.len()];
            let len = self.tx.data_read(id, number as u64 * UNIT_SIZE, piece)?;
            if len != wanted.len() || piece != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn set_omap(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()> {
        let item = self.store_value(value)?;
        let before = self.insert_key(id, key, &item)?;
        self.item = item;
        self.drop_before(id, &before)
    }

    pub(super) fn remove_omap(&mut self, id: ObjectId, key: &[u8]) -> Result<()> {
        let before = self.remove_key(id, key)?;
        self.drop_before(id, &before)
    }

    /// Removes the keys from `from` on, those before `to` if that is told.
    pub(super) fn remove_omap_range(
        &mut self,
        id: ObjectId,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        while let Some((key, item)) = self.next_key(id, from)? {
            if to.is_some_and(|to| &key[..] >= to) {
                break;
            }
            self.drop_value(id, &item)?;
            self.remove_key(id, &key)?;
        }
        Ok(())
    }

    pub(super) fn copy_omap(&mut self, from: ObjectId, to: ObjectId) -> Result<()> {
        let mut next = Vec::new();
        while let Some((key, item)) = self.next_key(from, &next)? {
            let item = self.copy_value(from, &item)?;
            self.insert_key(to, &key, &item)?;
            next = [&key[..], &[0]].concat();
        }
        Ok(())
    }

    /// Sets an attribute or the omap's header.
    pub(super) fn set_attribute(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()> {
        let item = self.store_value(value)?;
        let before = self.put(id, Tree::Xattrs, key, &item)?;
        self.item = item;
        self.drop_before(id, &before)
    }

    pub(super) fn remove_attribute(&mut self, id: ObjectId, key: &[u8]) -> Result<()> {
        let before = self.take(id, Tree::Xattrs, key)?;
        self.drop_before(id, &before)
    }

    /// Removes the attributes whose keys begin with `first`.
    pub(super) fn remove_attributes(&mut self, id: ObjectId, first: u8) -> Result<()> {
        let mut item = Vec::new();
        while let Some(key) = self.tx.tree_next(id, Tree::Xattrs, &[first], &mut item)? {
            if key.first() != Some(&first) {
                break;
            }
            self.drop_value(id, &item)?;
            self.take(id, Tree::Xattrs, &key)?;
        }
        Ok(())
    }

    pub(super) fn copy_attributes(&mut self, from: ObjectId, to: ObjectId) -> Result<()> {
        let mut next = Vec::new();
        let mut item = Vec::new();
        while let Some(key) = self.tx.tree_next(from, Tree::Xattrs, &next, &mut item)? {
            let copy = self.copy_value(from, &item)?;
            self.put(to, Tree::Xattrs, &key, &copy)?;
            next = [&key[..], &[0]].concat();
        }
        Ok(())
    }

    /// Removes all keys of an omap.
    pub(super) fn clear_omap(&mut self, id: ObjectId) -> Result<()> {
        if self.changed.contains(&id) {
            return self.remove_omap_range(id, &[], None);
        }
        self.drop_linked(id, Tree::Entries, 0)?;
        match self.tx.entries_clear(id)? {
            true => {
                self.changed.insert(id);
                Ok(())
            }
            false => self.remove_omap_range(id, &[], None),
        }
    }

    /// Removes what trees of an onode that is removed name: layers and long values.
    pub(super) fn drop_named(&mut self, id: ObjectId) -> Result<()> {
        self.drop_below(id, 0)
    }

    /// `above`: bytes of keys in the layers above.
    fn drop_below(&mut self, id: ObjectId, above: usize) -> Result<()> {
        if above > LONG_KEY_MAX {
            return Err(Error::Damaged(id));
        }
        self.drop_linked(id, Tree::Entries, above)?;
        self.drop_linked(id, Tree::Xattrs, above)
    }

    fn drop_linked(&mut self, id: ObjectId, tree: Tree, above: usize) -> Result<()> {
        for item in self.links(id, tree)? {
            let Some(Item::Link(link)) = Item::decode(&item) else {
                continue;
            };
            let link = self.follow(id, &item, link.kind)?;
            if link.kind == Kind::Layer {
                self.drop_below(link.object, above + PART_MAX)?;
            }
            self.tx.remove(link.object)?;
        }
        Ok(())
    }

    /// The values of a tree that are links, as the transaction sees them.
    fn links(&mut self, id: ObjectId, tree: Tree) -> Result<Vec<Vec<u8>>> {
        let mut links = Vec::new();
        let mut add = |item: &[u8]| {
            if let Some(Item::Link(_)) = Item::decode(item) {
                links.push(item.to_vec());
            }
        };
        if !self.changed.contains(&id) {
            // Nobody else changes it: its leaves are read one by one.
            self.pool
                .store
                .tree_scan(id, tree, &[], &mut |_, item, _| {
                    add(item);
                    ControlFlow::Continue(())
                })?;
            return Ok(links);
        }
        let (mut next, mut item) = (Vec::new(), Vec::new());
        while let Some(key) = self.tx.tree_next(id, tree, &next, &mut item)? {
            add(&item);
            next = [&key[..], &[0]].concat();
        }
        Ok(links)
    }
}
