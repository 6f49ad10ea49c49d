//! The usual change of a leaf, told by what it is: an entry that comes, one that goes, or both.

use std::ops::Range;

use nacre_types::{ObjectId, StoreKind, UnitNo, VolumeOffset};
use nacre_volume::{Unfenced, Volume};
use zerocopy::IntoBytes;

use super::page::{GRAIN, Slot, head_crc, index_at};
use crate::layout::{NODE_INDEX_AT, RawNode, Tree};
use crate::log::record::{FreshBytes, Record};

/// Where the words of the head begin that change.
const HEAD_AT: usize = std::mem::offset_of!(RawNode, crc);

/// So many bytes of the index that do not change are logged to have one change of head and index:
/// two cost more.
const HEAD_GAP: usize = 64;

/// An entry that comes to a leaf, one that goes, or both. Numbers of entries are those before the
/// change.
pub(crate) struct LeafPatch {
    pub(crate) unit: UnitNo,
    pub(crate) owner: ObjectId,
    pub(crate) tree: Tree,
    /// As it will be.
    pub(crate) head: RawNode,
    /// Entries before the change.
    pub(crate) count: usize,
    pub(crate) come: Option<Arrival>,
    pub(crate) gone: Option<Departure>,
}

/// An entry that comes.
pub(crate) struct Arrival {
    /// Number of the entry before which it comes.
    pub(crate) index: usize,
    pub(crate) slot: Slot,
    /// Its bytes, in the transaction's buffer.
    pub(crate) bytes: Range<usize>,
}

/// An entry that goes.
pub(crate) struct Departure {
    pub(crate) index: usize,
    pub(crate) slot: Slot,
}

impl LeafPatch {
    /// An entry goes, too, so that this will be the head, but for its checksum.
    pub(crate) fn take_away(&mut self, gone: Departure, mut head: RawNode) {
        head.crc = head_crc(&head).into();
        self.head = head;
        self.gone = Some(gone);
    }

    /// Bytes of the entry that comes, which nobody reads before the commit.
    pub(crate) fn placeable(&self) -> usize {
        self.come.as_ref().map_or(0, |come| come.bytes.len())
    }

    /// Writes the entry that comes to its place.
    pub(crate) fn place(
        &self,
        volume: &Volume,
        entries: &[u8],
        fresh: &mut FreshBytes,
    ) -> Unfenced {
        match &self.come {
            Some(come) => {
                let at = self.unit.offset().add(come.slot.at as u64);
                let bytes = &entries[come.bytes.clone()];
                fresh.add(at, bytes);
                volume.write(at, bytes, StoreKind::Metadata)
            }
            None => Unfenced::nothing(),
        }
    }

    /// Puts the changed words into the record; without the entry that comes if that is `placed`.
    pub(crate) fn fill(&self, record: &mut Record, volume: &Volume, entries: &[u8], placed: bool) {
        let at = |place: usize| VolumeOffset(self.unit.offset().0 + place as u64);
        let index = self.changed_index();
        let words =
            index_at(index.start) / GRAIN * GRAIN..index_at(index.end).next_multiple_of(GRAIN);
        let head = &self.head.as_bytes()[HEAD_AT..];
        let last_goes = self.come.is_none() && index.len() == 1;
        if last_goes {
            record.add_words(at(HEAD_AT), head);
        } else if words.start <= NODE_INDEX_AT + HEAD_GAP {
            record.add_with(at(HEAD_AT), words.end - HEAD_AT, |bytes| {
                let (to, index) = bytes.split_at_mut(head.len());
                to.copy_from_slice(head);
                volume.read(at(NODE_INDEX_AT), index);
                self.change_index(index, NODE_INDEX_AT);
            });
        } else {
            record.add_words(at(HEAD_AT), head);
            record.add_with(at(words.start), words.len(), |bytes| {
                volume.read(at(words.start), bytes);
                self.change_index(bytes, words.start);
            });
        }
        if let Some(come) = self.come.as_ref().filter(|_| !placed) {
            record.add_words(at(come.slot.at), &entries[come.bytes.clone()]);
        }
    }

    /// The part of the index that changes, and the last one of what moves down.
    fn changed_index(&self) -> Range<usize> {
        let (hole, end) = self.hole_and_end();
        match hole < end {
            true => hole..end,
            false => end..hole + 1,
        }
    }

    /// Number of the entry that goes, or of the place behind the last one; number of the entry
    /// before which one comes.
    fn hole_and_end(&self) -> (usize, usize) {
        let hole = self.gone.as_ref().map_or(self.count, |gone| gone.index);
        let end = self.come.as_ref().map_or(self.count, |come| come.index);
        (hole, end)
    }

    /// Changes the index in a copy of the node's bytes from `from` on.
    fn change_index(&self, bytes: &mut [u8], from: usize) {
        let place = |index: usize| index_at(index) - from;
        let (hole, end) = self.hole_and_end();
        let free = if hole < end {
            bytes.copy_within(place(hole + 1)..place(end), place(hole));
            end - 1
        } else {
            bytes.copy_within(place(end)..place(hole), place(end + 1));
            end
        };
        if let Some(come) = &self.come {
            let at = (come.slot.at / GRAIN) as u16;
            bytes[place(free)..place(free + 1)].copy_from_slice(&at.to_le_bytes());
        }
    }
}
