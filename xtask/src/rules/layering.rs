//! A crate may use only what stands below it.

use super::Finding;
use crate::tree::{Crate, Tree};

const RULE: &str = "layering";

/// What each crate may use of the workspace. Front ends stand side by side and never use each
/// other, except that the program `nacre` is how `fuse` is started.
const ALLOWED: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("runtime", &["types"]),
    ("media", &["types", "runtime"]),
    ("emulator", &["types", "media", "runtime"]),
    ("cache", &["types"]),
    ("volume", &["types", "media", "runtime", "cache"]),
    ("session", &["types", "media", "runtime"]),
    (
        "store",
        &["types", "media", "runtime", "emulator", "volume", "session"],
    ),
    ("fs", &["types", "media", "volume", "session", "store"]),
    ("objects", &["types", "emulator", "volume", "store"]),
    ("nacre", &["objects"]),
    (
        "vfs",
        &["types", "media", "volume", "session", "store", "fs"],
    ),
    ("explore", &["types", "volume", "store", "fs", "objects"]),
    ("preload", FRONT_END),
    ("fuse", &["types", "session", "fs"]),
    ("pmem", &["types", "media", "runtime", "emulator"]),
    ("capi", &["types", "media", "volume", "store", "objects"]),
    ("calls", &[]),
    (LINK, &[]),
    ("cli", CLI),
    (
        "hostile",
        &["types", "volume", "store", "fs", "objects", "explore"],
    ),
    ("testdisk", &[]),
    (TESTKIT, &["types", "runtime", "volume", "store"]),
    ("xtask", &["testdisk"]),
];

/// Any crate may use it for its tests, these for all they do.
const TESTKIT: &str = "testkit";
const TEST_PROGRAMS: &[&str] = &["explore", "hostile"];

/// What build scripts share; nothing else may use it.
const LINK: &str = "link";

const FRONT_END: &[&str] = &[
    "types", "media", "runtime", "volume", "session", "store", "fs", "vfs", LINK,
];
const CLI: &[&str] = &[
    "types", "media", "runtime", "emulator", "volume", "session", "store", "fs", "objects",
    "calls", "fuse", LINK,
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.crates.iter().flat_map(check_crate).collect()
}

/// Rows of the table that no crate needs, or that are there twice, and what a row allows in vain.
pub fn dead_entries(tree: &Tree) -> Vec<Finding> {
    let told = |message| Finding::new("xtask/src/rules/layering.rs", 0, RULE, message);
    let mut found = Vec::new();
    for (at, (name, allowed)) in ALLOWED.iter().enumerate() {
        let of = tree.crates.iter().find(|of| of.short_name() == *name);
        let is_twice = ALLOWED[..at].iter().any(|(other, _)| other == name);
        let (Some(of), false) = (of, is_twice) else {
            found.push(told(format!(
                "the table of layers has a row for {name} that nobody needs"
            )));
            continue;
        };
        let used = dependencies(&of.manifest);
        let is_used = |below: &&&str| {
            let package = format!("nacre-{below}");
            used.iter().any(|(_, name, _)| *name == package)
        };
        let dead = allowed.iter().filter(|below| !is_used(below));
        found.extend(dead.map(|below| told(format!("{name} does not use {below}: no entry"))));
    }
    found
}

fn check_crate(of: &Crate) -> Vec<Finding> {
    let path = format!("{}/Cargo.toml", of.folder);
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == of.short_name()) else {
        let message = "crate has no place in the table of layers (xtask/src/rules/layering.rs)";
        return vec![Finding::new(&path, 0, RULE, message)];
    };
    dependencies(&of.manifest)
        .into_iter()
        .filter_map(|(line, name, for_tests)| {
            let used = name.strip_prefix("nacre-")?;
            let for_tests = for_tests || TEST_PROGRAMS.contains(&of.short_name());
            let fine = allowed.contains(&used) || used == TESTKIT && for_tests;
            (!fine && used != of.short_name()).then(|| {
                let message = format!(
                    "{} may not use {name}, which does not stand below it",
                    of.short_name()
                );
                Finding::new(&path, line, RULE, message)
            })
        })
        .collect()
}

/// Names in all dependency tables of a manifest (normal, dev, build, per target), with lines, and
/// whether they are for tests alone.
fn dependencies(manifest: &str) -> Vec<(usize, String, bool)> {
    let mut found = Vec::new();
    let (mut in_table, mut for_tests) = (false, false);
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            in_table = table.ends_with("dependencies");
            for_tests = table.contains("dev-dependencies");
            if let Some((_, name)) = table.rsplit_once("dependencies.") {
                found.push((index + 1, name.trim_matches('"').to_string(), for_tests));
            }
        } else if in_table && let Some((key, value)) = line.split_once('=') {
            found.push((index + 1, real_name(key, value), for_tests));
        }
    }
    found
}

/// The package behind a dependency line, which `package = "..."` may rename.
fn real_name(key: &str, value: &str) -> String {
    let renamed = value
        .split_once("package")
        .and_then(|(_, rest)| rest.split('"').nth(1));
    let key = key.trim().split('.').next().unwrap_or("");
    renamed.unwrap_or(key.trim_matches('"')).to_string()
}

#[cfg(test)]
mod tests {
    use super::{ALLOWED, check, dead_entries};
    use crate::rules::planted;

    fn findings(name: &str, manifest: &str) -> usize {
        let mut tree = planted::tree(name, "lib.rs", "");
        tree.crates[0].manifest = manifest.to_string();
        check(&tree).len()
    }

    #[test]
    fn canary_upward_dependency() {
        assert_eq!(
            findings("media", "[dependencies]\nnacre-store.workspace = true\n"),
            1
        );
        assert_eq!(
            findings("store", "[dependencies.nacre-fs]\npath = \"../nacre-fs\"\n"),
            1
        );
        assert_eq!(
            findings(
                "volume",
                "[target.'cfg(unix)'.dependencies]\nnacre-vfs = { path = \"x\" }\n"
            ),
            1
        );
        assert_eq!(
            findings(
                "types",
                "[dev-dependencies]\nm = { package = \"nacre-media\", path = \"x\" }\n"
            ),
            1
        );
        assert_eq!(
            findings("store", "[dependencies]\nnacre-media.workspace = true\n"),
            0
        );
    }

    #[test]
    fn canary_front_end_uses_front_end() {
        assert_eq!(
            findings("cli", "[dependencies]\nnacre-preload.workspace = true\n"),
            1
        );
        assert_eq!(
            findings(
                "cli",
                "[dependencies]\nnacre-fs.workspace = true\nclap.workspace = true\n"
            ),
            0
        );
    }

    #[test]
    fn canary_test_kit_in_what_is_installed() {
        let kit = |table: &str| format!("[{table}]\nnacre-testkit.workspace = true\n");
        assert_eq!(findings("store", &kit("dependencies")), 1);
        assert_eq!(findings("store", &kit("dev-dependencies")), 0);
        assert_eq!(findings("explore", &kit("dependencies")), 0);
    }

    #[test]
    fn canary_dead_entry() {
        let mut tree = planted::tree("runtime", "lib.rs", "");
        let rows_of_it = ALLOWED
            .iter()
            .filter(|(name, _)| *name == "runtime")
            .count();
        assert_eq!(rows_of_it, 1);
        assert_eq!(dead_entries(&tree).len(), ALLOWED.len());
        tree.crates[0].manifest = "[dependencies]\nnacre-types.workspace = true\n".to_string();
        assert_eq!(dead_entries(&tree).len(), ALLOWED.len() - 1);
    }

    #[test]
    fn canary_unknown_crate() {
        assert_eq!(findings("attic", ""), 1);
    }
}
