//! What all legs are at one moment, as one word.

/// Legs that one session can have had.
pub(crate) const SLOTS: usize = 12;
/// The most legs that a mirror has.
pub const MOST_LEGS: usize = 4;

const BITS: usize = 4;
const MASK: u64 = 0xf;
const FIRST_AT: usize = SLOTS * BITS;

/// What a leg is to the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum LegState {
    /// It has all that was stored.
    #[default]
    Current = 1,
    /// It gets all that is stored, and what it lacks bit by bit.
    Rebuilding = 2,
    /// It was away while the others were stored to; the bitmap knows where.
    Missing = 3,
    /// It failed, or held something else: nothing in it is trusted.
    Failed = 4,
}

impl LegState {
    /// The state with that number.
    #[inline]
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Current),
            2 => Some(Self::Rebuilding),
            3 => Some(Self::Missing),
            4 => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether stores go to it.
    #[inline]
    pub fn is_stored_to(self) -> bool {
        matches!(self, Self::Current | Self::Rebuilding)
    }

    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Rebuilding => "rebuilding",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }
}

/// The states of all legs, and which one is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct States(pub(crate) u64);

impl States {
    /// Of legs in slots 0, 1 and so on. `None`: none is current.
    pub fn new(legs: impl IntoIterator<Item = LegState>) -> Option<Self> {
        let all = legs.into_iter().take(SLOTS).enumerate();
        let states = all.fold(Self(0), |all, (slot, state)| all.with(slot, state));
        let first = states.slots_that(|state| state == LegState::Current).next();
        Some(states.reading(first?))
    }

    /// The state of a leg; `None` if there was none in that slot yet.
    #[inline]
    pub fn of(self, slot: usize) -> Option<LegState> {
        LegState::of((self.0 >> (slot * BITS) & MASK) as u8)
    }

    #[must_use]
    pub(crate) fn with(self, slot: usize, state: LegState) -> Self {
        let at = slot * BITS;
        Self(self.0 & !(MASK << at) | (state as u64) << at)
    }

    #[must_use]
    fn reading(self, slot: usize) -> Self {
        Self(self.0 & !(u64::MAX << FIRST_AT) | (slot as u64) << FIRST_AT)
    }

    /// Slot of the leg that is read.
    #[inline]
    pub fn read_slot(self) -> usize {
        ((self.0 >> FIRST_AT) as usize).min(SLOTS - 1)
    }

    /// From this slot on none has had a leg.
    #[inline]
    fn end(self) -> usize {
        let all = self.0 & !(u64::MAX << FIRST_AT);
        (u64::BITS - all.leading_zeros()).div_ceil(BITS as u32) as usize
    }

    /// Slots of legs that are in such a state.
    #[inline]
    pub fn slots_that(self, is: impl Fn(LegState) -> bool) -> impl Iterator<Item = usize> {
        (0..self.end()).filter(move |&slot| self.of(slot).is_some_and(&is))
    }

    /// Slots that stores go to.
    #[inline]
    pub fn stored_to(self) -> impl Iterator<Item = usize> {
        self.slots_that(LegState::is_stored_to)
    }

    /// A slot that no leg has had; `None` if all have.
    pub(crate) fn free_slot(self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.0 >> (slot * BITS) & MASK == 0)
    }

    /// Whether any leg lacks something.
    pub fn is_degraded(self) -> bool {
        self.slots_that(|state| state != LegState::Current)
            .next()
            .is_some()
    }

    /// Whether all that are current here are so in the other states.
    pub(crate) fn are_still_current(self, other: Self) -> bool {
        let mut current = self.slots_that(|state| state == LegState::Current);
        current.all(|slot| other.of(slot) == Some(LegState::Current))
    }

    /// Without the leg of a slot, which is not stored to any more; another one is read from now on
    /// if it was read. `None`: it is the last that is current.
    pub(crate) fn losing(self, slot: usize, why: LegState) -> Option<Self> {
        let lost = self.with(slot, why);
        let mut current = lost.slots_that(|state| state == LegState::Current);
        let next = current.next()?;
        Some(match self.read_slot() == slot {
            true => lost.reading(next),
            false => lost,
        })
    }

    /// Its leg is out of the pool. The slot is not used again.
    #[must_use]
    pub(crate) fn forgetting(self, slot: usize) -> Self {
        Self(self.0 & !(MASK << (slot * BITS)) | GONE << (slot * BITS))
    }
}

/// Marks a slot whose leg is out of the pool. No state has that number.
const GONE: u64 = 0xf;
