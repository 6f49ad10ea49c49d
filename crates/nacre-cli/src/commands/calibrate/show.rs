//! What was measured, as text and as a picture.

use super::grid::{Cell, Direction, Grid};
use crate::plot::{self, Tile};
use crate::size;
use std::fmt::Write;
use std::io::IsTerminal;

const GREEN: &str = "\x1b[30;42m";
const PLAIN: &str = "\x1b[0m";

/// Cells of one direction by row, with the heads of rows and columns.
fn rows(grid: &Grid, direction: Direction) -> (Vec<u32>, Vec<u64>, Vec<Vec<&Cell>>) {
    let cells = || {
        grid.cells
            .iter()
            .filter(move |cell| cell.direction == direction)
    };
    let mut threads: Vec<u32> = cells().map(|cell| cell.threads).collect();
    let mut bytes: Vec<u64> = cells().map(|cell| cell.request_bytes).collect();
    threads.sort_unstable();
    threads.dedup();
    bytes.sort_unstable();
    bytes.dedup();
    let row = |&threads: &u32| cells().filter(|cell| cell.threads == threads).collect();
    let rows = threads.iter().map(row).collect();
    (threads, bytes, rows)
}

fn title(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "stores",
        Direction::Read => "reads",
    }
}

fn label(cell: &Cell) -> String {
    match cell.piece_bytes {
        0 => "whole".into(),
        piece => format!("{piece} {:+.0}%", cell.gain_percent),
    }
}

/// Best pieces and what they gain, by threads and bytes of a request.
pub fn text(grid: &Grid) -> String {
    let colours = std::io::stdout().is_terminal();
    let mut text = String::new();
    for direction in [Direction::Write, Direction::Read] {
        let (threads, bytes, rows) = rows(grid, direction);
        if rows.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "{}: {}, best pieces and their gain\nthreads",
            grid.name,
            title(direction)
        );
        for &bytes in &bytes {
            let _ = write!(text, " {:>12}", size::human(bytes));
        }
        text.push('\n');
        for (threads, row) in threads.iter().zip(rows) {
            let _ = write!(text, "{threads:>7}");
            for cell in row {
                let label = label(cell);
                if colours && cell.piece_bytes > 0 {
                    let _ = write!(text, " {GREEN}{label:>12}{PLAIN}");
                } else {
                    let _ = write!(text, " {label:>12}");
                }
            }
            text.push('\n');
        }
    }
    text
}

/// The same as a heat map: one table below the other.
pub fn svg(grid: &Grid) -> String {
    let mut tiles = Vec::new();
    let mut columns = Vec::new();
    let mut heads = Vec::new();
    for direction in [Direction::Write, Direction::Read] {
        let (threads, bytes, rows) = rows(grid, direction);
        for (threads, row) in threads.iter().zip(rows) {
            heads.push(format!("{} {threads}", title(direction)));
            let skipped = columns.len().saturating_sub(bytes.len());
            let blank = (0..skipped).map(|_| Tile::default());
            let cells = row.into_iter().map(|cell| Tile {
                share: cell.gain_percent / 100.0,
                text: label(cell),
            });
            tiles.push(blank.chain(cells).collect());
        }
        if columns.is_empty() {
            columns = bytes.iter().map(|&bytes| size::human(bytes)).collect();
        }
    }
    let title = format!(
        "{}: gain of the best pieces, by threads and bytes of a request",
        grid.name
    );
    plot::tiles(&title, &columns, &heads, &tiles)
}

#[cfg(test)]
mod tests {
    use super::super::grid::GridPlan;
    use super::{svg, text};

    #[test]
    fn maps_name_pieces_threads_and_sizes() {
        let plan = GridPlan::modelled(false, 10);
        let grid = plan.fill("disk".into(), |case| {
            let gains = case.threads == 8 && case.piece == 256 && case.bytes == 65536;
            Ok(if gains { 1.5 } else { 1.0 })
        });
        let grid = grid.unwrap();
        let text = text(&grid);
        assert!(
            text.contains("256 +50%") && text.contains("whole"),
            "{text}"
        );
        assert!(
            text.contains("disk: stores") && text.contains("disk: reads"),
            "{text}"
        );
        let svg = svg(&grid);
        assert!(svg.contains("256 +50%") && svg.contains("stores 8") && svg.contains("reads 1"));
    }
}
