//! The table for a terminal.

use super::report::{Backend, Report, RowReport};
use super::statistics::Figures;
use super::target::Verdict;
use std::fmt::Write;

const NAME: usize = 36;
const CELL: usize = 9;
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// All that was found, as a table and what is needed to read it.
pub fn text(report: &Report, has_colours: bool) -> String {
    let ink = Ink(has_colours);
    let mut out = head(report);
    let mut group = "";
    for row in &report.rows {
        if row.group != group {
            group = row.group;
            let _ = writeln!(
                out,
                "\n{}\n{}",
                ink.with(BOLD, group),
                ink.with(DIM, &columns())
            );
        }
        let _ = writeln!(out, "{}", line(report, row, ink));
    }
    out.push('\n');
    for row in &report.rows {
        for (place, error) in &row.failures {
            let told = format!("FAILED: {} on {}: {error}", row.name, place.name());
            let _ = writeln!(out, "{}", ink.with(RED, &told));
        }
    }
    for note in report.notes.iter().cloned().chain(report.machine.warning()) {
        let _ = writeln!(out, "{}", ink.with(BOLD, &note));
    }
    out
}

/// What was measured, where and how.
pub fn head(report: &Report) -> String {
    let (machine, run, overhead) = (&report.machine, &report.run, &report.overhead);
    format!(
        "{} x {}, Linux {}; load {:.2} before, {:.2} after; others used {:.1} %\n\
         pool {}; tmpfs {}; ext4 {}\n\
         medians over {} rounds of {} ms; files of {} MiB; folder of {} entries\n\
         ns for one operation; contained in each: loop {:.1} ns, clock {:.0} ns for each sample\n",
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_before,
        machine.load_after,
        machine.used_by_others * 100.0,
        run.pool,
        or_none(&run.tmpfs),
        or_none(&run.ext4),
        run.rounds,
        run.milliseconds,
        run.file_bytes >> 20,
        run.entries,
        overhead.loop_ns,
        overhead.clock_ns,
    )
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn columns() -> String {
    let mut out = " ".repeat(NAME);
    for cell in [
        "nacre", "p99", "mean", "tmpfs", "ext4", "raw", "vs tmpfs", "vs ext4", "vs raw",
    ] {
        let _ = write!(out, "{cell:>CELL$}");
    }
    out + "  target"
}

fn line(report: &Report, row: &RowReport, ink: Ink) -> String {
    let figure = |place: Backend, of: fn(&Figures) -> f64| {
        let shown = row.places.get(&place).map(|figures| number(of(figures)));
        let absent = if row.failures.contains_key(&place) {
            "FAILED"
        } else {
            "-"
        };
        format!("{:>CELL$}", shown.unwrap_or_else(|| absent.to_string()))
    };
    let mut out = format!("{:<NAME$}", row.name);
    out += &figure(Backend::Nacre, |figures| figures.p50);
    out += &ink.with(DIM, &figure(Backend::Nacre, |figures| figures.p99));
    out += &figure(Backend::Nacre, |figures| figures.mean);
    for place in [Backend::Tmpfs, Backend::Ext4, Backend::Raw] {
        let shown = row
            .places
            .get(&place)
            .map(|figures| number(row.shown(figures)));
        let absent = if row.failures.contains_key(&place) {
            "FAILED"
        } else {
            "-"
        };
        out += &format!("{:>CELL$}", shown.unwrap_or_else(|| absent.to_string()));
    }
    out += &times(row.ratio(Backend::Tmpfs), ink);
    out += &times(row.ratio(Backend::Ext4), ink);
    // The limit is not to be beaten: how many times it.
    out += &format!(
        "{:>CELL$}",
        row.ratio(Backend::Raw)
            .map_or("-".into(), |ratio| factor(1.0 / ratio))
    );
    out += &target(report, row, ink);
    out.trim_end().to_string()
}

fn target(report: &Report, row: &RowReport, ink: Ink) -> String {
    let Some(target) = &row.target else {
        return String::new();
    };
    let verdict = report.verdict(row);
    let colour = match &verdict {
        Some(Verdict { is_met: true, .. }) => GREEN,
        _ => RED,
    };
    let said = verdict.map_or("not measured".to_string(), |verdict| verdict.text());
    format!("  {}: {}", target.text(), ink.with(colour, &said))
}

fn times(ratio: Option<f64>, ink: Ink) -> String {
    let Some(ratio) = ratio else {
        return format!("{:>CELL$}", "-");
    };
    let text = format!("{:>CELL$}", factor(ratio));
    ink.with(if ratio >= 1.0 { GREEN } else { RED }, &text)
}

/// `4.8x`
pub fn factor(ratio: f64) -> String {
    match ratio {
        ..10.0 => format!("{ratio:.2}x"),
        ..100.0 => format!("{ratio:.1}x"),
        _ => format!("{ratio:.0}x"),
    }
}

/// Three digits at least, no more than make sense.
pub fn number(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1}"),
        ..1e7 => format!("{value:.0}"),
        _ => format!("{:.1}M", value / 1e6),
    }
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Ink(bool);

impl Ink {
    fn with(self, colour: &str, text: &str) -> String {
        if self.0 {
            format!("{colour}{text}{PLAIN}")
        } else {
            text.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{factor, number, text};
    use crate::bench::report::{Backend, Report, RowReport};
    use crate::bench::statistics::Figures;
    use crate::bench::target::Target;

    fn report() -> Report {
        let mut row = RowReport::new("pread 64 B", "reads", "ns");
        row.places.insert(Backend::Nacre, Figures::exactly(100.0));
        row.places.insert(Backend::Tmpfs, Figures::exactly(420.0));
        row.places.insert(Backend::Raw, Figures::exactly(20.0));
        row.failures.insert(Backend::Ext4, "disk full".into());
        row.target = Some(Target::AtMost(90.0));
        Report {
            rows: vec![row],
            ..Report::default()
        }
    }

    #[test]
    fn a_line_has_figures_ratios_target_and_failure() {
        let table = text(&report(), false);
        let line = table.lines().find(|line| line.starts_with("pread 64 B"));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        let expected = [
            "pread", "64", "B", "100", "100", "100", "420", "FAILED", "20.0", "4.20x", "-",
            "5.00x", "<=", "90:", "missed", "1.11x",
        ];
        assert_eq!(words, expected);
        assert!(table.contains("FAILED: pread 64 B on ext4: disk full"));
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn colours_only_if_wanted() {
        assert!(text(&report(), true).contains("\x1b[32m"));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [number(17.04), number(1234.5), number(2.5e7)],
            ["17.0", "1234", "25.0M"]
        );
        assert_eq!(
            [factor(0.5), factor(12.34), factor(1234.5)],
            ["0.50x", "12.3x", "1234x"]
        );
    }
}
