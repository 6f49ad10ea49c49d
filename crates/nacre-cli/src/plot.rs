//! Small pictures as SVG: lines over a logarithmic or plain axis, and heat maps, these as PNG, too.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 36.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 48.0;
const COLOURS: [&str; 8] = [
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f",
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
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// The x axis doubles with each step.
    pub doubling: bool,
}

/// A chart of lines that starts at 0 on its y axis.
pub fn chart(labels: &Labels<'_>, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let scale = |x: f64| {
        if labels.doubling {
            x.max(1.0).log2()
        } else {
            x
        }
    };
    let low = all().map(|point| scale(point.0)).fold(f64::MAX, f64::min);
    let high = all().map(|point| scale(point.0)).fold(f64::MIN, f64::max);
    let top = round_up(all().map(|point| point.1).fold(0.0, f64::max));
    let (wide, tall) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let px = |x: f64| LEFT + (scale(x) - low) / (high - low).max(1e-9) * wide;
    let py = |y: f64| TOP + tall - y / top * tall;
    let mut svg = head(WIDTH, HEIGHT, labels.title);
    for step in 0..=4 {
        let y = top * f64::from(step) / 4.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {0:.1}h{wide}\" stroke=\"#ddd\"/><text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{y}</text>",
            py(y),
            LEFT - 6.0,
            py(y) + 4.0
        );
    }
    for x in ticks(all().map(|point| point.0), px) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            px(x),
            TOP + tall + 18.0,
            short(x)
        );
    }
    let (mut colour, mut named) = (COLOURS[0], 0);
    for line in lines {
        if !line.dashed {
            colour = COLOURS[named % COLOURS.len()];
            svg += &legend(named, colour, &line.name);
            named += 1;
        }
        let dashes = if line.dashed { "4 4" } else { "none" };
        let mut path = String::new();
        for (x, y) in &line.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", px(*x), py(*y));
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"14\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.1})\">{}</text>\n</svg>",
        LEFT + wide / 2.0,
        HEIGHT - 10.0,
        escape(labels.x),
        TOP + tall / 2.0,
        TOP + tall / 2.0,
        escape(labels.y)
    );
    svg
}

/// The name of a line, in its colour.
fn legend(place: usize, colour: &str, name: &str) -> String {
    format!(
        "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>\n",
        WIDTH - RIGHT + 10.0,
        TOP + 12.0 + 16.0 * place as f64,
        escape(name)
    )
}

/// Columns of a heat map of counts.
pub const COLUMNS: usize = 128;
const CELL: f64 = 5.0;

/// Left of a heat map, for addresses.
const MARGIN: f64 = 90.0;
/// Rows from one address to the next.
const ROWS_TO_ADDRESS: usize = 8;
/// Colours of the scale.
const STEPS: u64 = 24;

/// Counts of equal parts of a device.
pub struct HeatMap<'a> {
    pub title: &'a str,
    pub cells: &'a [u64],
    /// Bytes of a part.
    pub part: u64,
}

/// A heat map of counts, row by row, colours by their logarithm; 0 stays white. Rows behind the
/// last count are left out.
pub fn heat_map(map: &HeatMap<'_>) -> String {
    let last = map.cells.iter().rposition(|&count| count > 0);
    let Some(last) = last else {
        let mut svg = head(COLUMNS as f64 * CELL + MARGIN, 48.0, map.title);
        svg.push_str("<text x=\"10\" y=\"40\">nothing was written</text>\n</svg>\n");
        return svg;
    };
    let rows = last / COLUMNS + 1;
    let most = map.cells.iter().copied().max().unwrap_or(0).max(1);
    let (wide, tall) = (COLUMNS as f64 * CELL + MARGIN + 10.0, rows as f64 * CELL);
    let mut svg = head(wide, tall + 90.0, map.title);
    let _ = writeln!(
        svg,
        "<rect x=\"{MARGIN}\" y=\"30\" width=\"{}\" height=\"{tall}\" fill=\"none\" stroke=\"#ccc\"/>",
        COLUMNS as f64 * CELL
    );
    for row in (0..rows).step_by(ROWS_TO_ADDRESS) {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"10\">{}</text>",
            MARGIN - 6.0,
            row as f64 * CELL + 38.0,
            address(row as u64 * COLUMNS as u64 * map.part)
        );
    }
    for (place, &count) in map
        .cells
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
    {
        let from = place as u64 * map.part;
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"5\" height=\"5\" fill=\"{}\"><title>{} to {}: {count} writes</title></rect>",
            (place % COLUMNS) as f64 * CELL + MARGIN,
            (place / COLUMNS) as f64 * CELL + 30.0,
            colour(count, most),
            address(from),
            address(from + map.part)
        );
    }
    scale(&mut svg, tall + 44.0, most);
    let row = crate::size::human(COLUMNS as u64 * map.part);
    let beyond = match last + 1 < map.cells.len() {
        true => format!("; nothing behind {}", address((last as u64 + 1) * map.part)),
        false => String::new(),
    };
    let _ = writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{}\">a row is {row}, a square {}; white: never written{beyond}</text>\n</svg>",
        tall + 82.0,
        crate::size::human(map.part)
    );
    svg
}

/// The colours with their counts.
fn scale(svg: &mut String, y: f64, most: u64) {
    let at = |step: u64| {
        ((most as f64).ln_1p() * step as f64 / STEPS as f64)
            .exp_m1()
            .round()
            .max(1.0) as u64
    };
    for step in 1..=STEPS {
        let x = MARGIN + (step - 1) as f64 * 12.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"10\" fill=\"{}\"/>",
            colour(at(step), most)
        );
    }
    // As many as have room and differ.
    let mut shown = 0;
    for step in [1, STEPS / 4, STEPS / 2, 3 * STEPS / 4, STEPS] {
        let count = at(step);
        if count == shown {
            continue;
        }
        shown = count;
        let x = MARGIN + (step as f64 - 0.5) * 12.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{count}</text>",
            y + 21.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" font-size=\"10\">writes</text>",
        MARGIN + STEPS as f64 * 12.0 + 24.0,
        y + 9.0
    );
}

fn address(at: u64) -> String {
    format!("0x{at:x}")
}

/// One tile of a table: a colour by its share, from white at 0 to green at 1, and a text.
#[derive(Default)]
pub struct Tile {
    pub share: f64,
    pub text: String,
}

/// A table of coloured tiles with heads of columns and rows.
pub fn tiles(title: &str, columns: &[String], heads: &[String], rows: &[Vec<Tile>]) -> String {
    const WIDE: f64 = 78.0;
    const TALL: f64 = 22.0;
    let (wide, tall) = (
        110.0 + columns.len() as f64 * WIDE,
        70.0 + rows.len() as f64 * TALL,
    );
    let mut svg = head(wide.max(480.0), tall, title);
    for (place, column) in columns.iter().enumerate() {
        let x = 100.0 + (place as f64 + 0.5) * WIDE;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"48\" text-anchor=\"middle\">{}</text>",
            escape(column)
        );
    }
    for (place, (name, row)) in heads.iter().zip(rows).enumerate() {
        let y = 56.0 + place as f64 * TALL;
        let _ = writeln!(
            svg,
            "<text x=\"92\" y=\"{}\" text-anchor=\"end\">{}</text>",
            y + 15.0,
            escape(name)
        );
        for (column, tile) in row
            .iter()
            .enumerate()
            .filter(|(_, tile)| !tile.text.is_empty())
        {
            let x = 100.0 + column as f64 * WIDE;
            let faint = (255.0 * (1.0 - tile.share.clamp(0.0, 1.0) * 0.8)) as u8;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDE}\" height=\"{TALL}\" fill=\"#{faint:02x}ff{faint:02x}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                x + WIDE / 2.0,
                y + 15.0,
                escape(&tile.text)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// As [`heat_map`], without words.
pub fn heat_map_png(cells: &[u64]) -> Result<Vec<u8>, png::EncodingError> {
    const SIDE: usize = CELL as usize;
    let rows = cells.len().div_ceil(COLUMNS).max(1);
    let most = cells.iter().copied().max().unwrap_or(0).max(1);
    let (wide, tall) = (COLUMNS * SIDE, rows * SIDE);
    let mut pixels = vec![255; wide * tall * 3];
    for (place, pixel) in pixels.chunks_exact_mut(3).enumerate() {
        let (column, row) = (place % wide / SIDE, place / wide / SIDE);
        let count = cells.get(row * COLUMNS + column).copied().unwrap_or(0);
        if count > 0 {
            pixel.copy_from_slice(&heat(count, most));
        }
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, wide as u32, tall as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

fn colour(count: u64, most: u64) -> String {
    let [red, green, blue] = heat(count, most);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Yellow through red to black, for few to the most, by logarithm.
fn heat(count: u64, most: u64) -> [u8; 3] {
    let share = (count as f64).ln_1p() / (most as f64).ln_1p();
    [1.0, 0.62, 0.15].map(|from: f64| (((from - share) / 0.34).clamp(0.0, 1.0) * 255.0) as u8)
}

fn head(wide: f64, tall: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {tall}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{wide}\" height=\"{tall}\" fill=\"#fff\"/><text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(title)
    )
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Values whose labels have room beside each other; `px` is where each stands.
fn ticks(values: impl Iterator<Item = f64>, px: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let mut kept: Vec<f64> = Vec::new();
    let half = |x: f64| 3.5 * short(x).len() as f64;
    for x in all {
        let free = |&before: &f64| px(x) - px(before) >= half(x) + half(before) + 10.0;
        if kept.last().is_none_or(free) {
            kept.push(x);
        }
    }
    kept
}

fn short(value: f64) -> String {
    const KIB: f64 = 1024.0;
    if value >= KIB * KIB && value % (KIB * KIB) == 0.0 {
        return format!("{} MiB", value / KIB / KIB);
    }
    if value >= KIB && value % KIB == 0.0 {
        return format!("{} KiB", value / KIB);
    }
    value.to_string()
}

/// The next of 1, 2, 4, 8 times a power of ten, which four steps divide well.
fn round_up(value: f64) -> f64 {
    let mut step = 0.001;
    while step < value && step < 1e15 {
        for factor in [1.0, 2.0, 4.0, 8.0] {
            if step * factor >= value {
                return step * factor;
            }
        }
        step *= 10.0;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, HeatMap, Labels, Line, chart, heat_map, heat_map_png, round_up};

    #[test]
    fn pictures_hold_their_names_and_end() {
        let line = Line::new("a<b", vec![(1.0, 2.0), (4096.0, 3.0)]);
        let labels = Labels {
            title: "t & u",
            x: "threads",
            y: "GB/s",
            doubling: true,
        };
        let svg = chart(&labels, &[line]);
        assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && svg.contains("4 KiB"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    fn map(cells: &[u64]) -> String {
        heat_map(&HeatMap {
            title: "m",
            cells,
            part: 256,
        })
    }

    #[test]
    fn heat_maps_have_addresses_tooltips_and_a_scale() {
        let mut cells = vec![0; 64 * COLUMNS];
        (cells[1], cells[9 * COLUMNS]) = (1, 700);
        let map = map(&cells);
        assert_eq!(map.matches("width=\"5\"").count(), 2);
        assert!(map.contains("<title>0x100 to 0x200: 1 writes</title>"));
        assert!(
            map.contains(">0x40000</text>"),
            "the address of the ninth row"
        );
        assert!(
            map.contains(">700</text>") && map.contains("width=\"12\""),
            "the scale"
        );
        assert!(
            map.contains("nothing behind 0x48100") && map.contains("viewBox=\"0 0 740 140\""),
            "ten rows"
        );
    }

    #[test]
    fn a_map_without_counts_is_a_line() {
        let map = map(&[0; 8192]);
        assert!(map.contains("nothing was written") && map.contains("viewBox=\"0 0 730 48\""));
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
        for doubling in [false, true] {
            let labels = Labels {
                title: "t",
                x: "x",
                y: "y",
                doubling,
            };
            let line = Line::new("sorted", points.clone());
            let labels = labels_of(&chart(&labels, &[line]));
            assert!(labels.len() > 2, "{labels:?}");
            let apart =
                |pair: &[(f64, f64)]| pair[1].0 - pair[0].0 >= (pair[0].1 + pair[1].1) / 2.0;
            assert!(labels.windows(2).all(apart), "{labels:?}");
        }
    }

    #[test]
    fn a_png_has_a_square_for_each_count() {
        let mut cells = vec![0; COLUMNS + 1];
        cells[COLUMNS] = 9;
        let bytes = heat_map_png(&cells).expect("encoded");
        let decoder = png::Decoder::new(std::io::Cursor::new(bytes));
        let mut reader = decoder.read_info().expect("a picture");
        let mut pixels = vec![0; reader.output_buffer_size().expect("its size")];
        reader.next_frame(&mut pixels).expect("read");
        let dark = pixels.chunks(3).filter(|pixel| pixel[2] == 0).count();
        assert_eq!(
            (reader.info().width, reader.info().height, dark),
            (640, 10, 25)
        );
    }

    #[test]
    fn axes_end_at_round_figures() {
        assert_eq!(
            (round_up(13.0), round_up(2.0), round_up(70.0)),
            (20.0, 2.0, 80.0)
        );
    }
}
