//! What is explored, by number.

use std::fmt;

use nacre_store::WriteMode;

use crate::action::Action;
use crate::medium::{Depth, LANES};
use crate::random::{Random, mix};
use crate::workload::ACTIONS;

const MODES: [WriteMode; 2] = [WriteMode::Direct, WriteMode::Atomic];
/// Single operations: every subset where that is possible.
pub const DEEP: Depth = Depth {
    all_up_to: 1 << 12,
    samples: 400,
};
/// Pairs and longer ones: every subset where there are few.
const SHALLOW: Depth = Depth {
    all_up_to: 32,
    samples: 16,
};
const MAX_LENGTH: u64 = 8;
/// So many longer sequences, and as many side by side, for each row of pairs.
const OTHERS: u64 = 8;

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
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed and number: what [`plan`] makes the same plan from.
    pub name: (u64, u64),
    /// How writes behave.
    pub mode: WriteMode,
    /// Which sequences it belongs to.
    pub kind: Kind,
    /// The operations of each program. If one program does several, the first is not crashed: others crash it alone.
    pub lanes: Vec<Vec<Action>>,
    /// How many images.
    pub depth: Depth,
    /// Of how many images the recovery is crashed too: one in so many; the same if a record is replayed.
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

/// The `number`-th sequence: singles at a glance, then deep singles among pairs and others, then others without end.
pub fn plan(seed: u64, number: u64) -> Plan {
    let count = ACTIONS.len() as u64;
    let [singles, ..] = counts();
    let action = |index: u64| ACTIONS[(index % count) as usize];
    let plan = |index: u64, kind, actions, depth| Plan {
        name: (seed, number),
        mode: MODES[(index % 2) as usize],
        kind,
        lanes: vec![actions],
        depth,
        nested_every: [256, 24],
        seed: mix(seed ^ mix(number)),
    };
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

/// The number of the plan of two operations in this mode, if both are among those that are tried.
pub fn pair(first: Action, second: Action, mode: WriteMode) -> Option<u64> {
    let place = |action| ACTIONS.iter().position(|&known| known == action);
    let (count, [singles, ..]) = (ACTIONS.len() as u64, counts());
    let pair = place(first)? as u64 * count + place(second)? as u64;
    let half = (0..count * count).find(|half| half * 7919 % (count * count) == pair)?;
    let index = half * 2 + u64::from(mode == WriteMode::Atomic);
    let row = 1 + count + 2 * OTHERS;
    Some(singles + index / count * row + 1 + index % count)
}

/// A longer sequence, or several side by side.
fn other(plan: Plan) -> Plan {
    let mut random = Random::new(plan.name.0, plan.name.1);
    let mode = MODES[random.below(2) as usize];
    if random.below(2) == 0 {
        let length = 3 + random.below(MAX_LENGTH - 2);
        // The first is not crashed. Left in order, the pool's saved state is what the next one may not trust.
        let clean = random.below(3) == 0;
        let mut any = |place| match place {
            0 if clean => Action::Remount,
            _ => ACTIONS[random.below(ACTIONS.len() as u64) as usize],
        };
        let lanes = vec![(0..length).map(&mut any).collect()];
        return Plan {
            mode,
            lanes,
            ..plan
        };
    }
    let lanes = (0..2 + random.below(LANES as u64 - 1))
        .map(|_| (0..=random.below(2)).map(|_| beside(&mut random)).collect())
        .collect();
    Plan {
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

impl fmt::Display for Plan {
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

    use super::{pair, plan};
    use crate::workload::ACTIONS;

    #[test]
    fn a_pair_has_the_number_of_its_plan() {
        for (first, second) in [(3, 5), (40, 2), (7, 7)] {
            for mode in [WriteMode::Direct, WriteMode::Atomic] {
                let (first, second) = (ACTIONS[first], ACTIONS[second]);
                let found = plan(9, pair(first, second, mode).unwrap());
                assert_eq!(
                    (&found.lanes, found.mode),
                    (&vec![vec![first, second]], mode)
                );
            }
        }
    }
}
