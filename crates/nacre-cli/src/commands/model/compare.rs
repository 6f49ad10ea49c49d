//! `nacre model --compare`: the model beside a published table.

use crate::failure::{Failure, Result};
use crate::output;
use crate::plot::{Labels, Line, chart};
use nacre_emulator::Profile;
use nacre_emulator::model::{Operation, Pattern, Workload, simulate};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What comes out besides the text.
pub struct Outputs<'a> {
    pub json: bool,
    pub svg: Option<&'a PathBuf>,
}

/// A cell of a published table.
struct Cell {
    workload: Workload,
    modules: u32,
    name: String,
    gb_s: f64,
    ewr: Option<f64>,
}

/// A line that says nothing about a workload.
#[derive(Debug, PartialEq, Serialize)]
struct LeftOut {
    line: usize,
    text: String,
    why: &'static str,
}

#[derive(Serialize)]
struct Compared {
    series: String,
    threads: u32,
    published_gb_s: f64,
    model_gb_s: f64,
    error_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_ewr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_ewr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ewr_error_percent: Option<f64>,
}

/// Errors of several cells, in percent of what was published.
#[derive(Debug, PartialEq, Serialize)]
struct Errors {
    name: String,
    cells: usize,
    mean: f64,
    median: f64,
    p90: f64,
    /// Mean with its sign: above 0 the model promises too much.
    bias: f64,
}

#[derive(Serialize)]
struct Report {
    profile: String,
    cells: Vec<Compared>,
    series: Vec<Errors>,
    bandwidth: Errors,
    ewr: Errors,
    left_out: Vec<LeftOut>,
}

/// Prints published and modelled figures cell by cell, then the errors of each series and of all.
pub fn compare(profile: &Profile, table: &Path, outputs: &Outputs<'_>) -> Result<ExitCode> {
    let text =
        std::fs::read_to_string(table).map_err(|error| Failure::io(table.display(), error))?;
    let (cells, left_out) = read(&text);
    if cells.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: no lines like `NTStore,random,1,256,4,7,2.138,0.932` (operation, pattern, modules, bytes, threads, samples, GB/s, EWR)",
            table.display()
        )));
    }
    let report = report(profile, &cells, left_out);
    if let Some(path) = outputs.svg {
        std::fs::write(path, plot(&report)).map_err(|error| Failure::io(path.display(), error))?;
    }
    if outputs.json {
        output::json(&report)?;
    } else {
        output::write(describe(&report).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cells of a table, and the lines that are none. A first line of names, empty lines and
/// comments do not count.
fn read(text: &str) -> (Vec<Cell>, Vec<LeftOut>) {
    let (mut cells, mut left_out) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let heads = index == 0 && line.split(',').all(|field| field.parse::<f64>().is_err());
        if line.is_empty() || line.starts_with('#') || heads {
            continue;
        }
        match cell(line) {
            Ok(cell) => cells.push(cell),
            Err(why) => left_out.push(LeftOut {
                line: index + 1,
                text: line.to_owned(),
                why,
            }),
        }
    }
    (cells, left_out)
}

fn cell(line: &str) -> std::result::Result<Cell, &'static str> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or_default();
    let whole = |index: usize, why| field(index).parse::<u64>().map_err(|_| why);
    let operation = match field(0) {
        "Load" => Operation::Load,
        "NTStore" => Operation::NtStore,
        "Store+Flush" => Operation::StoreFlush,
        _ => return Err("operation is not Load, NTStore or Store+Flush"),
    };
    let pattern = match field(1) {
        "random" => Pattern::Random,
        "sequential" => Pattern::Sequential,
        _ => return Err("pattern is not random or sequential"),
    };
    let modules = whole(2, "modules are not 1 to 64")?;
    let access = whole(3, "bytes are not a multiple of 64")?;
    let threads = whole(4, "threads are not 1 to 1024")?;
    let gb_s: f64 = field(6).parse().map_err(|_| "no GB/s")?;
    let ewr: Option<f64> = match field(7) {
        "" => None,
        text => Some(text.parse().map_err(|_| "EWR is no number")?),
    };
    if !(1..=64).contains(&modules) {
        return Err("modules are not 1 to 64");
    }
    if access < 64 || !access.is_multiple_of(64) {
        return Err("bytes are not a multiple of 64");
    }
    if !(1..=1024).contains(&threads) {
        return Err("threads are not 1 to 1024");
    }
    if !(gb_s.is_finite() && gb_s > 0.0) || ewr.is_some_and(|ewr| !(ewr.is_finite() && ewr > 0.0)) {
        return Err("GB/s or EWR is not above 0");
    }
    Ok(Cell {
        workload: Workload::new(operation, pattern, access, threads as u32),
        modules: modules as u32,
        name: fields[..4].join(" "),
        gb_s,
        ewr,
    })
}

fn report(profile: &Profile, cells: &[Cell], left_out: Vec<LeftOut>) -> Report {
    let compared: Vec<Compared> = cells.iter().map(|cell| compared(profile, cell)).collect();
    let mut names: Vec<&str> = Vec::new();
    for cell in &compared {
        if !names.contains(&cell.series.as_str()) {
            names.push(&cell.series);
        }
    }
    let of = |name: &str| {
        let cells = compared.iter().filter(|cell| cell.series == name);
        errors(name, cells.map(|cell| cell.error_percent))
    };
    Report {
        profile: profile.name.clone(),
        series: names.into_iter().map(of).collect(),
        bandwidth: errors("bandwidth", compared.iter().map(|cell| cell.error_percent)),
        ewr: errors(
            "EWR",
            compared.iter().filter_map(|cell| cell.ewr_error_percent),
        ),
        cells: compared,
        left_out,
    }
}

fn compared(profile: &Profile, cell: &Cell) -> Compared {
    let mut profile = profile.clone();
    profile.layout.modules = cell.modules;
    let outcome = simulate(&profile, &cell.workload);
    let digits = |value: f64| (value * 1000.0).round() / 1000.0;
    let percent = |model: f64, published: f64| digits(100.0 * (model - published) / published);
    Compared {
        series: cell.name.clone(),
        threads: cell.workload.threads,
        published_gb_s: cell.gb_s,
        model_gb_s: digits(outcome.bandwidth),
        error_percent: percent(outcome.bandwidth, cell.gb_s),
        published_ewr: cell.ewr,
        model_ewr: cell.ewr.map(|_| digits(outcome.ewr)),
        ewr_error_percent: cell.ewr.map(|ewr| percent(outcome.ewr, ewr)),
    }
}

/// Sums up errors with their signs.
fn errors(name: &str, errors: impl Iterator<Item = f64>) -> Errors {
    let signed: Vec<f64> = errors.collect();
    let mut sizes: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let at = |share: f64| {
        let place = (share * sizes.len() as f64).ceil() as usize;
        sizes.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    let digits = |value: f64| (value * 10.0).round() / 10.0;
    Errors {
        name: name.to_owned(),
        cells: sizes.len(),
        mean: digits(mean(&sizes)),
        median: digits(at(0.5)),
        p90: digits(at(0.9)),
        bias: digits(mean(&signed)),
    }
}

fn describe(report: &Report) -> String {
    let mut text =
        String::from("series threads: published GB/s, model, error; EWR published, model\n");
    for cell in &report.cells {
        let _ = write!(
            text,
            "{} {}: {:.3} {:.3} {:+.1}%",
            cell.series, cell.threads, cell.published_gb_s, cell.model_gb_s, cell.error_percent
        );
        if let (Some(published), Some(model)) = (cell.published_ewr, cell.model_ewr) {
            let _ = write!(text, "; {published:.3} {model:.3}");
        }
        text.push('\n');
    }
    text.push_str("\nerror in percent:     mean   median      p90     bias    cells\n");
    let all = [&report.bandwidth, &report.ewr];
    for errors in report.series.iter().chain(all) {
        let _ = writeln!(
            text,
            "{:<20} {:>7.1}  {:>7.1}  {:>7.1}  {:>+7.1}  {:>7}",
            errors.name, errors.mean, errors.median, errors.p90, errors.bias, errors.cells
        );
    }
    if !report.left_out.is_empty() {
        let _ = writeln!(text, "\nleft out: {} lines", report.left_out.len());
        for left in &report.left_out {
            let _ = writeln!(text, "  line {}: {}: {}", left.line, left.why, left.text);
        }
    }
    text
}

fn plot(report: &Report) -> String {
    let line = |name: &str, errors: Vec<f64>| {
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let count = sizes.len().max(1) as f64;
        let share = |place: usize| 100.0 * (place as f64 + 1.0) / count;
        Line {
            name: name.to_owned(),
            points: sizes
                .iter()
                .enumerate()
                .map(|(place, &size)| (share(place).round(), size))
                .collect(),
        }
    };
    let cells = || report.cells.iter();
    let mut lines = vec![line(
        "bandwidth",
        cells().map(|cell| cell.error_percent).collect(),
    )];
    let ewr: Vec<f64> = cells().filter_map(|cell| cell.ewr_error_percent).collect();
    if !ewr.is_empty() {
        lines.push(line("EWR", ewr));
    }
    let title = format!(
        "{} against published figures, {} cells",
        report.profile,
        report.cells.len()
    );
    let labels = Labels {
        title: &title,
        x: "percent of the cells, best first",
        y: "error in percent, up to",
        doubling: false,
    };
    chart(&labels, &lines)
}

#[cfg(test)]
mod tests {
    use super::{cell, describe, errors, plot, read, report};
    use nacre_emulator::Profile;

    const TABLE: &str = "op,pattern,modules,bytes,threads,samples,gbs,ewr\n# remark\n\n\
        NTStore,random,1,256,4,7,2.138,0.932\nNTStore,random,1,256,8,7,2.0,\nNTStore,random,0,256,4,7,2,\n\
        Nonsense,random,1,256,4,7,2,\nLoad,random,1,100,4,7,2,\nLoad,random,1,256,4,7,zero,\n";

    #[test]
    fn lines_of_published_tables_are_cells() {
        let found = cell("NTStore,random,1,256,4,7,2.138,0.932").expect("a cell");
        assert_eq!(
            (found.modules, found.gb_s, found.ewr),
            (1, 2.138, Some(0.932))
        );
        let found = cell("Load,random,6,256,2,5,5.389,\r").expect("a cell");
        assert!(found.ewr.is_none());
        assert!(cell("NTStore,random,0,256,4,7,2.138,").is_err());
        assert!(cell("").is_err() && cell("NTStore,random,1,256,4,7,-1,").is_err());
    }

    #[test]
    fn lines_that_are_no_cells_are_reported() {
        let (cells, left_out) = read(TABLE);
        let lines: Vec<usize> = left_out.iter().map(|left| left.line).collect();
        assert_eq!((cells.len(), lines), (2, vec![6, 7, 8, 9]));
        let profile = Profile::load("optane-100").expect("a profile");
        let report = report(&profile, &cells, left_out);
        let text = describe(&report);
        assert!(
            text.contains("left out: 4 lines") && text.contains("line 7: operation"),
            "{text}"
        );
        assert_eq!(
            (
                report.bandwidth.cells,
                report.ewr.cells,
                report.series.len()
            ),
            (2, 1, 1)
        );
        assert!(plot(&report).contains("EWR"));
    }

    #[test]
    fn errors_have_a_median_a_percentile_and_a_sign() {
        let of = errors(
            "all",
            [-10.0, -1.0, 2.0, 3.0, -4.0, 5.0, 6.0, 7.0, 8.0, 90.0].into_iter(),
        );
        assert_eq!(
            (of.mean, of.median, of.p90, of.bias, of.cells),
            (13.6, 5.0, 10.0, 10.6, 10)
        );
        assert_eq!(errors("none", [].into_iter()).cells, 0);
    }
}
