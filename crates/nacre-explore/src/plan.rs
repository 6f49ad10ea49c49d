//! What is explored, by number.

use std::fmt;
use std::ops::Range;

use nacre_store::WriteMode;

use crate::action::Action;
use crate::workload::{ACTIONS, DIRECTED};
use nacre_testkit::medium::{Depth, LANES};
use nacre_testkit::random::{Random, mix};

const MODES: [WriteMode; 2] = [WriteMode::Direct, WriteMode::Atomic];
/// Single operations: every subset where that is possible.
pub const DEEP: Depth = Depth {
    all_up_to: 1 << 12,
    samples: 400,
    aimed: false,
};
/// Pairs and longer ones: every subset where there are few.
const SHALLOW: Depth = Depth {
    all_up_to: 32,
    samples: 16,
    aimed: false,
};
const MAX_LENGTH: u64 = 8;
/// So many longer sequences, and as many side by side, for each row of pairs.
const OTHERS: u64 = 8;

/// Numbers of directed plans begin here; those of a sequence stay as others are added behind it.
const FIRST_DIRECTED: u64 = 1 << 32;
/// Orders of turns in which directed sequences side by side are tried: some at random, ...
const RANDOM_ORDERS: u64 = 12;
/// ... some in which one program is held after so many steps until the others have come to their
/// end, ...
const HELD_ORDERS: u64 = 36;
/// In so many of these it is the first one.
const HELD_FIRST: u64 = 26;
/// ... and some in which two hold what the third one needs, which is held when it has got it.
const CROWDED_ORDERS: u64 = 12;
/// All of them.
pub const ORDERS: u64 = RANDOM_ORDERS + HELD_ORDERS + CROWDED_ORDERS;

/// Which sequences a plan belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One operation.
    Single,
    /// One operation, as many images as there are.
    Deep,
    /// Two operations.
    Pair,
    /// More operations.
    Longer,
    /// Two or three programs, which take turns at fences.
    Beside,
    /// What single places in the source are needed for.
    Directed,
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct SequencePlan {
    /// Seed and number: what [`plan`] makes the same plan from.
    pub name: (u64, u64),
    /// How writes behave.
    pub mode: WriteMode,
    /// Which sequences it belongs to.
    pub kind: Kind,
    /// The operations of each program. If one program does several, the first is not crashed:
    /// others crash it alone.
    pub lanes: Vec<Vec<Action>>,
    /// In which order programs side by side take turns: one for so many steps, then another one;
    /// none: at random.
    pub turns: Vec<(usize, u64)>,
    /// How many images of each crash point.
    pub depth: Depth,
    /// No more crash points after so many images.
    pub most: u64,
    /// Of how many images the recovery is crashed too: one in so many; the same if a record is
    /// replayed.
    pub nested_every: [u64; 2],
    /// Decides the samples.
    pub seed: u64,
}

/// How many sequences there are of one operation, of one operation in depth, and of two operations.
pub const fn counts() -> [u64; 3] {
    let count = ACTIONS.len() as u64;
    [2 * count, 2 * count, 2 * count * count]
}

/// Numbers of plans after which all of [`counts`] are done.
pub const fn all_counted() -> u64 {
    let [singles, deep, pairs] = counts();
    singles + deep + pairs + 2 * OTHERS * deep
}

/// Numbers of the plans that single places in the source are needed for; those side by side in
/// these orders of turns.
pub fn directed(orders: Range<u64>) -> impl Iterator<Item = u64> {
    let rows = orders.flat_map(|order| {
        let some = DIRECTED.iter().enumerate();
        let some = some.filter(move |(_, lanes)| order == 0 || lanes.len() > 1);
        some.map(move |(index, _)| index as u64 * ORDERS + order)
    });
    rows.flat_map(|row| [FIRST_DIRECTED + 2 * row, FIRST_DIRECTED + 2 * row + 1])
}

/// In which order of turns a directed plan is played; 0 for others.
pub fn order_of(number: u64) -> u64 {
    let directed = number.checked_sub(FIRST_DIRECTED);
    directed.map_or(0, |directed| directed / 2 % ORDERS)
}

/// The `number`-th sequence: singles at a snapshot, then deep singles among pairs and others, then
/// others without end.
pub fn plan(seed: u64, number: u64) -> SequencePlan {
    let count = ACTIONS.len() as u64;
    let [singles, ..] = counts();
    let action = |index: u64| ACTIONS[(index % count) as usize];
    let plan = |index: u64, kind, actions, depth| SequencePlan {
        name: (seed, number),
        mode: MODES[(index % 2) as usize],
        kind,
        lanes: vec![actions],
        turns: Vec::new(),
        depth,
        most: u64::MAX,
        nested_every: [256, 24],
        seed: mix(seed ^ mix(number)),
    };
    if let Some(directed) = number.checked_sub(FIRST_DIRECTED) {
        let lanes = DIRECTED[(directed / 2 / ORDERS) as usize % DIRECTED.len()];
        return SequencePlan {
            lanes: lanes.iter().map(|lane| lane.to_vec()).collect(),
            turns: turns(directed / 2 % ORDERS),
            ..plan(number, Kind::Directed, Vec::new(), SHALLOW)
        };
    }
    if number < singles {
        return plan(number, Kind::Single, vec![action(number / 2)], SHALLOW);
    }
    if number >= all_counted() {
        return other(plan(number, Kind::Longer, Vec::new(), SHALLOW));
    }
    let row = 1 + count + 2 * OTHERS;
    let (chunk, place) = ((number - singles) / row, (number - singles) % row);
    if place == 0 {
        return plan(chunk, Kind::Deep, vec![action(chunk / 2)], DEEP);
    }
    if place > count {
        return other(plan(number, Kind::Longer, Vec::new(), SHALLOW));
    }
    // A prime stride, so that a run that is cut short has tried all kinds of pairs.
    let index = chunk * count + place - 1;
    let pair = index / 2 * 7919 % (count * count);
    plan(
        index,
        Kind::Pair,
        vec![action(pair / count), action(pair)],
        SHALLOW,
    )
}

/// The turns of an order.
fn turns(order: u64) -> Vec<(usize, u64)> {
    const TO_THE_END: u64 = u64::MAX;
    if let Some(crowded) = order.checked_sub(RANDOM_ORDERS + HELD_ORDERS) {
        // Two have what there is of something; the first one makes more of it. The second one ends
        // what it does and does the next while the first is held again.
        let again = [(1, 4 + crowded % 4), (0, 1 + crowded / 4), (1, TO_THE_END)];
        return [[(2, 1), (1, 1), (0, 4)], again].concat();
    }
    let Some(held) = order.checked_sub(RANDOM_ORDERS) else {
        return Vec::new();
    };
    let (who, after) = match held.checked_sub(HELD_FIRST) {
        Some(held) => (1, 1 + held),
        None => (0, 1 + held),
    };
    vec![(who, after), (1 - who, TO_THE_END), (2, TO_THE_END)]
}

/// A longer sequence, or several side by side.
fn other(plan: SequencePlan) -> SequencePlan {
    let mut random = Random::new(plan.name.0, plan.name.1);
    let mode = MODES[random.below(2) as usize];
    if random.below(2) == 0 {
        let length = 3 + random.below(MAX_LENGTH - 2);
        // The first is not crashed. Left in order, the pool's saved state is what the next one may
        // not trust.
        let clean = random.below(3) == 0;
        let mut any = |place| match place {
            0 if clean => Action::Remount,
            _ => ACTIONS[random.below(ACTIONS.len() as u64) as usize],
        };
        let lanes = vec![(0..length).map(&mut any).collect()];
        return SequencePlan {
            mode,
            lanes,
            ..plan
        };
    }
    let lanes = (0..2 + random.below(LANES as u64 - 1))
        .map(|_| (0..=random.below(2)).map(|_| beside(&mut random)).collect())
        .collect();
    SequencePlan {
        mode,
        lanes,
        kind: Kind::Beside,
        ..plan
    }
}

/// An operation that leaves other programs alone.
fn beside(random: &mut Random) -> Action {
    loop {
        let action = ACTIONS[random.below(ACTIONS.len() as u64) as usize];
        if !matches!(action, Action::Remount | Action::CreateInNewBlock(_)) {
            return action;
        }
    }
}

impl fmt::Display for SequencePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {:?}:", self.name.0, self.name.1, self.mode)?;
        for (lane, actions) in self.lanes.iter().enumerate() {
            f.write_str(if lane > 0 { " ||" } else { "" })?;
            actions
                .iter()
                .try_for_each(|action| write!(f, " {action}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nacre_store::WriteMode;

    use super::{directed, plan};
    use crate::workload::DIRECTED;

    #[test]
    fn every_directed_sequence_has_plans_in_both_modes() {
        for lanes in DIRECTED {
            let mut modes: Vec<_> = directed(0..1)
                .map(|number| plan(9, number))
                .filter(|plan| plan.lanes == *lanes)
                .map(|plan| plan.mode)
                .collect();
            modes.dedup();
            assert!(modes.starts_with(&[WriteMode::Direct, WriteMode::Atomic]));
        }
    }
}
