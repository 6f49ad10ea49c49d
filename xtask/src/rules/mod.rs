//! The rules. Each takes the whole tree and returns what it found.

mod budget;
mod circles;
mod cited;
mod fences;
mod layering;
mod layout;
mod names;
mod prose;
mod reach;
mod readme;
mod unsafety;
mod words;

use crate::tree::Tree;
use std::fmt;

/// One violation.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// 1-based; 0 means the file as a whole.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: [{}] {}",
            self.path, self.line, self.rule, self.message
        )
    }
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            path: path.to_string(),
            line,
            rule,
            message: message.into(),
        }
    }
}

/// Runs every rule.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rules = [
        layering::check,
        layering::dead_entries,
        unsafety::check,
        budget::check,
        circles::check,
        cited::check,
        fences::check,
        prose::check,
        reach::check,
        words::check,
        names::check,
        layout::check,
        readme::check,
    ];
    rules.iter().flat_map(|rule| rule(tree)).collect()
}

#[cfg(test)]
pub mod planted {
    use crate::source::Source;
    use crate::tree::{Crate, Script, Tree};

    /// A tree of one crate with one source file.
    pub fn tree(name: &str, file: &str, text: &str) -> Tree {
        let folder = format!("crates/nacre-{name}");
        let source = Source::new(&format!("{folder}/src/{file}"), text);
        Tree {
            crates: vec![Crate {
                manifest: String::new(),
                readme: Some(
                    "# A layer
"
                    .to_string(),
                ),
                sources: vec![source],
                folder,
            }],
            ..Tree::default()
        }
    }

    /// A tree of one script.
    pub fn script(path: &str, text: &str) -> Tree {
        Tree {
            scripts: vec![Script {
                path: path.to_string(),
                text: text.to_string(),
            }],
            ..Tree::default()
        }
    }
}
