//! What is stored is fenced, and a fence that fails is heard of.

use super::Finding;
use crate::source::Source;
use crate::tree::Tree;

const RULE: &str = "fence";
/// Calls that give a token of stores, or take one.
const TOKENS: &[&str] = &[
    ".fence(",
    ".order(",
    ".settle(",
    ".store_u64(",
    ".store_word(",
    ".store_size(",
    ".flush(",
    ".flush_as(",
    ".zero(",
    ".write(",
    ".write_user(",
    ".write_user_fresh(",
    ".set_run(",
];
/// Crates that hold tokens.
const HOLDERS: &[&str] = &["media", "volume", "store", "objects"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, source) in tree.sources() {
        if HOLDERS.contains(&name) {
            found.extend(discarded(source));
        }
        if !["media", "volume"].contains(&name) {
            found.extend(polled(source));
        }
    }
    found
}

/// Statements that bind a token or an outcome to nothing, or map it away.
fn discarded(source: &Source) -> Vec<Finding> {
    let lines = (0..source.code.len()).filter(|&line| !source.test[line]);
    lines
        .filter(|&line| {
            let text = source.code[line].trim_start();
            let statement = |from: &str| {
                let rest = source.code_from(line, source.code[line].find(from).unwrap_or(0));
                rest.split(';').next().unwrap_or("").to_string()
            };
            let is_token = |text: &str| TOKENS.iter().any(|call| text.contains(call));
            let bound_to_nothing = text.starts_with("let _") && is_token(&statement("let _"));
            let mapped_away = text.contains(".map(|_") && is_token(&text.replace(".map(", ""));
            bound_to_nothing || mapped_away || text.contains(".map(|_later|")
        })
        .map(|line| {
            let message = "a token of stores or the failure of a fence is discarded";
            Finding::new(&source.path, line + 1, RULE, message)
        })
        .collect()
}

/// Who stores learns of a failure from its fence; the flag is for who attaches or leaves.
fn polled(source: &Source) -> Vec<Finding> {
    let lines = (0..source.code.len()).filter(|&line| !source.test[line]);
    lines
        .filter(|&line| source.code[line].contains(".health()"))
        .filter(|_| !source.path.contains("/recovery/"))
        .map(|line| {
            let message = "the device's health is polled: take the result of the fence";
            Finding::new(&source.path, line + 1, RULE, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted::tree;

    #[test]
    fn canary_discarded_tokens_and_failures() {
        for text in [
            "fn a() { \n let _later = volume.store_u64(at, word, kind);\n }",
            "fn a() { \n let _ =\n volume.fence(stored);\n }",
            "fn a() { \n stored.map(|_later| ()).map_err(copy_error)\n }",
            "fn a() { \n volume.write_user(to, bytes, kind).map(|_| ())\n }",
            "fn a() { \n store.volume().health()?;\n }",
        ] {
            assert_eq!(check(&tree("store", "a.rs", text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn tokens_that_are_fenced_are_fine() {
        let text = "fn a() { \n let _turn = lock();\n let stored = volume.flush(at, 8);\n \
                    volume.fence(stored)?;\n }";
        assert!(check(&tree("store", "a.rs", text)).is_empty());
    }
}
