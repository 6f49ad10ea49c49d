//! What the disk has at home, and making memory right where the disk was not.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use nacre_types::UNIT_SIZE;

use super::{GRANULE, Image, units};
use crate::error::MediaFailed;

const WORD: usize = size_of::<u64>();

impl Image {
    /// Whether the disk has a unit at home as it is in the version that was taken last: nothing
    /// else of it is noted, nor in the journal alone. Nobody commits.
    pub fn has_home(&self, at: u64) -> bool {
        self.is_home(at / UNIT_SIZE)
    }

    /// Whether a unit means nothing in the version that the disk has (C11); nobody has taken it by
    /// now if it `is_free`. Nobody stores.
    pub fn means_nothing(&self, at: u64, is_free: bool) -> bool {
        let unit = units(at..at + UNIT_SIZE);
        let knows = || self.head().blind.load(SeqCst) == 0 || self.is_clean();
        self.is_new(unit.clone()) || (is_free && knows() && !self.was_freed(unit))
    }

    /// A unit came from a disk that held it `wrong`: gives it the bytes that are `right`. One that
    /// is not there, holds anything else, or is in a version to come, stays. Nobody stores, but for
    /// programs to what they have mapped.
    pub fn correct(&self, at: u64, wrong: &[u8], right: &[u8]) {
        let unit = at / UNIT_SIZE;
        // What somebody has read ahead may be wrong, too.
        self.epoch(unit).fetch_add(1, SeqCst);
        if !self.present.has(unit) || !self.is_home(unit) {
            return;
        }
        self.correct_words(at, wrong, right);
    }

    /// Whether the disk has units at home, but for what is noted of them: the journal has nothing
    /// of them, and they are not new.
    pub fn has_rest_home(&self, range: Range<u64>) -> bool {
        let units = units(range);
        !self.away.has_any(units.clone()) && !self.new.has_any(units)
    }

    /// As [`Image::correct`], for a reader who found `part` of a unit wrong while others store,
    /// which has its rest at home: what else came with it from that disk is made right, too, as far
    /// as nobody has stored there since. What is more than a word stays where it is noted, as it
    /// may be half of a change (D127).
    pub fn correct_beside_stores(&self, at: u64, part: Range<usize>, wrong: &[u8], right: &[u8]) {
        let unit = at / UNIT_SIZE;
        self.epoch(unit).fetch_add(1, SeqCst);
        if !self.present.has(unit) {
            return;
        }
        for skip in (0..wrong.len()).step_by(GRANULE as usize) {
            let granule = skip..skip + GRANULE as usize;
            let start = at + skip as u64;
            let bytes = match self.is_noted(start..start + GRANULE) {
                false => granule,
                true if part.len() == WORD && granule.contains(&part.start) => part.clone(),
                true => continue,
            };
            let start = at + bytes.start as u64;
            self.correct_words(start, &wrong[bytes.clone()], &right[bytes]);
        }
    }

    /// Calls `found` with what is noted, and with what the journal has alone, in no order: all that
    /// is to be written home. Nobody commits.
    pub fn each_to_come_home(&self, mut found: impl FnMut(Range<u64>)) {
        let bytes = |of: &Range<u64>, each: u64| of.start * each..of.end * each;
        for set in &self.sets {
            set.each_range(|granules| found(bytes(&granules, GRANULE)));
        }
        self.away
            .each_range(|units| found(bytes(&units, UNIT_SIZE)));
    }

    pub(super) fn is_noted(&self, range: Range<u64>) -> bool {
        let granules = range.start / GRANULE..range.end / GRANULE;
        self.sets.iter().any(|set| set.has_any(granules.clone()))
    }

    /// Whole words that all are `wrong` get the bytes that are `right`.
    fn correct_words(&self, at: u64, wrong: &[u8], right: &[u8]) {
        let words = || {
            let pairs = wrong
                .as_chunks::<WORD>()
                .0
                .iter()
                .zip(right.as_chunks::<WORD>().0);
            let numbers = pairs.map(|(wrong, right)| [*wrong, *right].map(u64::from_ne_bytes));
            (at..).step_by(WORD).zip(numbers)
        };
        let is_wrong =
            |(at, [wrong, _]): (u64, [u64; 2])| self.shared_word(at).load(SeqCst) == wrong;
        if !words().all(is_wrong) {
            return;
        }
        for (at, [wrong, right]) in words().filter(|(_, [wrong, right])| wrong != right) {
            // What a program stored in this moment stays.
            let word = self.shared_word(at);
            let _stored = word.compare_exchange(wrong, right, SeqCst, SeqCst);
        }
    }

    fn shared_word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: an aligned word of the mapped window, which lives as long as the image and which
        // everybody takes for shared memory.
        unsafe { AtomicU64::from_ptr(self.address(at).cast()) }
    }

    /// Runs `work` while nobody stores and no version is made; not if this process is leaving.
    pub fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        match self.committer.get() {
            Some(committer) => committer.while_nobody_stores(work),
            None => work(),
        }
    }

    /// Brings all that was stored before to its home place.
    pub fn bring_home(&self) -> Result<(), MediaFailed> {
        self.committer.get().map_or(Ok(()), |one| one.bring_home())
    }
}
