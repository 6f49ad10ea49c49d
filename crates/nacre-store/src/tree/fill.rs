//! Filling the tree of a new object with keys that come in order: each goes behind the last one,
//! without a search.

use nacre_types::ObjectId;

use super::change::Path;
use super::read::{TreeId, check_key};
use crate::error::{Result, StoreError};
use crate::layout::Tree;
use crate::node::SearchKey;
use crate::tx::Tx;

impl Tx<'_> {
    /// Fills the empty tree of an object that the transaction creates. False: the keys do not
    /// ascend, and the transaction must not be committed.
    pub fn tree_fill<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        id: ObjectId,
        tree: Tree,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<bool> {
        let which = TreeId { object: id, tree };
        let owner = self.tree_owner(id, tree)?;
        if !owner.fresh || owner.root.is_some() {
            return Err(StoreError::Invalid("a tree that is filled is new"));
        }
        self.settle()?;
        let mut last: Option<(K, Path)> = None;
        let mut count = 0;
        for (key, value) in entries {
            let before = last.take();
            if before
                .as_ref()
                .is_some_and(|(last, _)| last.as_ref() >= key.as_ref())
            {
                return Ok(false);
            }
            let end = before.map(|(_, end)| end);
            let end = self.append(which, end, key.as_ref(), value.as_ref())?;
            last = Some((key, end));
            count += 1;
        }
        self.count_keys(id, tree, count)?;
        Ok(true)
    }

    /// Puts a key behind all others, to the leaf where `end` leads; returns where the next one
    /// goes.
    fn append(
        &mut self,
        which: TreeId,
        end: Option<Path>,
        key: &[u8],
        value: &[u8],
    ) -> Result<Path> {
        check_key(key)?;
        let stored = self.store_value(which, key, value)?;
        let (key, payload) = (SearchKey::new(key), stored.payload());
        match end {
            None => self.plant(which, &key, payload)?,
            Some(mut end) => {
                let (fits, count) = self.edit(which, end.leaf, |leaf| {
                    let count = leaf.count();
                    Ok((leaf.insert(count, &key, payload)?, count))
                })?;
                if fits {
                    return Ok(end);
                }
                self.insert_entry(which, &mut end, count, &key, payload)?;
            }
        }
        let root = self.tree_owner(which.object, which.tree)?.root;
        let root = root.ok_or(StoreError::Invalid("a tree without a root"))?;
        self.descend(which, root, &key)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use nacre_types::ObjectId;

    use crate::object::onode::NewObject;
    use crate::tx::Tx;
    use crate::tx::tests::memory_pool;
    use crate::{Store, StoreError, Tree};

    fn create(tx: &mut Tx<'_>) -> ObjectId {
        let new = NewObject {
            mode: 0o100_644,
            nlink: 1,
            ..NewObject::default()
        };
        tx.create(&new).unwrap()
    }

    fn contents(store: &Store, id: ObjectId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        store
            .tree_scan(id, Tree::Xattrs, &[], &mut |key, value, _| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        found
    }

    /// Keys in order, some with values that lie out of line.
    fn entries(count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let key = |n: usize| format!("{n:06}{}", "x".repeat(n * 7 % 90)).into_bytes();
        let value = |n: usize| vec![n as u8; if n % 50 == 49 { 9000 } else { n % 40 }];
        (0..count).map(|n| (key(n), value(n))).collect()
    }

    #[test]
    fn a_tree_that_is_filled_is_as_one_whose_keys_were_inserted() {
        for count in [0, 1, 2, 60, 3000] {
            let store = memory_pool(64 << 20);
            let all = entries(count);
            let mut tx = store.begin().unwrap();
            tx.allow_any_size();
            let (filled, inserted) = (create(&mut tx), create(&mut tx));
            assert!(tx.tree_fill(filled, Tree::Xattrs, pairs(&all)).unwrap());
            for (key, value) in pairs(&all) {
                assert!(tx.tree_insert(inserted, Tree::Xattrs, key, value).unwrap());
            }
            tx.commit().unwrap();
            assert_eq!(contents(&store, filled), all);
            assert_eq!(contents(&store, inserted), all);
            for id in [filled, inserted] {
                assert_eq!(store.attrs(id).unwrap().xattrs, count as u64);
            }
        }
    }

    fn pairs(all: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = (&[u8], &[u8])> {
        all.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    #[test]
    fn keys_out_of_order_and_trees_that_are_there_are_refused() {
        let store = memory_pool(64 << 20);
        let mut tx = store.begin().unwrap();
        let one = create(&mut tx);
        for keys in [["b", "a"], ["a", "a"]] {
            let id = create(&mut tx);
            let entries = keys.map(|key| (key, "value"));
            assert!(!tx.tree_fill(id, Tree::Xattrs, entries).unwrap());
        }
        assert!(tx.tree_fill(one, Tree::Xattrs, [("a", "value")]).unwrap());
        let again = tx.tree_fill(one, Tree::Xattrs, [("b", "value")]);
        assert!(matches!(again, Err(StoreError::Invalid(_))));
        let _root = store.lock(ObjectId::ROOT).unwrap();
        let old = tx.tree_fill(ObjectId::ROOT, Tree::Xattrs, [("b", "value")]);
        assert!(matches!(old, Err(StoreError::Invalid(_))));
    }
}
