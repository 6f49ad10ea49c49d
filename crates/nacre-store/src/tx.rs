//! Transactions: changes gathered in DRAM, made durable all at once.
use nacre_types::{ObjectId, StoreKind, VolumeOffset};
use nacre_volume::Unfenced;

use crate::alloc::Run;
use crate::error::Result;
use crate::layout::Tree;
use crate::lock::ObjectGuard;
use crate::onode::{Attrs, NewObject};
use crate::store::Store;

pub(crate) struct BufferPool;

/// A transaction.
pub struct Tx<'s> {
    store: &'s Store,
}

impl Store {
    /// Begins.
    pub fn begin(&self) -> Result<Tx<'_>> {
        unreachable!()
    }
}

impl<'s> Tx<'s> {
    /// New object.
    pub fn create(&mut self, _new: &NewObject) -> Result<ObjectId> {
        unreachable!()
    }
    /// Attributes as the transaction sees them.
    pub fn attrs(&self, _id: ObjectId) -> Result<Attrs> {
        unreachable!()
    }
    /// Changes attributes.
    pub fn set_attrs(&mut self, _id: ObjectId, _change: impl FnOnce(&mut Attrs)) -> Result<()> {
        unreachable!()
    }
    /// Sets inline bytes.
    pub fn set_inline(&mut self, _id: ObjectId, _bytes: &[u8]) -> Result<()> {
        unreachable!()
    }
    /// Removes an object.
    pub fn remove(&mut self, _id: ObjectId) -> Result<()> {
        unreachable!()
    }
    /// Inserts or replaces; true: key was new.
    pub fn tree_insert(&mut self, _id: ObjectId, _tree: Tree, _key: &[u8], _value: &[u8]) -> Result<bool> {
        unreachable!()
    }
    /// Removes a key.
    pub fn tree_remove(&mut self, _id: ObjectId, _tree: Tree, _key: &[u8]) -> Result<bool> {
        unreachable!()
    }
    /// Reads a key.
    pub fn tree_get(&self, _id: ObjectId, _tree: Tree, _key: &[u8], _value: &mut Vec<u8>) -> Result<bool> {
        unreachable!()
    }
    /// One word.
    pub fn put_word(&mut self, _at: VolumeOffset, _word: u64) {
        unreachable!()
    }
    /// Bytes in place.
    pub fn put_bytes(&mut self, _at: VolumeOffset, _bytes: &[u8], _kind: StoreKind) {
        unreachable!()
    }
    /// Already written fresh bytes.
    pub fn fresh(&mut self, _unfenced: Unfenced) {
        unreachable!()
    }
    /// Units that an abort frees.
    pub(crate) fn adopt(&mut self, _run: Run) {
        unreachable!()
    }
    /// Units to free.
    pub(crate) fn free_after_commit(&mut self, _run: Run) {
        unreachable!()
    }
    /// Marks.
    pub fn touch(&mut self, _guard: &ObjectGuard<'_>) {
        unreachable!()
    }
    /// Commits.
    pub fn commit(self) -> Result<()> {
        unreachable!()
    }
}
