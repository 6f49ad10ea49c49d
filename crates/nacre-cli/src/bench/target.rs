//! What a row should cost, and whether it does.

use super::statistics::Figures;

/// A limit for the pool's figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// p50 in nanoseconds.
    AtMost(f64),
    /// p50 as a multiple of the raw limit.
    TimesRaw(f64),
    /// p50: nanoseconds above the raw limit.
    PlusRaw(f64),
    /// Mean: nanoseconds above the raw limit's mean.
    MeanPlusRaw(f64),
    /// p50: nanoseconds above another row of the pool.
    PlusRow(String, f64),
    /// Completions of all callers, as a multiple of another row of the pool.
    Speedup(String, f64),
}

/// A target beside what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What the target allows, in the unit of the row or, for a speed-up, as a factor.
    pub allowed: f64,
    pub measured: f64,
    pub is_met: bool,
}

impl Target {
    /// `<= raw + 100 ns`
    pub fn text(&self) -> String {
        match self {
            Target::AtMost(limit) => format!("<= {limit}"),
            Target::TimesRaw(times) => format!("<= {times} x raw"),
            Target::PlusRaw(more) => format!("<= raw + {more}"),
            Target::MeanPlusRaw(more) => format!("mean <= raw + {more}"),
            Target::PlusRow(row, more) => format!("<= {row} + {more}"),
            Target::Speedup(_, times) => format!(">= {times} x one"),
        }
    }

    /// `None` if what it compares with was not measured. `other` gives the pool's figures of
    /// another row.
    pub fn verdict<'a>(
        &self,
        ours: &Figures,
        raw: Option<&Figures>,
        other: impl Fn(&str) -> Option<&'a Figures>,
    ) -> Option<Verdict> {
        let (allowed, measured) = match self {
            Target::AtMost(limit) => (*limit, ours.p50),
            Target::TimesRaw(times) => (raw?.p50 * times, ours.p50),
            Target::PlusRaw(more) => (raw?.p50 + more, ours.p50),
            Target::MeanPlusRaw(more) => (raw?.mean + more, ours.mean),
            Target::PlusRow(row, more) => (other(row)?.p50 + more, ours.p50),
            Target::Speedup(row, times) => {
                let measured = other(row)?.mean / ours.mean;
                return Some(Verdict {
                    allowed: *times,
                    measured,
                    is_met: measured >= *times,
                });
            }
        };
        Some(Verdict {
            allowed,
            measured,
            is_met: measured <= allowed,
        })
    }
}

impl Verdict {
    /// `met`, or how far it is missed.
    pub fn text(&self) -> String {
        if self.is_met {
            return "met".to_string();
        }
        let (high, low) = if self.measured > self.allowed {
            (self.measured, self.allowed)
        } else {
            (self.allowed, self.measured)
        };
        format!("missed {:.2}x", high / low)
    }
}

#[cfg(test)]
mod tests {
    use super::{Target, Verdict};
    use crate::bench::report::{Backend, Report, RowReport};
    use crate::bench::statistics::Figures;

    fn report() -> Report {
        let mut report = Report::default();
        let mut row = RowReport::new("alone", "g", "ns");
        row.places.insert(Backend::Nacre, Figures::exactly(100.0));
        report.rows.push(row);
        report
    }

    fn judged(target: &Target, ours: f64, raw: Option<f64>) -> Option<Verdict> {
        let raw = raw.map(Figures::exactly);
        let report = report();
        let other = |row: &str| report.figures(row, Backend::Nacre);
        target.verdict(&Figures::exactly(ours), raw.as_ref(), other)
    }

    #[test]
    fn limits_are_inclusive() {
        assert!(judged(&Target::AtMost(90.0), 90.0, None).is_some_and(|found| found.is_met));
        let missed = judged(&Target::AtMost(90.0), 180.0, None).expect("a verdict");
        assert_eq!(missed.text(), "missed 2.00x");
    }

    #[test]
    fn raw_is_needed_where_it_is_named() {
        assert_eq!(judged(&Target::PlusRaw(100.0), 120.0, None), None);
        let found = judged(&Target::PlusRaw(100.0), 120.0, Some(17.0));
        assert_eq!(
            found.map(|found| (found.allowed, found.is_met)),
            Some((117.0, false))
        );
        let found = judged(&Target::TimesRaw(1.5), 120.0, Some(100.0));
        assert!(found.is_some_and(|found| found.is_met));
    }

    #[test]
    fn a_speed_up_compares_completions() {
        let target = Target::Speedup("alone".into(), 1.9);
        assert!(judged(&target, 52.0, None).is_some_and(|found| found.is_met));
        let missed = judged(&target, 100.0, None).expect("a verdict");
        assert_eq!(
            (missed.measured, missed.text().as_str()),
            (1.0, "missed 1.90x")
        );
        assert_eq!(
            judged(&Target::Speedup("other".into(), 1.9), 50.0, None),
            None
        );
    }
}
