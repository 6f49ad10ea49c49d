//! The page with plots: one file, nothing to load.

use super::report::{Backend, Report, RowReport};
use super::table::{self, factor, number};
use crate::page;
use std::fmt::Write;

const STYLE: &str = "\
table{width:100%}td:first-child,.whole{white-space:nowrap}svg{font:12px system-ui,sans-serif}svg text{fill:currentColor}\
.nacre{fill:#7048c8}.tmpfs{fill:#3d8bd4}.ext4{fill:#d98c2b}.raw{fill:#8a939e}.grid{stroke:#8884}\
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 1em}\
.key.nacre{background:#7048c8}.key.tmpfs{background:#3d8bd4}.key.ext4{background:#d98c2b}.key.raw{background:#8a939e}\
@media(prefers-color-scheme:dark){.nacre{fill:#9a7bea}.key.nacre{background:#9a7bea}}";
const LEFT: f64 = 260.0;
const WIDTH: f64 = 600.0;
const BAR: f64 = 9.0;
const GAP: f64 = 10.0;
const TOP: f64 = 22.0;

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut out = page::head("nacre bench", STYLE);
    let _ = writeln!(out, "<pre>{}</pre>", escape(&table::head(report)));
    for note in report.notes.iter().cloned().chain(report.machine.warning()) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(&note));
    }
    out += "<p>Shorter is better; figures beside bars are in nanoseconds unless their axis says otherwise. \
            Every step of an axis is ten times the one before.";
    for place in Backend::ALL {
        let name = place.name();
        let _ = write!(
            out,
            "<span class=\"whole\"><span class=\"key {name}\"></span>{name}</span> "
        );
    }
    out += "</p>\n";
    for rows in report.rows.chunk_by(|one, next| one.group == next.group) {
        let _ = writeln!(out, "<h2>{}</h2>", escape(rows[0].group));
        for rows in rows.chunk_by(|one, next| one.unit == next.unit) {
            out += &plot(rows);
        }
        out += &figures(report, rows);
    }
    out + "</html>\n"
}

/// Bars on a logarithmic axis.
fn plot(rows: &[RowReport]) -> String {
    let values = || {
        rows.iter()
            .flat_map(|row| row.places.values().map(|figures| row.shown(figures)))
            .filter(|value| *value > 0.0)
    };
    let low = values().fold(f64::MAX, f64::min).log10().floor();
    let high = values().fold(1.0, f64::max).log10().ceil();
    let axis = Axis {
        low: low.min(high - 1.0),
        high,
    };
    let height = rows.iter().map(tall).sum::<f64>() + TOP;
    let wide = LEFT + WIDTH + 80.0;
    let mut out = format!("<svg viewBox=\"0 0 {wide} {height}\" role=\"img\">");
    out += &axis.grid(height, rows[0].unit);
    let mut y = TOP;
    for row in rows {
        out += &bars(row, axis, y);
        y += tall(row);
    }
    out + "</svg>\n"
}

fn tall(row: &RowReport) -> f64 {
    (row.places.len().max(1) as f64) * BAR + GAP
}

fn bars(row: &RowReport, axis: Axis, top: f64) -> String {
    let middle = top + (tall(row) - GAP) / 2.0 + 4.0;
    let mut out = format!(
        "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 8.0,
        escape(&row.name)
    );
    for (index, (place, figures)) in row.places.iter().enumerate() {
        let (value, y) = (row.shown(figures), top + index as f64 * BAR);
        let width = axis.width(value);
        let _ = write!(
            out,
            "<rect class=\"{0}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{1}\" rx=\"1.5\">\
             <title>{2}, {0}: {3} {4} (p50 {5}, p99 {6}, mean {7})</title></rect>\
             <text x=\"{8:.1}\" y=\"{9:.1}\" font-size=\"8\">{3}</text>",
            place.name(),
            BAR - 1.0,
            escape(&row.name),
            number(value),
            row.unit,
            number(figures.p50),
            number(figures.p99),
            number(figures.mean),
            LEFT + width + 4.0,
            y + BAR - 2.0,
        );
    }
    out
}

/// From a power of ten to another.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn width(self, value: f64) -> f64 {
        if value <= 0.0 {
            return 0.0;
        }
        let part = (value.log10() - self.low) / (self.high - self.low);
        (part * WIDTH).max(1.0)
    }

    fn grid(self, height: f64, unit: &str) -> String {
        let mut out = String::new();
        for power in self.low as i32..=self.high as i32 {
            let x = LEFT + (f64::from(power) - self.low) / (self.high - self.low) * WIDTH;
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"14\" y2=\"{height:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"10\" text-anchor=\"middle\" font-size=\"9\">{}</text>",
                power_of_ten(power, unit)
            );
        }
        out
    }
}

/// A power of ten of nanoseconds or bytes, in few characters.
fn power_of_ten(power: i32, unit: &str) -> String {
    let names = match unit {
        "ns" => ["ns", "µs", "ms", "s"],
        "B" => ["B", "kB", "MB", "GB"],
        _ => return format!("{} {unit}", number(10f64.powi(power))),
    };
    let step = (power.div_euclid(3)).clamp(0, 3);
    format!("{} {}", 10f64.powi(power - 3 * step), names[step as usize])
}

/// The figures behind a plot.
fn figures(report: &Report, rows: &[RowReport]) -> String {
    let mut out = String::from(
        "<details open><summary>figures</summary><table><tr><th><th>nacre p50<th>p99<th>mean<th>spread<th>quickest round\
         <th>tmpfs<th>ext4<th>raw<th>vs tmpfs<th>vs ext4<th>target<th></tr>\n",
    );
    for row in rows {
        line_of_figures(&mut out, report, row);
    }
    out + "</table></details>\n"
}

fn line_of_figures(out: &mut String, report: &Report, row: &RowReport) {
    let _ = write!(out, "<tr><td>{}", escape(&row.name));
    match row.places.get(&Backend::Nacre) {
        Some(ours) => {
            let (p50, p99, mean) = (number(ours.p50), number(ours.p99), number(ours.mean));
            let _ = write!(
                out,
                "<td>{p50}<td>{p99}<td>{mean}<td>{:.0} %<td>{}",
                ours.spread * 100.0,
                number(ours.quickest)
            );
        }
        None => out.push_str("<td>-<td>-<td>-<td>-<td>-"),
    }
    for place in [Backend::Tmpfs, Backend::Ext4, Backend::Raw] {
        let _ = write!(out, "<td>{}", cell(row, place));
    }
    for place in [Backend::Tmpfs, Backend::Ext4] {
        let _ = match row.ratio(place) {
            Some(ratio) => write!(
                out,
                "<td class=\"{}\">{}",
                grade(ratio >= 1.0),
                factor(ratio)
            ),
            None => write!(out, "<td>-"),
        };
    }
    let _ = write!(
        out,
        "<td>{}",
        escape(
            &row.target
                .as_ref()
                .map(super::target::Target::text)
                .unwrap_or_default()
        )
    );
    if let Some(verdict) = report.verdict(row) {
        let _ = write!(
            out,
            "<td class=\"{}\">{}",
            grade(verdict.is_met),
            verdict.text()
        );
    } else {
        out.push_str("<td>");
    }
    out.push_str("</tr>\n");
}

fn cell(row: &RowReport, place: Backend) -> String {
    match (row.places.get(&place), row.failures.get(&place)) {
        (_, Some(error)) => format!("<span class=\"bad\">{}</span>", escape(error)),
        (Some(figures), None) => number(row.shown(figures)),
        (None, None) => "-".to_string(),
    }
}

fn grade(is_good: bool) -> &'static str {
    if is_good { "good" } else { "bad" }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Axis, WIDTH, page, power_of_ten};
    use crate::bench::report::{Backend, Report, RowReport};
    use crate::bench::statistics::Figures;

    #[test]
    fn the_page_stands_alone() {
        let mut row = RowReport::new("stat <b>", "g", "ns");
        row.places.insert(Backend::Nacre, Figures::exactly(100.0));
        row.places.insert(Backend::Tmpfs, Figures::exactly(1000.0));
        let report = Report {
            rows: vec![row, RowReport::new("nowhere", "g", "ns")],
            ..Report::default()
        };
        let page = page(&report);
        assert!(page.contains("stat &lt;b&gt;") && !page.contains("<b>"));
        assert_eq!(page.matches("<rect").count(), 2);
        for outside in ["http", "src=", "url(", "<script", "NaN", "inf"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_axis_has_its_unit() {
        let shown = [0, 2, 3, 7, 10].map(|power| power_of_ten(power, "ns"));
        assert_eq!(shown, ["1 ns", "100 ns", "1 µs", "10 ms", "10 s"]);
        assert_eq!(power_of_ten(6, "B"), "1 MB");
        assert_eq!(power_of_ten(1, "calls"), "10.0 calls");
    }

    #[test]
    fn equal_factors_are_equal_lengths() {
        let axis = Axis {
            low: 1.0,
            high: 4.0,
        };
        assert!((axis.width(10_000.0) - WIDTH).abs() < 1e-9);
        assert!((axis.width(100.0) * 2.0 - axis.width(1000.0)).abs() < 1e-9);
        assert_eq!(axis.width(0.0), 0.0);
    }
}
