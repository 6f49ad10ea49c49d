//! Commands, each in a folder that also holds the sessions of its pools.

use std::path::Path;
use std::process::{Command, Output};

pub fn nacre(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nacre"))
        .args(arguments)
        .current_dir(folder)
        .env("NACRE_SESSION_DIR", folder)
        .output()
        .unwrap()
}

/// What a command said, on both ways.
pub fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
