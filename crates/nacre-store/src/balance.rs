//! Contents that lie on some devices of a striped pool only move to where new ones would lie (D63).
//!
//! Of a file of at least one stripe for each device, each device gets its share, by its room and
//! its speed. All
//! smaller files are treated as one such file. What lies as it should, but for a rounded stripe,
//! stays; so a rebalance that was killed goes on where it was, and a second one moves nothing.

use std::ops::ControlFlow;

use nacre_types::{ObjectId, UNIT_SIZE, UnitNo};
use nacre_volume::Placement;

use crate::alloc::Run;
use crate::block_map::PageRun;
use crate::data::moving::Fate;
use crate::error::Result;
use crate::layout::ONODE_MAPPED_AT;
use crate::moving::{Moving, Taken};
use crate::recovery::scan::for_each_object;
use crate::store::Store;

/// How often it is looked again for what somebody used at the moment.
const ROUNDS: usize = 4;
/// Fewer units than in so many are no reason to begin a stripe.
const WHOLE_FROM: u64 = 64;

/// How far a rebalance has come, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebalanceProgress {
    /// Moved so far.
    pub done: u64,
    /// To be moved, all in all.
    pub total: u64,
}

/// What a rebalance has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rebalanced {
    /// Bytes that lie on other devices now.
    pub moved: u64,
    /// Bytes that should lie elsewhere, but could not move.
    pub left: u64,
    /// Files that programs use all the time, or have mapped.
    pub in_use: u64,
}

/// Where contents lie, and where they should, in units.
#[derive(Clone, Debug)]
struct Balance {
    data: Vec<u64>,
    /// Too many at first; too few if negative.
    first: Vec<i64>,
    /// Too many now.
    excess: Vec<i64>,
    seen: Vec<u64>,
}

impl Balance {
    fn of(data: Vec<u64>, weights: &[u64]) -> Self {
        let total: u64 = data.iter().sum();
        let all = weights.iter().sum::<u64>().max(1);
        let wanted =
            |weight: u64| (u128::from(total) * u128::from(weight) / u128::from(all)) as i64;
        let excess = data.iter().zip(weights);
        let excess: Vec<i64> = excess
            .map(|(&has, &weight)| has as i64 - wanted(weight))
            .collect();
        Self {
            seen: vec![0; data.len()],
            data,
            first: excess.clone(),
            excess,
        }
    }

    /// Whether pieces of a size can lie no better.
    fn is_even(&self, piece: u64) -> bool {
        let half = piece.div_ceil(2) as i64;
        let too_many = self.excess.iter().any(|&excess| excess >= half);
        let too_few = self.excess.iter().any(|&excess| -excess >= half);
        !(too_many && too_few)
    }

    fn to_move(&self) -> u64 {
        self.excess
            .iter()
            .filter(|&&excess| excess > 0)
            .sum::<i64>() as u64
    }

    /// What other contents got too much or too little is made good here.
    fn carry(&mut self, carried: &[i64]) {
        for (device, carried) in carried.iter().enumerate() {
            self.first[device] += carried;
            self.excess[device] += carried;
        }
    }

    /// Where a piece goes that is met next on a device. `None`: it stays. What goes is spread over
    /// all that is met.
    fn goal(&self, from: usize, piece: u64) -> Option<usize> {
        let half = piece.div_ceil(2) as i64;
        let (data, first) = (i128::from(self.data[from]), i128::from(self.first[from]));
        let moved = i128::from(self.first[from] - self.excess[from]);
        let (seen, piece) = (i128::from(self.seen[from]), i128::from(piece));
        let is_due = 2 * (moved + piece) * data <= 2 * (seen + piece) * first + piece * data;
        if self.excess[from] < half || !is_due {
            return None;
        }
        let lacks = |device: &usize| -self.excess[*device] >= half;
        let share = |device: usize| {
            let lacked = i128::from(-self.first[device]).max(1);
            i128::from(-self.excess[device]) * (1 << 32) / lacked
        };
        (0..self.excess.len())
            .filter(lacks)
            .max_by_key(|&device| (share(device), std::cmp::Reverse(device)))
    }

    fn note(&mut self, from: usize, to: Option<usize>, units: u64) {
        self.seen[from] += units;
        if let Some(to) = to {
            self.excess[from] -= units as i64;
            self.excess[to] += units as i64;
        }
    }
}

/// Decides about the contents of one object, stripe by stripe.
struct Chooser<'b> {
    store: &'b Store,
    placement: &'b Placement,
    balance: &'b mut Balance,
    piece: u64,
    /// Units that may still be copied at once.
    room: u64,
    /// The stripe that is being looked at, and where it goes.
    stripe: Option<(u64, Option<usize>)>,
    /// Behind what was taken last for it.
    goal: Option<UnitNo>,
}

impl Chooser<'_> {
    fn choose(&mut self, run: PageRun) -> Fate {
        let (unit, stripe) = (run.entry.unit(), self.placement.stripe());
        if let Some(stays) = self
            .placement
            .common()
            .checked_sub(unit.0)
            .filter(|&it| it > 0)
        {
            return Fate::Stays(run.count.min(stays));
        }
        if self.store.allocator().is_behind(unit) {
            return Fate::Stays(run.count);
        }
        let count = run.count.min(stripe - unit.0 % stripe);
        let from = self.placement.device(unit);
        let Some(to) = self.goal_of(unit.0 / stripe, from) else {
            self.balance.note(from, None, count);
            return Fate::Stays(count);
        };
        if self.room == 0 {
            return Fate::Ends;
        }
        let Some(taken) = self.take(to, count.min(self.room)) else {
            self.balance.note(from, None, count);
            return Fate::Stays(count);
        };
        self.balance.note(from, Some(to), taken.count);
        self.room -= taken.count;
        Fate::Goes(taken)
    }

    fn goal_of(&mut self, stripe: u64, from: usize) -> Option<usize> {
        match self.stripe {
            Some((known, goal)) if known == stripe => goal,
            _ => {
                let goal = self.balance.goal(from, self.piece);
                (self.stripe, self.goal) = (Some((stripe, goal)), None);
                goal
            }
        }
    }

    fn take(&mut self, device: usize, want: u64) -> Option<Run> {
        let whole = self.piece >= WHOLE_FROM.min(self.placement.stripe());
        let allocator = self.store.allocator();
        let taken = allocator.take_on_device(device, self.goal, (want, whole))?;
        self.goal = Some(taken.end());
        Some(taken)
    }
}

/// What lies where, as far as it can move.
struct Survey {
    /// How much of everything each device is to have, compared with the others.
    weights: Vec<u64>,
    large: Vec<(ObjectId, Vec<u64>)>,
    small: Vec<(ObjectId, u64)>,
    of_small: Vec<u64>,
}

impl Survey {
    fn of(store: &Store, placement: &Placement) -> Result<Self> {
        let none = vec![0; placement.devices()];
        let mut survey = Self {
            weights: none.clone(),
            large: Vec::new(),
            small: Vec::new(),
            of_small: none,
        };
        for id in store.objects_with_contents() {
            survey.add(id, units_by_device(store, placement, id)?, placement);
        }
        for device in 0..placement.devices() {
            let free = store.allocator().count_free_among(placement.units(device));
            survey.weights[device] += free;
        }
        let speeds: Vec<u64> = (0..placement.devices())
            .map(|device| placement.weight(device))
            .collect();
        survey.weights = shares(&survey.weights, &speeds, survey.total());
        Ok(survey)
    }

    /// Units of all that can move.
    fn total(&self) -> u64 {
        let large = self.large.iter().flat_map(|(_, units)| units);
        large.chain(&self.of_small).sum()
    }

    fn add(&mut self, id: ObjectId, units: Vec<u64>, placement: &Placement) {
        add_to(&mut self.weights, &units);
        let total: u64 = units.iter().sum();
        if total >= placement.stripe() * placement.devices() as u64 {
            self.large.push((id, units));
        } else if total > 0 {
            add_to(&mut self.of_small, &units);
            self.small.push((id, total));
        }
    }

    /// Units that are to move.
    fn to_move(&self, stripe: u64) -> u64 {
        let large = self.large.iter().map(|(_, units)| units);
        let all = large.chain([&self.of_small]);
        let balances = all.map(|units| Balance::of(units.clone(), &self.weights));
        let uneven = balances.filter(|balance| !balance.is_even(stripe));
        uneven.map(|balance| balance.to_move()).sum()
    }
}

/// What of so many units each device is to have, in fractions of a unit: by its room and speed, and
/// no more than it has room for.
fn shares(rooms: &[u64], speeds: &[u64], total: u64) -> Vec<u64> {
    const FRACTION: u128 = 1 << 16;
    let room = |device: usize| u128::from(rooms[device]);
    let worth = |device: usize| room(device) * u128::from(speeds[device]);
    let mut open: Vec<usize> = (0..rooms.len()).collect();
    let mut left = u128::from(total);
    let all = loop {
        let all = open.iter().map(|&device| worth(device)).sum::<u128>();
        let is_full = |device: &usize| left * worth(*device) > all * room(*device);
        let (full, others): (Vec<_>, Vec<_>) = open.iter().partition(|&device| is_full(device));
        if full.is_empty() {
            break all.max(1);
        }
        left = left.saturating_sub(full.iter().map(|&device| room(device)).sum());
        open = others;
    };
    let share = |device| match open.contains(&device) {
        true => left * worth(device) * FRACTION / all,
        false => room(device) * FRACTION,
    };
    (0..rooms.len())
        .map(|device| share(device) as u64)
        .collect()
}

fn add_to(sum: &mut [u64], more: &[u64]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

fn units_by_device(store: &Store, placement: &Placement, id: ObjectId) -> Result<Vec<u64>> {
    let mut units = vec![0; placement.devices()];
    store.for_each_movable(id, &mut |run| {
        let is_behind = store.allocator().is_behind(run.entry.unit());
        for step in 0..if is_behind { 0 } else { run.count } {
            let unit = run.entry.advance(step).unit();
            let is_alone = unit.0 >= placement.common();
            units[placement.device(unit)] += u64::from(is_alone);
        }
    })?;
    Ok(units)
}

/// One walk over all objects.
struct Round<'r> {
    store: &'r Store,
    placement: &'r Placement,
    moving: Moving<'r>,
    in_use: u64,
    before: u64,
    total: u64,
    told: &'r mut dyn FnMut(RebalanceProgress) -> ControlFlow<()>,
}

impl Round<'_> {
    fn run(&mut self, survey: Survey) -> Result<ControlFlow<()>> {
        let (stripe, weights) = (self.placement.stripe(), &survey.weights);
        let mut carried = vec![0; weights.len()];
        for (id, units) in survey.large {
            let mut balance = Balance::of(units, weights);
            if balance.is_even(stripe) {
                continue;
            }
            balance.carry(&carried);
            if self.move_object(id, &mut balance, stripe)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let most = stripe as i64;
            carried = balance
                .excess
                .iter()
                .map(|&it| it.clamp(-most, most))
                .collect();
        }
        let mut balance = Balance::of(survey.of_small, weights);
        for (id, total) in survey.small {
            let piece = total.min(stripe);
            if !balance.is_even(piece) && self.move_object(id, &mut balance, piece)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.moving.settle()?;
        Ok(ControlFlow::Continue(()))
    }

    fn move_object(
        &mut self,
        id: ObjectId,
        balance: &mut Balance,
        piece: u64,
    ) -> Result<ControlFlow<()>> {
        let mut chooser = Chooser {
            store: self.store,
            placement: self.placement,
            balance,
            piece,
            room: 0,
            stripe: None,
            goal: None,
        };
        let mut from = 0;
        loop {
            chooser.room = self.moving.room();
            let room = chooser.room;
            let taken = self.moving.take(id, from, &mut |run| chooser.choose(run))?;
            if self.tell().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match taken {
                // What cannot be read stays.
                Taken::Some(Some(next)) => from = next + u64::from(chooser.room == room),
                Taken::Busy => {
                    self.in_use += 1;
                    break;
                }
                Taken::Some(None) | Taken::Nothing => break,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn tell(&mut self) -> ControlFlow<()> {
        let done = (self.before + self.moving.moved) * UNIT_SIZE;
        let total = self.total.max(done);
        (self.told)(RebalanceProgress { done, total })
    }
}

impl Store {
    /// Moves contents to the devices where they would lie if they were written now, while others
    /// use the pool. What is mapped, shared or not written stays. `told` hears how far it is, and
    /// may break off. `None`: data of this pool is not spread.
    pub fn rebalance(
        &self,
        told: &mut dyn FnMut(RebalanceProgress) -> ControlFlow<()>,
    ) -> Result<Option<Rebalanced>> {
        let Some(placement) = self.volume.placement() else {
            return Ok(None);
        };
        let (stripe, mut done) = (placement.stripe(), Rebalanced::default());
        let (mut survey, mut moved) = (Survey::of(self, placement)?, 0);
        for _ in 0..ROUNDS {
            let mut round = Round {
                store: self,
                placement,
                moving: Moving::new(self),
                in_use: 0,
                before: moved,
                total: (moved + survey.to_move(stripe)) * UNIT_SIZE,
                told: &mut *told,
            };
            let went_on = round.run(survey)?.is_continue();
            let (in_use, more) = (round.in_use, round.moving.moved);
            (done.in_use, moved) = (in_use, moved + more);
            survey = Survey::of(self, placement)?;
            if !went_on || in_use == 0 || more == 0 {
                break;
            }
        }
        done.left = survey.to_move(stripe) * UNIT_SIZE;
        done.moved = moved * UNIT_SIZE;
        Ok(Some(done))
    }

    pub(crate) fn objects_with_contents(&self) -> Vec<ObjectId> {
        let mut found = Vec::new();
        for_each_object(self, &mut |id, onode| {
            if self.volume.load_u64(onode.add(ONODE_MAPPED_AT)) > 0 {
                found.push(id);
            }
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Balance, shares};

    /// Where pieces of one unit that all lie on the first device go.
    fn goals(units: u64, weights: &[u64]) -> Vec<usize> {
        let mut data = vec![0; weights.len()];
        data[0] = units;
        let mut balance = Balance::of(data, weights);
        let goals = (0..units).map(|_| {
            let goal = balance.goal(0, 1);
            balance.note(0, goal, 1);
            goal.unwrap_or(0)
        });
        goals.collect()
    }

    #[test]
    fn pieces_go_round_the_devices() {
        assert_eq!(goals(6, &[9, 9, 9]), [1, 0, 2, 1, 0, 2]);
        assert_eq!(goals(8, &[5, 5]), [1, 0, 1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_device_gets_as_much_as_it_has_room() {
        let goals = goals(400, &[10, 30, 60]);
        let on = |device| goals.iter().filter(|&&it| it == device).count();
        assert_eq!([on(0), on(1), on(2)], [40, 120, 240]);
    }

    #[test]
    fn a_faster_device_gets_more_and_never_more_than_it_has_room_for() {
        let units = |rooms: &[u64], speeds: &[u64], total| -> Vec<u64> {
            let shares = shares(rooms, speeds, total);
            shares.iter().map(|share| share >> 16).collect()
        };
        assert_eq!(units(&[100, 100], &[1, 1], 50), [25, 25]);
        assert_eq!(units(&[100, 300], &[7, 7], 40), [10, 30]);
        assert_eq!(units(&[100, 100], &[1024, 341], 60), [45, 14]);
        assert_eq!(units(&[100, 100], &[900, 100], 150), [100, 50]);
        assert_eq!(units(&[10, 20, 100], &[8, 8, 1], 80), [10, 20, 50]);
        assert_eq!(units(&[10, 20], &[8, 1], 30), [10, 20]);
        assert_eq!(units(&[0, 20], &[8, 1], 10), [0, 10]);
    }

    #[test]
    fn what_is_even_but_for_a_piece_stays() {
        assert!(Balance::of(vec![512, 512, 0], &[1, 1, 1]).is_even(1024));
        assert!(!Balance::of(vec![1536, 0, 0], &[1, 1, 1]).is_even(512));
        assert!(Balance::of(vec![512, 512, 1024], &[1, 1, 1]).is_even(1024));
    }
}
