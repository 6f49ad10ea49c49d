//! Small pictures as SVG: lines over a logarithmic or plain axis, and heat maps, these as PNG, too.

mod axis;
mod chart;

pub use axis::{Scale, short};
pub use chart::{Labels, Line, chart};

use std::fmt::Write;

/// Columns of a heat map of counts.
pub const COLUMNS: usize = 128;
const CELL: f64 = 5.0;

/// Left of a heat map, for addresses.
const MARGIN: f64 = 90.0;
/// Rows from one address to the next: in maps of few rows, and in others.
const ROWS_TO_ADDRESS: [usize; 2] = [2, 8];
/// Colours of the scale.
const STEPS: u64 = 24;

/// Counts of equal parts of a device.
pub struct HeatMap<'a> {
    pub title: &'a str,
    pub cells: &'a [u64],
    /// Bytes of a part.
    pub part: u64,
    /// Bytes of the device.
    pub end: u64,
    /// Another map's counts: both get the same colours and rows.
    pub beside: &'a [u64],
}

impl HeatMap<'_> {
    /// The place of the last count of both maps.
    fn last(&self) -> Option<usize> {
        let of = |cells: &[u64]| cells.iter().rposition(|&count| count > 0);
        of(self.cells).max(of(self.beside))
    }

    /// The largest count of both maps.
    fn most(&self) -> u64 {
        let both = self.cells.iter().chain(self.beside);
        both.copied().max().unwrap_or(0).max(1)
    }
}

/// A heat map of counts, row by row, colours by their logarithm; 0 stays white. Rows behind the
/// last count are left out.
pub fn heat_map(map: &HeatMap<'_>) -> String {
    let Some(last) = map.last() else {
        let mut svg = head("map", COLUMNS as f64 * CELL + MARGIN, 48.0, map.title);
        svg.push_str("<text x=\"10\" y=\"40\">nothing was written</text>\n</svg>\n");
        return svg;
    };
    let rows = last / COLUMNS + 1;
    let most = map.most();
    let (wide, tall) = (COLUMNS as f64 * CELL + MARGIN + 10.0, rows as f64 * CELL);
    let mut svg = head("map", wide, tall + 90.0, map.title);
    let _ = writeln!(
        svg,
        "<rect x=\"{MARGIN}\" y=\"30\" width=\"{}\" height=\"{tall}\" fill=\"none\" stroke=\"#ccc\"/>",
        COLUMNS as f64 * CELL
    );
    addresses(&mut svg, map, rows);
    squares(&mut svg, map, most);
    scale(&mut svg, tall + 44.0, most);
    let row = crate::size::human(COLUMNS as u64 * map.part);
    let shown = (last as u64 + 1) * map.part;
    let beyond = match shown < map.end {
        true => format!("; nothing behind {}", address(shown)),
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

/// What lies at the start of some rows.
fn addresses(svg: &mut String, map: &HeatMap<'_>, rows: usize) {
    for row in (0..rows).step_by(ROWS_TO_ADDRESS[usize::from(rows > 16)]) {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"10\">{}</text>",
            MARGIN - 6.0,
            row as f64 * CELL + 38.0,
            address(row as u64 * COLUMNS as u64 * map.part)
        );
    }
}

/// A square for each part that was written.
fn squares(svg: &mut String, map: &HeatMap<'_>, most: u64) {
    let counts = map.cells.iter().enumerate();
    for (place, &count) in counts.filter(|(_, count)| **count > 0) {
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
    let mut svg = head("map", wide.max(480.0), tall, title);
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

/// What a picture begins with. A page may give those of class `chart` its own colours; the colours
/// of a `map` are for white paper.
fn head(class: &str, wide: f64, tall: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" color=\"#222\" viewBox=\"0 0 {wide} {tall}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect class=\"{paper}\" width=\"{wide}\" height=\"{tall}\" fill=\"#fff\"/><text x=\"10\" y=\"20\" font-size=\"14\" fill=\"currentColor\">{}</text>\n",
        escape(title),
        paper = if class == "chart" { "paper" } else { "sheet" }
    )
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, HeatMap, heat_map, heat_map_png};

    fn map(cells: &[u64]) -> String {
        heat_map(&HeatMap {
            title: "m",
            cells,
            part: 256,
            end: 256 * cells.len() as u64,
            beside: &[],
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
}
