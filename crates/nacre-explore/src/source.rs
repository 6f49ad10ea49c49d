//! Places in the source of the store, the volume and the mirror at which something is made durable
//! or compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Calls that flush, fence, compare or decide. What a wrapper does counts where the wrapper is
/// called.
const CALLS: [&str; 17] = [
    ".fence(",
    ".order(",
    "settle(",
    ".flush(",
    ".write(",
    ".write_user(",
    ".write_user_fresh(",
    ".overwrite_user(",
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
    for part in [
        "nacre-store/src",
        "nacre-volume/src",
        "nacre-media/src/mirror",
    ] {
        collect(&root.join("crates").join(part), &mut files);
    }
    files.retain(|file| !file.components().any(|part| part.as_os_str() == "tests"));
    let mut places = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = file
            .strip_prefix(&root)
            .unwrap_or(&file)
            .display()
            .to_string();
        places.extend(lines_of(&text).map(|number| format!("{name}:{number}")));
    }
    places
}

/// Numbers of the lines of a file at which something is done, wrappers aside.
fn lines_of(text: &str) -> impl Iterator<Item = usize> {
    let code = text
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"));
    // Where the body of a wrapper ends.
    let mut end: Option<String> = None;
    (1..).zip(code).filter_map(move |(number, line)| {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[") && trimmed.contains("track_caller") {
            let indent = &line[..line.len() - trimmed.len()];
            end = Some(format!("{indent}}}"));
        }
        if end.is_some() {
            end.take_if(|end| *end == line);
            return None;
        }
        let named = CALLS.iter().any(|call| line.contains(call));
        // Without anything to settle it is another function of that name.
        let counts = named
            && !line.contains("settle()")
            && !trimmed.starts_with("//")
            && !trimmed.contains("fn ");
        counts.then_some(number)
    })
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

#[cfg(test)]
mod tests {
    use super::lines_of;

    #[test]
    fn wrappers_and_comments_are_no_places() {
        let text = "fn a() {\n    v.fence(x);\n}\n#[track_caller]\nfn b() {\n    if x {\n    }\n    v.fence(x);\n}\n// v.fence(\nv.flush(1);\n";
        assert_eq!(lines_of(text).collect::<Vec<_>>(), [2, 11]);
    }
}
