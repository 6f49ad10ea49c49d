//! `unsafe` stands in few crates, and each use says why it holds.

use super::Finding;
use crate::source::{Source, identifier};
use crate::tree::{Crate, Tree};

const POLICY: &str = "unsafe-policy";
const COMMENT: &str = "safety-comment";
const MEDIUM: &str = "one-medium";
const MAY_USE: &[&str] = &[
    "media", "emulator", "session", "preload", "pmem", "capi", "calls",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found: Vec<Finding> = tree.crates.iter().filter_map(forbids).collect();
    for (name, source) in tree.sources() {
        if MAY_USE.contains(&name) {
            found.extend(uncommented(source));
        } else {
            found.extend(forbidden(source));
        }
        if !["media", "emulator"].contains(&name) {
            found.extend(flushes(source));
        }
    }
    found
}

/// A crate outside the list must carry `#![forbid(unsafe_code)]` in its root.
fn forbids(of: &Crate) -> Option<Finding> {
    if MAY_USE.contains(&of.short_name()) {
        return None;
    }
    let is_root = |s: &&Source| s.path.ends_with("src/lib.rs") || s.path.ends_with("src/main.rs");
    let root = of.sources.iter().find(is_root)?;
    let says = root
        .code
        .iter()
        .any(|line| line.contains("#![forbid(unsafe_code)]"));
    (!says).then(|| {
        Finding::new(
            &root.path,
            1,
            POLICY,
            "crate root lacks #![forbid(unsafe_code)]",
        )
    })
}

fn forbidden(source: &Source) -> Vec<Finding> {
    let message = "this crate may not contain unsafe code";
    source
        .words("unsafe")
        .map(|(line, _)| Finding::new(&source.path, line + 1, POLICY, message))
        .collect()
}

fn uncommented(source: &Source) -> Vec<Finding> {
    source
        .words("unsafe")
        .filter(|&(line, column)| needs_comment(&source.code_from(line, column + 6)))
        .filter(|&(line, _)| !has_comment(source, line) && !is_required_by_trait(source, line))
        .map(|(line, _)| {
            let message =
                "unsafe without a SAFETY comment: which precondition holds, who guarantees it";
            Finding::new(&source.path, line + 1, COMMENT, message)
        })
        .collect()
}

/// Blocks, impls, traits and function definitions do; attributes, function types and declarations
/// of foreign functions (whose calls are blocks) do not.
fn needs_comment(after: &str) -> bool {
    let mut rest = after.trim_start();
    if let Some(foreign) = rest.strip_prefix("extern") {
        rest = foreign.trim_start().trim_start_matches(['"', ' ']);
        if rest.starts_with('{') {
            return false;
        }
    }
    if let Some(name) = rest.strip_prefix("fn") {
        return identifier(name.trim_start()).is_some();
    }
    rest.starts_with('{') || rest.starts_with("impl") || rest.starts_with("trait")
}

/// A function that an `unsafe impl` must have: the comment stands at the impl.
fn is_required_by_trait(source: &Source, line: usize) -> bool {
    let indent = |line: usize| source.code[line].len() - source.code[line].trim_start().len();
    let outer = (0..line)
        .rev()
        .find(|&above| indent(above) < indent(line) && !source.code[above].trim().is_empty());
    outer.is_some_and(|outer| source.code[outer].trim_start().starts_with("unsafe impl"))
}

/// Looks on the line itself and upwards to the end of the statement before.
fn has_comment(source: &Source, line: usize) -> bool {
    let says = |line: usize| {
        let comment = &source.comments[line];
        comment.contains("SAFETY") || comment.contains("# Safety")
    };
    if says(line) {
        return true;
    }
    for above in (0..line).rev() {
        let code = source.code[above].trim_end();
        if says(above) {
            return true;
        }
        let blank = code.trim().is_empty() && source.comments[above].is_empty();
        if blank || code.ends_with([';', '{', '}']) {
            return false;
        }
    }
    false
}

/// Only media may flush, fence or stream to memory.
fn flushes(source: &Source) -> Vec<Finding> {
    let names = [
        "_mm_clflush",
        "_mm_clwb",
        "_mm_sfence",
        "_mm_stream",
        "_mm256_stream",
        "_mm512_stream",
    ];
    let at = |text: &String| names.iter().any(|name| text.contains(name));
    let message = "only nacre-media may store to, flush or fence the medium";
    let lines = source.code.iter().enumerate().filter(|(_, text)| at(text));
    lines
        .map(|(line, _)| Finding::new(&source.path, line + 1, MEDIUM, message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;

    fn rules(name: &str, text: &str) -> Vec<&'static str> {
        let found = check(&planted::tree(name, "lib.rs", text));
        found.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn canary_unsafe_in_a_safe_crate() {
        let forbid = "#![forbid(unsafe_code)]\n";
        assert_eq!(
            rules("fs", &format!("{forbid}fn a() {{ unsafe {{ b() }} }}")),
            ["unsafe-policy"]
        );
        assert_eq!(rules("fs", "fn a() {}"), ["unsafe-policy"]);
        assert!(
            rules(
                "fs",
                &format!("{forbid}// unsafe\nfn a() {{ b(\"unsafe\") }}")
            )
            .is_empty()
        );
    }

    #[test]
    fn canary_missing_safety_comment() {
        assert_eq!(
            rules("media", "fn a() {\n    unsafe { b() }\n}"),
            ["safety-comment"]
        );
        assert_eq!(
            rules("media", "unsafe impl Send for A {}"),
            ["safety-comment"]
        );
        assert_eq!(rules("media", "pub unsafe fn a() {}"), ["safety-comment"]);
        assert_eq!(
            rules("media", "unsafe extern \"C\" fn a() {}"),
            ["safety-comment"]
        );
        assert_eq!(
            rules("media", "// SAFETY: x\nlet y = 1;\nunsafe { b() };"),
            ["safety-comment"]
        );
    }

    #[test]
    fn safety_comments_are_found() {
        assert!(rules("media", "// SAFETY: x\nlet y =\n    unsafe { b() };").is_empty());
        assert!(
            rules(
                "media",
                "/// # Safety\n/// x\n#[inline]\npub unsafe fn a() {}"
            )
            .is_empty()
        );
        let of_trait = "// SAFETY: x\nunsafe impl A for B {\n    unsafe fn a() {}\n}";
        assert!(rules("media", of_trait).is_empty());
        assert!(rules("media", "unsafe extern \"C\" {\n    fn a();\n}").is_empty());
        assert!(
            rules(
                "media",
                "#[unsafe(no_mangle)]\ntype F = unsafe extern \"C\" fn(i32);"
            )
            .is_empty()
        );
    }

    #[test]
    fn canary_flush_outside_media() {
        assert_eq!(rules("session", "fn a() { _mm_sfence() }"), ["one-medium"]);
        assert!(rules("media", "fn a() { _mm_sfence() }").is_empty());
    }
}
