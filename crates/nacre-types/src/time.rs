//! Points in time.

use rustix::time::{ClockId, clock_gettime};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Nanoseconds since 1970-01-01 00:00 UTC; covers the years 1677 to 2262.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

/// Where changes get their times from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// [`Timestamp::now`].
    #[default]
    Real,
    /// Always the same: what is recorded for a simulation must not depend on when the real one
    /// ticked.
    Stopped(Timestamp),
}

impl Clock {
    /// The time of a change that is made now.
    #[inline(always)]
    pub fn now(self) -> Timestamp {
        match self {
            Clock::Real => Timestamp::now(),
            Clock::Stopped(time) => time,
        }
    }
}

impl Timestamp {
    /// The time of the real-time clock's last tick, as file systems of the kernel stamp files too:
    /// a fraction of the cost of the exact time.
    #[inline]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Self::from_parts(now.tv_sec, now.tv_nsec as u32)
    }

    /// From seconds and nanoseconds (below 10^9); saturates at the ends of the range.
    #[inline]
    pub const fn from_parts(seconds: i64, nanoseconds: u32) -> Self {
        Self(
            seconds
                .saturating_mul(NANOS_PER_SECOND)
                .saturating_add(nanoseconds as i64),
        )
    }

    /// Whole seconds since the epoch, rounded down.
    #[inline]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(NANOS_PER_SECOND)
    }

    /// Nanoseconds within the second, 0..10^9.
    #[inline]
    pub const fn nanoseconds(self) -> u32 {
        self.0.rem_euclid(NANOS_PER_SECOND) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn parts_come_back_also_before_the_epoch() {
        for (seconds, nanoseconds) in [(0, 0), (1, 999_999_999), (-1, 1), (-5, 0)] {
            let time = Timestamp::from_parts(seconds, nanoseconds);
            assert_eq!((time.seconds(), time.nanoseconds()), (seconds, nanoseconds));
        }
    }

    #[test]
    fn far_times_saturate() {
        assert_eq!(Timestamp::from_parts(i64::MAX, 0), Timestamp(i64::MAX));
        assert_eq!(Timestamp::from_parts(i64::MIN, 0), Timestamp(i64::MIN));
    }

    #[test]
    fn now_is_after_2020() {
        assert!(Timestamp::now().seconds() > 1_577_836_800);
    }
}
