//! Which of several disks that hold the same is read (D127).
//!
//! Readers take turns. A disk that held what was wrong comes last from then on, for all processes,
//! until all of it was scrubbed: where one place is damaged there may be more, and most of what is
//! read has nothing that would tell.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use nacre_cache::DiskFailed;
use nacre_media::SharedLegs;

use super::legs::{Leg, LegsDisk, Seat};

/// Readers change disks at multiples of this.
const TURN: u64 = 1 << 20;

impl LegsDisk {
    /// The disks of some seats in the order in which a place is read from them.
    pub(super) fn in_turn<'s>(
        &self,
        seats: impl Iterator<Item = &'s Seat>,
        at: u64,
    ) -> Vec<&'s Arc<Leg>> {
        let there = seats.filter_map(|seat| Some((seat.index, seat.leg.as_ref()?)));
        let mut legs: Vec<(usize, &Arc<Leg>)> = there.collect();
        let first = (at / TURN) as usize % legs.len().max(1);
        legs.rotate_left(first);
        let doubted = self.doubted().load(SeqCst);
        legs.sort_by_key(|(index, _)| doubted >> index & 1);
        legs.into_iter().map(|(_, leg)| leg).collect()
    }

    /// The disks that are current, in the order in which a place is read from them.
    pub(crate) fn current_in_turn(&self, at: u64) -> Result<Vec<&Arc<Leg>>, DiskFailed> {
        let (view, word) = self.view()?;
        Ok(self.in_turn(view.current(word), at))
    }

    /// These disks held what was wrong: others are read first, and all are scrubbed soon.
    pub fn doubt(&self, wrong: &[[u8; 16]]) {
        let Ok((view, _)) = self.view() else {
            return;
        };
        let seats = view.seats.iter();
        let wrong = seats.filter(|seat| wrong.contains(&seat.uuid.0));
        self.add_doubts(wrong.fold(0, |bits, seat| bits | 1 << seat.index));
    }

    /// As [`LegsDisk::doubt`], where a place is known: what is around it is scrubbed first.
    pub(super) fn doubt_at(&self, at: u64, wrong: &[[u8; 16]]) {
        if wrong.is_empty() {
            return;
        }
        self.doubt(wrong);
        if let Some(shared) = self.shared() {
            shared.suspect(self.spans().of(at));
        }
    }

    /// Whether any disk held what was wrong, and not all was scrubbed since.
    pub fn is_in_doubt(&self) -> bool {
        self.doubted().load(SeqCst) != 0
    }

    /// All of every disk was scrubbed, and they agree.
    pub fn trust(&self) {
        self.doubted().store(0, SeqCst);
    }

    /// What was found before anybody else could know of it is known to all.
    pub(super) fn share_doubts(&self) {
        self.add_doubts(self.own_doubted.load(SeqCst));
    }

    fn add_doubts(&self, bits: u64) {
        let is_new = self.doubted().fetch_or(bits, SeqCst) & bits != bits;
        if let Some(shared) = self.shared().filter(|_| is_new) {
            shared.scrub_soon();
        }
    }

    fn doubted(&self) -> &AtomicU64 {
        self.shared().map_or(&self.own_doubted, SharedLegs::doubted)
    }
}
