//! Remembered ways: to which directory a path of plain names led, and what was true of each name on
//! it.
//!
//! As long as all of that is true at the present stamp (decision D16), the way leads there still:
//! walking it again costs two loads for each name. Private memory of the process, under version
//! locks of its own: who meets a place that is being filled walks; a fork copies it, and a death
//! leaves nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nacre_fs::{Cred, Fs, InodeRef, NameFact};
use nacre_types::{Ino, VersionLock, last_word_of, words_of};
use zerocopy::FromZeros;

use crate::untouched::zeros;

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
#[derive(FromZeros)]
struct CachedPath {
    version: VersionLock,
    head: [AtomicU64; HEAD_WORDS],
    text: [AtomicU64; TEXT_WORDS],
    end: [AtomicU64; 2],
    steps: AtomicU64,
    facts: [[AtomicU64; FACT_WORDS]; STEPS],
    /// What was looked for in vain last: a way is remembered when it is walked twice in a row.
    wanted: AtomicU32,
}

/// The ways that a process remembers.
pub(crate) struct PathCache(Box<[CachedPath]>);

impl Way<'_> {
    /// All but the text. A kept identity has its address for itself, as long as the process lives.
    #[inline(always)]
    fn head(&self) -> [u64; HEAD_WORDS] {
        [
            self.start.ino.0,
            u64::from(self.start.generation) << 32 | self.mount as u64,
            std::ptr::from_ref(self.cred).addr() as u64,
            self.text.len() as u64,
        ]
    }

    /// Tells ways apart, mostly.
    #[inline(always)]
    fn hash(&self) -> u32 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let about =
            last_word_of(self.text) ^ self.start.ino.0.rotate_left(32) ^ self.text.len() as u64;
        (about.wrapping_mul(ODD) >> 32) as u32
    }

    #[inline(always)]
    fn is_at(&self, place: &CachedPath) -> bool {
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        let [start, life, cred, len] = self.head();
        is(&place.head[0], start)
            && is(&place.head[1], life)
            && is(&place.head[2], cred)
            && is(&place.head[3], len)
            && self.has_text_at(place)
    }

    #[inline(always)]
    fn has_text_at(&self, place: &CachedPath) -> bool {
        // A loop of its own: iterators that stop early are not inlined.
        for (mine, word) in words_of(self.text).zip(&place.text) {
            if word.load(Ordering::Relaxed) != mine {
                return false;
            }
        }
        true
    }

    fn fits(&self) -> bool {
        (1..=TEXT_WORDS * 8).contains(&self.text.len())
    }
}

impl CachedPath {
    /// Where the way leads that lies here, if that is `way` and all that was true on it still is.
    #[inline(always)]
    fn end_of(&self, fs: &Fs, way: &Way<'_>) -> Option<InodeRef> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let seen = self.version.look()?;
        if !way.is_at(self) {
            return None;
        }
        let steps = (load(&self.steps) as usize).min(STEPS);
        let present = fs.present();
        // Whatever a disturbed look takes for a fact can be asked about.
        for [bucket, names, dir, attribute_epoch] in &self.facts[..steps] {
            let fact =
                NameFact::from_words([load(bucket), load(names), load(dir), load(attribute_epoch)]);
            if !present.holds(&fact) {
                return None;
            }
        }
        let end = InodeRef {
            ino: Ino(load(&self.end[0])),
            generation: load(&self.end[1]) as u32,
        };
        self.version.is_still(seen).then_some(end)
    }
}

impl PathCache {
    pub(crate) fn new() -> PathCache {
        PathCache(zeros(PLACES))
    }

    /// Where the way leads, if that is known; else whether it is worth remembering.
    #[inline]
    pub(crate) fn find(&self, fs: &Fs, way: &Way<'_>) -> Result<InodeRef, bool> {
        if !way.fits() {
            return Err(false);
        }
        let hash = way.hash();
        let place = &self.0[hash as usize % PLACES];
        if let Some(end) = place.end_of(fs, way) {
            return Ok(end);
        }
        let again = place.wanted.load(Ordering::Relaxed) == hash;
        place.wanted.store(hash, Ordering::Relaxed);
        Err(again)
    }

    /// Remembers a way of so many names.
    #[cold]
    pub(crate) fn remember(&self, way: &Way<'_>, end: InodeRef, facts: &[NameFact]) {
        if !way.fits() || facts.is_empty() || facts.len() > STEPS {
            return;
        }
        let place = &self.0[way.hash() as usize % PLACES];
        place.version.fill(|| {
            let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
            for (word, value) in place.head.iter().zip(way.head()) {
                set(word, value);
            }
            for (word, mine) in place.text.iter().zip(words_of(way.text)) {
                set(word, mine);
            }
            set(&place.end[0], end.ino.0);
            set(&place.end[1], end.generation.into());
            set(&place.steps, facts.len() as u64);
            for (words, fact) in place.facts.iter().zip(facts) {
                for (word, value) in words.iter().zip(fact.to_words()) {
                    set(word, value);
                }
            }
        });
    }
}
