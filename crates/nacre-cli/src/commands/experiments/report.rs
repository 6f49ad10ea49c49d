//! What the experiments found, as text and as a page.

use crate::commands::experiments::suite::Experiment;
use crate::plot::{Labels, Line, chart, escape};
use serde::Serialize;
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}code{background:#f4f5f7;padding:.1rem .3rem}\
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #8883}\
td:first-child,th:first-child{text-align:left}svg{width:100%;max-width:800px;height:auto}";

/// All that was found.
#[derive(Serialize)]
pub struct Report {
    pub profile: String,
    pub experiments: Vec<Found>,
}

/// What one experiment found.
#[derive(Serialize)]
pub struct Found {
    #[serde(flatten)]
    pub experiment: Experiment,
    pub points: Vec<Point>,
    pub median_error_percent: f64,
    pub p90_error_percent: f64,
    /// Mean with its sign: above 0 the model promises too much.
    pub bias_percent: f64,
}

/// A published figure and the model's.
#[derive(Serialize)]
pub struct Point {
    pub series: String,
    pub x: f64,
    pub published: f64,
    pub model: f64,
    pub error_percent: f64,
}

impl Report {
    /// A line for each experiment.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: errors in percent of what was published\n{:<20} {:>7} {:>8} {:>8} {:>8}\n",
            self.profile, "experiment", "figures", "median", "p90", "bias"
        );
        for found in &self.experiments {
            let _ = writeln!(
                text,
                "{:<20} {:>7} {:>8.1} {:>8.1} {:>+8.1}",
                found.experiment.name,
                found.points.len(),
                found.median_error_percent,
                found.p90_error_percent,
                found.bias_percent
            );
        }
        text
    }

    /// One file, nothing to load.
    pub fn page(&self) -> String {
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>nacre experiments</title>\
             <style>{STYLE}</style><h1>Published experiments and the model of {}</h1>\n\
             <p>Dashed: published. Errors are in percent of what was published; a bias above 0 \
             promises too much. <code>nacre experiments --html FILE</code> writes this page; the \
             model is deterministic.</p>\n",
            escape(&self.profile)
        );
        page += &self.summary();
        for found in &self.experiments {
            page += &found.section();
        }
        page + "</html>\n"
    }

    fn summary(&self) -> String {
        let mut table = String::from(
            "<table><tr><th>experiment<th>figures<th>median<th>90th percentile<th>bias</tr>\n",
        );
        for found in &self.experiments {
            let _ = writeln!(
                table,
                "<tr><td><a href=\"#{}\">{}</a><td>{}<td>{:.1}<td>{:.1}<td>{:+.1}</tr>",
                found.experiment.name,
                escape(&found.experiment.title),
                found.points.len(),
                found.median_error_percent,
                found.p90_error_percent,
                found.bias_percent
            );
        }
        table + "</table>\n"
    }
}

impl Found {
    fn section(&self) -> String {
        let mut section = format!(
            "<h2 id=\"{}\">{}</h2>\n<p>{}<br><code>{}</code></p>\n{}",
            self.experiment.name,
            escape(&self.experiment.title),
            escape(self.experiment.source),
            escape(&self.experiment.command),
            self.chart()
        );
        section += "<details><summary>figures</summary><table><tr><th>series<th>";
        let _ = write!(section, "{}", escape(self.experiment.x));
        section += "<th>published<th>model<th>error</tr>\n";
        for point in &self.points {
            let _ = writeln!(
                section,
                "<tr><td>{}<td>{}<td>{:.3}<td>{:.3}<td>{:+.1} %</tr>",
                escape(&point.series),
                point.x,
                point.published,
                point.model,
                point.error_percent
            );
        }
        section + "</table></details>\n"
    }

    /// Each series of the model, and the published one dashed behind it.
    fn chart(&self) -> String {
        let mut lines: Vec<Line> = Vec::new();
        for series in self.points.chunk_by(|one, next| one.series == next.series) {
            let name = &series[0].series;
            let points = |of: fn(&Point) -> f64| series.iter().map(|it| (it.x, of(it))).collect();
            lines.push(Line::new(name, points(|it| it.model)));
            lines.push(Line {
                dashed: true,
                ..Line::new(name, points(|it| it.published))
            });
        }
        let labels = Labels {
            title: &self.experiment.title,
            x: self.experiment.x,
            y: self.experiment.y,
            doubling: self.experiment.doubling,
        };
        chart(&labels, &lines)
    }
}
