//! Tables of measured bandwidth: operation, pattern, modules, bytes, threads, samples, GB/s, EWR.

use crate::failure::{Failure, Result};
use nacre_emulator::model::{Operation, Pattern, Workload};
use serde::Serialize;
use std::path::Path;

/// A cell of a published table.
pub struct Cell {
    pub workload: Workload,
    pub modules: u32,
    pub name: String,
    pub gb_s: f64,
    pub ewr: Option<f64>,
}

/// A line that says nothing about a workload.
#[derive(Debug, PartialEq, Serialize)]
pub struct LeftOut {
    pub line: usize,
    pub text: String,
    pub why: &'static str,
}

/// Reads a table; one without a single cell is an error.
pub fn load(table: &Path) -> Result<(Vec<Cell>, Vec<LeftOut>)> {
    let text =
        std::fs::read_to_string(table).map_err(|error| Failure::io(table.display(), error))?;
    let (cells, left_out) = read(&text);
    if cells.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: no lines like `NTStore,random,1,256,4,7,2.138,0.932` (operation, pattern, modules, bytes, threads, samples, GB/s, EWR)",
            table.display()
        )));
    }
    Ok((cells, left_out))
}

/// The sizes of access in a table, the smallest first.
pub fn sizes(cells: &[Cell]) -> Vec<u64> {
    let mut sizes: Vec<u64> = cells.iter().map(|cell| cell.workload.access).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The cells of a table, and the lines that are none. A first line of names, empty lines and
/// comments do not count.
pub fn read(text: &str) -> (Vec<Cell>, Vec<LeftOut>) {
    let (mut cells, mut left_out) = (Vec::new(), Vec::new());
    let mut first = true;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_first = std::mem::take(&mut first);
        if is_first && line.split(',').all(|field| field.parse::<f64>().is_err()) {
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

#[cfg(test)]
mod tests {
    use super::{cell, read, sizes};

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
    fn a_heading_below_comments_is_no_cell() {
        let text = "# source\n\nop,pattern,modules,bytes,threads,samples,gbs,ewr\n\
            Load,random,6,4096,2,5,5.389,\nLoad,random,6,256,2,5,5.389,\n";
        let (cells, left_out) = read(text);
        assert!(left_out.is_empty(), "{left_out:?}");
        assert_eq!(sizes(&cells), [256, 4096]);
    }
}
