//! Comments and documents: short lines, no line numbers of source files, no retired word, reasons
//! that say something.

use super::Finding;
use crate::tree::Tree;

const WIDTH: &str = "wide-prose";
const LINE: &str = "line-number";
const RETIRED: &str = "retired-word";
const REASON: &str = "empty-reason";
const IDENTIFIER: &str = "retired-identifier";
const BARE_TYPE: &str = "bare-type";
const COLUMNS: usize = 100;

/// Too many things are called so: a type says of what it is one.
const BARE_TYPES: [&str; 4] = ["Place", "Entry", "Plan", "Step"];

/// Words of our own that standard ones have replaced (the glossary of ARCHITECTURE.md), in halves
/// so that this file does not contain them.
const RETIRED_WORDS: &[(&str, &str)] = &[
    (concat!("kee", "per"), "supervisor"),
    (concat!("look", "aside"), "extent cache"),
    (concat!("par", "ked"), "cached"),
    (concat!("tan", "gled"), "not normalized"),
    (concat!("gla", "nce"), "snapshot"),
    (concat!("at", "las"), "structure index"),
    (concat!("a", "new"), "again, fresh"),
    (concat!("me", "nd"), "repair"),
    (concat!("me", "nds"), "repairs"),
    (concat!("me", "nded"), "repaired"),
    (concat!("de", "sk"), "per-thread cache"),
    (concat!("de", "sks"), "per-thread caches"),
    (concat!("do", "or"), "front end"),
    (concat!("None says ", "nothing"), "returns `None` if ..."),
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, source) in tree.sources() {
        for (line, comment) in source.comments.iter().enumerate() {
            let mut findings = prose(comment);
            findings.extend(names(&source.code[line]));
            let width = source.widths[line];
            let text = comment.trim_start_matches(['!', '/', ' ']);
            let is_wide = !text.is_empty() && !is_row(text) && width > COLUMNS;
            findings.extend(is_wide.then(|| wide(width)));
            findings.extend(
                is_empty_reason(comment)
                    .then(|| (REASON, "say which precondition holds".to_string())),
            );
            found.extend(
                findings
                    .into_iter()
                    .map(|(rule, message)| Finding::new(&source.path, line + 1, rule, message)),
            );
        }
    }
    found.extend(tree.documents.iter().flat_map(document));
    found
}

/// What is wrong with the names in a line of code.
fn names(code: &str) -> Vec<(&'static str, String)> {
    let identifiers = || code.split(|c: char| !c.is_alphanumeric() && c != '_');
    let parts: Vec<String> = identifiers().flat_map(parts_of).collect();
    let retired = RETIRED_WORDS
        .iter()
        .filter(|(word, _)| parts.iter().any(|part| part == word));
    let mut found: Vec<_> = retired
        .map(|(word, instead)| (IDENTIFIER, format!("`{word}`: write {instead}")))
        .collect();
    let mut pairs = identifiers()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>();
    pairs.retain(|word| *word != "pub" && *word != "crate");
    found.extend(
        pairs
            .windows(2)
            .filter(|pair| declares_bare(pair))
            .map(|pair| {
                let message = format!("`{}`: say of what", pair[1]);
                (BARE_TYPE, message)
            }),
    );
    found
}

fn declares_bare(pair: &[&str]) -> bool {
    let declares = ["struct", "enum", "trait", "type", "union"].contains(&pair[0]);
    declares && BARE_TYPES.contains(&pair[1])
}

/// The words of an identifier, in lower case.
fn parts_of(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.extend(c.to_lowercase());
        }
        before = c;
    }
    parts
}

fn wide(width: usize) -> (&'static str, String) {
    (WIDTH, format!("{width} columns, more than {COLUMNS}"))
}

fn document(document: &crate::tree::Script) -> Vec<Finding> {
    let mut found = Vec::new();
    for (line, text) in document.text.lines().enumerate() {
        let width = text.chars().count();
        let mut findings = prose(text);
        findings.extend((width > COLUMNS && !is_row(text)).then(|| wide(width)));
        found.extend(
            findings
                .into_iter()
                .map(|(rule, message)| Finding::new(&document.path, line + 1, rule, message)),
        );
    }
    found
}

/// A row of a table cannot be broken in Markdown.
fn is_row(text: &str) -> bool {
    text.starts_with('|') || text.starts_with('<')
}

fn prose(text: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(at) = text.find(".rs:")
        && text[at + 4..].starts_with(|c: char| c.is_ascii_digit())
    {
        found.push((LINE, "name the function: lines move".to_string()));
    }
    let retired = RETIRED_WORDS
        .iter()
        .filter(|(word, _)| has_word(text, word));
    found.extend(retired.map(|(word, instead)| (RETIRED, format!("`{word}`: write {instead}"))));
    found
}

fn has_word(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    text.match_indices(&word.to_lowercase()).any(|(at, _)| {
        let inside = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(inside) && !text[at + word.len()..].starts_with(inside)
    })
}

fn is_empty_reason(comment: &str) -> bool {
    let Some((_, reason)) = comment.split_once("SAFETY:") else {
        return false;
    };
    let reason = reason.trim().trim_end_matches('.').to_lowercase();
    ["as above", "see above", "as there"]
        .iter()
        .any(|empty| reason.starts_with(empty))
}

#[cfg(test)]
mod tests {
    use super::{RETIRED_WORDS, check};
    use crate::rules::planted;
    use crate::tree::{Script, Tree};

    fn rules(text: &str) -> Vec<&'static str> {
        let found = check(&planted::tree("fs", "a.rs", text));
        found.iter().map(|finding| finding.rule).collect()
    }

    fn rules_of_document(text: &str) -> Vec<&'static str> {
        let document = Script {
            path: "README.md".to_string(),
            text: text.to_string(),
        };
        let tree = Tree {
            documents: vec![document],
            ..Tree::default()
        };
        check(&tree).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn canary_wide_prose() {
        assert_eq!(rules(&format!("// {}\n", "x".repeat(98))), ["wide-prose"]);
        assert!(rules(&format!("// {}\n", "x".repeat(97))).is_empty());
        assert_eq!(rules_of_document(&"x".repeat(101)), ["wide-prose"]);
        assert!(rules_of_document(&format!("| {} |", "x".repeat(101))).is_empty());
    }

    #[test]
    fn canary_line_number() {
        assert_eq!(rules("// see lane.rs:62\n"), ["line-number"]);
        assert_eq!(rules_of_document("`lane.rs:62`"), ["line-number"]);
        assert!(rules_of_document("`lane.rs`: it appends").is_empty());
    }

    #[test]
    fn canary_retired_identifier() {
        for (word, _) in RETIRED_WORDS.iter().filter(|(word, _)| !word.contains(' ')) {
            let capital = word[..1].to_uppercase() + &word[1..];
            for name in [
                (*word).to_string(),
                format!("old_{word}"),
                format!("Old{capital}"),
            ] {
                let found = rules(&format!("fn a() {{ {name}::b() }}\n"));
                assert_eq!(found, ["retired-identifier"], "{name}");
            }
        }
        assert!(rules("fn appended(commend: u8, atlases: u8) {}\n").is_empty());
    }

    #[test]
    fn canary_bare_type() {
        assert_eq!(rules("pub(crate) struct Plan {}\n"), ["bare-type"]);
        assert_eq!(rules("enum Step<'a> {}\n"), ["bare-type"]);
        assert!(rules("struct PatchPlan(Step);\nuse a::Entry;\n").is_empty());
    }

    #[test]
    fn canary_retired_word() {
        for (word, _) in RETIRED_WORDS {
            assert_eq!(rules(&format!("// The {word}, too.\n")), ["retired-word"]);
        }
        assert!(rules("// Amendments and desktops.\n").is_empty());
    }

    #[test]
    fn canary_empty_reason() {
        assert_eq!(rules("// SAFETY: as above.\n"), ["empty-reason"]);
        assert_eq!(rules("// SAFETY: as above; and back.\n"), ["empty-reason"]);
        assert!(rules("// SAFETY: `at` is mapped as long as `media` lives.\n").is_empty());
    }
}
