//! Project automation: `tidy` checks the laws of ARCHITECTURE.md that a program can check,
//! `explore` runs the crash explorer, `torture` and `powercut` kill processes and machines,
//! `hostile` damages pools, `icount` counts instructions.
#![forbid(unsafe_code)]

mod disk_faults;
mod disk_torture;
mod generated;
mod icount;
mod powercut;
mod rules;
mod source;
mod torture;
mod tree;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy [ROOT]\n       cargo xtask tables\n       cargo xtask explore [OPTIONS]\n\
    \x20      cargo xtask hostile [OPTIONS]\n\
    \x20      cargo xtask torture [OPTIONS]\n\
    \x20      cargo xtask powercut [OPTIONS]\n\
    \x20      cargo xtask icount [OPTIONS]\n\
    \n\
    tidy      check layering, unsafe policy, budgets, names and banned words\n\
    ROOT      the workspace to check; default: the one this program runs in\n\
    tables    write the tables of documents that are made from the sources\n\
    explore   build the crash explorer for speed and run it; --help tells its options\n\
    hostile   build the damager of pools for speed and run it; --help tells its options\n\
    torture   kill processes at random, or at each of their steps (--steps)\n\
    powercut  cut the power of a virtual machine in the middle of work\n\
    icount    count the instructions of calls in a virtual machine; --help tells its options\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("tidy") => tidy(arguments.get(1)),
        Some("tables") => done("tables", generated::write(&workspace_root())),
        Some("explore") => run("nacre-explore", &["--features", "explore"], &arguments[1..]),
        Some("hostile") => run("nacre-hostile", &[], &arguments[1..]),
        Some("powercut") => done("powercut", powercut::command(&arguments[1..])),
        Some("torture") => done("torture", torture(&arguments[1..])),
        Some("icount") => icount::run(&workspace_root(), &arguments[1..]),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn torture(options: &[String]) -> Result<(), String> {
    torture::adopt_orphans()?;
    match options.split_first() {
        Some((first, rest)) if first == "--disk" => disk_torture::command(rest),
        Some((first, [])) if first == "--disk-faults" => disk_faults::command(),
        _ => torture::command(options),
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

/// Where cargo puts what it builds.
fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Builds a test program for speed and runs it.
fn run(program: &str, features: &[&str], options: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(workspace_root())
        .args(["run", "--quiet", "--release", "-p", program])
        .args(features)
        .arg("--")
        .args(options)
        .status();
    match status {
        Ok(status) => ExitCode::from(status.code().map_or(2, |code| code as u8)),
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(2)
        }
    }
}

fn done(name: &str, outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{name}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace that cargo runs us for: a `target` that was copied to another one may still hold a
/// program that was built here.
fn workspace_root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    here.parent().unwrap_or(&here).to_path_buf()
}
