//! From samples to figures, and from the figures of rounds to one.

use serde::{Deserialize, Serialize};

/// What one row cost in one place. Times are nanoseconds for each operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub p50: f64,
    pub p99: f64,
    pub mean: f64,
    /// Operations that were measured.
    pub operations: u64,
    /// Operations timed together as one sample; p50 and p99 are over these.
    pub batch: u64,
    /// How far the p50 of the rounds lie apart, as a part of their median.
    pub spread: f64,
    /// p50 of the quickest round, in which others took least of what a core's threads share.
    pub quickest: f64,
}

impl Figures {
    /// Of samples (nanoseconds for an operation), not empty, and the mean of all operations.
    pub fn of(samples: &mut [f64], mean: f64, operations: u64, batch: u64) -> Figures {
        samples.sort_by(f64::total_cmp);
        let p50 = percentile(samples, 0.50);
        Figures {
            p50,
            p99: percentile(samples, 0.99),
            mean,
            operations,
            batch,
            spread: 0.0,
            quickest: p50,
        }
    }

    /// One value that stands for all.
    pub fn exactly(nanoseconds: f64) -> Figures {
        Figures::of(&mut [nanoseconds], nanoseconds, 1, 1)
    }

    /// Of several callers that worked at the same time: p50 and p99 as one caller sees them, the
    /// mean as the time from one completed operation of any of them to the next.
    pub fn side_by_side(callers: &[Figures]) -> Figures {
        let count = callers.len() as f64;
        let rate: f64 = callers.iter().map(|caller| 1.0 / caller.mean).sum();
        let p50 = callers.iter().map(|caller| caller.p50).sum::<f64>() / count;
        Figures {
            p50,
            p99: callers.iter().map(|caller| caller.p99).fold(0.0, f64::max),
            mean: 1.0 / rate,
            operations: callers.iter().map(|caller| caller.operations).sum(),
            batch: callers.iter().map(|caller| caller.batch).max().unwrap_or(1),
            spread: 0.0,
            quickest: p50,
        }
    }

    /// The medians over rounds; `None` without any.
    pub fn over_rounds(rounds: &[Figures]) -> Option<Figures> {
        let of = |field: fn(&Figures) -> f64| median(rounds.iter().map(field).collect());
        let p50 = of(|round| round.p50)?;
        let all = rounds.iter().map(|round| round.p50);
        let (low, high) = (
            all.clone().fold(f64::MAX, f64::min),
            all.fold(0.0, f64::max),
        );
        Some(Figures {
            p50,
            p99: of(|round| round.p99)?,
            mean: of(|round| round.mean)?,
            operations: rounds.iter().map(|round| round.operations).sum(),
            batch: rounds.iter().map(|round| round.batch).max().unwrap_or(1),
            spread: if p50 > 0.0 { (high - low) / p50 } else { 0.0 },
            quickest: low,
        })
    }
}

/// Nearest rank of sorted samples.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The middle one, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, median, percentile};

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.50), 100.0);
        assert_eq!(percentile(&samples, 0.99), 198.0);
        assert_eq!(percentile(&samples, 1.0), 200.0);
        assert_eq!(percentile(&[7.0], 0.01), 7.0);
    }

    #[test]
    fn one_outlier_moves_p99_and_not_p50() {
        let mut samples = vec![10.0; 60];
        samples.push(90_000.0);
        let figures = Figures::of(&mut samples, 1485.0, 61, 1);
        assert_eq!((figures.p50, figures.p99), (10.0, 90_000.0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 100.0]), Some(3.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn a_bad_round_is_outvoted_and_seen_in_the_spread() {
        let rounds = [100.0, 900.0, 110.0].map(Figures::exactly);
        let all = Figures::over_rounds(&rounds).expect("rounds");
        assert_eq!((all.p50, all.mean, all.operations), (110.0, 110.0, 3));
        assert!((all.spread - 800.0 / 110.0).abs() < 1e-9);
        assert_eq!(all.quickest, 100.0);
        assert_eq!(Figures::over_rounds(&[]), None);
    }

    #[test]
    fn two_equal_callers_complete_twice_as_often() {
        let both = Figures::side_by_side(&[Figures::exactly(200.0); 2]);
        assert_eq!((both.p50, both.mean, both.operations), (200.0, 100.0, 2));
        let uneven = Figures::side_by_side(&[Figures::exactly(100.0), Figures::exactly(300.0)]);
        assert!((uneven.mean - 75.0).abs() < 1e-9);
    }
}
