//! Threads that run one at a time and hand over at fences, in a given order or in one that a seed
//! decides.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::random::Random;

/// How long a thread may keep its turn without a step. Longer means that it waits for a lock of a
/// thread that waits for its turn.
const PATIENCE: Duration = Duration::from_millis(300);

/// The order of a few threads, numbered from 0.
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

/// The order of turns.
pub enum Order {
    /// Anybody.
    Random(Random),
    /// One for so many steps, then another one; then each to its end, beginning with the first.
    Given(VecDeque<(usize, u64)>),
}

struct State {
    order: Order,
    running: Vec<bool>,
    turn: usize,
    steps: u64,
    stuck: bool,
}

impl Turns {
    /// As many threads as this.
    pub fn new(threads: usize, order: Order) -> Turns {
        let mut state = State {
            order,
            running: vec![true; threads],
            turn: 0,
            steps: 0,
            stuck: false,
        };
        state.pass_on();
        Turns {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits until this thread may begin.
    pub fn begin(&self, me: usize) {
        self.wait(self.state(), me);
    }

    /// Perhaps somebody else's turn.
    pub fn step(&self, me: usize) {
        let mut state = self.state();
        state.pass_on();
        self.changed.notify_all();
        self.wait(state, me);
    }

    /// This thread does nothing more.
    pub fn end(&self, me: usize) {
        let mut state = self.state();
        state.running[me] = false;
        state.pass_on();
        self.changed.notify_all();
    }

    /// Whether threads had to run out of turn, because one waited for another: the order is chance
    /// then.
    pub fn was_stuck(&self) -> bool {
        self.state().stuck
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.turn != me && !state.stuck {
            let steps = state.steps;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() && state.steps == steps {
                state.stuck = true;
                self.changed.notify_all();
            }
        }
    }
}

impl State {
    fn pass_on(&mut self) {
        self.steps += 1;
        let running: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.running[i])
            .collect();
        let next = match &mut self.order {
            Order::Random(random) => running.get(random.below(running.len() as u64) as usize),
            Order::Given(phases) => {
                phases.retain(|&(who, left)| left > 0 && running.contains(&who));
                let given = phases.front_mut().map(|(who, left)| {
                    *left -= 1;
                    &*who
                });
                given.or(running.first())
            }
        };
        self.turn = next.copied().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::{Order, Turns};
    use crate::random::Random;

    fn order(seed: u64) -> (Vec<usize>, bool) {
        played(Order::Random(Random::new(seed, 0)))
    }

    fn played(order: Order) -> (Vec<usize>, bool) {
        let turns = Turns::new(3, order);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for me in 0..3 {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    turns.begin(me);
                    for _ in 0..5 {
                        order.lock().unwrap().push(me);
                        turns.step(me);
                    }
                    turns.end(me);
                });
            }
        });
        (order.into_inner().unwrap(), turns.was_stuck())
    }

    #[test]
    fn a_seed_gives_one_order() {
        let (first, stuck) = order(7);
        assert!(!stuck && first.len() == 15);
        assert_eq!(order(7).0, first);
        assert!((0..20).any(|seed| order(seed).0 != first));
    }

    #[test]
    fn an_order_can_be_given() {
        let (order, stuck) = played(Order::Given([(2, 2), (0, 1), (2, 1)].into()));
        assert!(!stuck);
        assert_eq!(order[..6], [2, 2, 0, 2, 0, 0]);
        assert_eq!(order[6..], [0, 0, 1, 1, 1, 1, 1, 2, 2]);
    }
}
