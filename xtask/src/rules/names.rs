//! Names must say what is inside.

use super::Finding;
use crate::source::{Source, identifier};
use crate::tree::Tree;

const RULE: &str = "name";
const EMPTY: &[&str] = &["util", "utils", "helper", "helpers", "common", "misc"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for of in &tree.crates {
        if EMPTY.contains(&of.short_name()) {
            found.push(finding(&of.folder, 0, of.short_name()));
        }
        for source in &of.sources {
            found.extend(file_name(&of.folder, source));
            found.extend(modules(source));
        }
    }
    for script in &tree.scripts {
        let name = script.path.rsplit('/').next().unwrap_or("");
        let stem = name.split('.').next().unwrap_or("");
        found.extend(
            EMPTY
                .contains(&stem)
                .then(|| finding(&script.path, 0, stem)),
        );
    }
    found
}

fn finding(path: &str, line: usize, name: &str) -> Finding {
    Finding::new(
        path,
        line,
        RULE,
        format!("`{name}` says nothing: name what it is for"),
    )
}

fn file_name(folder: &str, source: &Source) -> Option<Finding> {
    let inside = source.path.strip_prefix(folder).unwrap_or(&source.path);
    let empty = inside
        .split('/')
        .find(|part| EMPTY.contains(&part.trim_end_matches(".rs")))?;
    Some(finding(&source.path, 0, empty))
}

fn modules(source: &Source) -> Vec<Finding> {
    source
        .words("mod")
        .filter_map(|(line, column)| {
            let name = identifier(source.code[line][column + 3..].trim_start())?;
            EMPTY
                .contains(&name)
                .then(|| finding(&source.path, line + 1, name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;

    #[test]
    fn canary_empty_names() {
        assert_eq!(check(&planted::tree("fs", "utils.rs", "")).len(), 1);
        assert_eq!(check(&planted::tree("fs", "helpers/a.rs", "")).len(), 1);
        assert_eq!(
            check(&planted::tree("fs", "a.rs", "mod common {}")).len(),
            1
        );
        assert_eq!(check(&planted::tree("common", "lib.rs", "")).len(), 1);
        assert_eq!(check(&planted::script("tests/misc.sh", "")).len(), 1);
        assert!(check(&planted::tree("fs", "commonly.rs", "mod rename;")).is_empty());
    }
}
