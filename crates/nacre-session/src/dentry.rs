//! What names stood for: a cache of directory entries that all processes share.
//!
//! An entry is a fact about the past: while directory D had version V, name N stood for inode I, or
//! for nothing, and these were the mode, owner and group of D. Facts do not become wrong, so nobody
//! ever has to take one back: whoever changes a directory moves its version, and who asks gives the
//! version that he sees. Entries are overwritten when their place is needed.
//!
//! Each entry has a sequence number that is odd while somebody writes it. A writer that dies leaves
//! it odd: the place is lost until the session ends, as nobody can tell a dead writer from a slow
//! one.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::mapping::SharedWords;
use crate::{Session, step};

const NAME_WORDS: usize = 10;
/// Longest name that is remembered, in bytes.
pub const MAX_DENTRY_NAME: usize = NAME_WORDS * 8;
/// Places of a session: as many as objects, within bounds; a power of two.
const PLACES: std::ops::RangeInclusive<u64> = 64..=1 << 17;

/// A name in one incarnation of a directory.
pub struct DentryKey<'n> {
    directory: u64,
    hash: u64,
    name: &'n [u8],
}

/// What is known of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry {
    /// Mode of the directory.
    pub mode: u32,
    /// Owner of the directory.
    pub uid: u32,
    /// Group of the directory.
    pub gid: u32,
    /// What the name stands for; `None` if for nothing.
    pub found: Option<DentryTarget>,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DentryTarget {
    /// Object number, below 2^32.
    pub object: u64,
    /// Incarnation of the object number.
    pub generation: u32,
    /// Type as in `d_type`.
    pub kind: u8,
}

/// One place of the cache: two cache lines, the second for names longer than 16 bytes.
#[repr(C, align(128))]
pub(crate) struct Place {
    sequence: AtomicU64,
    /// Object and generation of the directory.
    directory: AtomicU64,
    version: AtomicU64,
    /// Owner and group of the directory.
    owner: AtomicU64,
    /// Object and generation of the target, 0 for none.
    target: AtomicU64,
    /// Mode of the directory, type of the target, length of the name.
    shape: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

const _: () = assert!(size_of::<Place>() == 128);

// SAFETY: atomics only.
unsafe impl SharedWords for Place {}

/// Places of a session for so many objects.
pub(crate) fn places(objects: u64) -> u64 {
    objects
        .clamp(*PLACES.start(), *PLACES.end())
        .next_power_of_two()
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

impl<'n> DentryKey<'n> {
    /// `None` for names that are not remembered, because they are too long or empty.
    #[inline]
    pub fn new(directory: u64, generation: u32, name: &'n [u8]) -> Option<DentryKey<'n>> {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        if name.is_empty() || name.len() > MAX_DENTRY_NAME {
            return None;
        }
        let directory = pair(generation, directory as u32);
        let mix = |hash: u64, word: u64| {
            let product = (hash ^ word).wrapping_mul(ODD);
            product ^ product >> 32
        };
        let start = mix(name.len() as u64, directory);
        Some(DentryKey {
            directory,
            hash: words(name).fold(start, mix),
            name,
        })
    }

    #[inline]
    fn is_at(&self, place: &Place, version: u64) -> bool {
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        is(&place.directory, self.directory)
            && is(&place.version, version)
            && place.shape.load(Ordering::Relaxed) as u8 == self.name.len() as u8
            && words(self.name)
                .zip(&place.name)
                .all(|(mine, word)| is(word, mine))
    }
}

/// The words of a name, for one length different for different names: its whole words, but the last
/// one covers the last eight bytes.
#[inline]
fn words(name: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let whole = (name.len() - 1) / 8;
    let (first, _) = name.as_chunks::<8>();
    let words = first[..whole]
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes));
    words.chain([last_word(name)])
}

/// The word of a name's last bytes: its last eight, or all of fewer, in a way that, for one length,
/// different bytes give different words.
#[inline]
fn last_word(name: &[u8]) -> u64 {
    if let Some(last) = name.last_chunk::<8>() {
        return u64::from_le_bytes(*last);
    }
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return pair(u32::from_le_bytes(*last), u32::from_le_bytes(*first));
    }
    let bytes = [name[0], name[name.len() / 2], name[name.len() - 1], 0];
    u64::from(u32::from_le_bytes(bytes))
}

impl Place {
    #[inline]
    fn read(&self, key: &DentryKey<'_>, version: u64) -> Option<Dentry> {
        let before = self.sequence.load(Ordering::Acquire);
        if !before.is_multiple_of(2) || !key.is_at(self, version) {
            return None;
        }
        let (owner, target, shape) = (
            self.owner.load(Ordering::Relaxed),
            self.target.load(Ordering::Relaxed),
            self.shape.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) != before {
            return None;
        }
        let found = (target != 0).then_some(DentryTarget {
            object: u64::from(target as u32),
            generation: (target >> 32) as u32,
            kind: (shape >> 8) as u8,
        });
        Some(Dentry {
            mode: (shape >> 32) as u32,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            found,
        })
    }

    /// Nothing happens while somebody else writes.
    fn write(&self, key: &DentryKey<'_>, version: u64, known: &Dentry) {
        let before = self.sequence.load(Ordering::Relaxed);
        let (odd, even) = (before.wrapping_add(1), before.wrapping_add(2));
        let (got, missed) = (Ordering::Acquire, Ordering::Relaxed);
        let claimed = before.is_multiple_of(2)
            && self
                .sequence
                .compare_exchange(before, odd, got, missed)
                .is_ok();
        if !claimed {
            return;
        }
        // The odd number must be seen before any store that follows it.
        fence(Ordering::Release);
        let set = |word: &AtomicU64, value: u64| {
            step::point();
            word.store(value, Ordering::Relaxed);
        };
        let target = known
            .found
            .map_or(0, |target| pair(target.generation, target.object as u32));
        let kind = known.found.map_or(0, |target| u32::from(target.kind));
        set(&self.directory, key.directory);
        set(&self.version, version);
        set(&self.owner, pair(known.uid, known.gid));
        set(&self.target, target);
        set(
            &self.shape,
            pair(known.mode, kind << 8 | key.name.len() as u32),
        );
        for (word, mine) in self.name.iter().zip(words(key.name)) {
            set(word, mine);
        }
        step::point();
        self.sequence.store(even, Ordering::Release);
    }
}

impl Session {
    /// What is known of a name in a directory of this version.
    #[inline]
    pub fn dentry(&self, key: &DentryKey<'_>, version: u64) -> Option<Dentry> {
        let [first, second] = self.dentry_places(key);
        first
            .read(key, version)
            .or_else(|| second.read(key, version))
    }

    /// Remembers what a name stood for while its directory had an even version. Object numbers are
    /// below 2^32 (the largest geometry's).
    pub fn remember_dentry(&self, key: &DentryKey<'_>, version: u64, known: &Dentry) {
        let [first, second] = self.dentry_places(key);
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        let good = is(&first.directory, key.directory) && is(&first.version, version);
        let place = if good { second } else { first };
        place.write(key, version, known);
    }

    #[inline]
    fn dentry_places(&self, key: &DentryKey<'_>) -> [&Place; 2] {
        let all = self.memory.dentries.all();
        let index = (key.hash >> 32) as usize & (all.len() - 1);
        [&all[index], &all[index ^ 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::{Dentry, DentryKey, DentryTarget, MAX_DENTRY_NAME};
    use crate::{Geometry, Session};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn session() -> Session {
        let geometry = Geometry {
            units: 64,
            max_objects: 64,
            lanes: 1,
        };
        Session::memory(geometry).unwrap()
    }

    fn known(object: u64) -> Dentry {
        Dentry {
            mode: 0o40755,
            uid: object as u32,
            gid: 9,
            found: Some(DentryTarget {
                object,
                generation: object as u32 + 1,
                kind: 8,
            }),
        }
    }

    fn key(directory: u64, name: &[u8]) -> DentryKey<'_> {
        DentryKey::new(directory, 1, name).unwrap()
    }

    #[test]
    fn a_name_is_known_in_its_directory_and_version_only() {
        let session = session();
        let nothing = Dentry {
            found: None,
            ..known(0)
        };
        session.remember_dentry(&key(1, b"name"), 4, &known(7));
        session.remember_dentry(&key(2, b"none"), 4, &nothing);
        assert_eq!(session.dentry(&key(1, b"name"), 4), Some(known(7)));
        assert_eq!(session.dentry(&key(2, b"none"), 4), Some(nothing));
        assert_eq!(session.dentry(&key(1, b"name"), 6), None);
        assert_eq!(session.dentry(&key(2, b"name"), 4), None);
        assert_eq!(session.dentry(&key(1, b"nam"), 4), None);
        assert_eq!(
            session.dentry(&DentryKey::new(1, 2, b"name").unwrap(), 4),
            None
        );
        session.remember_dentry(&key(1, b"name"), 6, &known(8));
        assert_eq!(session.dentry(&key(1, b"name"), 6), Some(known(8)));
    }

    #[test]
    fn names_of_every_length_differ_in_every_byte() {
        let session = session();
        for len in 1..=MAX_DENTRY_NAME {
            let name: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
            session.remember_dentry(&key(1, &name), 2, &known(5));
            assert_eq!(session.dentry(&key(1, &name), 2), Some(known(5)), "{len}");
            for at in 0..len {
                let mut other = name.clone();
                other[at] ^= 1;
                assert_eq!(session.dentry(&key(1, &other), 2), None, "{len} {at}");
            }
        }
        assert!(DentryKey::new(1, 1, &[b'x'; MAX_DENTRY_NAME + 1]).is_none());
        assert!(DentryKey::new(1, 1, b"").is_none());
    }

    #[test]
    fn readers_never_see_a_mixture() {
        let session = session();
        let stop = AtomicBool::new(false);
        let name = [b'n'; 40];
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (session, stop) = (&session, &stop);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let object = 1 + (round * 2 + writer) % 50;
                        session.remember_dentry(&key(1, &name), 2 * object, &known(object));
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            while !stop.load(Ordering::Relaxed) {
                for object in 1..51 {
                    if let Some(seen) = session.dentry(&key(1, &name), 2 * object) {
                        assert_eq!(seen, known(object));
                    }
                }
            }
        });
    }
}
