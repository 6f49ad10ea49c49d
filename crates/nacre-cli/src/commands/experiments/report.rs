//! What the experiments found, as text and as a page.

use crate::commands::experiments::suite::Experiment;
use crate::page;
use crate::plot::{Labels, Line, Scale, chart, escape};
use serde::Serialize;
use std::fmt::Write;

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
        let title = format!("Published experiments and the model of {}", self.profile);
        let mut page = page::head(&title, "");
        page += "<p>Dashed: published. Errors are in percent of what was published; a bias above 0 \
                 promises too much. <code>nacre experiments --html FILE</code> writes this page; \
                 the model is deterministic. Points tell their values under the mouse.</p>\n";
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
            title: "",
            x: self.experiment.x,
            y: self.experiment.y,
            across: if self.experiment.doubling {
                Scale::Doubling
            } else {
                Scale::Even
            },
            upwards: Scale::Even,
            dashed: "published",
        };
        chart(&labels, &lines)
    }
}
