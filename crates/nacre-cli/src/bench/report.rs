//! What a run has found.

pub use super::backend::Backend;
use super::machine::Machine;
use super::row::Row;
use super::site::Outcome;
use super::statistics::Figures;
use super::target::{Target, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub run: Run,
    pub overhead: Overhead,
    pub rows: Vec<RowReport>,
    /// What is not there, and why.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub rounds: usize,
    /// For each row, place and round.
    pub milliseconds: u64,
    pub file_bytes: u64,
    pub entries: usize,
    /// File systems and devices behind the places.
    pub pool: String,
    pub tmpfs: String,
    pub ext4: String,
}

/// Contained in every figure, and not taken off.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Overhead {
    /// Nanoseconds for each operation: loop and choice of a random place.
    pub loop_ns: f64,
    /// Nanoseconds for each sample (a batch of operations).
    pub clock_ns: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct RowReport {
    pub name: String,
    pub group: &'static str,
    pub unit: &'static str,
    pub places: BTreeMap<Backend, Figures>,
    pub failures: BTreeMap<Backend, String>,
    #[serde(serialize_with = "target_text")]
    pub target: Option<Target>,
    /// `met`, or how far the target is missed.
    pub verdict: Option<String>,
}

fn target_text<S: serde::Serializer>(target: &Option<Target>, to: S) -> Result<S::Ok, S::Error> {
    target.as_ref().map(Target::text).serialize(to)
}

impl RowReport {
    pub fn new(name: impl Into<String>, group: &'static str, unit: &'static str) -> RowReport {
        RowReport {
            name: name.into(),
            group,
            unit,
            places: BTreeMap::new(),
            failures: BTreeMap::new(),
            target: None,
            verdict: None,
        }
    }

    /// Of what all rounds of a row came to.
    pub fn of(row: &Row, rounds: BTreeMap<Backend, Vec<Outcome>>) -> RowReport {
        let mut report = RowReport::new(&row.name, row.group, "ns");
        report.target = row.target.clone();
        for (place, outcomes) in rounds {
            let mut figures = Vec::new();
            for outcome in outcomes {
                match outcome {
                    Outcome::Measured(measured) => figures.push(measured),
                    Outcome::Failed(error) => {
                        report.failures.insert(place, error);
                    }
                    Outcome::Nothing => {}
                }
            }
            if let (Some(all), false) = (
                Figures::over_rounds(&figures),
                report.failures.contains_key(&place),
            ) {
                report.places.insert(place, all);
            }
        }
        report
    }

    /// How many times as long (or as much) as the pool another place takes; rows of several
    /// callers are compared by completions.
    pub fn ratio(&self, other: Backend) -> Option<f64> {
        let (ours, other) = (self.places.get(&Backend::Nacre)?, self.places.get(&other)?);
        let (ours, other) = (self.shown(ours), self.shown(other));
        (ours > 0.0).then(|| other / ours)
    }

    /// The figure that stands for the row.
    pub fn shown(&self, figures: &Figures) -> f64 {
        if self.group == super::row::SCALING {
            figures.mean
        } else {
            figures.p50
        }
    }
}

impl Report {
    pub fn figures(&self, row: &str, place: Backend) -> Option<&Figures> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        row.places.get(&place)
    }

    pub fn verdict(&self, row: &RowReport) -> Option<Verdict> {
        let ours = row.places.get(&Backend::Nacre)?;
        let raw = row.places.get(&Backend::Raw);
        let other = |row: &str| self.figures(row, Backend::Nacre);
        row.target.as_ref()?.verdict(ours, raw, other)
    }

    /// Compares all rows that have a target with it.
    pub fn judge(&mut self) {
        let verdicts: Vec<_> = self.rows.iter().map(|row| self.verdict(row)).collect();
        for (row, verdict) in self.rows.iter_mut().zip(verdicts) {
            row.verdict = verdict.map(|verdict| verdict.text());
        }
    }

    /// Whether every row came to an end everywhere.
    pub fn is_whole(&self) -> bool {
        self.rows.iter().all(|row| row.failures.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{Backend, Outcome, Report, RowReport};
    use crate::bench::row::{SCALING, chosen};
    use crate::bench::statistics::Figures;
    use crate::bench::target::Target;
    use std::collections::BTreeMap;

    fn row(group: &'static str, figures: &[(Backend, f64, f64)]) -> RowReport {
        let mut row = RowReport::new("r", group, "ns");
        for (place, p50, mean) in figures {
            let mut found = Figures::exactly(*p50);
            found.mean = *mean;
            row.places.insert(*place, found);
        }
        row
    }

    #[test]
    fn more_than_one_means_that_the_pool_is_faster() {
        let row = row(
            "g",
            &[
                (Backend::Nacre, 100.0, 1.0),
                (Backend::Tmpfs, 400.0, 1.0),
                (Backend::Raw, 50.0, 1.0),
            ],
        );
        assert_eq!(row.ratio(Backend::Tmpfs), Some(4.0));
        assert_eq!(row.ratio(Backend::Raw), Some(0.5));
        assert_eq!(row.ratio(Backend::Ext4), None);
    }

    #[test]
    fn several_callers_are_compared_by_completions() {
        let row = row(
            SCALING,
            &[
                (Backend::Nacre, 100.0, 50.0),
                (Backend::Tmpfs, 100.0, 100.0),
            ],
        );
        assert_eq!(row.ratio(Backend::Tmpfs), Some(2.0));
    }

    #[test]
    fn rows_with_a_target_are_judged() {
        let mut report = Report::default();
        for allowed in [90.0, 100.0] {
            let mut row = row("g", &[(Backend::Nacre, 100.0, 100.0)]);
            row.target = Some(Target::AtMost(allowed));
            report.rows.push(row);
        }
        report
            .rows
            .push(row("g", &[(Backend::Nacre, 100.0, 100.0)]));
        report.judge();
        let verdicts: Vec<_> = report
            .rows
            .iter()
            .map(|row| row.verdict.as_deref())
            .collect();
        assert_eq!(verdicts, [Some("missed 1.11x"), Some("met"), None]);
    }

    #[test]
    fn nothing_is_not_infinitely_fast() {
        let row = row(
            "g",
            &[(Backend::Nacre, 0.0, 0.0), (Backend::Tmpfs, 4.0, 4.0)],
        );
        assert_eq!(row.ratio(Backend::Tmpfs), None);
    }

    #[test]
    fn a_row_that_failed_once_shows_no_figure() {
        let asked = &chosen(&[])[0];
        let measured = || Outcome::Measured(Figures::exactly(3.0));
        let rounds = BTreeMap::from([
            (
                Backend::Nacre,
                vec![measured(), Outcome::Failed("no".into())],
            ),
            (Backend::Tmpfs, vec![measured(), measured()]),
            (Backend::Raw, vec![Outcome::Nothing]),
        ]);
        let row = RowReport::of(asked, rounds);
        assert_eq!(row.places.keys().collect::<Vec<_>>(), [&Backend::Tmpfs]);
        assert_eq!(row.failures.len(), 1);
    }
}
