//! Remembered ways: to which directory a path of plain names led, and what was true of each name on it.
//!
//! As long as all of that is true at the present moment (decision D16), the way leads there still: walking it again costs
//! two loads for each name. Private memory of the process, under sequence numbers of its own: who meets a place that
//! is being filled walks; a fork copies it, and a death leaves nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nacre_fs::{Cred, Fs, InodeRef, NameFact};
use nacre_types::Ino;

/// Ways that are remembered at once; a power of two.
const PLACES: usize = 16;
const TEXT_WORDS: usize = 12;
/// Longest way in names.
pub(crate) const STEPS: usize = 8;
const FACT_WORDS: usize = 4;
/// Beginning, end, credentials, shape, last bytes of the text.
const HEAD_WORDS: usize = 4;

/// From where, for whom, and the text of the way.
#[derive(Clone, Copy)]
pub(crate) struct Way<'p> {
    pub(crate) mount: usize,
    pub(crate) start: InodeRef,
    pub(crate) cred: &'p Cred,
    pub(crate) text: &'p [u8],
}

/// One remembered way.
#[derive(Default)]
struct Place {
    sequence: AtomicU64,
    head: [AtomicU64; HEAD_WORDS],
    text: [AtomicU64; TEXT_WORDS],
    end: [AtomicU64; 2],
    steps: AtomicU64,
    facts: [[AtomicU64; FACT_WORDS]; STEPS],
    /// What was looked for in vain last: a way is remembered when it is walked twice in a row.
    wanted: AtomicU32,
}

/// The ways that a process remembers.
pub(crate) struct Trails(Box<[Place]>);

impl Way<'_> {
    fn words(&self) -> impl Iterator<Item = u64> {
        let (words, rest) = self.text.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(u64::from_le_bytes(last));
        words
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .chain(last)
    }

    /// All but the text. A kept identity has its address for itself, as long as the process lives.
    fn head(&self) -> [u64; HEAD_WORDS] {
        [
            self.start.ino.0,
            u64::from(self.start.generation) << 32 | self.mount as u64,
            std::ptr::from_ref(self.cred).addr() as u64,
            self.text.len() as u64,
        ]
    }

    /// Tells ways apart, mostly.
    fn hash(&self) -> u32 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let start = self.start.ino.0 ^ (self.text.len() as u64) << 48;
        let hash = self.words().fold(start, |hash, word| {
            (hash ^ word).wrapping_mul(ODD).rotate_left(23)
        });
        (hash.wrapping_mul(ODD) >> 32) as u32
    }

    fn is_at(&self, place: &Place) -> bool {
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        place
            .head
            .iter()
            .zip(self.head())
            .all(|(word, value)| is(word, value))
            && place
                .text
                .iter()
                .zip(self.words())
                .all(|(word, value)| is(word, value))
    }
}

impl Trails {
    pub(crate) fn new() -> Trails {
        Trails((0..PLACES).map(|_| Place::default()).collect())
    }

    /// Where the way leads, if that is known; else whether it is worth remembering.
    pub(crate) fn find(&self, fs: &Fs, way: Way<'_>) -> Result<InodeRef, bool> {
        if way.text.len() > TEXT_WORDS * 8 {
            return Err(false);
        }
        let hash = way.hash();
        let place = &self.0[hash as usize % PLACES];
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let before = place.sequence.load(Ordering::Acquire);
        if before.is_multiple_of(2) && before != 0 && way.is_at(place) {
            let steps = load(&place.steps) as usize;
            let mut facts = [[0; FACT_WORDS]; STEPS];
            for (fact, words) in facts.iter_mut().zip(&place.facts).take(steps) {
                for (value, word) in fact.iter_mut().zip(words) {
                    *value = load(word);
                }
            }
            let end = InodeRef {
                ino: Ino(load(&place.end[0])),
                generation: load(&place.end[1]) as u32,
            };
            fence(Ordering::Acquire);
            let whole = load(&place.sequence) == before;
            let mut facts = facts.iter().take(steps);
            if whole && facts.all(|words| fs.holds(&NameFact::from_words(*words))) {
                return Ok(end);
            }
        }
        let again = place.wanted.load(Ordering::Relaxed) == hash;
        place.wanted.store(hash, Ordering::Relaxed);
        Err(again)
    }

    /// Remembers a way of so many names.
    #[cold]
    pub(crate) fn remember(&self, way: Way<'_>, end: InodeRef, facts: &[NameFact]) {
        if way.text.len() > TEXT_WORDS * 8 || facts.is_empty() || facts.len() > STEPS {
            return;
        }
        let place = &self.0[way.hash() as usize % PLACES];
        let before = place.sequence.load(Ordering::Relaxed);
        let (got, missed) = (Ordering::Acquire, Ordering::Relaxed);
        let claimed = before.is_multiple_of(2)
            && place
                .sequence
                .compare_exchange(before, before + 1, got, missed)
                .is_ok();
        if !claimed {
            return;
        }
        // The odd number must be seen before any store that follows it.
        fence(Ordering::Release);
        let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
        let fill = |words: &[AtomicU64], values: &mut dyn Iterator<Item = u64>| {
            for (word, value) in words.iter().zip(values) {
                set(word, value);
            }
        };
        fill(&place.head, &mut way.head().into_iter());
        fill(&place.text, &mut way.words());
        set(&place.end[0], end.ino.0);
        set(&place.end[1], end.generation.into());
        set(&place.steps, facts.len() as u64);
        for (words, fact) in place.facts.iter().zip(facts) {
            fill(words, &mut fact.to_words().into_iter());
        }
        place.sequence.store(before + 2, Ordering::Release);
    }
}
