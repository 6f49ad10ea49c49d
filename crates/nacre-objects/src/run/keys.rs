//! Ordered maps with long keys: the entry tree of an onode, and layers below it.

use std::borrow::Cow;

use nacre_store::Tree;
use nacre_store::keyed::layout::{Kind, LINK_LEN, LONG_KEY_MAX, PART_MAX, goes_on, split_key};
use nacre_types::ObjectId;

use super::Run;
use crate::error::{Error, Result};

/// What a key stood for before a change: the link, if it was one.
pub(super) struct Before(Option<[u8; LINK_LEN]>);

impl Before {
    const NOTHING: Before = Before(None);

    /// Of the beginning of a value of `len` bytes, if there was one.
    fn of(head: [u8; LINK_LEN], len: Option<usize>) -> Before {
        Before(len.filter(|&len| len == LINK_LEN).map(|_| head))
    }

    /// The value, if it may be a link.
    pub(super) fn item(&self) -> Option<&[u8]> {
        self.0.as_ref().map(|item| &item[..])
    }
}

impl Run<'_, '_> {
    /// A value of a tree as the transaction sees it.
    pub(super) fn get(&mut self, id: ObjectId, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut item = Vec::new();
        let found = match self.changed.contains(&id) {
            true => self.tx.tree_get(id, tree, key, &mut item)?,
            false => self.pool.store.tree_get(id, tree, key, &mut item)?,
        };
        Ok(found.then_some(item))
    }

    pub(super) fn put(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        item: &[u8],
    ) -> Result<Before> {
        let mut head = [0; LINK_LEN];
        let len = self.tx.tree_put(id, tree, key, item, &mut head)?;
        self.changed.insert(id);
        Ok(Before::of(head, len))
    }

    pub(super) fn take(&mut self, id: ObjectId, tree: Tree, key: &[u8]) -> Result<Before> {
        let mut head = [0; LINK_LEN];
        let len = self.tx.tree_take(id, tree, key, &mut head)?;
        self.changed.insert(id);
        Ok(Before::of(head, len))
    }

    pub(super) fn is_empty(&self, id: ObjectId) -> Result<bool> {
        Ok(self.tx.tree_is_empty(id, Tree::Entries)?)
    }

    /// The onode whose tree holds the last part of a key, and that part.
    fn last_layer<'k>(
        &mut self,
        within: ObjectId,
        key: &'k [u8],
    ) -> Result<Option<(ObjectId, Cow<'k, [u8]>)>> {
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

    /// As [`Run::find_key`], of a key that stands for a link.
    pub(super) fn find_link(
        &mut self,
        within: ObjectId,
        key: &[u8],
    ) -> Result<Option<[u8; LINK_LEN]>> {
        let Some((layer, part)) = self.last_layer(within, key)? else {
            return Ok(None);
        };
        let mut link = [0; LINK_LEN];
        let len = match self.changed.contains(&layer) {
            true => self.get(layer, Tree::Entries, &part)?.map(|item| {
                let known = item.len().min(LINK_LEN);
                link[..known].copy_from_slice(&item[..known]);
                item.len()
            }),
            false => {
                let store = &self.pool.store;
                store.tree_get_into(layer, Tree::Entries, &part, &mut link)?
            }
        };
        match len {
            None => Ok(None),
            Some(LINK_LEN) => Ok(Some(link)),
            Some(_) => Err(Error::Damaged(layer)),
        }
    }

    /// Sets what a key stands for; makes layers that are missing.
    pub(super) fn insert_key(
        &mut self,
        within: ObjectId,
        key: &[u8],
        item: &[u8],
    ) -> Result<Before> {
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

    /// Removes a key, and layers that hold nothing then.
    pub(super) fn remove_key(&mut self, within: ObjectId, key: &[u8]) -> Result<Before> {
        let (part, rest) = split_key(key);
        let Some(rest) = rest else {
            return self.take(within, Tree::Entries, &part);
        };
        let Some(item) = self.get(within, Tree::Entries, &part)? else {
            return Ok(Before::NOTHING);
        };
        let below = self.follow(within, &item, Kind::Layer)?;
        let before = self.remove_key(below.object, rest)?;
        if self.is_empty(below.object)? {
            self.take(within, Tree::Entries, &part)?;
            self.tx.remove(below.object)?;
        }
        Ok(before)
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
        let (at, mut rest) = split_key(from);
        let mut at = at.into_owned();
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
