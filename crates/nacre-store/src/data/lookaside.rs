//! A translation lookaside buffer: where the pages lie that this process read or wrote last.
//!
//! A translation is good while the object's layout count stands where it stood when the translation was begun
//! (docs/locking.md), so it needs no walk of the block map and no check of its words. Threads share the buffer without locks:
//! one that finds an entry being filled looks at the map.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{ObjectId, Sequence, VolumeOffset};
use zerocopy::FromZeros;

use super::layout::Entry;
use crate::map::{Leaf, PageRun};

/// Entries: enough for 256 MiB.
const ENTRIES: usize = 1024;
/// Pages that share an entry, a power of two. A miss looks at so many words at most.
const GROUP: u64 = 64;

/// What a page of an object is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) onode: VolumeOffset,
    /// Type and permissions of the object.
    pub(crate) mode: u32,
    pub(crate) generation: u32,
    /// A run that holds the page.
    pub(crate) run: PageRun,
}

#[derive(FromZeros)]
#[repr(align(64))]
struct Place {
    turn: Sequence,
    /// 0 in an empty entry.
    id: AtomicU64,
    layout: AtomicU64,
    onode: AtomicU64,
    /// Mode in the lower half, generation in the upper.
    kind: AtomicU64,
    page: AtomicU64,
    count: AtomicU64,
    entry: AtomicU64,
}

const _: () = assert!(size_of::<Place>() == 64);

/// The lowest node of a map that was written to last, of objects whose numbers fall together.
#[derive(FromZeros)]
#[repr(align(64))]
struct LeafPlace {
    turn: Sequence,
    /// 0 in an empty entry.
    id: AtomicU64,
    layout: AtomicU64,
    page: AtomicU64,
    words: AtomicU64,
}

/// Entries of leaves.
const LEAVES: usize = 64;

/// The buffer of one attached pool.
pub(crate) struct Lookaside(Box<[Place; ENTRIES]>, Box<[LeafPlace; LEAVES]>);

/// Zero pages that nobody has touched: most processes use few.
fn empty<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()))
}

impl Lookaside {
    pub(crate) fn new() -> Self {
        Self(empty(), empty())
    }

    /// The lowest node that maps a page, if it is the one that was written to last under this layout.
    #[inline]
    pub(crate) fn leaf(&self, id: ObjectId, layout: u64, page: u64) -> Option<Leaf> {
        let place = &self.1[id.0 as usize % LEAVES];
        let seen = place.turn.look()?;
        let leaf = Leaf::node(
            VolumeOffset(place.words.load(Relaxed)),
            place.page.load(Relaxed),
        );
        let known = place.id.load(Relaxed) == id.0 && place.layout.load(Relaxed) == layout;
        (known && place.turn.is_still(seen) && leaf.holds(page)).then_some(leaf)
    }

    /// Remembers the lowest node that a write found. Under one layout a map gets nodes, but loses none.
    pub(crate) fn put_leaf(&self, id: ObjectId, layout: u64, leaf: Leaf) {
        let Some((words, page)) = leaf.as_node() else {
            return;
        };
        let place = &self.1[id.0 as usize % LEAVES];
        place.turn.fill(|| {
            place.id.store(id.0, Relaxed);
            place.layout.store(layout, Relaxed);
            place.page.store(page, Relaxed);
            place.words.store(words.0, Relaxed);
        });
    }

    /// What is remembered of a page under this layout of its object.
    #[inline(always)]
    pub(crate) fn get(&self, id: ObjectId, layout: u64, page: u64) -> Option<Translation> {
        let place = self.place(id, page);
        let seen = place.turn.look()?;
        let first = place.page.load(Relaxed);
        let count = place.count.load(Relaxed);
        if place.id.load(Relaxed) != id.0
            || place.layout.load(Relaxed) != layout
            || page.wrapping_sub(first) >= count
        {
            return None;
        }
        let kind = place.kind.load(Relaxed);
        let found = Translation {
            onode: VolumeOffset(place.onode.load(Relaxed)),
            mode: kind as u32,
            generation: (kind >> 32) as u32,
            run: PageRun {
                page: first,
                count,
                entry: Entry::from_payload(place.entry.load(Relaxed)),
            },
        };
        place.turn.is_still(seen).then_some(found)
    }

    /// Remembers a translation of pages of one group.
    pub(crate) fn put(&self, id: ObjectId, layout: u64, found: &Translation) {
        let place = self.place(id, found.run.page);
        place.turn.fill(|| {
            place.id.store(id.0, Relaxed);
            place.layout.store(layout, Relaxed);
            place.onode.store(found.onode.0, Relaxed);
            let kind = u64::from(found.generation) << 32 | u64::from(found.mode);
            place.kind.store(kind, Relaxed);
            place.page.store(found.run.page, Relaxed);
            place.count.store(found.run.count, Relaxed);
            place.entry.store(found.run.entry.payload(), Relaxed);
        });
    }

    /// How many pages to translate at once around `page`, a power of two; `least` are needed. More each time that the same
    /// group is asked for, so that a single look costs little and the pages of a busy group are soon all known.
    pub(crate) fn reach(&self, id: ObjectId, page: u64, least: u64) -> u64 {
        let place = self.place(id, page);
        let same =
            place.id.load(Relaxed) == id.0 && place.page.load(Relaxed) / GROUP == page / GROUP;
        let known = if same { place.count.load(Relaxed) } else { 0 };
        least
            .max(known.saturating_mul(4))
            .min(GROUP)
            .next_power_of_two()
    }

    #[inline]
    fn place(&self, id: ObjectId, page: u64) -> &Place {
        let group = id.0.wrapping_mul(37).wrapping_add(page / GROUP);
        &self.0[(group % ENTRIES as u64) as usize]
    }
}

#[cfg(test)]
mod tests {

    use nacre_types::{ObjectId, UnitNo, VolumeOffset};

    use super::{Lookaside, Translation};
    use crate::data::layout::Entry;
    use crate::map::PageRun;

    const FILE: ObjectId = ObjectId(7);

    fn translation(page: u64, count: u64, unit: u64) -> Translation {
        Translation {
            onode: VolumeOffset(4096 + unit),
            mode: 0o100_644,
            generation: unit as u32,
            run: PageRun {
                page,
                count,
                entry: Entry::shared(UnitNo(unit)),
            },
        }
    }

    #[test]
    fn a_translation_serves_its_pages_under_its_layout_only() {
        let buffer = Lookaside::new();
        assert_eq!(buffer.get(FILE, 0, 0), None);
        let known = translation(8, 4, 100);
        buffer.put(FILE, 5, &known);
        assert_eq!(buffer.get(FILE, 5, 8), Some(known));
        assert_eq!(buffer.get(FILE, 5, 11), Some(known));
        for (id, layout, page) in [(7, 5, 7), (7, 5, 12), (7, 6, 9), (8, 5, 9)] {
            assert_eq!(buffer.get(ObjectId(id), layout, page), None);
        }
    }

    #[test]
    fn an_entry_that_is_being_filled_is_not_believed() {
        let buffer = Lookaside::new();
        buffer.put(FILE, 5, &translation(8, 4, 100));
        buffer.place(FILE, 8).turn.fill(|| {
            assert_eq!(buffer.get(FILE, 5, 8), None);
            buffer.put(FILE, 5, &translation(8, 4, 200));
            assert_eq!(buffer.get(FILE, 5, 8), None);
        });
    }

    #[test]
    fn threads_never_see_a_mixture() {
        let buffer = Lookaside::new();
        std::thread::scope(|scope| {
            for start in 0..2 {
                let buffer = &buffer;
                scope.spawn(move || {
                    for unit in start..20_000 {
                        buffer.put(FILE, 5, &translation(0, 8, 1 + unit));
                    }
                });
            }
            for _ in 0..20_000 {
                if let Some(found) = buffer.get(FILE, 5, 3) {
                    let unit = found.run.entry.unit().0;
                    assert_eq!(found, translation(0, 8, unit));
                }
            }
        });
    }

    #[test]
    fn a_busy_group_is_translated_in_growing_steps() {
        let buffer = Lookaside::new();
        assert_eq!(buffer.reach(FILE, 9, 1), 1);
        assert_eq!(buffer.reach(FILE, 9, 17), 32);
        buffer.put(FILE, 5, &translation(8, 4, 100));
        assert_eq!(buffer.reach(FILE, 60, 1), 16);
        assert_eq!(buffer.reach(FILE, 64, 1), 1);
        buffer.put(FILE, 5, &translation(0, 64, 100));
        assert_eq!(buffer.reach(FILE, 60, 1), 64);
        assert_eq!(buffer.reach(FILE, 60, 500), 64);
    }
}
