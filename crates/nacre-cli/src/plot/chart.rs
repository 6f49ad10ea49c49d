//! Charts of lines.

use super::axis::{Axis, Scale, short};
use super::{escape, head};
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const TALL: f64 = HEIGHT - TOP - BOTTOM;
/// Lines of more points have no dots.
const DOTS: usize = 64;
const COLOURS: [&str; 10] = [
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#a0675b", "#17becf", "#7f7f7f",
    "#e377c2", "#bcbd22",
];

/// A line of a chart: its name and points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// What the line before is compared with: in its colour, without a name of its own.
    pub dashed: bool,
}

impl Line {
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            dashed: false,
        }
    }
}

/// What stands at a chart's axes.
pub struct Labels<'a> {
    /// Empty where the page says it already.
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub across: Scale,
    pub upwards: Scale,
    /// What dashed lines are.
    pub dashed: &'a str,
}

/// A chart of lines. Points tell their values where the mouse is.
pub fn chart(labels: &Labels<'_>, lines: &[Line]) -> String {
    let right = right(labels, lines);
    let wide = WIDTH - LEFT - right;
    let all = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        let points = lines.iter().flat_map(|line| &line.points);
        points.map(of).collect()
    };
    let x = Axis::across(labels.across, &all(|point| point.0), LEFT, wide);
    let y = Axis::upwards(labels.upwards, &all(|point| point.1), TOP + TALL, TALL);
    let mut svg = head("chart", WIDTH, HEIGHT, labels.title);
    svg += &axes(labels, &x, &y, wide);
    let mut legend = Legend::at(WIDTH - right + 14.0);
    let (mut colour, mut named) = (COLOURS[0], 0);
    for line in lines {
        if !line.dashed {
            colour = COLOURS[named % COLOURS.len()];
            svg += &legend.entry(colour, false, &line.name);
            named += 1;
        }
        // Earlier lines are wider, so that they show behind later ones that lie on them.
        let width = 2.0 + 0.6 * (names(lines) - named).min(4) as f64;
        svg += &drawn(line, colour, (&x, &y), width);
        svg += &dots(line, colour, (&x, &y), width, labels);
    }
    if lines.iter().any(|line| line.dashed) {
        svg += &legend.entry("currentColor", true, labels.dashed);
    }
    svg + "</svg>\n"
}

fn names(lines: &[Line]) -> usize {
    lines.iter().filter(|line| !line.dashed).count()
}

/// Room for the names of lines.
fn right(labels: &Labels<'_>, lines: &[Line]) -> f64 {
    let names = lines.iter().filter(|line| !line.dashed);
    let longest = names.map(|line| line.name.chars().count()).max();
    let dashed = labels.dashed.chars().count();
    60.0 + 6.6 * longest.unwrap_or(0).max(dashed) as f64
}

/// Values, lines to the right of those of the y axis, and what the axes mean.
fn axes(labels: &Labels<'_>, x: &Axis, y: &Axis, wide: f64) -> String {
    let mut svg = String::new();
    for value in y.labels_above() {
        let at = y.place(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}h{wide:.1}\" stroke=\"#8884\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"currentColor\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(value)
        );
    }
    for value in x.labels_beside() {
        let at = x.place(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {}v4\" stroke=\"#888\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>",
            TOP + TALL,
            TOP + TALL + 18.0,
            short(value)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\" fill=\"currentColor\">{2}</text><text x=\"14\" y=\"{3:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {3:.1})\" fill=\"currentColor\">{4}</text>",
        LEFT + wide / 2.0,
        HEIGHT - 10.0,
        escape(labels.x),
        TOP + TALL / 2.0,
        escape(labels.y)
    );
    svg
}

fn dashes(is_dashed: bool) -> &'static str {
    if is_dashed {
        " stroke-dasharray=\"4 4\""
    } else {
        ""
    }
}

fn drawn(line: &Line, colour: &str, (x, y): (&Axis, &Axis), width: f64) -> String {
    let mut path = String::new();
    for point in &line.points {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(
            path,
            "{letter}{:.1} {:.1}",
            x.place(point.0),
            y.place(point.1)
        );
    }
    format!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\"{}/>\n",
        dashes(line.dashed)
    )
}

fn dots(
    line: &Line,
    colour: &str,
    (x, y): (&Axis, &Axis),
    radius: f64,
    labels: &Labels<'_>,
) -> String {
    let mut svg = String::new();
    if line.points.len() > DOTS {
        return svg;
    }
    let what = if line.dashed { labels.dashed } else { "" };
    for point in &line.points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" fill=\"{colour}\"><title>{} {}\n{}: {}\n{}: {}</title></circle>",
            x.place(point.0),
            y.place(point.1),
            escape(&line.name),
            escape(what),
            escape(labels.x),
            short(point.0),
            escape(labels.y),
            (point.1 * 1000.0).round() / 1000.0
        );
    }
    svg
}

/// Names of lines, each behind a piece of it.
struct Legend {
    x: f64,
    y: f64,
}

impl Legend {
    fn at(x: f64) -> Self {
        Self { x, y: TOP + 8.0 }
    }

    fn entry(&mut self, colour: &str, is_dashed: bool, name: &str) -> String {
        let (x, y) = (self.x, self.y);
        self.y += 16.0;
        format!(
            "<path d=\"M{x:.1} {y}h16\" stroke=\"{colour}\" stroke-width=\"3\"{}/><text x=\"{:.1}\" y=\"{}\" fill=\"currentColor\">{}</text>\n",
            dashes(is_dashed),
            x + 22.0,
            y + 4.0,
            escape(name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Labels, Line, chart};
    use crate::plot::Scale;

    fn labels(across: Scale) -> Labels<'static> {
        Labels {
            title: "t & u",
            x: "threads",
            y: "GB/s",
            across,
            upwards: Scale::Even,
            dashed: "published",
        }
    }

    #[test]
    fn pictures_hold_their_names_and_end() {
        let line = Line::new("a<b", vec![(1.0, 2.0), (4096.0, 3.0)]);
        let svg = chart(&labels(Scale::Doubling), &[line]);
        assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && svg.contains("4 KiB"));
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("published"), "nothing is dashed");
    }

    #[test]
    fn points_tell_their_values_and_dashed_lines_what_they_are() {
        let line = Line::new("load", vec![(1.0, 2.25), (4.0, 3.0)]);
        let behind = Line {
            dashed: true,
            ..Line::new("load", vec![(1.0, 2.0)])
        };
        let svg = chart(&labels(Scale::Even), &[line, behind]);
        assert!(
            svg.contains("<title>load \nthreads: 1\nGB/s: 2.25</title>"),
            "{svg}"
        );
        assert!(svg.contains("<title>load published\nthreads: 1\nGB/s: 2</title>"));
        assert_eq!(svg.matches(">published</text>").count(), 1);
    }

    /// Where labels under the axis stand, and how wide they are.
    fn labels_of(svg: &str) -> Vec<(f64, f64)> {
        let of = |text: &str| {
            let (x, rest) = text.split_once('"')?;
            rest.starts_with(" y=\"330\"").then_some(())?;
            let shown = rest.split_once('>')?.1.split('<').next()?;
            Some((x.parse().ok()?, 7.0 * shown.len() as f64))
        };
        svg.split("<text x=\"").skip(1).filter_map(of).collect()
    }

    #[test]
    fn labels_of_an_axis_do_not_overlap() {
        let points: Vec<(f64, f64)> = (0..400)
            .map(|i| (1.0 + f64::from(i) * 3777.0, 1.0))
            .collect();
        for across in [Scale::Even, Scale::Doubling, Scale::Tens] {
            let line = Line::new("sorted", points.clone());
            let labels = labels_of(&chart(&labels(across), &[line]));
            assert!(labels.len() > 2, "{across:?}: {labels:?}");
            let apart =
                |pair: &[(f64, f64)]| pair[1].0 - pair[0].0 >= (pair[0].1 + pair[1].1) / 2.0;
            assert!(labels.windows(2).all(apart), "{across:?}: {labels:?}");
        }
    }
}
