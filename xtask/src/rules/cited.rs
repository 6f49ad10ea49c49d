//! What documents name exists: files they link to or name, tests they name; and their generated
//! tables are up to date.

use super::Finding;
use crate::generated::up_to_date;
use crate::tree::{Script, Tree};
use std::collections::BTreeSet;

const GONE: &str = "cites-nothing";
const STALE: &str = "stale-table";
/// What happened stays as it was written.
const HISTORY: &str = "CHANGELOG.md";
/// From so many words on a name in small letters is that of a test.
const WORDS_OF_A_TEST: usize = 4;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let functions = identifiers(tree);
    let mut found = Vec::new();
    for document in tree.documents.iter().filter(|of| of.path != HISTORY) {
        for (line, text) in document.text.lines().enumerate() {
            let gone = links(text).filter(|link| !leads(tree, document, link));
            let names = code(text).filter(|name| is_missing(tree, &functions, name));
            found.extend(gone.chain(names).map(|name| {
                Finding::new(
                    &document.path,
                    line + 1,
                    GONE,
                    format!("`{name}` is not there"),
                )
            }));
        }
        if up_to_date(document, tree).is_some_and(|text| text != document.text) {
            let message = "run `cargo xtask tables`";
            found.push(Finding::new(&document.path, 0, STALE, message));
        }
    }
    found
}

/// Targets of links to other files of the project.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}

/// Texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn leads(tree: &Tree, from: &Script, link: &str) -> bool {
    let folder = from.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let inside = format!("{path}/");
    tree.files
        .iter()
        .any(|file| *file == path || file.starts_with(&inside))
}

fn is_missing(tree: &Tree, functions: &BTreeSet<&str>, name: &str) -> bool {
    if name.ends_with(".rs") && !name.contains([' ', '*']) {
        let end = format!("/{name}");
        return !tree
            .files
            .iter()
            .any(|file| file == name || file.ends_with(&end));
    }
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    is_name && name.split('_').count() >= WORDS_OF_A_TEST && !functions.contains(name)
}

/// All identifiers of the Rust sources: macros declare tests, too.
fn identifiers(tree: &Tree) -> BTreeSet<&str> {
    let lines = tree.sources().flat_map(|(_, source)| &source.code);
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    lines
        .flat_map(|line| line.split(move |c| !inside(c)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;
    use crate::tree::Script;

    fn findings(text: &str) -> usize {
        let mut tree = planted::tree("fs", "a.rs", "fn a_test_that_is_there() {}\n");
        tree.files = vec![
            "docs/a.md".to_string(),
            "crates/nacre-fs/src/a.rs".to_string(),
        ];
        tree.documents.push(Script {
            path: "docs/b.md".to_string(),
            text: text.to_string(),
        });
        check(&tree).len()
    }

    #[test]
    fn canary_link_to_nothing() {
        assert_eq!(
            findings("[a](a.md) [up](../crates/nacre-fs) [net](https://a.b)"),
            0
        );
        assert_eq!(findings("[a](c.md)"), 1);
    }

    #[test]
    fn canary_file_and_test_that_are_gone() {
        assert_eq!(
            findings("`a.rs` `src/a.rs` `a_test_that_is_there` `a_short_one`"),
            0
        );
        assert_eq!(findings("`b.rs`, `a_test_that_is_gone`"), 2);
    }

    #[test]
    fn canary_stale_table() {
        let begin = "<!-- canaries: written by cargo xtask tables -->\n";
        assert_eq!(
            findings(&format!("{begin}| old |\n<!-- end of canaries -->")),
            1
        );
    }
}
