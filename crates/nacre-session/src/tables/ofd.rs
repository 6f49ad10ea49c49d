//! One open file description, as shared by all processes that hold it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nacre_types::Ino;

use crate::liveness::lock::OwnedLock;
use crate::mapping::SharedWords;
use crate::slot_ref::SlotRef;
use crate::step::Fault;
use crate::{FIRST_SLOTS, MAX_OFD_NAME, MAX_OFDS, MAX_SLOTS, step};

/// Flag in [`Ofd::flags`]: stands for one shared mapping, not for an open file.
pub const OFD_MAPPED: u32 = 1 << 31;
/// With [`OFD_MAPPED`]: one that can be stored to.
pub const OFD_STORED: u32 = 1 << 30;
/// What is written through it is given to the disk behind an image before the call returns.
pub const OFD_SYNCED: u32 = 1 << 29;
/// Somebody watches files of the pool: what is done through it is told.
pub const OFD_WATCHED: u32 = 1 << 28;

const SLOTS_PER_WORD: usize = 32;
const HOLDER_WORDS: usize = FIRST_SLOTS / SLOTS_PER_WORD;
const MORE_HOLDER_WORDS: usize = (MAX_SLOTS - FIRST_SLOTS) / SLOTS_PER_WORD;
const NAME_WORDS: usize = (MAX_OFD_NAME + 1) / 8;

const PASSED: u32 = 1;
/// An advisory lock was taken through the description.
const LOCKED: u32 = 2;
/// There was a second holder at some time.
const SHARED: u32 = 4;

/// One use of an entry of the table of open file descriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OfdId {
    /// Index in the table.
    pub index: u32,
    /// Counts the uses of the entry; never 0.
    pub generation: u32,
}

impl OfdId {
    /// `generation << 16 | index`: positive as a signed file offset, never 0.
    #[inline]
    pub fn identity(self) -> u64 {
        u64::from(self.generation) << 16 | u64::from(self.index)
    }

    /// The description of an identity; `None` for what no description has.
    #[inline]
    pub fn from_identity(identity: u64) -> Option<OfdId> {
        let generation = u32::try_from(identity >> 16).ok()?;
        let index = identity as u32 & (MAX_OFDS - 1);
        (generation != 0).then_some(OfdId { index, generation })
    }
}

const _: () = assert!(MAX_OFDS == 1 << 16);

/// Everything an open file description is born with.
#[derive(Debug, Clone, Copy)]
pub struct OfdInit<'a> {
    /// The open inode.
    pub ino: Ino,
    /// Generation of the inode.
    pub ino_generation: u32,
    /// Access mode and status flags (`O_*`), as the front end gives them, and [`OFD_MAPPED`].
    pub flags: u32,
    /// File type and permission bits of the inode.
    pub mode: u32,
    /// The directory that the file was opened in.
    pub parent: Ino,
    /// The name it was opened by; what exceeds 255 bytes is cut.
    pub name: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfdState {
    Free,
    /// Being filled by the slot.
    Allocating,
    Used,
    /// The slot saw no holder and looks once more. Anybody may take it back to `Used` when the slot
    /// is dead.
    Deciding,
    /// No holder any more; the slot undoes what the description pinned.
    Closing,
}

/// `generation (32) | slot (16) | state (8)`: the word that decides whether the entry is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfdWord {
    pub(crate) generation: u32,
    pub(crate) slot: u16,
    pub(crate) state: OfdState,
}

impl OfdWord {
    fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot) << 8 | self.state as u64
    }

    fn unpack(word: u64) -> OfdWord {
        let state = match word & 0xff {
            1 => OfdState::Allocating,
            2 => OfdState::Used,
            3 => OfdState::Deciding,
            4 => OfdState::Closing,
            _ => OfdState::Free,
        };
        OfdWord {
            generation: (word >> 32) as u32,
            slot: (word >> 8) as u16,
            state,
        }
    }
}

/// An open file description. What is shared by dup and fork is here; what belongs to a descriptor
/// number is not.
#[repr(C, align(64))]
pub struct Ofd {
    word: AtomicU64,
    /// File position, guarded by `pos_lock` where a call reads and moves it.
    pub pos: AtomicU64,
    /// Held by calls that move the position.
    pub pos_lock: OwnedLock,
    /// Access mode and status flags.
    pub flags: AtomicU32,
    /// How many of the inode's mapping pins this description accounts for.
    pub mapped: AtomicU32,
    ino: AtomicU64,
    ino_generation: AtomicU32,
    mode: AtomicU32,
    parent: AtomicU64,
    /// Where the last `write` that made the file longer ended, 0 if none did: there the next one is
    /// not worth looking at what is there. A hint.
    pub grown_to: AtomicU64,
    marks: AtomicU32,
    name_len: AtomicU32,
    /// `generation (32) | one bit per slot (32)`: bits of another generation count as clear, so
    /// that none outlives its description.
    holders: [AtomicU64; HOLDER_WORDS],
    name: [AtomicU64; NAME_WORDS],
}

// SAFETY: atomics only.
unsafe impl SharedWords for Ofd {}

/// The holders of one description behind the first slots, as `Ofd::holders`. Untouched, and without
/// memory, as long as the session needs the first slots only.
#[repr(C, align(64))]
pub(crate) struct MoreHolders([AtomicU64; MORE_HOLDER_WORDS]);

// SAFETY: the type has no field but atomics.
unsafe impl SharedWords for MoreHolders {}

/// The bit of a slot in its word of holders.
fn holder_bit(slot: SlotRef) -> u64 {
    1 << (usize::from(slot.slot) % SLOTS_PER_WORD)
}

fn word_generation(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Whether generation `a` came after `b`, both counted modulo 2^32.
fn is_newer(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl Ofd {
    /// The open inode.
    #[inline]
    pub fn ino(&self) -> Ino {
        Ino(self.ino.load(Ordering::Relaxed))
    }

    /// Generation of the open inode.
    #[inline]
    pub fn ino_generation(&self) -> u32 {
        self.ino_generation.load(Ordering::Relaxed)
    }

    /// File type and permission bits at the time of opening.
    #[inline]
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// The directory that the file was opened in.
    pub fn parent(&self) -> Ino {
        Ino(self.parent.load(Ordering::Relaxed))
    }

    /// Copies the name that the file was opened by and returns its length, at most 255.
    pub fn name(&self, into: &mut [u8; MAX_OFD_NAME]) -> usize {
        let len = (self.name_len.load(Ordering::Relaxed) as usize).min(MAX_OFD_NAME);
        for (chunk, word) in into[..len].chunks_mut(8).zip(&self.name) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..chunk.len()]);
        }
        len
    }

    /// The description was sent over a socket: it is kept until nobody is attached, as nobody can
    /// tell who will receive it.
    pub fn mark_passed(&self) {
        self.marks.fetch_or(PASSED, Ordering::SeqCst);
    }

    /// Whether the description was sent over a socket.
    #[inline]
    pub fn is_passed(&self) -> bool {
        self.marks.load(Ordering::SeqCst) & PASSED != 0
    }

    /// Whether no process but the one that made the description has ever held it.
    #[inline]
    pub fn is_private(&self) -> bool {
        self.marks.load(Ordering::SeqCst) & (PASSED | SHARED) == 0
    }

    /// Whether an advisory lock was ever taken through the description.
    #[inline]
    pub fn uses_locks(&self) -> bool {
        self.marks.load(Ordering::SeqCst) & LOCKED != 0
    }

    pub(crate) fn mark_locked(&self) {
        if !self.uses_locks() {
            self.marks.fetch_or(LOCKED, Ordering::SeqCst);
        }
    }

    /// Whether this generation of the entry has not ended. What was loaded of the description
    /// before (relaxed, then an acquire fence) belongs to it.
    #[inline(always)]
    pub fn is_of(&self, generation: u32) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        (word >> 32) as u32 == generation && OfdWord::unpack(word).state != OfdState::Free
    }

    #[inline]
    pub(crate) fn load(&self) -> OfdWord {
        OfdWord::unpack(self.word.load(Ordering::SeqCst))
    }

    #[inline]
    pub(crate) fn change(&self, from: OfdWord, to: OfdWord) -> bool {
        let words = (from.pack(), to.pack());
        step::exchange(&self.word, words, Fault::TornDescription)
    }

    /// For a state that nobody but the caller may leave: one of the caller's, who is alive.
    #[inline]
    pub(crate) fn set(&self, to: OfdWord) {
        step::point();
        self.word.store(to.pack(), Ordering::Release);
        step::point();
    }

    /// Only while allocating.
    #[inline]
    pub(crate) fn fill(&self, init: &OfdInit<'_>) {
        self.pos.store(0, Ordering::Relaxed);
        self.flags.store(init.flags, Ordering::Relaxed);
        self.mapped.store(0, Ordering::Relaxed);
        self.ino.store(init.ino.get(), Ordering::Relaxed);
        self.ino_generation
            .store(init.ino_generation, Ordering::Relaxed);
        self.mode.store(init.mode, Ordering::Relaxed);
        self.parent.store(init.parent.get(), Ordering::Relaxed);
        self.grown_to.store(0, Ordering::Relaxed);
        self.marks.store(0, Ordering::Relaxed);
        self.fill_name(&init.name[..init.name.len().min(MAX_OFD_NAME)]);
    }

    #[inline]
    fn fill_name(&self, name: &[u8]) {
        self.name_len.store(name.len() as u32, Ordering::Relaxed);
        for (chunk, word) in name.chunks(8).zip(&self.name) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// The word with the bit of `who`; `None` if it is one of [`MoreHolders`].
    #[inline]
    pub(crate) fn first_holders(&self, who: SlotRef) -> Option<&AtomicU64> {
        self.holders.get(usize::from(who.slot) / SLOTS_PER_WORD)
    }

    /// The words for the first slots, up to `slot_high`.
    #[inline]
    pub(crate) fn first_words(&self, slot_high: u32) -> &[AtomicU64] {
        let words = (slot_high as usize).div_ceil(SLOTS_PER_WORD);
        &self.holders[..words.min(HOLDER_WORDS)]
    }

    /// Sets a bit of `word`, one of the description's words of holders, under `generation`. False
    /// if the entry belongs to a newer generation.
    pub(crate) fn set_holder(&self, word: &AtomicU64, generation: u32, who: SlotRef) -> bool {
        let bit = holder_bit(who);
        let mut seen = word.load(Ordering::SeqCst);
        loop {
            if is_newer(word_generation(seen), generation) {
                return false;
            }
            let others = if word_generation(seen) == generation {
                seen
            } else {
                u64::from(generation) << 32
            };
            if others & bit == 0 && !step::has(Fault::NoSharedMark) {
                self.marks.fetch_or(SHARED, Ordering::SeqCst);
            }
            step::point();
            let changed = if step::has(Fault::TornHold) {
                step::torn(word, seen, others | bit)
            } else {
                word.compare_exchange_weak(seen, others | bit, Ordering::SeqCst, Ordering::SeqCst)
            };
            match changed {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}

impl MoreHolders {
    /// The word with the bit of `who`, which is none of the first slots.
    pub(crate) fn word(&self, who: SlotRef) -> &AtomicU64 {
        &self.0[usize::from(who.slot) / SLOTS_PER_WORD - HOLDER_WORDS]
    }

    /// The words for slots below `slot_high`, which is above the first slots.
    pub(crate) fn words(&self, slot_high: u32) -> &[AtomicU64] {
        let words = (slot_high as usize).div_ceil(SLOTS_PER_WORD);
        &self.0[..words.clamp(HOLDER_WORDS, HOLDER_WORDS + MORE_HOLDER_WORDS) - HOLDER_WORDS]
    }
}

/// The first holder; only while allocating. What other generations left in the word counts as clear
/// anyway.
#[inline]
pub(crate) fn set_first_holder(word: &AtomicU64, generation: u32, who: SlotRef) {
    let value = u64::from(generation) << 32 | holder_bit(who);
    word.store(value, Ordering::Release);
}

/// Clears the bit of `who`. False if it was not set under `generation`.
#[inline]
pub(crate) fn clear_holder(word: &AtomicU64, generation: u32, who: SlotRef) -> bool {
    let bit = holder_bit(who);
    let mut seen = word.load(Ordering::SeqCst);
    while word_generation(seen) == generation && seen & bit != 0 {
        step::point();
        let changed = if step::has(Fault::TornLetGo) {
            step::torn(word, seen, seen & !bit)
        } else {
            word.compare_exchange_weak(seen, seen & !bit, Ordering::SeqCst, Ordering::SeqCst)
        };
        match changed {
            Ok(_) => {
                step::point();
                return true;
            }
            Err(now) => seen = now,
        }
    }
    false
}

#[inline]
pub(crate) fn is_holder(word: &AtomicU64, generation: u32, who: SlotRef) -> bool {
    let word = word.load(Ordering::SeqCst);
    word_generation(word) == generation && word & holder_bit(who) != 0
}

/// The bits that are set under `generation`.
#[inline]
pub(crate) fn held_bits(word: &AtomicU64, generation: u32) -> u32 {
    let word = word.load(Ordering::SeqCst);
    if word_generation(word) == generation {
        word as u32
    } else {
        0
    }
}

/// Whether any bit is set under `generation`.
#[inline]
pub(crate) fn any_holder(words: &[AtomicU64], generation: u32) -> bool {
    words.iter().any(|word| held_bits(word, generation) != 0)
}

#[cfg(test)]
mod tests {
    use super::{OfdId, OfdState, OfdWord, is_newer};

    #[test]
    fn identities_are_positive_and_lead_back() {
        for id in [
            OfdId {
                index: 0,
                generation: 1,
            },
            OfdId {
                index: 65535,
                generation: u32::MAX,
            },
        ] {
            assert!(id.identity() as i64 > 0);
            assert_eq!(OfdId::from_identity(id.identity()), Some(id));
        }
        assert_eq!(OfdId::from_identity(0), None);
        assert_eq!(OfdId::from_identity(77), None);
        assert_eq!(OfdId::from_identity(1 << 50), None);
    }

    #[test]
    fn words_survive_packing() {
        for state in [
            OfdState::Free,
            OfdState::Allocating,
            OfdState::Used,
            OfdState::Deciding,
            OfdState::Closing,
        ] {
            let word = OfdWord {
                generation: 0x8000_0001,
                slot: 8191,
                state,
            };
            assert_eq!(OfdWord::unpack(word.pack()), word);
        }
    }

    #[test]
    fn generations_are_ordered_across_the_wrap() {
        assert!(is_newer(2, 1) && !is_newer(1, 2) && !is_newer(5, 5));
        assert!(is_newer(3, u32::MAX - 3));
    }
}
