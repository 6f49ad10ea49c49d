//! One tree node: its bytes on the medium and in DRAM, copies that a transaction changes, and
//! patches of it.

#[cfg(test)]
mod hostile_tests;
mod image;
mod page;
mod patch;

pub(crate) use image::{DirtyWords, NodeImage, PLACED_MIN, Payload, each_exact_run, each_run};
pub(crate) use page::{
    Damaged, GRAIN, INDEX_BYTES, MediaPage, NODE_BYTES, NodeBytes, Page, SearchKey, Slot, View,
    encode_entry, entry_len, head_crc, head_of, index_at, reseal, salvage, verify,
};
pub(crate) use patch::{Arrival, Departure, LeafPatch};
