//! How readers go on, as far as it can be told from what was absent when they came. Guesses:
//! nothing depends on them.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::{CHUNK, REGION};
use crate::arch::thread_address;

/// Readers that go on where they stopped are known by where that was; so many of a process are.
const STREAMS: usize = 8;
/// The most that is read ahead of one of them.
pub(super) const AHEAD_MAX: u64 = 1 << 20;
/// Threads that read in strides are told apart by their address; so many of a process are.
const STRIDERS: usize = 8;
/// So many equal strides in a row are no chance.
const STRIDES_SEEN: u64 = 3;

/// Where readers stopped that may go on there. Guesses: nothing depends on them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The end of what came last for a reader, and how much that was.
    ends: [(AtomicU64, AtomicU64); STREAMS],
    next: AtomicUsize,
}

impl Streams {
    /// How much to load from `start` on for who asks for `len` bytes there: to the end of a region,
    /// if that is far enough, and not much more than `most`.
    pub fn ahead(&self, start: u64, len: u64, most: u64) -> u64 {
        let known = self.ends.iter();
        let found = known
            .clone()
            .find(|(end, _)| end.load(Relaxed) == start && start > 0);
        let (end, window) = found.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Relaxed);
            &self.ends[next % STREAMS]
        });
        let wish = match found {
            Some(_) => (window.load(Relaxed) * 2)
                .clamp(CHUNK, AHEAD_MAX)
                .min(most)
                .max(len),
            None => len,
        };
        let whole_regions = (start + wish) / REGION * REGION;
        let behind = match whole_regions >= start + len {
            true => whole_regions,
            false => start + wish,
        };
        end.store(behind, Relaxed);
        window.store(wish, Relaxed);
        behind - start
    }
}

/// Where threads read last, and how far that was from where they had read before.
#[derive(Debug, Default)]
pub(super) struct Strides {
    threads: [Strider; STRIDERS],
}

/// The first unit that was read last, the stride to it, and how often in a row that was the same.
#[derive(Debug, Default)]
struct Strider {
    start: AtomicU64,
    stride: AtomicU64,
    times: AtomicU64,
}

impl Strides {
    /// The stride in units, forwards or backwards, of a thread that reads these units and has
    /// come to them by equal ones. One that reads on where it stopped has none: [`Streams`].
    pub fn next(&self, units: &Range<u64>) -> Option<i64> {
        let thread = (thread_address() >> 12) % STRIDERS;
        let stride = self.threads[thread].step(units.start);
        let goes_on = stride == Some(units.end - units.start);
        stride.filter(|_| !goes_on).map(u64::cast_signed)
    }
}

impl Strider {
    fn step(&self, start: u64) -> Option<u64> {
        let stride = start.wrapping_sub(self.start.swap(start, Relaxed));
        let times = match self.stride.swap(stride, Relaxed) == stride {
            true => self.times.load(Relaxed) + 1,
            false => 1,
        };
        self.times.store(times, Relaxed);
        (times >= STRIDES_SEEN).then_some(stride)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_MAX, CHUNK, REGION, Streams, Strides};

    #[test]
    fn who_goes_on_gets_more_each_time() {
        let streams = Streams::default();
        let mut at = 4096;
        assert_eq!(streams.ahead(at, 4096, u64::MAX), 4096);
        at += 4096;
        let mut last = CHUNK;
        while last < AHEAD_MAX / 2 {
            let loaded = streams.ahead(at, 4096, u64::MAX);
            assert_eq!(loaded, last);
            at += loaded;
            last *= 2;
        }
        at += streams.ahead(at, 4096, u64::MAX);
        for _ in 0..4 {
            at += streams.ahead(at, 4096, u64::MAX);
            assert_eq!(at % REGION, 0, "whole regions");
        }
        let small = 3 * CHUNK;
        assert_eq!(streams.ahead(at, 4096, small), small);
        assert_eq!(streams.ahead(at + small, 4096, small), small);
    }

    #[test]
    fn who_asks_for_the_end_of_a_region_goes_on_with_whole_ones() {
        let streams = Streams::default();
        let mut at = REGION;
        for _ in 0..40 {
            at += streams.ahead(at, CHUNK, u64::MAX);
        }
        assert_eq!(at % REGION, 0);
        assert_eq!(streams.ahead(at, CHUNK, u64::MAX), AHEAD_MAX);
    }

    #[test]
    fn who_jumps_gets_what_was_asked_for() {
        let streams = Streams::default();
        for at in [1 << 20, 5 << 20, 3 << 20, 9 << 20] {
            assert_eq!(streams.ahead(at, 8192, u64::MAX), 8192);
        }
        assert_eq!(streams.ahead((5 << 20) + 8192, 8192, u64::MAX), CHUNK);
    }

    #[test]
    fn equal_strides_are_seen_both_ways() {
        for stride in [3, -5] {
            let strides = Strides::default();
            let starts = (0..6).map(|step| 1000 + step * stride);
            let seen = starts.map(|start: i64| strides.next(&(start as u64..start as u64 + 2)));
            let expected = [None, None, None, Some(stride), Some(stride), Some(stride)];
            assert!(seen.eq(expected));
        }
    }

    #[test]
    fn neither_chance_nor_going_on_is_a_stride() {
        let strides = Strides::default();
        for start in [9, 40, 13, 44, 17, 18, 49, 50, 81] {
            assert_eq!(strides.next(&(start..start + 1)), None);
        }
        for start in (100..200).step_by(4) {
            assert_eq!(strides.next(&(start..start + 4)), None);
        }
    }
}
