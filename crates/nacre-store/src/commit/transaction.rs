//! The commit of a transaction: the one place that orders publish, commit point, apply and retire.

use std::mem::offset_of;

use nacre_types::{LINE_SIZE, ObjectId, StoreKind, UnitNo, VolumeOffset, site};
use nacre_volume::{Unfenced, Volume};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::data::map;
use crate::error::Result;
use crate::layout::{
    ONODE_ATIME_AT, ONODE_CTIME_AT, ONODE_MTIME_AT, ONODE_SIZE_AT, RawOnode, Tree, parts_id,
};
use crate::log::record::{FreshBytes, Record};
use crate::node::{LeafPatch, NodeImage, each_exact_run, each_run};
use crate::object::lock::{ChangeMark, ObjectGuard, move_attribute_epoch};
use crate::object::onode::onode_crc;
use crate::store::Store;
use crate::thread::scratch::{LazyTimes, OnodeImage, Removed, Scratch};
use crate::tree;
use crate::tx::{NAMED_MAX, Tx, word_bit};

const LINE: usize = LINE_SIZE as usize;
const LINE_WORDS: usize = LINE / 8;
const SIZE: u64 = word_bit(ONODE_SIZE_AT as usize);
/// Of line 0 only the size: the other words there are not changed through the log.
const LOGGED: u64 = !((1 << LINE_WORDS) - 1) | SIZE;
const SECOND: i64 = 1_000_000_000;
/// So many bytes are worth a fence: they are written where they belong before the record, not into
/// it and then there.
const PLACED_ALONE: usize = 256;

/// How far the durable times of an object may be behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lag {
    None,
    Second,
}

/// Few transactions change more than four objects.
type Marks<'s> = SmallVec<[ChangeMark<'s>; 4]>;

impl<'s> Tx<'s> {
    /// Makes the changes durable and visible, all or nothing; durable on return.
    ///
    /// An error means that nothing happened, but for [`StoreError::MediaFault`], after which nobody
    /// knows: whoever looks sees the change, or not, and what it freed or took stays so until the
    /// next attach.
    ///
    /// [`StoreError::MediaFault`]: crate::StoreError::MediaFault
    pub fn commit(mut self) -> Result<()> {
        let mut record = std::mem::take(&mut self.scratch.record);
        let done = match self.places_entries {
            true => self.commit_placing(&mut record),
            false => self.commit_with::<false>(&mut record),
        };
        self.scratch.record = record;
        done?;
        self.release();
        Ok(())
    }

    fn commit_placing(&mut self, record: &mut Record) -> Result<()> {
        let done = self.commit_with::<true>(record);
        if self.takes_second {
            self.store.note_second_units();
        }
        done
    }

    /// `PLACES`: [`Tx::place_entries`]. All others do without a look at it.
    fn commit_with<const PLACES: bool>(&mut self, record: &mut Record) -> Result<()> {
        if !self.scratch.staged.is_empty() {
            self.finish_data()?;
        }
        self.fill::<PLACES>(record);
        if record.check_len().is_err() && self.any_size {
            self.spill(record)?;
        } else {
            record.check_len()?;
        }
        let store = self.store;
        let volume = &store.volume;
        if record.count() == 0 {
            self.publish()?;
            self.committed = true;
            let marks = self.mark();
            // Times are all that changes, as somebody wants it.
            return Ok(volume.fence(self.store_all_times(marks, Lag::None))?);
        }
        if PLACES && self.shares_fences() {
            return self.commit_sharing(record);
        }
        if let Some((at, word)) = self.lone_word(record) {
            self.publish()?;
            self.committed = true;
            // I5: the word's own store is the commit point.
            let marks = self.mark();
            let word = volume.store_u64(at, word, StoreKind::Metadata);
            return Ok(volume.fence(word.and(self.store_all_times(marks, Lag::Second)))?);
        }
        let mut lane = store.take_lane()?;
        self.publish()?;
        // From here on nothing turns back, whatever fails: the record may be replayed.
        self.committed = true;
        // Odd before the commit point: should this process die behind it, readers must wait for
        // whoever replays the record (I4).
        let marks = self.mark();
        // I3: this fence is the commit point.
        let logged = volume.order(lane.append(record));
        // I4: applied durably before the record is retired, retired before any lock is released.
        let applied = record.apply(volume);
        let applied = volume.order(applied.and(self.store_all_times(marks, Lag::Second)));
        if site::step() {
            lane.finish(record.len())?;
        }
        Ok(logged.and(applied)?)
    }

    /// With two fences, if what is new is short: it becomes durable with the record, which names it
    /// (I3), and the log tail with the next record that shares fences (I4).
    fn commit_sharing(&mut self, record: &mut Record) -> Result<()> {
        let store = self.store;
        let volume = &store.volume;
        let mut lane = store.take_lane()?;
        let (tails, flushed) = store.lagging_tails()?;
        let mut stores = flushed;
        match record.names_fresh() {
            true => {
                let written = write_nodes(store, self.fresh_nodes());
                stores.join(written.and(self.named.take()));
            }
            // What was linked on the way must not be undone by an old record.
            false => self.publish_with(stores.take())?,
        }
        self.committed = true;
        let marks = self.mark();
        if let Some((at, word)) = self.lone_word(record).filter(|_| !record.names_fresh()) {
            // I5, as nothing else waits for a fence.
            let word = volume.store_u64(at, word, StoreKind::Metadata);
            return Ok(volume.fence(word.and(self.store_all_times(marks, Lag::Second)))?);
        }
        record.set_stamp(tails.next_stamp());
        let logged = volume.order(stores.and(lane.append(record)));
        if logged.is_ok() {
            tails.settled(store);
        }
        let applied = record.apply(volume);
        // I6: what this frees may be used at once.
        let applied = volume.fence(applied.and(self.store_all_times(marks, Lag::Second)));
        lane.set_stamp(record.stamp());
        if self.may_lag(record) {
            lane.finish_later(record.len())?;
        } else if site::step() {
            lane.finish(record.len())?;
        }
        Ok(logged.and(applied)?)
    }

    /// Whether the record may be replayed as long as nobody records something that shares fences:
    /// not if it frees numbers, which others use at once, or lies in units that it frees.
    fn may_lag(&self, record: &Record) -> bool {
        let scratch = &self.scratch;
        let frees = !scratch.removed.is_empty() || !scratch.maps.is_empty();
        !frees && scratch.trees.is_empty() && !record.is_long()
    }

    fn lone_word(&self, record: &Record) -> Option<(VolumeOffset, u64)> {
        match self.scratch.words[..] {
            [word] if record.count() == 1 => Some(word),
            _ => None,
        }
    }

    /// Puts every change of reachable structures into the record.
    fn fill<const PLACES: bool>(&mut self, record: &mut Record) {
        record.clear();
        let volume = &self.store.volume;
        let shares = PLACES && self.shares_fences() && self.published.is_none();
        let scratch = &mut *self.scratch;
        let places =
            PLACES && (shares || self.published.is_some() || placeable(scratch) >= PLACED_ALONE);
        let mut placed = Unfenced::nothing();
        for node in scratch
            .nodes
            .iter_mut()
            .filter(|node| !node.freed && node.is_dirty())
        {
            node.seal();
            if node.fresh {
                continue;
            }
            if places {
                placed = placed.and(place(volume, node, &mut scratch.fresh));
            }
            each_run(&node.dirty, |run| {
                let at = VolumeOffset(node.unit.offset().0 + run.start as u64);
                record.add_words(at, &node.bytes[run]);
            });
        }
        for patch in &scratch.patches {
            if places {
                placed = placed.and(patch.place(volume, &scratch.entries, &mut scratch.fresh));
            }
            patch.fill(record, volume, &scratch.entries, places);
        }
        match shares {
            true => self.named.join(placed),
            false if places => self.fresh(placed),
            false => {}
        }
        for onode in &mut self.scratch.onodes {
            seal_onode(onode);
            fill_onode(record, onode);
        }
        for &(at, word) in &self.scratch.words {
            record.add_words(at, &word.to_le_bytes());
        }
        for (at, bytes, kind) in self.scratch.writes.iter() {
            record.add(*at, bytes, *kind == StoreKind::Data);
        }
        if shares {
            self.name_fresh(record);
        }
    }

    /// Lets the record name all that is new, if that is short.
    fn name_fresh(&mut self, record: &mut Record) {
        let scratch = &mut *self.scratch;
        for node in scratch.nodes.iter().filter(|node| node.is_new()) {
            for part in node.parts().into_iter().filter(|part| !part.is_empty()) {
                let at = node.unit.offset().add(part.start as u64);
                scratch.fresh.add(at, &node.bytes[part]);
            }
        }
        match scratch.fresh.len() {
            0..=NAMED_MAX => record.add_fresh(&scratch.fresh),
            _ => {
                let named = self.named.take();
                self.fresh(named);
            }
        }
    }

    /// Writes new nodes, which nobody reaches yet, in place. Durable on return, and with them what
    /// the transaction was told by [`Tx::fresh`] (I2): a record that is complete must never point
    /// to something that is not there yet.
    fn publish(&mut self) -> Result<()> {
        let published = self.published.take();
        let mut fresh = self.fresh_nodes().peekable();
        if published.is_none() && fresh.peek().is_none() {
            return Ok(());
        }
        let stores = write_nodes(self.store, fresh);
        Ok(self
            .store
            .volume
            .order(stores.and(published.unwrap_or(Unfenced::nothing())))?)
    }

    /// As [`Tx::publish`], together with other stores.
    fn publish_with(&mut self, others: Unfenced) -> Result<()> {
        let published = self.published.take().unwrap_or(Unfenced::nothing());
        let stores = write_nodes(self.store, self.fresh_nodes());
        Ok(self.store.volume.order(stores.and(published).and(others))?)
    }

    fn fresh_nodes(&self) -> impl Iterator<Item = &NodeImage> {
        self.scratch.nodes.iter().filter(|node| node.is_new())
    }

    /// Makes the versions of all touched objects odd; then what processes remember of names that
    /// change, and of directories whose attribute epoch change, is no longer good.
    fn mark(&self) -> Marks<'s> {
        let store = self.store;
        let mut marks = Marks::new();
        marks.extend(self.created.iter().map(ObjectGuard::begin_change));
        for &id in &self.scratch.touched {
            if let Ok(icore) = store.icore(id) {
                marks.push(ChangeMark::new(icore));
            }
        }
        for &bucket in &self.scratch.names {
            store.session.forget_dentries(bucket);
        }
        for onode in self
            .scratch
            .onodes
            .iter()
            .filter(|onode| onode.attribute_epoch && !onode.fresh)
        {
            if let Ok(icore) = store.icore(onode.id) {
                move_attribute_epoch(icore);
            }
        }
        for removed in &self.scratch.removed {
            if let Ok(icore) = store.icore(removed.id) {
                move_attribute_epoch(icore);
            }
        }
        marks
    }

    /// Stores the lazy times, then lets readers in again.
    fn store_all_times(&self, marks: Marks<'s>, lag: Lag) -> Unfenced {
        let mut stores = Unfenced::nothing();
        for onode in &self.scratch.onodes {
            if !onode.fresh {
                stores = stores.and(self.store_times(onode, lag));
            }
        }
        for times in &self.scratch.times {
            stores = stores.and(self.store_touched(times, lag));
        }
        drop(marks);
        stores
    }

    /// Times are plain words that may lag (I7): they are not in the record, and those of a busy
    /// directory are made durable once a second, not with each change.
    fn store_times(&self, onode: &OnodeImage, lag: Lag) -> Unfenced {
        let volume = &self.store.volume;
        let raw = &onode.raw;
        let mut due = false;
        for (field, time) in [
            (ONODE_MTIME_AT, raw.mtime),
            (ONODE_CTIME_AT, raw.ctime),
            (ONODE_ATIME_AT, raw.atime),
        ] {
            if onode.dirty & word_bit(field as usize) != 0 {
                let at = VolumeOffset(onode.at.0 + field);
                let before = volume.load_u64(at) as i64;
                volume.store_u64_lazy(at, time.get() as u64, StoreKind::Metadata);
                due |= lag == Lag::None || before / SECOND != time.get() / SECOND;
            }
        }
        match due {
            true => volume.flush(onode.at, LINE_SIZE),
            false => Unfenced::nothing(),
        }
    }

    /// As [`Tx::store_times`], of an object that is only touched.
    fn store_touched(&self, times: &LazyTimes, lag: Lag) -> Unfenced {
        let volume = &self.store.volume;
        let onode = volume.checked_range::<LINE>(times.at);
        let store = |field: u64, time: i64| {
            let word = field as usize / 8;
            let before = onode.word(word) as i64;
            onode.store_word_lazy(word, time as u64, StoreKind::Metadata);
            before / SECOND != time / SECOND
        };
        let modified = times.mtime.is_some_and(|time| store(ONODE_MTIME_AT, time));
        let due = store(ONODE_CTIME_AT, times.ctime) | modified | (lag == Lag::None);
        match due {
            true => volume.flush(times.at, LINE_SIZE),
            false => Unfenced::nothing(),
        }
    }

    /// Gives back what the committed and retired transaction freed (I6).
    fn release(&mut self) {
        for run in self.scratch.frees.drain(..) {
            self.store.allocator().free(run.start, run.count);
        }
        for removed in self.scratch.removed.drain(..) {
            release_object(self.store, &removed);
        }
        for (id, root) in self.scratch.maps.drain(..) {
            map::release(self.store, id, root);
        }
        for (id, tree, root) in self.scratch.trees.drain(..) {
            tree::release(self.store, id, tree, root);
        }
    }
}

/// Writes new nodes in place.
#[inline]
fn write_nodes<'n>(store: &Store, nodes: impl Iterator<Item = &'n NodeImage>) -> Unfenced {
    let mut stores = Unfenced::nothing();
    for node in nodes {
        for part in node.parts().into_iter().filter(|part| !part.is_empty()) {
            let at = node.unit.offset().add(part.start as u64);
            stores.join(
                store
                    .volume
                    .write(at, &node.bytes[part], StoreKind::Metadata),
            );
        }
        store.set_verified(node.unit);
    }
    stores
}

/// Bytes of changed nodes that nobody reads before the commit.
fn placeable(scratch: &Scratch) -> usize {
    let patches = scratch.patches.iter().map(LeafPatch::placeable);
    let nodes = scratch.nodes.iter().filter(|node| !node.fresh);
    let words = nodes.flat_map(NodeImage::placeable).map(u64::count_ones);
    patches.sum::<usize>() + 8 * words.sum::<u32>() as usize
}

/// Writes the words of a changed node that nobody reads before the commit; the record need not.
fn place(volume: &Volume, node: &mut NodeImage, fresh: &mut FreshBytes) -> Unfenced {
    let (words, mut placed) = (node.take_placeable(), Unfenced::nothing());
    each_exact_run(&words, |run| {
        let at = node.unit.offset().add(run.start as u64);
        let bytes = &node.bytes[run];
        fresh.add(at, bytes);
        placed.join(volume.write(at, bytes, StoreKind::Metadata));
    });
    placed
}

/// Makes the checksum right if anything has changed that it covers.
fn seal_onode(onode: &mut OnodeImage) {
    let changed = onode.fresh || onode.dirty & LOGGED & !SIZE != 0;
    if changed && onode.raw.mode.get() != 0 {
        onode.raw.crc = onode_crc(&onode.raw).into();
        onode.dirty |= word_bit(offset_of!(RawOnode, crc));
    }
}

/// The words of an onode that count if it is new, else those that differ from the medium.
fn fill_onode(record: &mut Record, onode: &OnodeImage) {
    let bytes = onode.raw.as_bytes();
    let at = |place: usize| VolumeOffset(onode.at.0 + place as u64);
    if !onode.fresh {
        each_run(&[up_to_checksum(onode.dirty & LOGGED)], |run| {
            record.add_words(at(run.start), &bytes[run]);
        });
        return;
    }
    // All that anybody reads, line 0 too: the last life of the onode may have left words there that
    // are not durable (I7).
    record.add_words(at(0), &bytes[..offset_of!(RawOnode, reserved2)]);
    let inline_len = onode.raw.inline_len.get() as usize;
    if inline_len > 0 {
        const INLINE: usize = offset_of!(RawOnode, inline);
        let end = INLINE + inline_len.next_multiple_of(8);
        record.add_words(at(INLINE), &bytes[INLINE..end]);
    }
}

/// A changed word in the checksum's line, and so the checksum behind it: one piece is flushed once.
fn up_to_checksum(dirty: u64) -> u64 {
    const CRC: u64 = word_bit(offset_of!(RawOnode, crc));
    const LINE: u64 = CRC - word_bit(offset_of!(RawOnode, entries_root));
    match dirty & LINE {
        0 => dirty,
        before => dirty | (CRC - (1 << before.trailing_zeros())),
    }
}

fn release_object(store: &Store, removed: &Removed) {
    let id: ObjectId = removed.id;
    for (tree, root) in [Tree::Entries, Tree::Xattrs].into_iter().zip(removed.trees) {
        if let Some(root) = root {
            tree::release(store, id, tree, UnitNo(root));
        }
    }
    map::release(store, id, removed.map_root);
    map::release(store, parts_id(id), removed.parts_root);
    store.free_object(id);
}

#[cfg(test)]
mod tests {
    use super::{up_to_checksum, word_bit};

    #[test]
    fn a_root_and_the_checksum_are_one_piece() {
        let (mode, root, xattrs, crc) = (word_bit(64), word_bit(128), word_bit(144), word_bit(160));
        assert_eq!(up_to_checksum(root | crc), 0b1_1111 << 16);
        assert_eq!(
            up_to_checksum(mode | xattrs | crc),
            mode | xattrs | word_bit(152) | crc
        );
        assert_eq!(up_to_checksum(mode | crc), mode | crc);
        assert_eq!(up_to_checksum(1), 1);
    }
}
