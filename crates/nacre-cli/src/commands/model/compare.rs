//! `nacre model --compare`: the model beside a published table.

use super::cells::{self, Cell, LeftOut};
use super::errors::{Errors, errors};
use crate::failure::Result;
use crate::output;
use crate::parallel::each;
use crate::plot::{Labels, Line, Scale, chart};
use nacre_emulator::Profile;
use nacre_emulator::model::simulate;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What comes out besides the text.
pub struct Outputs<'a> {
    pub json: bool,
    pub svg: Option<&'a PathBuf>,
}

#[derive(Serialize)]
struct Compared {
    series: String,
    #[serde(skip)]
    bytes: u64,
    threads: u32,
    /// Whether the profile was fitted to cells of this size.
    fitted: bool,
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

#[derive(Serialize)]
struct Report {
    profile: String,
    cells: Vec<Compared>,
    series: Vec<Errors>,
    sizes: Vec<Errors>,
    /// Of the sizes that the profile was fitted to, and of all others.
    fitted: Errors,
    held_out: Errors,
    bandwidth: Errors,
    ewr: Errors,
    left_out: Vec<LeftOut>,
}

/// Prints published and modelled figures cell by cell, then the errors of each series and of all.
pub fn compare(profile: &Profile, table: &Path, outputs: &Outputs<'_>) -> Result<ExitCode> {
    let (cells, left_out) = cells::load(table)?;
    let report = report(profile, &cells, left_out);
    if let Some(path) = outputs.svg {
        output::save(path, plot(&report))?;
    }
    if outputs.json {
        output::json(&report)?;
    } else {
        output::write(describe(&report).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The errors alone.
pub fn summary(profile: &Profile, cells: &[Cell], left_out: Vec<LeftOut>) -> String {
    let text = describe(&report(profile, cells, left_out));
    let errors = text.find("\nerror in percent").unwrap_or_default();
    text[errors..].to_owned()
}

fn report(profile: &Profile, cells: &[Cell], left_out: Vec<LeftOut>) -> Report {
    let compared = each(cells, |cell| compared(profile, cell));
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
    let fitted = |which: bool, name: &str| {
        let cells = compared.iter().filter(|cell| cell.fitted == which);
        errors(name, cells.map(|cell| cell.error_percent))
    };
    Report {
        profile: profile.name.clone(),
        series: names.into_iter().map(of).collect(),
        sizes: by_size(cells, &compared),
        fitted: fitted(true, "fitted"),
        held_out: fitted(false, "held out"),
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
        bytes: cell.workload.access,
        fitted: profile.fit.sizes.contains(&cell.workload.access),
        threads: cell.workload.threads,
        published_gb_s: cell.gb_s,
        model_gb_s: digits(outcome.bandwidth),
        error_percent: percent(outcome.bandwidth, cell.gb_s),
        published_ewr: cell.ewr,
        model_ewr: cell.ewr.map(|_| digits(outcome.ewr)),
        ewr_error_percent: cell.ewr.map(|ewr| percent(outcome.ewr, ewr)),
    }
}

fn by_size(cells: &[Cell], compared: &[Compared]) -> Vec<Errors> {
    let of = |bytes: u64| {
        let cells = compared.iter().filter(|cell| cell.bytes == bytes);
        errors(
            &format!("all {bytes}"),
            cells.map(|cell| cell.error_percent),
        )
    };
    cells::sizes(cells).into_iter().map(of).collect()
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
    text.push_str("\nerror in percent:            mean   median      p90     bias    cells\n");
    let all = [
        &report.fitted,
        &report.held_out,
        &report.bandwidth,
        &report.ewr,
    ];
    for errors in report.series.iter().chain(&report.sizes).chain(all) {
        let _ = writeln!(
            text,
            "{:<27} {:>7.1}  {:>7.1}  {:>7.1}  {:>+7.1}  {:>7}",
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
        let sorted = sizes.iter().enumerate();
        let points = sorted.map(|(place, &size)| (share(place).round(), size));
        Line::new(name, points.collect())
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
        across: Scale::Even,
        upwards: Scale::Tens,
        dashed: "",
    };
    chart(&labels, &lines)
}

#[cfg(test)]
mod tests {
    use super::{describe, plot, report};
    use crate::commands::model::cells::read;
    use nacre_emulator::Profile;

    const TABLE: &str = "op,pattern,modules,bytes,threads,samples,gbs,ewr\n# remark\n\n\
        NTStore,random,1,256,4,7,2.138,0.932\nNTStore,random,1,256,8,7,2.0,\nNTStore,random,0,256,4,7,2,\n\
        Nonsense,random,1,256,4,7,2,\nLoad,random,1,100,4,7,2,\nLoad,random,1,256,4,7,zero,\n";

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
}
