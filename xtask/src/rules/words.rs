//! Words that have no place in landed code.

use super::Finding;
use crate::source::Source;
use crate::tree::{Script, Tree};

const MARKER: &str = "unfinished";
const GLOB: &str = "glob-import";
const DEBUG: &str = "debug-print";
const DEAD: &str = "dead-code";

/// Spelled in halves so that this file does not contain them.
const MARKERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, source) in tree.sources() {
        found.extend(markers_in_source(source));
        found.extend(globs(source));
        found.extend(debug_prints(source));
        found.extend(silenced_lints(source));
    }
    found.extend(tree.scripts.iter().flat_map(markers_in_script));
    found
}

fn marked(text: &str) -> bool {
    MARKERS.iter().any(|marker| {
        text.match_indices(marker).any(|(at, _)| {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            !text[..at].ends_with(word) && !text[at + marker.len()..].starts_with(word)
        })
    })
}

fn markers_in_source(source: &Source) -> Vec<Finding> {
    let lines = source.code.iter().zip(&source.comments).enumerate();
    lines
        .filter(|(_, (code, comment))| {
            marked(comment) || code.contains("todo!") || code.contains("unimplemented!")
        })
        .map(|(line, _)| Finding::new(&source.path, line + 1, MARKER, "finish it or open an issue"))
        .collect()
}

/// In scripts only comments count: `mktemp` patterns are made of the same letters.
fn markers_in_script(script: &Script) -> Vec<Finding> {
    let comment = |line: &str| line.trim_start().starts_with('#') || line.contains(" # ");
    let lines = script.text.lines().enumerate();
    lines
        .filter(|(_, line)| comment(line) && marked(line))
        .map(|(line, _)| Finding::new(&script.path, line + 1, MARKER, "finish it or open an issue"))
        .collect()
}

fn globs(source: &Source) -> Vec<Finding> {
    let is_glob = |&(line, column): &(usize, usize)| {
        let starts = source.code[line][..column].trim();
        let text = source.code_from(line, column);
        let statement = text.split(';').next().unwrap_or("");
        (starts.is_empty() || starts.starts_with("pub")) && statement.contains('*')
    };
    let message = "name what you import";
    source
        .words("use")
        .filter(is_glob)
        .map(|(line, _)| Finding::new(&source.path, line + 1, GLOB, message))
        .collect()
}

fn debug_prints(source: &Source) -> Vec<Finding> {
    let at = source
        .words("dbg")
        .filter(|&(line, column)| source.code[line][column..].starts_with("dbg!"));
    at.map(|(line, _)| Finding::new(&source.path, line + 1, DEBUG, "debug print left in"))
        .collect()
}

fn silenced_lints(source: &Source) -> Vec<Finding> {
    let silenced = |code: &str| {
        (code.contains("allow(") || code.contains("expect(")) && code.contains("dead_code")
    };
    let lines = source
        .code
        .iter()
        .enumerate()
        .filter(|(_, code)| silenced(code));
    lines
        .map(|(line, _)| Finding::new(&source.path, line + 1, DEAD, "remove what nobody uses"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{MARKERS, check};
    use crate::rules::planted;

    fn rules(text: &str) -> Vec<&'static str> {
        let found = check(&planted::tree("fs", "a.rs", text));
        found.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn canary_unfinished() {
        for marker in MARKERS {
            assert_eq!(
                rules(&format!("fn a() {{}} // {marker}: later")),
                ["unfinished"]
            );
            assert_eq!(
                check(&planted::script("Makefile", &format!("# {marker} later\n"))).len(),
                1
            );
        }
        assert_eq!(rules("fn a() { todo!() }"), ["unfinished"]);
        assert!(rules("/// Prefix_TODOS are words too.\nfn a() {}").is_empty());
        assert!(check(&planted::script("a.sh", "mktemp /tmp/a.XXXXXX\n")).is_empty());
    }

    #[test]
    fn canary_glob() {
        assert_eq!(rules("use std::fs::*;"), ["glob-import"]);
        assert_eq!(
            rules("pub use a::{\n    b,\n    c::*,\n};"),
            ["glob-import"]
        );
        assert!(rules("use a::b;\nfn c() -> u8 { 2 * 3 }").is_empty());
    }

    #[test]
    fn canary_debug_print() {
        assert_eq!(rules("fn a() { dbg!(1); }"), ["debug-print"]);
    }

    #[test]
    fn canary_silenced_dead_code() {
        assert_eq!(rules("#[allow(dead_code)]\nfn a() {}"), ["dead-code"]);
        assert_eq!(rules("#![allow(unused, dead_code)]"), ["dead-code"]);
        assert!(rules("#[allow(clippy::too_many_arguments)]\nfn a() {}").is_empty());
    }
}
