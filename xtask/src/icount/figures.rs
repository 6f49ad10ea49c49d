//! Instructions for each row and place, and how they compare.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write};

/// The place that is guarded.
pub const NACRE: &str = "nacre";
/// By how much a row may grow before that is a finding.
pub const GROWTH_MAX: f64 = 1.03;
/// Row that is measured with a planted slowdown of the row it names.
const CANARY: &str = "canary: ";
const PLACES: [&str; 4] = [NACRE, "ext4-dax", "xfs-dax", "tmpfs"];

/// Instructions of an operation.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// What built the programs.
    pub compiler: String,
    /// In the order of measuring.
    rows: Vec<String>,
    cells: BTreeMap<(String, String), f64>,
}

impl Figures {
    /// Of lines `PLACE<tab>ROW<tab>INSTRUCTIONS`, and `# COMPILER`.
    pub fn parse(text: &str) -> Result<Figures, String> {
        let mut figures = Figures::default();
        for (number, line) in text.lines().enumerate() {
            if let Some(compiler) = line.strip_prefix("# ") {
                figures.compiler = compiler.to_string();
                continue;
            }
            let bad = || format!("line {} of the figures is damaged: `{line}`", number + 1);
            let mut fields = line.split('\t');
            let (Some(place), Some(row), Some(count), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(bad());
            };
            let count: f64 = count.parse().map_err(|_| bad())?;
            if !figures.rows.iter().any(|known| known == row) {
                figures.rows.push(row.to_string());
            }
            let cell = (place.to_string(), row.to_string());
            figures.cells.insert(cell, count);
        }
        match figures.rows() {
            0 => Err("there are no figures".to_string()),
            _ => Ok(figures),
        }
    }

    /// Rows that were measured on a pool, without the canary.
    pub fn rows(&self) -> usize {
        let real = |row: &&String| !row.starts_with(CANARY) && self.get(NACRE, row).is_some();
        self.rows.iter().filter(real).count()
    }

    fn get(&self, place: &str, row: &str) -> Option<f64> {
        let cell = (place.to_string(), row.to_string());
        self.cells.get(&cell).copied()
    }

    /// The lower figure of each cell.
    pub fn lowest_with(mut self, other: &Figures) -> Figures {
        for (cell, count) in &mut self.cells {
            if let Some(&before) = other.cells.get(cell) {
                *count = count.min(before);
            }
        }
        self
    }

    /// What became worse than in `recorded`, what is missing, and whether the canary was caught.
    pub fn compare(&self, recorded: &Figures) -> Vec<String> {
        let mut findings = Vec::new();
        for row in &recorded.rows {
            let Some(before) = recorded.get(NACRE, row) else {
                continue;
            };
            match self.get(NACRE, row) {
                None => findings.push(format!("icount: {row}: was not measured")),
                Some(now) if now > before * GROWTH_MAX => findings.push(format!(
                    "icount: {row}: {now:.0} instructions, {:+.1} % (recorded: {before:.0})",
                    (now / before - 1.0) * 100.0
                )),
                Some(_) => {}
            }
        }
        let new = self.rows.iter().filter(|row| !recorded.rows.contains(row));
        findings.extend(new.map(|row| format!("icount: {row}: is not recorded")));
        findings.extend(self.canary());
        findings
    }

    /// A complaint if the planted slowdown would have gone unnoticed.
    pub fn canary(&self) -> Option<String> {
        let (name, slowed) = self.rows.iter().find_map(|row| {
            let name = row.strip_prefix(CANARY)?;
            let name = name.split(',').next()?;
            Some((name, self.get(NACRE, row)?))
        })?;
        let plain = self.get(NACRE, name)?;
        (slowed <= plain * GROWTH_MAX)
            .then(|| format!("icount: {name}: a planted slowdown was not noticed: {slowed:.0}"))
    }

    /// For people: instructions, and how many times as many others need.
    pub fn table(&self) -> String {
        let mut text = format!("{:<26}", "instructions");
        for head in self.heads() {
            let _ = write!(text, "{head:>12}");
        }
        text.push('\n');
        for row in self.real_rows() {
            let _ = write!(text, "{row:<26}");
            for cell in self.cells(row) {
                let _ = write!(text, "{cell:>12}");
            }
            text.push('\n');
        }
        text
    }

    /// The same for a document.
    pub fn markdown(&self) -> String {
        let heads: Vec<String> = self.heads().collect();
        let mut text = format!("| call | {} |\n|---|", heads.join(" | "));
        text += &"---:|".repeat(heads.len());
        text.push('\n');
        for row in self.real_rows() {
            let _ = writeln!(text, "| {row} | {} |", self.cells(row).join(" | "));
        }
        text
    }

    fn real_rows(&self) -> impl Iterator<Item = &String> {
        self.rows.iter().filter(|row| !row.starts_with(CANARY))
    }

    fn heads(&self) -> impl Iterator<Item = String> {
        let ratios = PLACES[1..].iter().map(|place| format!("vs {place}"));
        PLACES.iter().map(|place| place.to_string()).chain(ratios)
    }

    fn cells(&self, row: &str) -> Vec<String> {
        let shown = |text: Option<String>| text.unwrap_or("-".to_string());
        let count = |place: &&str| shown(self.get(place, row).map(|count| format!("{count:.0}")));
        let ratio = |place: &&str| {
            let both = self.get(place, row).zip(self.get(NACRE, row));
            shown(both.map(|(other, ours)| format!("{:.2} x", other / ours)))
        };
        PLACES
            .iter()
            .map(count)
            .chain(PLACES[1..].iter().map(ratio))
            .collect()
    }
}

impl Display for Figures {
    /// As `parse` reads it.
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        writeln!(to, "# {}", self.compiler)?;
        for place in PLACES {
            for row in &self.rows {
                if let Some(count) = self.get(place, row) {
                    writeln!(to, "{place}\t{row}\t{count:.1}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Figures;

    const TEXT: &str = "# rustc 1\nnacre\tstat\t100.0\nnacre\tpread 64 B\t200.0\n\
        nacre\tcanary: pread 64 B, one in ten twice\t220.0\ntmpfs\tstat\t300.0\n";

    fn parse(text: &str) -> Figures {
        Figures::parse(text).expect("figures")
    }

    #[test]
    fn figures_survive_writing() {
        let figures = parse(TEXT);
        assert_eq!(parse(&figures.to_string()), figures);
        assert_eq!(figures.compiler, "rustc 1");
        assert_eq!(figures.rows(), 2);
        assert!(figures.table().contains("3.00 x"));
    }

    #[test]
    fn what_is_as_before_or_better_is_fine() {
        let recorded = parse(TEXT);
        let better = parse(&TEXT.replace("\t100.0", "\t90.0"));
        let about = parse(&TEXT.replace("\t100.0", "\t102.9"));
        for found in [&recorded, &better, &about] {
            assert_eq!(found.compare(&recorded), Vec::<String>::new());
        }
    }

    #[test]
    fn what_was_high_once_only_is_no_finding() {
        let recorded = parse(TEXT);
        let high = |row: &str| parse(&TEXT.replace(row, "\t400.0"));
        let found = high("\t100.0").lowest_with(&high("\t300.0"));
        assert_eq!(found.compare(&recorded), Vec::<String>::new());
        let found = high("\t100.0").lowest_with(&high("\t100.0"));
        assert_eq!(found.compare(&recorded).len(), 1);
    }

    #[test]
    fn growth_lost_rows_and_new_rows_are_findings() {
        let recorded = parse(TEXT);
        let worse = parse(&TEXT.replace("\t100.0", "\t103.1")).compare(&recorded);
        assert!(matches!(&worse[..], [one] if one.contains("stat") && one.contains("+3.1 %")));
        let lost = parse(&TEXT.replace("nacre\tstat", "xfs-dax\tstat")).compare(&recorded);
        assert!(matches!(&lost[..], [one] if one.contains("was not measured")));
        let more = parse(&format!("{TEXT}nacre\topen\t1.0\n")).compare(&recorded);
        assert!(matches!(&more[..], [one] if one.contains("is not recorded")));
    }

    #[test]
    fn a_canary_that_lives_is_a_finding() {
        let recorded = parse(TEXT);
        let blind = parse(&TEXT.replace("\t220.0", "\t201.0")).compare(&recorded);
        assert!(matches!(&blind[..], [one] if one.contains("planted")));
    }

    #[test]
    fn damaged_lines_are_named() {
        for text in ["", "nacre\tstat", "nacre\tstat\tmany", "a\tb\t1\t2"] {
            assert!(Figures::parse(text).is_err(), "{text}");
        }
    }
}
