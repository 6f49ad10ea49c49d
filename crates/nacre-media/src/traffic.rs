//! Counts of who stores and loads at the moment, in memory that all processes of a pool share.
//!
//! Each thread marks a cache line of its own with plain stores, and looks at the others' only every
//! [`LOOK`]th time: a shared counter would cost more than many of the copies that it counts. The
//! count is a hint. Threads that share a line count as one, and what a killed process left marked
//! is forgotten when it is cleaned up after.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Lines of a device: about as many threads are told apart. A prime number, so that threads whose
/// addresses lie at equal distances, as they do, get lines of their own.
const LINES: usize = 61;
/// So many marks of a thread go by the count that it has seen last.
pub const LOOK: u32 = 64;

/// What is counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Stores.
    Write,
    /// Loads.
    Read,
}

/// One direction of one thread's line.
#[derive(Debug, Default)]
#[repr(C)]
struct Mark {
    busy: AtomicU32,
    /// Marks until the next look.
    left: AtomicU32,
    /// What the last look found.
    seen: AtomicU32,
}

/// A thread's line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line([Mark; 2]);

/// The traffic of one device. Zero is nobody.
#[derive(Debug)]
#[repr(C)]
pub struct Traffic([Line; LINES]);

/// While it lives, its thread counts.
#[derive(Debug)]
pub struct Turn<'a> {
    busy: &'a AtomicU32,
    /// Threads under way in the same direction, with this one.
    pub count: u32,
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.busy.store(0, Relaxed);
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Line::default()))
    }
}

impl Traffic {
    /// Marks the line of the thread whose control block is at `thread`, and tells how many are
    /// marked.
    #[inline]
    pub fn enter(&self, thread: u64, direction: Direction) -> Turn<'_> {
        // Control blocks lie at the same place of a page.
        let place = (thread >> 12) % LINES as u64;
        let mark = &self.0[place as usize].0[direction as usize];
        mark.busy.store(1, Relaxed);
        let left = mark.left.load(Relaxed);
        let count = if left == 0 {
            self.look(mark, direction)
        } else {
            mark.left.store(left - 1, Relaxed);
            mark.seen.load(Relaxed)
        };
        Turn {
            busy: &mark.busy,
            count: count.max(1),
        }
    }

    #[cold]
    fn look(&self, mark: &Mark, direction: Direction) -> u32 {
        let busy = |line: &Line| line.0[direction as usize].busy.load(Relaxed) & 1;
        let count = self.0.iter().map(busy).sum();
        mark.seen.store(count, Relaxed);
        mark.left.store(LOOK - 1, Relaxed);
        count
    }

    /// Forgets all marks, with those that dead processes left. Whoever is under way counts again
    /// the next time.
    pub fn forget(&self) {
        for mark in self.0.iter().flat_map(|line| &line.0) {
            mark.busy.store(0, Relaxed);
        }
    }
}

/// Memory that holds the traffic of a pool's devices.
///
/// # Safety
/// `traffic` yields the same references as long as the value lives.
pub unsafe trait SharedTraffic: Send + Sync {
    /// That of a device; any number yields one.
    fn traffic(&self, device: u16) -> &Traffic;
}

/// One device's traffic in such memory.
pub(crate) struct Counted {
    traffic: NonNull<Traffic>,
    _memory: Arc<dyn SharedTraffic>,
}

// SAFETY: what it points to is atomics, kept by `_memory`, which may be sent and shared.
unsafe impl Send for Counted {}
// SAFETY: a shared reference reaches the atomics of `traffic` only.
unsafe impl Sync for Counted {}

impl Counted {
    pub fn new(memory: Arc<dyn SharedTraffic>, device: u16) -> Self {
        Self {
            traffic: NonNull::from(memory.traffic(device)),
            _memory: memory,
        }
    }

    #[inline]
    pub fn traffic(&self) -> &Traffic {
        // SAFETY: the reference that it was made of holds as long as `_memory` lives, as
        // `SharedTraffic` demands.
        unsafe { self.traffic.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, LOOK, Traffic};

    #[test]
    fn threads_are_counted_by_direction_and_forgotten() {
        let traffic = Traffic::default();
        let first = traffic.enter(1 << 12, Direction::Write);
        let second = traffic.enter(2 << 12, Direction::Write);
        assert_eq!((first.count, second.count), (1, 2));
        assert_eq!(traffic.enter(3 << 12, Direction::Read).count, 1);
        drop(first);
        assert_eq!(traffic.enter(4 << 12, Direction::Write).count, 2);
        std::mem::forget(second);
        traffic.forget();
        assert_eq!(traffic.enter(5 << 12, Direction::Write).count, 1);
    }

    #[test]
    fn a_count_is_renewed_every_look() {
        let traffic = Traffic::default();
        assert_eq!(traffic.enter(1 << 12, Direction::Write).count, 1);
        let _other = traffic.enter(2 << 12, Direction::Write);
        for _ in 1..LOOK {
            assert_eq!(traffic.enter(1 << 12, Direction::Write).count, 1);
        }
        assert_eq!(traffic.enter(1 << 12, Direction::Write).count, 2);
    }

    #[test]
    fn threads_at_equal_distances_seldom_share_a_line() {
        let traffic = Traffic::default();
        let stacks = (0..20u64).map(|number| 0x7f00_0000_06c0 + number * 0x80_1000);
        let turns: Vec<_> = stacks
            .map(|thread| traffic.enter(thread, Direction::Write))
            .collect();
        assert_eq!(turns[19].count, 20);
    }
}
