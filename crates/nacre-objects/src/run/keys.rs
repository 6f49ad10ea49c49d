//! Ordered maps with long keys: the entry tree of an onode, and layers below it.

use nacre_store::Tree;
use nacre_store::keyed::layout::{Kind, LINK_LEN, LONG_KEY_MAX, PART_MAX, goes_on, split_key};
use nacre_types::ObjectId;

use super::Run;
use crate::error::{Error, Result};

impl Run<'_> {
    /// A value of a tree as the transaction sees it.
    pub(super) fn get(&mut self, id: ObjectId, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut item = Vec::new();
        let found = match self.changed.contains(&id) {
            true => self.tx.tree_get(id, tree, key, &mut item)?,
            false => self.pool.store.tree_get(id, tree, key, &mut item)?,
        };
        Ok(found.then_some(item))
    }

    /// The link that an existing value is, without reading a long one.
    pub(super) fn get_link(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        if self.changed.contains(&id) {
            return self.get(id, tree, key);
        }
        let mut head = [0; LINK_LEN];
        let found = self.pool.store.tree_get_into(id, tree, key, &mut head)?;
        Ok(found.map(|len| head[..len.min(LINK_LEN)].to_vec()))
    }

    pub(super) fn put(&mut self, id: ObjectId, tree: Tree, key: &[u8], item: &[u8]) -> Result<()> {
        self.tx.tree_insert(id, tree, key, item)?;
        self.changed.insert(id);
        Ok(())
    }

    pub(super) fn take(&mut self, id: ObjectId, tree: Tree, key: &[u8]) -> Result<()> {
        self.tx.tree_remove(id, tree, key)?;
        self.changed.insert(id);
        Ok(())
    }

    pub(super) fn is_empty(&self, id: ObjectId) -> Result<bool> {
        Ok(self.tx.tree_is_empty(id, Tree::Entries)?)
    }

    /// The onode whose tree holds the last part of a key, and that part.
    fn last_layer(&mut self, within: ObjectId, key: &[u8]) -> Result<Option<(ObjectId, Vec<u8>)>> {
        let (mut layer, mut key) = (within, key);
        loop {
            let (part, rest) = split_key(key);
            let Some(rest) = rest else {
                return Ok(Some((layer, part)));
            };
            let Some(item) = self.get(layer, Tree::Entries, &part)? else {
                return Ok(None);
            };
            (layer, key) = (self.follow(layer, &item, Kind::Layer)?.object, rest);
        }
    }

    /// What a key stands for.
    pub(super) fn find_key(&mut self, within: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.last_layer(within, key)? {
            Some((layer, part)) => self.get(layer, Tree::Entries, &part),
            None => Ok(None),
        }
    }

    /// As [`Run::find_key`], but of a long plain value only the beginning.
    pub(super) fn find_link(&mut self, within: ObjectId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.last_layer(within, key)? {
            Some((layer, part)) => self.get_link(layer, Tree::Entries, &part),
            None => Ok(None),
        }
    }

    /// Sets what a key stands for; makes layers that are missing.
    pub(super) fn insert_key(&mut self, within: ObjectId, key: &[u8], item: &[u8]) -> Result<()> {
        let (mut layer, mut key) = (within, key);
        loop {
            let (part, rest) = split_key(key);
            let Some(rest) = rest else {
                return self.put(layer, Tree::Entries, &part, item);
            };
            let below = match self.get(layer, Tree::Entries, &part)? {
                Some(item) => self.follow(layer, &item, Kind::Layer)?,
                None => {
                    let below = self.create_onode(Kind::Layer)?;
                    self.put(layer, Tree::Entries, &part, &below.encode())?;
                    below
                }
            };
            (layer, key) = (below.object, rest);
        }
    }

    /// Removes a key that is there, and layers that hold nothing then.
    pub(super) fn remove_key(&mut self, within: ObjectId, key: &[u8]) -> Result<()> {
        let (part, rest) = split_key(key);
        let Some(rest) = rest else {
            return self.take(within, Tree::Entries, &part);
        };
        let Some(item) = self.get(within, Tree::Entries, &part)? else {
            return Ok(());
        };
        let below = self.follow(within, &item, Kind::Layer)?;
        self.remove_key(below.object, rest)?;
        if self.is_empty(below.object)? {
            self.take(within, Tree::Entries, &part)?;
            self.tx.remove(below.object)?;
        }
        Ok(())
    }

    /// The first key that is not before `from`, and what it stands for.
    pub(super) fn next_key(
        &mut self,
        within: ObjectId,
        from: &[u8],
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.next_below(within, from, 0)
    }

    fn next_below(
        &mut self,
        layer: ObjectId,
        from: &[u8],
        above: usize,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if above > LONG_KEY_MAX {
            return Err(Error::Damaged(layer));
        }
        let (mut at, mut rest) = split_key(from);
        let mut item = Vec::new();
        while let Some(key) = self.tx.tree_next(layer, Tree::Entries, &at, &mut item)? {
            if !goes_on(&key) {
                return Ok(Some((key, item)));
            }
            let from = rest.take().filter(|_| key == at).unwrap_or_default();
            let below = self.follow(layer, &item, Kind::Layer)?.object;
            if let Some((end, item)) = self.next_below(below, from, above + PART_MAX)? {
                return Ok(Some(([&key[..PART_MAX], &end].concat(), item)));
            }
            rest = None;
            at = [&key[..], &[0]].concat();
        }
        Ok(None)
    }
}
