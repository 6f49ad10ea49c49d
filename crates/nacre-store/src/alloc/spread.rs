//! Placement: which device gets the next run, where data is spread over several.
//!
//! Stripes of an object go round the devices. What has no neighbour (a new file's first unit, a
//! tree node) takes its turn in one round of the whole pool. It keeps to stripes that are begun,
//! out of the way of who fills a whole one. A device with half of the room of another, or half of
//! its speed, has half as many turns (D100).

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nacre_session::{DeviceSpace, SPREAD_DEVICES, Shared};
use nacre_types::UnitNo;
use nacre_volume::{MAX_DEVICES, Placement};

use super::{Allocator, GROUP_UNITS, ROOMY_SEARCH, Run};
use crate::alloc::word::{WORD, mask};

const _: () = assert!(SPREAD_DEVICES >= MAX_DEVICES);

/// The device with most to offer has a turn each time it could, which is so many shares.
const SHARES: u64 = 64;
/// How many stripes of a device are looked at for one of which nothing is used.
const STRIPE_SEARCH: usize = 4096;
/// With so many shares a device counts as one with all.
const EVEN: u64 = 56;

/// The device of a turn of the pool's round. Every second or third turn, as when each file takes as
/// many units for itself, goes to all devices, too.
fn turn(number: u64, devices: usize) -> usize {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let part = number.wrapping_mul(GOLDEN) >> 32;
    (part as usize * devices) >> 32
}

/// The devices over which data is spread.
#[derive(Clone, Copy)]
pub(super) struct Spread<'a> {
    placement: &'a Placement,
    devices: &'a [DeviceSpace],
    round: &'a AtomicU64,
}

impl<'a> Spread<'a> {
    pub(super) fn of(placement: &'a Placement, shared: &'a Shared) -> Option<Self> {
        let devices = shared.devices.get(..placement.devices())?;
        Some(Self {
            placement,
            devices,
            round: &shared.device_round,
        })
    }

    /// The device whose turn is next: after the one of the units before, or in the pool's round.
    fn next(&self, goal: Option<UnitNo>) -> usize {
        let count = self.devices.len();
        let first = match goal {
            // The goal is the unit behind the last one that was taken.
            Some(goal) => self.placement.device(UnitNo(goal.0.saturating_sub(1))) + 1,
            None => turn(self.round.fetch_add(1, Relaxed), count),
        };
        let most = (0..count).map(|device| self.worth(device)).max();
        let most = most.unwrap_or(0).max(1);
        // With one share each device has a turn within so many rounds.
        let mut tries = (0..count * SHARES as usize).map(|step| (first + step) % count);
        tries
            .find(|&device| self.has_turn(device, most))
            .unwrap_or(first % count)
    }

    /// Free units of a device; none if the statistic cannot be right.
    fn free(&self, device: usize) -> u64 {
        let units = self.placement.units(device);
        let free = self.devices[device].free_units.load(Relaxed);
        match free <= units.end - units.start {
            true => free,
            false => 0,
        }
    }

    /// What there is on a device to be had: its room, and how fast that is.
    fn worth(&self, device: usize) -> u64 {
        self.free(device) * self.placement.weight(device)
    }

    /// Counts a turn that the device could have, and whether its shares of turns fill one.
    fn has_turn(&self, device: usize, most: u64) -> bool {
        let space = &self.devices[device];
        let shares = match (self.worth(device).min(most) * SHARES).div_ceil(most) {
            // Nearly alike: a file's stripes shall go round without a gap.
            EVEN..=SHARES => SHARES,
            fewer => fewer,
        };
        let before = space.turns.fetch_add(shares, Relaxed) % SHARES;
        before + shares >= SHARES
    }

    /// The devices, from one on and once around.
    fn from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.devices.len();
        (0..count).map(move |step| (first + step) % count)
    }

    /// A hint, or where the device begins if it does not lie there.
    fn hint(&self, device: usize, hint: &AtomicU64) -> u64 {
        let units = self.placement.units(device);
        let hint = hint.load(Relaxed);
        match units.contains(&hint) {
            true => hint,
            false => units.start,
        }
    }

    pub(super) fn count_used(&self, run: Run) {
        for (device, units) in self.parts(run.start.0, run.end().0) {
            self.devices[device].free_units.fetch_sub(units, Relaxed);
        }
    }

    /// Counts `freed` units of a range.
    pub(super) fn count_freed(&self, (start, end): (u64, u64), freed: u64) {
        let mut left = freed;
        for (device, units) in self.parts(start, end) {
            let freed = units.min(left);
            left -= freed;
            self.devices[device].free_units.fetch_add(freed, Relaxed);
        }
    }

    /// Free units are used again first, from the lowest on.
    pub(super) fn use_first(&self, start: u64, end: u64) {
        for (device, units) in self.parts(start, end) {
            let space = &self.devices[device];
            for hint in [&space.unit_hint, &space.stripe_hint] {
                if units >= super::REUSE_MIN && start < hint.load(Relaxed) {
                    hint.store(start, Relaxed);
                }
            }
        }
    }

    /// The parts of a range on each device.
    fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
        let devices = 0..self.devices.len();
        devices.filter_map(move |device| {
            let units = self.placement.units(device);
            let (from, to) = (units.start.max(start), units.end.min(end));
            (from < to).then(|| (device, to - from))
        })
    }

    pub(super) fn recount(&self, bits: &[AtomicU64]) {
        for (number, device) in self.devices.iter().enumerate() {
            let free = count_free(bits, self.placement.units(number));
            device.free_units.store(free, Relaxed);
        }
    }
}

impl Allocator<'_> {
    /// As [`Allocator::take`], within one stripe.
    pub(super) fn take_spread(
        &self,
        spread: Spread<'_>,
        goal: Option<UnitNo>,
        want: u64,
    ) -> Option<Run> {
        let stripe = spread.placement.stripe();
        let run = self.take_in_stripe(spread, goal, want).or_else(|| {
            let first = spread.next(goal);
            let whole = goal.is_some() || want >= WORD;
            let take = |device| self.take_on(spread, device, want.min(stripe), whole);
            spread.from(first).find_map(take)
        })?;
        self.free.fetch_sub(run.count, Relaxed);
        spread.count_used(run);
        Some(run)
    }

    /// Takes up to `want` units of one stripe of a device, for contents that move there: at the
    /// goal, if it lies within a stripe. Nothing but these shall lie in a `whole` one, if there is
    /// one. `None`: the device has no room, or data is not spread.
    pub(crate) fn take_on_device(
        &self,
        device: usize,
        goal: Option<UnitNo>,
        (want, whole): (u64, bool),
    ) -> Option<Run> {
        let special = self.special?;
        let spread = special.spread()?;
        let stripe = spread.placement.stripe();
        let within = goal.filter(|goal| !goal.0.is_multiple_of(stripe));
        let at = |goal: UnitNo| self.take_at(goal.0, want.min(stripe - goal.0 % stripe));
        let run = within
            .and_then(at)
            .or_else(|| self.take_on(spread, device, want.min(stripe), whole))?;
        self.free.fetch_sub(run.count, Relaxed);
        spread.count_used(run);
        special.note_taken(run);
        Some(run)
    }

    /// The rest of the stripe that the goal lies in: right there, or else on the same device.
    fn take_in_stripe(&self, spread: Spread<'_>, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        let (goal, stripe) = (goal?, spread.placement.stripe());
        if goal.0.is_multiple_of(stripe) || goal.0 < spread.placement.common() {
            return None;
        }
        let want = want.min(stripe - goal.0 % stripe);
        let device = spread.placement.device(goal);
        self.take_at(goal.0, want)
            .or_else(|| self.take_on(spread, device, want, false))
    }

    /// Up to `want` units of one stripe of a device: of a `whole` one of which nothing is used yet,
    /// if there is one.
    fn take_on(&self, spread: Spread<'_>, device: usize, want: u64, whole: bool) -> Option<Run> {
        let fresh = whole.then(|| self.take_fresh(spread, device, want));
        fresh
            .flatten()
            .or_else(|| self.take_used(spread, device, want))
    }

    /// Units at the start of a stripe of which nothing is used.
    fn take_fresh(&self, spread: Spread<'_>, device: usize, want: u64) -> Option<Run> {
        let (units, stripe) = (spread.placement.units(device), spread.placement.stripe());
        let hint = &spread.devices[device].stripe_hint;
        let first = spread.hint(device, hint).next_multiple_of(stripe);
        let round = (first..units.end).step_by(stripe as usize);
        let round = round.chain((units.start..first).step_by(stripe as usize));
        let run = round
            .take(STRIPE_SEARCH)
            .filter(|&start| self.is_free(start, stripe) && self.is_fresh(start, stripe))
            .find_map(|start| self.take_at(start, want))?;
        hint.store(run.start.0 + stripe, Relaxed);
        Some(run)
    }

    /// Whether no unit of a stripe is used. Units behind the end of the volume are.
    fn is_free(&self, start: u64, stripe: u64) -> bool {
        let bits = mask(start % WORD, stripe.min(WORD));
        let mut words = start / WORD..(start + stripe).div_ceil(WORD);
        words.all(|word| {
            let word = self.bits.get(word as usize);
            word.is_some_and(|word| word.load(Relaxed) & bits == 0)
        })
    }

    fn take_used(&self, spread: Spread<'_>, device: usize, want: u64) -> Option<Run> {
        let (units, stripe) = (spread.placement.units(device), spread.placement.stripe());
        let hint = &spread.devices[device].unit_hint;
        let first = spread.hint(device, hint);
        let fit = |start: u64| self.take_at(start, want.min(stripe - start % stripe));
        let words = (first / WORD..units.end / WORD).take(ROOMY_SEARCH);
        let mut roomy = words.filter_map(|word| {
            let used = self.used_or_spent(word as usize);
            let shift = super::room(used, want.min(WORD) as u32)?;
            Some(word * WORD + u64::from(shift))
        });
        let run = roomy
            .find_map(fit)
            .or_else(|| self.take_any_between(first..units.end, fit))
            .or_else(|| self.take_any_between(units, fit))?;
        hint.store(run.end().0, Relaxed);
        Some(run)
    }

    fn take_any_between(
        &self,
        among: Range<u64>,
        take: impl Fn(u64) -> Option<Run>,
    ) -> Option<Run> {
        let mut at = among.start;
        while let Some(start) = self.next_clear(at).filter(|&start| start < among.end) {
            let run = take(start);
            if run.is_some() {
                return run;
            }
            at = start + 1;
        }
        None
    }

    /// As [`Allocator::take_group`], on the device whose turn it is.
    pub(super) fn take_spread_group(&self, spread: Spread<'_>) -> Option<Run> {
        let claim = |device| {
            let units = spread.placement.units(device);
            self.claim_group(
                units,
                spread.hint(device, &spread.devices[device].stripe_hint),
            )
        };
        let start = UnitNo(spread.from(spread.next(None)).find_map(claim)?);
        let count = GROUP_UNITS;
        let run = Run { start, count };
        self.free.fetch_sub(count, Relaxed);
        spread.count_used(run);
        Some(run)
    }
}

/// Counts the clear bits among some units.
pub(super) fn count_free(bits: &[AtomicU64], among: Range<u64>) -> u64 {
    let words = among.start / WORD..among.end.div_ceil(WORD).min(bits.len() as u64);
    let free = words.map(|word| {
        let (start, end) = (word * WORD, (word + 1) * WORD);
        let (from, to) = (start.max(among.start), end.min(among.end));
        let within = mask(from - start, to - from);
        u64::from((!bits[word as usize].load(Relaxed) & within).count_ones())
    });
    free.sum()
}

#[cfg(test)]
mod tests {
    use super::turn;

    #[test]
    fn all_devices_have_turns_whatever_else_takes_turns_between() {
        for devices in 2..=16 {
            for stride in 1..=12 {
                let mut turns = [0; 16];
                for number in 0..1600 {
                    turns[turn(number * stride, devices)] += 1;
                }
                let fair = 1600 / devices;
                let even = turns[..devices]
                    .iter()
                    .all(|&had: &usize| had.abs_diff(fair) * 4 <= fair);
                assert!(even, "every {stride}. turn, {turns:?}");
            }
        }
    }
}
