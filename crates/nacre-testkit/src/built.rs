//! What cargo built beside a test.

use std::path::PathBuf;

/// A shared object of the crate that is tested, as its own tests are linked with it.
pub fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let beside = test.with_file_name(name);
    if beside.exists() {
        return beside;
    }
    let folder = test.parent().expect("a folder of tests");
    folder.with_file_name(name)
}
