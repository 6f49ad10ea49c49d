//! The library that shows pools to programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const NACRE: &str = env!("CARGO_BIN_EXE_nacre");

/// The library of the build that is tested; tests of a program do not build it by themselves.
/// Its own tests share its path and need it with their features: so this one has them too.
pub fn preload() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let folder = Path::new(NACRE).parent().expect("a folder");
    let mut build = Command::new(env!("CARGO"));
    build.args(["test", "--no-run", "--quiet", "-p", "nacre-preload"]);
    build.args(["--test", "programs", "--target-dir"]);
    build.arg(folder.parent().expect("a build folder"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    folder.join("deps/libnacre_preload.so")
}
