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
    for x in ticks(all().map(|point| point.0)) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            px(x),
            TOP + tall + 18.0,
            short(x)
        );
    }
    for (place, line) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let mut path = String::new();
        for (x, y) in &line.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", px(*x), py(*y));
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            WIDTH - RIGHT + 10.0,
            TOP + 12.0 + 16.0 * place as f64,
            escape(&line.name)
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

/// Columns of a heat map of counts.
pub const COLUMNS: usize = 128;
const CELL: f64 = 5.0;

/// A heat map of counts, row by row, colours by their logarithm; 0 stays white.
pub fn heat_map(title: &str, cells: &[u64]) -> String {
    let rows = cells.len().div_ceil(COLUMNS).max(1);
    let most = cells.iter().copied().max().unwrap_or(0).max(1);
    let (wide, tall) = (COLUMNS as f64 * CELL + 20.0, rows as f64 * CELL + 60.0);
    let mut svg = head(wide, tall, title);
    for (place, &count) in cells.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (x, y) = (
            (place % COLUMNS) as f64 * CELL,
            (place / COLUMNS) as f64 * CELL,
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"5\" height=\"5\" fill=\"{}\"/>",
            x + 10.0,
            y + 30.0,
            colour(count, most)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"{}\">white: never; yellow: 1; black: {most} writes (logarithmic)</text>\n</svg>",
        tall - 10.0
    );
    svg
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

/// At most ten of the values, spread.
fn ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let step = all.len().div_ceil(10).max(1);
    all.into_iter().step_by(step).collect()
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
    use super::{COLUMNS, Labels, Line, chart, heat_map, heat_map_png, round_up};

    #[test]
    fn pictures_hold_their_names_and_end() {
        let line = Line {
            name: "a<b".into(),
            points: vec![(1.0, 2.0), (4096.0, 3.0)],
        };
        let labels = Labels {
            title: "t & u",
            x: "threads",
            y: "GB/s",
            doubling: true,
        };
        let svg = chart(&labels, &[line]);
        assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && svg.contains("4 KiB"));
        assert!(svg.trim_end().ends_with("</svg>"));
        let map = heat_map("m", &[0, 1, 7]);
        assert_eq!(map.matches("width=\"5\"").count(), 2);
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
