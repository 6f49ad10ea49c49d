//! Tables in documents that are made from the sources. `cargo xtask tables` writes them, tidy
//! compares them.

use crate::icount::Figures;
use crate::tree::{Script, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CANARY: &str = "canary_";

/// A table, and what makes it.
struct Table {
    begin: &'static str,
    end: &'static str,
    make: fn(&Tree) -> String,
}

const TABLES: [Table; 2] = [
    Table {
        begin: "<!-- canaries: written by cargo xtask tables -->\n",
        end: "<!-- end of canaries -->",
        make: canaries,
    },
    Table {
        begin: "<!-- instructions: written by cargo xtask tables -->\n",
        end: "<!-- end of instructions -->",
        make: instructions,
    },
];

/// The document as it shall be; `None` if it has no such table.
pub fn up_to_date(document: &Script, tree: &Tree) -> Option<String> {
    let table = TABLES
        .iter()
        .find(|table| document.text.contains(table.begin))?;
    let (head, rest) = document.text.split_once(table.begin)?;
    let (_, tail) = rest.split_once(table.end)?;
    let made = (table.make)(tree);
    Some([head, table.begin, &made, table.end, tail].concat())
}

/// Writes all tables.
pub fn write(root: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let tree = Tree::read(root).map_err(failed)?;
    for document in &tree.documents {
        if let Some(text) = up_to_date(document, &tree).filter(|text| *text != document.text) {
            std::fs::write(root.join(&document.path), text).map_err(failed)?;
            println!("{}: written", document.path);
        }
    }
    Ok(())
}

/// Of docs/icount.tsv, with how they compare.
fn instructions(tree: &Tree) -> String {
    match Figures::parse(&tree.instructions) {
        Ok(figures) => figures.markdown(),
        Err(damage) => format!("{damage}\n"),
    }
}

/// A row for each file with canaries: tests that plant a fault, named by it.
fn canaries(tree: &Tree) -> String {
    let mut rows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (_, source) in tree.sources() {
        let planted = source.code.iter().filter_map(|line| planted(line));
        for name in planted {
            rows.entry(&source.path).or_default().insert(name);
        }
    }
    let count: usize = rows.values().map(BTreeSet::len).sum();
    let mut table = format!("| {count} canaries in | planted |\n|---|---|\n");
    for (path, names) in rows {
        let names: Vec<String> = names.into_iter().collect();
        table += &format!("| `{path}` | {} |\n", names.join("; "));
    }
    table
}

/// What the canary plants that a line declares, as a function or a row of a macro; in words.
fn planted(line: &str) -> Option<String> {
    let line = line.trim_start();
    let name = line.strip_prefix("fn ").unwrap_or(line);
    let name = name.strip_prefix(CANARY)?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let is_declared = line.starts_with("fn ") || name[end..].starts_with(':');
    is_declared.then(|| name[..end].replace('_', " "))
}

#[cfg(test)]
mod tests {
    use super::{TABLES, planted, up_to_date};
    use crate::rules::planted::tree;
    use crate::tree::{Script, Tree};

    #[test]
    fn functions_and_rows_of_macros_are_canaries() {
        assert_eq!(
            planted("    fn canary_a_torn_lock() {"),
            Some("a torn lock".into())
        );
        assert_eq!(
            planted("    canary_a_torn_lock: Torn;"),
            Some("a torn lock".into())
        );
        assert_eq!(planted("    canary_a_torn_lock();"), None);
    }

    #[test]
    fn a_table_is_replaced_and_nothing_else() {
        let canary = format!("#[test]\nfn {}a_lie() {{}}\n", super::CANARY);
        let tree = tree("fs", "a.rs", &canary);
        let document = |inside: &str| Script {
            path: "docs/testing.md".to_string(),
            text: ["above\n", TABLES[0].begin, inside, TABLES[0].end, "\nbelow"].concat(),
        };
        let written = up_to_date(&document("| stale |\n"), &tree).unwrap();
        assert!(written.starts_with("above\n") && written.ends_with("\nbelow"));
        assert!(
            written.contains("| `crates/nacre-fs/src/a.rs` | a lie |")
                && !written.contains("stale")
        );
    }

    #[test]
    fn instructions_are_those_that_are_recorded() {
        let tree = Tree {
            instructions: "# rustc 1\nnacre\tstat\t100.0\next4-dax\tstat\t300.0\n".to_string(),
            ..Tree::default()
        };
        let document = Script {
            path: "docs/performance-notes.md".to_string(),
            text: [TABLES[1].begin, "| stat | 99 |\n", TABLES[1].end].concat(),
        };
        let written = up_to_date(&document, &tree).unwrap();
        assert!(written.contains("| stat | 100 | 300 |") && !written.contains("| 99 |"));
    }
}
