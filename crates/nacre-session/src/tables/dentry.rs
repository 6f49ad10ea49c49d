//! What names stand for: a cache of directory entries that all processes share.
//!
//! An entry is a fact about the past: at a certain stamp name N of directory D stood for inode I,
//! or for nothing, and these were the mode, owner and group of D. A [`ValidityStamp`] is two
//! counts: one of the changes of the names that share N's bucket, one of the changes of D's
//! attributes (`ICore::attribute_epoch`). Facts do not become wrong, so nobody ever has to take one
//! back: whoever changes a name moves its bucket's count and nothing else, and who asks wants a
//! fact of the present stamp.
//!
//! A bucket says in which places entries of its names may be; a place says itself what it holds.
//! New names take the places in turn, so that what is remembered together lies together, and the
//! oldest goes when all are used.
//!
//! Each entry has a version lock that is odd while somebody writes it. A writer that dies leaves
//! it odd: the place is lost until the session ends, as nobody can tell a dead writer from a slow
//! one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nacre_types::{VersionLock, words_of};

use crate::Session;
use crate::mapping::SharedWords;
use crate::step::{self, Fault};
use crate::tables::icore::ICore;

const NAME_WORDS: usize = 9;
/// Longest name that is remembered, in bytes.
pub const MAX_DENTRY_NAME: usize = NAME_WORDS * 8;
/// Places of a session: as many as objects, within bounds; a power of two.
const PLACES: std::ops::RangeInclusive<u64> = 64..=1 << 17;
/// Places that a process takes at a time, so that two do not write to neighbouring lines: few, as
/// others are emptied for them.
const PLACES_AT_A_TIME: u64 = 16;
/// Entries of one bucket.
const WAYS: usize = 2;

/// A name in one incarnation of a directory.
pub struct DentryKey<'n> {
    directory: u64,
    hash: u64,
    name: &'n [u8],
}

/// When something was true of a name: as long as neither count has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidityStamp {
    names: u64,
    attribute_epoch: u64,
}

/// The names that become unknown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DentryBucket(usize);

impl DentryBucket {
    /// Its number.
    #[inline]
    pub fn number(self) -> u64 {
        self.0 as u64
    }

    /// The bucket with a number; of any number, some bucket.
    #[inline]
    pub fn from_number(number: u64) -> DentryBucket {
        DentryBucket(number as usize)
    }
}

impl ValidityStamp {
    /// The two counts: of changes of the names, and of the directory's attributes.
    #[inline]
    pub fn counts(self) -> (u64, u64) {
        (self.names, self.attribute_epoch)
    }
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

/// One place of the cache: two cache lines, the second for names longer than 8 bytes.
#[repr(C, align(128))]
pub(crate) struct CacheSlot {
    version: VersionLock,
    /// The stamp of the fact: count of the bucket's changes.
    names: AtomicU64,
    /// Count of the changes of the directory's attributes.
    attribute_epoch: AtomicU64,
    /// Object and generation of the directory.
    directory: AtomicU64,
    /// Owner and group of the directory.
    owner: AtomicU64,
    /// Object and generation of the target, 0 for none.
    target: AtomicU64,
    /// Mode of the directory, 16 bits of the name's hash, type of the target, length of the name.
    shape: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

/// Where entries for the same hashes may be.
#[repr(C)]
pub(crate) struct NameBucket {
    /// How often names of the bucket have changed.
    changes: AtomicU64,
    /// Numbers of places, counted from 1; 0 for none.
    places: [AtomicU32; WAYS],
}

const _: () = assert!(size_of::<CacheSlot>() == 128 && size_of::<NameBucket>() == 16);

// SAFETY: atomics only.
unsafe impl SharedWords for CacheSlot {}

// SAFETY: atomics only.
unsafe impl SharedWords for NameBucket {}

/// Places of a session for so many objects.
pub(crate) fn places(objects: u64) -> u64 {
    objects
        .clamp(*PLACES.start(), *PLACES.end())
        .next_power_of_two()
}

/// Buckets for so many places.
pub(crate) fn buckets(objects: u64) -> u64 {
    places(objects) / WAYS as u64
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// A product folded in half: every bit of both factors tells in every bit.
#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(hash ^ word) * ODD;
    product as u64 ^ (product >> 64) as u64
}

/// The counts of all names and directories.
#[derive(Clone, Copy)]
pub struct NameCounts<'s> {
    buckets: &'s [NameBucket],
    directories: &'s [ICore],
}

impl NameCounts<'_> {
    /// Whether these are the present counts of a bucket's names and of a directory's attributes;
    /// not those of what is no object.
    #[inline(always)]
    pub fn are(
        &self,
        bucket: DentryBucket,
        names: u64,
        directory: u64,
        attribute_epoch: u64,
    ) -> bool {
        let bucket = &self.buckets[bucket.0 & (self.buckets.len() - 1)];
        let directory = self.directories.get(directory as usize);
        bucket.changes.load(Ordering::Acquire) == names
            && directory.is_some_and(|icore| {
                icore.attribute_epoch.load(Ordering::Acquire) == attribute_epoch
            })
    }
}

impl<'n> DentryKey<'n> {
    /// `None` for names that are not remembered, because they are too long or empty.
    #[inline]
    pub fn new(directory: u64, generation: u32, name: &'n [u8]) -> Option<DentryKey<'n>> {
        if name.is_empty() || name.len() > MAX_DENTRY_NAME {
            return None;
        }
        let directory = pair(generation, directory as u32);
        let mut hash = mix(name.len() as u64, directory);
        for word in words_of(name) {
            hash = mix(hash, word);
        }
        Some(DentryKey {
            directory,
            hash,
            name,
        })
    }

    /// What the bucket is told by, at least.
    fn tag(&self) -> u32 {
        (self.hash >> 32) as u32 & 0xffff
    }

    #[inline(always)]
    fn is_at(&self, place: &CacheSlot) -> bool {
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        if !is(&place.directory, self.directory)
            || place.shape.load(Ordering::Relaxed) as u8 != self.name.len() as u8
        {
            return false;
        }
        // A loop of its own: iterators that stop early are not inlined.
        for (mine, word) in words_of(self.name).zip(&place.name) {
            if !is(word, mine) {
                return false;
            }
        }
        true
    }
}

impl CacheSlot {
    #[inline]
    fn is_of(&self, when: ValidityStamp) -> bool {
        self.names.load(Ordering::Relaxed) == when.names
            && self.attribute_epoch.load(Ordering::Relaxed) == when.attribute_epoch
    }

    #[inline(always)]
    fn read(&self, key: &DentryKey<'_>, when: ValidityStamp) -> Option<Dentry> {
        let before = self.version.look()?;
        if !self.is_of(when) || !key.is_at(self) {
            return None;
        }
        let owner = self.owner.load(Ordering::Relaxed);
        step::point();
        let target = self.target.load(Ordering::Relaxed);
        let shape = self.shape.load(Ordering::Relaxed);
        if !self.version.is_still(before) && !step::has(Fault::NameReadOnce) {
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

    /// False if somebody else writes, or died doing so: nothing happens.
    fn write(&self, key: &DentryKey<'_>, when: ValidityStamp, known: &Dentry) -> bool {
        if !self.version.try_begin() && !step::has(Fault::NameWrittenByTwo) {
            return false;
        }
        let set = |word: &AtomicU64, value: u64| {
            step::point();
            word.store(value, Ordering::Relaxed);
        };
        let target = known
            .found
            .map_or(0, |target| pair(target.generation, target.object as u32));
        let kind = known.found.map_or(0, |target| u32::from(target.kind));
        set(&self.names, when.names);
        set(&self.attribute_epoch, when.attribute_epoch);
        set(&self.directory, key.directory);
        set(&self.owner, pair(known.uid, known.gid));
        set(&self.target, target);
        set(
            &self.shape,
            pair(
                known.mode,
                key.tag() << 16 | kind << 8 | key.name.len() as u32,
            ),
        );
        for (word, mine) in self.name.iter().zip(words_of(key.name)) {
            set(word, mine);
        }
        step::point();
        self.version.end();
        true
    }
}

impl Session {
    /// What is known of a name now, in a directory with this count of changes of its attribute
    /// epoch; else the stamp to remember with it what the caller finds out.
    #[inline(always)]
    pub fn dentry(
        &self,
        key: &DentryKey<'_>,
        attribute_epoch: u64,
    ) -> Result<Dentry, ValidityStamp> {
        let bucket = self.name_bucket(key);
        let names = bucket.changes.load(Ordering::Acquire);
        let when = ValidityStamp {
            names,
            attribute_epoch,
        };
        for number in &bucket.places {
            if let Some(place) = self.name_place(number.load(Ordering::Acquire))
                && let Some(dentry) = place.read(key, when)
            {
                return Ok(dentry);
            }
        }
        Err(when)
    }

    /// The present stamp of a name; `attribute_epoch` was read before.
    #[inline]
    pub fn validity_stamp(&self, key: &DentryKey<'_>, attribute_epoch: u64) -> ValidityStamp {
        let names = self.name_bucket(key).changes.load(Ordering::Acquire);
        ValidityStamp {
            names,
            attribute_epoch,
        }
    }

    /// The counts of which stamps are made, for looking at several.
    #[inline(always)]
    pub fn name_counts(&self) -> NameCounts<'_> {
        NameCounts {
            buckets: self.memory.name_buckets.all(),
            directories: self.memory.icores.all(),
        }
    }

    /// Remembers what was true of a name at a stamp, and still was when it was read afterwards.
    /// Object numbers are below 2^32 (the largest geometry's).
    pub fn remember_dentry(&self, key: &DentryKey<'_>, when: ValidityStamp, known: &Dentry) {
        let ways = &self.name_bucket(key).places;
        let held = |way: &AtomicU32| self.name_place(way.load(Ordering::Acquire));
        let mut places = ways.iter().filter_map(held);
        if places.any(|place| key.is_at(place) && place.write(key, when, known)) {
            return;
        }
        let [first, second] = ways;
        let is_ours = |place: &CacheSlot| {
            let tag = place.shape.load(Ordering::Relaxed) >> 16;
            (tag ^ u64::from(key.tag())) & (self.memory.name_buckets.all().len() as u64 - 1) == 0
        };
        let good = held(first).is_some_and(|place| place.is_of(when) && is_ours(place));
        let way = if good { second } else { first };
        let places = self.memory.dentries.all();
        let round = self.next_place() as usize % places.len();
        if places[round].write(key, when, known) {
            step::point();
            way.store(round as u32 + 1, Ordering::Release);
        }
    }

    /// The place of the next new name. Threads that get the same one have to agree who writes
    /// there, as ever.
    fn next_place(&self) -> u64 {
        let mut place = self.dentry_next.load(Ordering::Relaxed);
        if place.is_multiple_of(PLACES_AT_A_TIME) {
            let shared = &self.shared().dentry_round;
            place = shared.fetch_add(PLACES_AT_A_TIME, Ordering::Relaxed);
        }
        self.dentry_next.store(place + 1, Ordering::Relaxed);
        place
    }

    /// Which names become unknown with this one.
    #[inline]
    pub fn dentry_bucket(&self, key: &DentryKey<'_>) -> DentryBucket {
        DentryBucket((key.hash >> 32) as usize & (self.memory.name_buckets.all().len() - 1))
    }

    /// Makes names unknown. To be called before anybody can see one of them change, and when nobody
    /// who looks for it in its directory can find any more what it stood for: while the directory's
    /// version is odd.
    #[inline]
    pub fn forget_dentries(&self, bucket: DentryBucket) {
        step::point();
        let changes = &self.memory.name_buckets.all()[bucket.0].changes;
        if step::has(Fault::TornNameCount) {
            let seen = changes.load(Ordering::Acquire);
            step::point();
            return changes.store(seen + 1, Ordering::Release);
        }
        changes.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    fn name_bucket(&self, key: &DentryKey<'_>) -> &NameBucket {
        &self.memory.name_buckets.all()[self.dentry_bucket(key).0]
    }

    /// The place with a number from a bucket, which may hold any name by now.
    #[inline]
    fn name_place(&self, number: u32) -> Option<&CacheSlot> {
        self.memory
            .dentries
            .all()
            .get(number.wrapping_sub(1) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dentry, DentryKey, DentryTarget, MAX_DENTRY_NAME};
    use crate::{Geometry, Session};
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn session(max_objects: u64) -> Session {
        let geometry = Geometry {
            units: 64,
            max_objects,
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

    fn at(session: &Session, key: &DentryKey<'_>, attribute_epoch: u64) -> Option<Dentry> {
        session.dentry(key, attribute_epoch).ok()
    }

    fn remember(session: &Session, key: &DentryKey<'_>, attribute_epoch: u64, known: &Dentry) {
        session.remember_dentry(key, session.validity_stamp(key, attribute_epoch), known);
    }

    #[test]
    fn a_name_is_known_in_its_directory_and_with_its_stamp_only() {
        let session = session(64);
        let nothing = Dentry {
            found: None,
            ..known(0)
        };
        remember(&session, &key(1, b"name"), 4, &known(7));
        remember(&session, &key(2, b"none"), 4, &nothing);
        assert_eq!(at(&session, &key(1, b"name"), 4), Some(known(7)));
        assert_eq!(at(&session, &key(2, b"none"), 4), Some(nothing));
        assert_eq!(at(&session, &key(1, b"name"), 5), None);
        assert_eq!(at(&session, &key(2, b"name"), 4), None);
        assert_eq!(at(&session, &key(1, b"nam"), 4), None);
        let reused = DentryKey::new(1, 2, b"name").unwrap();
        assert_eq!(at(&session, &reused, 4), None);
        remember(&session, &key(1, b"name"), 5, &known(8));
        assert_eq!(at(&session, &key(1, b"name"), 5), Some(known(8)));
    }

    #[test]
    fn a_changed_name_is_forgotten_and_the_others_stay() {
        let session = session(1 << 12);
        let names: Vec<String> = (0..256).map(|n| format!("entry-{n}")).collect();
        for (object, name) in names.iter().enumerate() {
            remember(
                &session,
                &key(1, name.as_bytes()),
                1,
                &known(object as u64 + 1),
            );
        }
        let changed = key(1, b"entry-77");
        let before = session.validity_stamp(&changed, 1);
        session.forget_dentries(session.dentry_bucket(&changed));
        assert_eq!(at(&session, &changed, 1), None);
        // Whoever saw the old state comes too late.
        session.remember_dentry(&changed, before, &known(78));
        assert_eq!(at(&session, &changed, 1), None);
        let stayed = names
            .iter()
            .filter(|name| at(&session, &key(1, name.as_bytes()), 1).is_some());
        assert!(stayed.count() > 250);
    }

    #[test]
    fn when_all_places_are_used_the_oldest_names_go() {
        let session = session(64);
        let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
        for name in &names {
            remember(&session, &key(1, name.as_bytes()), 1, &known(9));
        }
        let knows = |name: &String| at(&session, &key(1, name.as_bytes()), 1) == Some(known(9));
        assert_eq!(names[..36].iter().filter(|name| knows(name)).count(), 0);
        assert!(names[36..].iter().filter(|name| knows(name)).count() > 24);
        assert!(knows(&names[99]));
    }

    #[test]
    fn names_that_differ_in_their_last_letters_do_not_share_buckets() {
        let session = session(1 << 17);
        let bucket = |n: u32| {
            session
                .dentry_bucket(&key(1, format!("entry-0-{n}").as_bytes()))
                .0
        };
        let used: HashSet<usize> = (0..256).map(bucket).collect();
        assert!(used.len() > 250, "{}", used.len());
    }

    #[test]
    fn names_of_every_length_differ_in_every_byte() {
        let session = session(64);
        for len in 1..=MAX_DENTRY_NAME {
            let name: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
            remember(&session, &key(1, &name), 2, &known(5));
            assert_eq!(at(&session, &key(1, &name), 2), Some(known(5)), "{len}");
            for place in 0..len {
                let mut other = name.clone();
                other[place] ^= 1;
                assert_eq!(at(&session, &key(1, &other), 2), None, "{len} {place}");
            }
        }
        assert!(DentryKey::new(1, 1, &[b'x'; MAX_DENTRY_NAME + 1]).is_none());
        assert!(DentryKey::new(1, 1, b"").is_none());
    }

    #[test]
    fn readers_never_see_a_mixture() {
        let session = session(64);
        let stop = AtomicBool::new(false);
        let name = [b'n'; 40];
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (session, stop) = (&session, &stop);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let object = 1 + (round * 2 + writer) % 50;
                        remember(session, &key(1, &name), 2 * object, &known(object));
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            while !stop.load(Ordering::Relaxed) {
                for object in 1..51 {
                    if let Some(seen) = at(&session, &key(1, &name), 2 * object) {
                        assert_eq!(seen, known(object));
                    }
                }
            }
        });
    }
}
