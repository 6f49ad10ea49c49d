//! Places in the source of the store and the volume at which something is made durable or compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Calls that flush, fence, compare or decide. What a wrapper does counts where the wrapper is called.
const CALLS: [&str; 14] = [
    ".fence(",
    "settle(",
    ".flush(",
    ".write(",
    ".write_user(",
    ".zero(",
    ".store_u64(",
    ".store_word(",
    ".set_run(",
    ".link(",
    ".retire(",
    ".write_next(",
    "site::check(",
    "site::step(",
];

/// All of them, as `file:line` from the workspace's root.
pub fn places() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for krate in ["nacre-store", "nacre-volume"] {
        collect(&root.join("crates").join(krate).join("src"), &mut files);
    }
    let mut places = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = file
            .strip_prefix(&root)
            .unwrap_or(&file)
            .display()
            .to_string();
        let code = text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"));
        for (number, line) in (1..).zip(code) {
            let trimmed = line.trim_start();
            let named = CALLS.iter().any(|call| line.contains(call));
            if named && !trimmed.starts_with("//") && !trimmed.contains("fn ") {
                places.insert(format!("{name}:{number}"));
            }
        }
    }
    places
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
