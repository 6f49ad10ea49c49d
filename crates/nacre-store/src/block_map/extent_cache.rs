//! A translation extent cache buffer: where the pages lie that this process read or wrote last.
//!
//! A translation is good while the object's mapping epoch count stands where it stood when the
//! translation was begun (docs/locking.md), so it needs no walk of the block map and no check of
//! its words. Threads share the buffer without locks: one that finds an entry being filled looks at
//! the map.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nacre_media::Zeros;
use nacre_types::{FileOffset, ObjectId, UNIT_SIZE, VersionLock, VolumeOffset};
use zerocopy::FromZeros;

use super::layout::MapWord;
use crate::block_map::{Leaf, PageRun};

/// Entries: enough for 1 GiB.
const ENTRIES: usize = 4096;
/// Pages that share an entry, a power of two. A miss looks at so many words at most.
const GROUP: u64 = 64;

/// What a page of an object is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) onode: VolumeOffset,
    /// Type and permissions of the object.
    pub(crate) mode: u32,
    pub(crate) generation: u32,
    /// Where a run begins that holds the page.
    pub(crate) start: FileOffset,
    pub(crate) pages: u64,
    pub(crate) entry: MapWord,
    /// A size word of the object that was found sound, or 0.
    pub(crate) size_word: u64,
}

impl Translation {
    #[inline]
    pub(crate) fn run(&self) -> PageRun {
        PageRun {
            page: self.start.page(),
            count: self.pages,
            entry: self.entry,
        }
    }
}

#[derive(FromZeros)]
#[repr(align(64))]
struct CacheLine {
    version: VersionLock,
    /// 0 in an empty entry.
    id: AtomicU64,
    mapping_epoch: AtomicU64,
    onode: AtomicU64,
    /// Pages of the run (16 bits), mode (16), generation (32).
    kind: AtomicU64,
    /// Offset of the run's first byte.
    start: AtomicU64,
    entry: AtomicU64,
    /// Depends on nothing but the object.
    size_word: AtomicU64,
}

const _: () = assert!(size_of::<CacheLine>() == 64);

const COUNT_MASK: u64 = 0xffff;
const MODE_SHIFT: u32 = 16;
const MODE_MASK: u32 = 0xffff;
const GENERATION_SHIFT: u32 = 32;

const _: () = assert!(GROUP <= COUNT_MASK);

impl CacheLine {
    fn first_page(&self) -> u64 {
        FileOffset(self.start.load(Relaxed)).page()
    }

    fn is_of(&self, id: ObjectId, page: u64) -> bool {
        self.id.load(Relaxed) == id.0 && self.first_page() / GROUP == page / GROUP
    }

    /// Whether what is here has this place as its first choice.
    fn has_chosen(&self, place: usize) -> bool {
        let id = ObjectId(self.id.load(Relaxed));
        id.0 != 0 && first_choice(id, self.first_page()) == place
    }

    #[inline(always)]
    fn get(&self, id: ObjectId, mapping_epoch: u64, offset: FileOffset) -> Option<Translation> {
        let seen = self.version.look()?;
        let start = self.start.load(Relaxed);
        let kind = self.kind.load(Relaxed);
        let pages = kind & COUNT_MASK;
        if self.id.load(Relaxed) != id.0
            || self.mapping_epoch.load(Relaxed) != mapping_epoch
            || offset.0.wrapping_sub(start) >= pages * UNIT_SIZE
        {
            return None;
        }
        let found = Translation {
            onode: VolumeOffset(self.onode.load(Relaxed)),
            mode: (kind >> MODE_SHIFT) as u32 & MODE_MASK,
            generation: (kind >> GENERATION_SHIFT) as u32,
            start: FileOffset(start),
            pages,
            entry: MapWord::from_payload(self.entry.load(Relaxed)),
            size_word: self.size_word.load(Relaxed),
        };
        self.version.is_still(seen).then_some(found)
    }

    /// All that `sequence` guards, in the order of the fields.
    fn words(&self) -> [&AtomicU64; 7] {
        [
            &self.id,
            &self.mapping_epoch,
            &self.onode,
            &self.kind,
            &self.start,
            &self.entry,
            &self.size_word,
        ]
    }

    /// Takes what another place holds, unless that is empty or being filled.
    fn take(&self, other: &CacheLine) {
        let Some(seen) = other.version.look() else {
            return;
        };
        let words = other.words().map(|word| word.load(Relaxed));
        let [id, ..] = words;
        if id != 0 && other.version.is_still(seen) {
            self.fill(words);
        }
    }

    fn fill(&self, words: [u64; 7]) {
        self.version.fill(|| {
            for (to, word) in self.words().into_iter().zip(words) {
                to.store(word, Relaxed);
            }
        });
    }
}

/// How often a group that loses its first choice gets the second one even from a group for which it
/// is the first: once in so many times.
const EVICTION: u64 = 8;

/// The lowest node of a map that was written to last, of objects whose numbers fall together.
#[derive(FromZeros)]
#[repr(align(64))]
struct LeafPlace {
    version: VersionLock,
    /// 0 in an empty entry.
    id: AtomicU64,
    mapping_epoch: AtomicU64,
    page: AtomicU64,
    words: AtomicU64,
}

/// Entries of leaves.
const LEAVES: usize = 64;

/// The buffer of one attached pool.
pub(crate) struct ExtentCache(Zeros<[CacheLine; ENTRIES]>, Zeros<[LeafPlace; LEAVES]>);

/// Where the entries of an object begin: those of objects with neighbouring numbers lie far apart,
/// so that a few long files find room side by side.
#[inline(always)]
fn start_of(id: ObjectId) -> u64 {
    // The golden section of all numbers.
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    id.0.wrapping_mul(ODD) >> (u64::BITS - ENTRIES.ilog2())
}

#[inline(always)]
fn first_choice(id: ObjectId, page: u64) -> usize {
    (start_of(id).wrapping_add(page / GROUP) % ENTRIES as u64) as usize
}

/// Out of the way, so that what is read from the first choice waits for no comparison.
#[cold]
#[inline(never)]
fn second_choice(first: usize) -> usize {
    first ^ (ENTRIES / 2)
}

impl ExtentCache {
    pub(crate) fn new() -> Self {
        // Pages that nobody has touched: most processes use few.
        Self(Zeros::new(), Zeros::new())
    }

    /// The lowest node that maps a page, if it is the one that was written to last under this
    /// mapping epoch.
    #[inline]
    pub(crate) fn leaf(&self, id: ObjectId, mapping_epoch: u64, page: u64) -> Option<Leaf> {
        let place = &self.1[id.0 as usize % LEAVES];
        let seen = place.version.look()?;
        let leaf = Leaf::node(
            VolumeOffset(place.words.load(Relaxed)),
            place.page.load(Relaxed),
        );
        let known =
            place.id.load(Relaxed) == id.0 && place.mapping_epoch.load(Relaxed) == mapping_epoch;
        (known && place.version.is_still(seen) && leaf.holds(page)).then_some(leaf)
    }

    /// Remembers the lowest node that a write found. Under one mapping epoch a map gets nodes, but
    /// loses none.
    pub(crate) fn put_leaf(&self, id: ObjectId, mapping_epoch: u64, leaf: Leaf) {
        let Some((words, page)) = leaf.as_node() else {
            return;
        };
        let place = &self.1[id.0 as usize % LEAVES];
        place.version.fill(|| {
            place.id.store(id.0, Relaxed);
            place.mapping_epoch.store(mapping_epoch, Relaxed);
            place.page.store(page, Relaxed);
            place.words.store(words.0, Relaxed);
        });
    }

    /// What is remembered of the page that holds `offset`, under this mapping epoch of its object.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        id: ObjectId,
        mapping_epoch: u64,
        offset: FileOffset,
    ) -> Option<Translation> {
        let mut at = first_choice(id, offset.page());
        // Of two groups of one object the second choice is not looked at: it is not worth a look
        // each time.
        if self.0[at].id.load(Relaxed) != id.0 {
            at = second_choice(at);
        }
        self.0[at].get(id, mapping_epoch, offset)
    }

    /// Remembers a translation of written pages of one group.
    pub(crate) fn put(&self, id: ObjectId, mapping_epoch: u64, found: &Translation) {
        if !found.entry.is_written() || found.mode & !MODE_MASK != 0 {
            return;
        }
        let kind = u64::from(found.generation) << GENERATION_SHIFT
            | u64::from(found.mode) << MODE_SHIFT
            | found.pages & COUNT_MASK;
        self.place_for(id, found.start.page()).fill([
            id.0,
            mapping_epoch,
            found.onode.0,
            kind,
            found.start.0,
            found.entry.payload(),
            found.size_word,
        ]);
    }

    /// Remembers pages of one group that were just mapped, and with them those before them that
    /// were known, if they go on there.
    pub(crate) fn put_behind(&self, id: ObjectId, mapping_epoch: u64, mapped: &Translation) {
        let known = mapped.start.page().checked_sub(1).and_then(|before| {
            let known = self.get(id, mapping_epoch, FileOffset::of_page(before))?;
            let goes_on = before % GROUP != GROUP - 1
                && known.run().end() == before + 1
                && known.entry.advance(known.pages) == mapped.entry;
            goes_on.then_some(known)
        });
        match known {
            None => self.put(id, mapping_epoch, mapped),
            Some(known) => {
                let pages = known.pages + mapped.pages;
                self.put(id, mapping_epoch, &Translation { pages, ..known });
            }
        }
    }

    /// The pages of a run that share the entry of its last one.
    pub(crate) fn end_of(run: PageRun) -> PageRun {
        let group = (run.end() - 1) & !(GROUP - 1);
        run.from(group.max(run.page))
    }

    /// Remembers a size word of an object that was found sound, with what is known of a page.
    pub(crate) fn put_size(&self, id: ObjectId, page: u64, size_word: u64) {
        if let Some(place) = self.place_of(id, page) {
            place.version.fill(|| {
                if place.id.load(Relaxed) == id.0 {
                    place.size_word.store(size_word, Relaxed);
                }
            });
        }
    }

    /// How many pages to translate at once around `page`, a power of two; `least` are needed. More
    /// each time that the same group is asked for, so that a single look costs little and the pages
    /// of a busy group are soon all known.
    pub(crate) fn reach(&self, id: ObjectId, page: u64, least: u64) -> u64 {
        let known = self
            .place_of(id, page)
            .map_or(0, |place| place.kind.load(Relaxed) & COUNT_MASK);
        least
            .max(known.saturating_mul(4))
            .min(GROUP)
            .next_power_of_two()
    }

    /// Where something is remembered of the group of `page`.
    fn place_of(&self, id: ObjectId, page: u64) -> Option<&CacheLine> {
        let first = first_choice(id, page);
        let choices = [first, second_choice(first)].map(|at| &self.0[at]);
        choices.into_iter().find(|place| place.is_of(id, page))
    }

    /// Where to remember something of the group of `page`. What another group has there moves to
    /// the second choice, which is the same for both, if nobody is there who has it as the first;
    /// now and then in any case, as that may be long forgotten.
    fn place_for(&self, id: ObjectId, page: u64) -> &CacheLine {
        self.place_of(id, page).unwrap_or_else(|| {
            let first = first_choice(id, page);
            let (place, second) = (&self.0[first], second_choice(first));
            let often = place.version.look().unwrap_or(0) / 2 % EVICTION != 0;
            if !(often && self.0[second].has_chosen(second)) {
                self.0[second].take(place);
            }
            place
        })
    }
}

#[cfg(test)]
mod tests {

    use nacre_types::{FileOffset, ObjectId, UNIT_SIZE, UnitNo, VolumeOffset};

    use super::{EVICTION, ExtentCache, GROUP, Translation, first_choice, second_choice};
    use crate::block_map::layout::MapWord;

    const FILE: ObjectId = ObjectId(7);

    fn get(
        buffer: &ExtentCache,
        id: ObjectId,
        mapping_epoch: u64,
        page: u64,
    ) -> Option<Translation> {
        buffer.get(id, mapping_epoch, FileOffset::of_page(page))
    }

    fn translation(page: u64, count: u64, unit: u64) -> Translation {
        Translation {
            onode: VolumeOffset(4096 + unit),
            mode: 0o100_644,
            generation: unit as u32,
            start: FileOffset::of_page(page),
            pages: count,
            entry: MapWord::shared(UnitNo(unit)),
            size_word: 3 * unit,
        }
    }

    #[test]
    fn pages_that_are_mapped_behind_known_ones_are_known_with_them() {
        let buffer = ExtentCache::new();
        buffer.put_behind(FILE, 0, &translation(60, 2, 100));
        buffer.put_behind(FILE, 0, &translation(62, 1, 102));
        let pages = |page| get(&buffer, FILE, 0, page).map(|found| (found.run().page, found.pages));
        assert_eq!(pages(62), Some((60, 3)));
        buffer.put_behind(FILE, 0, &translation(63, 1, 200));
        assert_eq!(pages(62), None, "the last one lies elsewhere");
        assert_eq!(pages(63), Some((63, 1)));
        buffer.put_behind(FILE, 0, &translation(GROUP, 1, 201));
        assert_eq!(pages(63), Some((63, 1)), "another group");
        assert_eq!(pages(GROUP), Some((GROUP, 1)));
        buffer.put_behind(FILE, 1, &translation(GROUP + 1, 1, 202));
        assert_eq!(pages(GROUP + 1), None, "another mapping_epoch");
        let run = translation(60, 70, 100).run();
        assert_eq!(ExtentCache::end_of(run), run.from(2 * GROUP));
        assert_eq!(ExtentCache::end_of(run.from(129)), run.from(129));
    }

    #[test]
    fn a_translation_serves_its_pages_under_its_layout_only() {
        let buffer = ExtentCache::new();
        assert_eq!(get(&buffer, FILE, 0, 0), None);
        let known = translation(8, 4, 100);
        buffer.put(FILE, 5, &known);
        assert_eq!(get(&buffer, FILE, 5, 8), Some(known));
        assert_eq!(get(&buffer, FILE, 5, 11), Some(known));
        for (id, mapping_epoch, page) in [(7, 5, 7), (7, 5, 12), (7, 6, 9), (8, 5, 9)] {
            assert_eq!(get(&buffer, ObjectId(id), mapping_epoch, page), None);
        }
    }

    #[test]
    fn a_size_word_is_remembered_with_its_object_only() {
        let buffer = ExtentCache::new();
        buffer.put(FILE, 5, &translation(8, 4, 100));
        let other = falling_together(FILE, 8).next().unwrap();
        buffer.put_size(other, 8, 77);
        let known = |page| get(&buffer, FILE, 5, page).map(|found| found.size_word);
        assert_eq!(known(9), Some(300));
        buffer.put_size(FILE, 8, 77);
        assert_eq!(known(9), Some(77));
    }

    /// Other objects whose page would be remembered at the same place.
    fn falling_together(id: ObjectId, page: u64) -> impl Iterator<Item = ObjectId> {
        let place = first_choice(id, page);
        (id.0 + 1..)
            .map(ObjectId)
            .filter(move |&other| first_choice(other, page) == place)
    }

    #[test]
    fn two_groups_that_fall_together_are_both_known() {
        let buffer = ExtentCache::new();
        let [second, third] = *falling_together(FILE, 8).take(2).collect::<Vec<_>>() else {
            unreachable!();
        };
        let all = [(FILE, 100), (second, 200), (third, 300)];
        let put = |(id, unit)| buffer.put(id, 5, &translation(8, 4, unit));
        let known = || all.map(|(id, _)| get(&buffer, id, 5, 8).map(|found| found.entry.unit().0));
        all[..2].iter().copied().for_each(put);
        assert_eq!(known(), [Some(100), Some(200), None]);
        assert_eq!(buffer.reach(FILE, 8, 1), 16);
        buffer.put(FILE, 5, &translation(8, 8, 101));
        buffer.put_size(FILE, 8, 77);
        assert_eq!(known(), [Some(101), Some(200), None]);
        assert_eq!(get(&buffer, FILE, 5, 8).unwrap().size_word, 77);
        put(all[2]);
        assert_eq!(known(), [None, Some(200), Some(300)]);
    }

    #[test]
    fn what_is_being_filled_does_not_move() {
        let buffer = ExtentCache::new();
        let other = falling_together(FILE, 8).next().unwrap();
        buffer.put(FILE, 5, &translation(8, 4, 100));
        let first = first_choice(FILE, 8);
        buffer.0[first].version.fill(|| {
            buffer.put(other, 5, &translation(8, 4, 200));
            assert_eq!(get(&buffer, other, 5, 8), None);
        });
        assert!(buffer.0[second_choice(first)].version.look() == Some(0));
        assert_eq!(get(&buffer, FILE, 5, 8), Some(translation(8, 4, 100)));
    }

    /// Also if others were known before.
    #[test]
    fn any_two_files_of_64_mib_are_soon_known_at_once() {
        let buffer = ExtentCache::new();
        let groups = (64 << 20) / (UNIT_SIZE * GROUP);
        for (one, other) in (1..30).flat_map(|one| (one + 1..30).map(move |other| (one, other))) {
            let all = || {
                (0..groups).flat_map(|group| [one, other].map(|id| (ObjectId(id), group * GROUP)))
            };
            let known = |&(id, page): &(ObjectId, u64)| get(&buffer, id, one, page).is_some();
            let missed = (0..4 * EVICTION).find(|_| {
                let missing = all().filter(|one| !known(one));
                let put = |(id, page)| buffer.put(id, one, &translation(page, GROUP, page + 1));
                missing.map(put).count() == 0
            });
            assert!(missed.is_some(), "{one} and {other}");
        }
    }

    #[test]
    fn eight_neighbouring_files_of_64_mib_are_known_at_once() {
        let buffer = ExtentCache::new();
        let groups = (64 << 20) / (UNIT_SIZE * GROUP);
        let all =
            || (1..9).flat_map(|id| (0..groups).map(move |group| (ObjectId(id), group * GROUP)));
        for (id, page) in all() {
            buffer.put(id, 5, &translation(page, GROUP, 1000 * id.0 + page));
        }
        for (id, page) in all() {
            let known = translation(page, GROUP, 1000 * id.0 + page);
            assert_eq!(get(&buffer, id, 5, page), Some(known));
        }
    }

    #[test]
    fn an_entry_that_is_being_filled_is_not_believed() {
        let buffer = ExtentCache::new();
        buffer.put(FILE, 5, &translation(8, 4, 100));
        buffer.0[first_choice(FILE, 8)].version.fill(|| {
            assert_eq!(get(&buffer, FILE, 5, 8), None);
            buffer.put(FILE, 5, &translation(8, 4, 200));
            assert_eq!(get(&buffer, FILE, 5, 8), None);
        });
    }

    #[test]
    fn threads_never_see_a_mixture() {
        let buffer = ExtentCache::new();
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
                if let Some(found) = get(&buffer, FILE, 5, 3) {
                    let unit = found.entry.unit().0;
                    assert_eq!(found, translation(0, 8, unit));
                }
            }
        });
    }

    #[test]
    fn a_busy_group_is_translated_in_growing_steps() {
        let buffer = ExtentCache::new();
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
