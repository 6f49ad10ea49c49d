//! What `nacre bench --disk` has found, and whether that is enough.

use crate::bench::statistics::median;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Where a row is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredAt {
    /// In a pool.
    Pool,
    /// On the file system that the pool's file lies on.
    Files,
    /// In a file of it, past all caches.
    Bare,
    /// In a pool in memory.
    Memory,
}

/// How quick the pool should be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// So many times as quick as the file system.
    Files(f64),
    /// So many times as quick as the bare disk.
    Bare(f64),
    /// So many times as quick as a pool in memory.
    Memory(f64),
    /// So many times the calls per second of one process.
    One(f64),
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// For one call of each process.
    pub microseconds: f64,
    /// Bytes of the device for each of the program.
    pub device: Option<f64>,
}

/// Medians of a place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Figures {
    microseconds: f64,
    device_bytes: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct RowReport {
    name: &'static str,
    processes: usize,
    figures: BTreeMap<MeasuredAt, Figures>,
    targets: Vec<Verdict>,
    #[serde(skip)]
    samples: BTreeMap<MeasuredAt, Vec<Sample>>,
}

/// A target beside what was measured.
#[derive(Debug, Serialize)]
struct Verdict {
    target: String,
    measured: f64,
    is_met: bool,
}

impl RowReport {
    pub fn new(name: &'static str, processes: usize) -> Self {
        Self {
            name,
            processes,
            figures: BTreeMap::new(),
            targets: Vec::new(),
            samples: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, place: MeasuredAt, sample: Sample) {
        self.samples.entry(place).or_default().push(sample);
    }

    fn count(&mut self) {
        for (&place, samples) in &self.samples {
            let times = samples.iter().map(|sample| sample.microseconds).collect();
            let device = samples.iter().filter_map(|sample| sample.device).collect();
            let figures = Figures {
                microseconds: median(times).unwrap_or_default(),
                device_bytes: median(device),
            };
            self.figures.insert(place, figures);
        }
    }

    fn time(&self, place: MeasuredAt) -> Option<f64> {
        self.figures.get(&place).map(|found| found.microseconds)
    }

    /// Calls of all processes in a microsecond.
    fn rate(&self) -> Option<f64> {
        Some(self.processes as f64 / self.time(MeasuredAt::Pool)?)
    }

    fn verdict(&self, target: Target, one: Option<f64>) -> Option<Verdict> {
        let of = |place| Some(self.time(place)? / self.time(MeasuredAt::Pool)?);
        let (measured, least, beside) = match target {
            Target::Files(least) => (of(MeasuredAt::Files)?, least, "file system"),
            Target::Bare(least) => (of(MeasuredAt::Bare)?, least, "bare disk"),
            Target::Memory(least) => (of(MeasuredAt::Memory)?, least, "pool in memory"),
            Target::One(least) => (self.rate()? / one?, least, "one process"),
        };
        Some(Verdict {
            target: format!(">= {least} x {beside}"),
            measured,
            is_met: measured >= least,
        })
    }
}

/// Counts medians, and compares them with what is aimed at.
pub fn judge(reports: &mut [RowReport], targets: &[&[Target]]) {
    reports.iter_mut().for_each(RowReport::count);
    // The first row is the one of a single process.
    let one = reports.first().filter(|first| first.processes == 1);
    let one = one.and_then(RowReport::rate);
    for (report, targets) in reports.iter_mut().zip(targets) {
        let verdicts = targets
            .iter()
            .filter_map(|&target| report.verdict(target, one));
        report.targets = verdicts.collect();
    }
}

pub fn text(reports: &[RowReport]) -> String {
    let mut text = format!(
        "{:<40}{:>10}{:>12}{:>10}{:>10}{:>18}  targets\n",
        "us for each call", "pool", "file system", "bare", "memory", "device bytes"
    );
    for report in reports {
        let time = |place| {
            let found = report.time(place);
            found.map_or("-".to_string(), short)
        };
        let device = |place| {
            let found = report.figures.get(&place);
            let bytes = found.and_then(|found| found.device_bytes);
            bytes.map_or("-".to_string(), |bytes| format!("{bytes:.2}"))
        };
        let device = format!(
            "{} : {}",
            device(MeasuredAt::Pool),
            device(MeasuredAt::Files)
        );
        let _ = write!(
            text,
            "{:<40}{:>10}{:>12}{:>10}{:>10}{device:>18}  ",
            report.name,
            time(MeasuredAt::Pool),
            time(MeasuredAt::Files),
            time(MeasuredAt::Bare),
            time(MeasuredAt::Memory),
        );
        let verdicts = report.targets.iter().map(|verdict| {
            let word = if verdict.is_met { "met" } else { "missed" };
            format!("{}: {:.2}, {word}", verdict.target, verdict.measured)
        });
        let _ = writeln!(text, "{}", verdicts.collect::<Vec<_>>().join("; "));
    }
    text
}

/// Microseconds, with three digits at least.
fn short(time: f64) -> String {
    let digits = match time {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{time:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::{MeasuredAt, RowReport, Sample, Target, judge, text};

    fn sample(microseconds: f64) -> Sample {
        Sample {
            microseconds,
            device: Some(2.0),
        }
    }

    #[test]
    fn times_have_three_digits() {
        let times = [0.0421, 0.999, 1.5, 31.25, 1876.4].map(super::short);
        assert_eq!(times, ["0.042", "0.999", "1.50", "31.2", "1876"]);
    }

    #[test]
    fn medians_are_compared_with_targets() {
        let mut reports = [RowReport::new("one", 1), RowReport::new("eight", 8)];
        for time in [90.0, 100.0, 1000.0] {
            reports[0].add(MeasuredAt::Pool, sample(time));
            reports[0].add(MeasuredAt::Files, sample(120.0));
        }
        reports[1].add(MeasuredAt::Pool, sample(200.0));
        let targets: [&[Target]; 2] = [
            &[Target::Files(1.0), Target::Bare(0.8)],
            &[Target::One(4.0), Target::One(4.1)],
        ];
        judge(&mut reports, &targets);
        let met = |row: &RowReport| row.targets.iter().map(|one| one.is_met).collect::<Vec<_>>();
        assert_eq!(
            met(&reports[0]),
            [true],
            "nothing is known of the bare disk"
        );
        assert_eq!(met(&reports[1]), [true, false]);
        assert!(text(&reports).contains(">= 1 x file system: 1.20, met"));
    }
}
