//! Waiting for nanoseconds: the processor's counter, calibrated against the system's clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use rustix::thread::{Timespec, nanosleep, sched_yield};
use rustix::time::{ClockId, clock_gettime};

use crate::arch;
use crate::error::EmulationError;

/// How long a calibration takes.
const CALIBRATION_NS: u64 = 20_000_000;

/// Nanoseconds of the system's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The pace of the processor's counter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// Ticks for a nanosecond.
    pub per_ns: f64,
}

impl Pace {
    /// Measures it, in 20 ms.
    pub fn measure() -> Result<Self, EmulationError> {
        Self::measure_if(arch::is_steady())
    }

    fn measure_if(steady: bool) -> Result<Self, EmulationError> {
        if !steady {
            return Err(EmulationError::NoSteadyClock);
        }
        let (from_ns, from) = both();
        while now_ns() - from_ns < CALIBRATION_NS {
            arch::pause();
        }
        let (to_ns, to) = both();
        Ok(Self {
            per_ns: (to - from) as f64 / (to_ns - from_ns) as f64,
        })
    }

    /// Ticks of so many nanoseconds.
    pub fn ticks(self, ns: f64) -> u64 {
        (ns * self.per_ns).round() as u64
    }

    /// Nanoseconds of so many ticks.
    pub fn ns(self, ticks: u64) -> f64 {
        ticks as f64 / self.per_ns
    }
}

/// Both clocks at one moment: the tightest of a few tries.
fn both() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..16 {
        let before = arch::ticks();
        let ns = now_ns();
        let after = arch::ticks();
        if after - before < best.0 {
            best = (after - before, ns, before + (after - before) / 2);
        }
    }
    (best.1, best.2)
}

/// Ticks of the processor's counter, now.
#[inline]
pub fn ticks() -> u64 {
    arch::ticks()
}

/// From so many ticks before the end on, a wait makes no breaks: one can take longer than 100
/// ticks.
pub(crate) const NO_BREAKS: i64 = 600;

/// While so many ticks are left, threads that wait for the same processor have their turn: more
/// threads than processors wait for an emulated device at the same time, as for a real one.
const YIELD: i64 = 20_000;
/// While so many are left, the thread sleeps for a part of them that is too short at any pace.
const SLEEP: i64 = 500_000;
const PART: i64 = 16;

/// Ticks that pass outside of a wait, before who asks for one looks at the counter and behind it.
static OUTSIDE: AtomicU64 = AtomicU64::new(0);

/// Ends later waits so many ticks earlier, of those that pass outside of them anyway.
pub(crate) fn set_outside(ticks: u64) {
    OUTSIDE.store(ticks, Relaxed);
}

/// By so many ticks the last wait was late: the next one ends so much earlier. A look at the
/// counter takes 10 ns, so no wait is exact, but the sum of many is.
static LATE: AtomicI64 = AtomicI64::new(0);
/// Who is later was interrupted.
const LATE_MOST: i64 = 200;

/// Waits, busily at the end, until the counter has reached `end`, less what passes outside.
#[inline]
pub fn wait_until(end: u64) {
    wait_evenly(end.wrapping_sub(OUTSIDE.load(Relaxed)));
}

/// As [`wait_until`], whatever passes outside.
#[inline]
pub(crate) fn wait_evenly(end: u64) {
    let end = end.wrapping_add_signed(-LATE.load(Relaxed));
    wait_raw(end);
    let late = arch::ticks().wrapping_sub(end) as i64;
    if late.abs() < LATE_MOST {
        LATE.store(late, Relaxed);
    }
}

/// Sleeps so many nanoseconds or less; whoever waits looks again.
fn sleep(ns: i64) {
    const SECOND: i64 = 1_000_000_000;
    // A signal that ends it early does no harm.
    let _ = nanosleep(&Timespec {
        tv_sec: ns / SECOND,
        tv_nsec: ns % SECOND,
    });
}

#[inline]
fn wait_raw(end: u64) {
    let first = arch::ticks();
    // Looking at the counter takes time: who looks before the end is over sees it when it is over.
    let look = (arch::ticks().wrapping_sub(first) as i64).min(NO_BREAKS);
    loop {
        let left = end.wrapping_sub(arch::ticks()) as i64;
        if left <= look {
            return;
        }
        if left > SLEEP {
            sleep(left / PART);
        } else if left > YIELD {
            sched_yield();
        } else if left > NO_BREAKS {
            arch::pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    #[test]
    fn without_a_steady_counter_the_error_says_what_works() {
        let error = Pace::measure_if(false).unwrap_err().to_string();
        assert!(error.contains("time-stamp counter"), "{error}");
        assert!(error.contains("--wear without --emulate"), "{error}");
    }
}
