//! Project automation: `tidy` checks the laws of ARCHITECTURE.md that a program can check.
#![forbid(unsafe_code)]

mod rules;
mod source;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- tidy [ROOT]\n\
    \n\
    tidy   check layering, unsafe policy, budgets, names and banned words\n\
    ROOT   the workspace to check; default: the one this program was built from\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("tidy") => tidy(arguments.get(1)),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tidy(root: Option<&String>) -> ExitCode {
    let root = root.map_or_else(workspace_root, PathBuf::from);
    let tree = match tree::Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let findings = rules::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    println!(
        "tidy: {} crates, {} files, {} findings",
        tree.crates.len(),
        tree.sources().count(),
        findings.len()
    );
    ExitCode::from(u8::from(!findings.is_empty()))
}

fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
