//! Files of a folder do not import each other in circles. What is left of them stands in
//! circles.txt.

use super::Finding;
use crate::source::Source;
use crate::tree::{Crate, Tree};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "circles";
const LIST: &str = "xtask/circles.txt";

/// For each folder its modules, and for each of these the modules of the same folder that it
/// imports.
type Folders = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut allowed = match parse(&tree.circles) {
        Ok(allowed) => allowed,
        Err(finding) => return vec![finding],
    };
    let mut found = Vec::new();
    for (folder, modules) in tree.crates.iter().flat_map(folders) {
        let circle = in_circles(&modules);
        let limit = allowed.remove(&folder).unwrap_or(0);
        if circle.len() != limit {
            found.push(Finding::new(&folder, 0, RULE, told(&circle, limit)));
        }
    }
    let gone = |(folder, _): (String, usize)| {
        Finding::new(
            LIST,
            0,
            RULE,
            format!("{folder} is no folder: remove the line"),
        )
    };
    found.extend(allowed.into_iter().map(gone));
    found
}

fn told(circle: &[String], limit: usize) -> String {
    let names = circle.join(", ");
    match circle.len() > limit {
        true => format!(
            "{} modules import each other in circles, {limit} were: {names}",
            circle.len()
        ),
        false => format!(
            "{} modules are in circles now: write {0} into {LIST}",
            circle.len()
        ),
    }
}

fn parse(list: &str) -> Result<BTreeMap<String, usize>, Finding> {
    let lines = list.lines().enumerate();
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|(index, line)| {
            let entry = line.rsplit_once(' ');
            let entry =
                entry.and_then(|(folder, count)| Some((folder.to_string(), count.parse().ok()?)));
            entry.ok_or_else(|| Finding::new(LIST, index + 1, RULE, "expected `FOLDER MODULES`"))
        })
        .collect()
}

/// The path of modules that a source file is, from the crate's root; `None` outside `src`.
fn module(of: &Crate, source: &Source) -> Option<Vec<String>> {
    let path = source
        .path
        .strip_prefix(&of.folder)?
        .strip_prefix("/src/")?;
    let path = path.strip_suffix(".rs")?;
    let mut parts: Vec<String> = path.split('/').map(str::to_string).collect();
    let is_root =
        parts.last().is_some_and(|part| part == "mod") || parts == ["lib"] || parts == ["main"];
    if is_root {
        parts.pop();
    }
    Some(parts)
}

fn folders(of: &Crate) -> Folders {
    let sources: Vec<_> = of
        .sources
        .iter()
        .filter_map(|source| Some((module(of, source)?, source)))
        .collect();
    let known: BTreeSet<&[String]> = sources.iter().map(|(path, _)| &path[..]).collect();
    let mut folders = Folders::new();
    for (path, source) in &sources {
        for depth in 0..path.len() {
            let folder = folder_name(of, &path[..depth]);
            folders
                .entry(folder)
                .or_default()
                .entry(path[depth].clone())
                .or_default();
        }
        for import in imports(path, source) {
            add_import(of, &mut folders, &known, path, &import);
        }
    }
    folders
}

fn folder_name(of: &Crate, parts: &[String]) -> String {
    [&[format!("{}/src", of.folder)], parts].concat().join("/")
}

/// An import is an edge between the two modules where its path and the importer's part.
fn add_import(
    of: &Crate,
    folders: &mut Folders,
    known: &BTreeSet<&[String]>,
    from: &[String],
    to: &[String],
) {
    let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let (Some(here), Some(there)) = (from.get(shared), to.get(shared)) else {
        return;
    };
    let is_module = known.iter().any(|path| path.starts_with(&to[..=shared]));
    if is_module {
        let folder = folders.entry(folder_name(of, &from[..shared])).or_default();
        folder
            .entry(here.clone())
            .or_default()
            .insert(there.clone());
    }
}

/// Paths from the crate's root that production code names by `crate::` or `super::`.
fn imports(path: &[String], source: &Source) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (word, base) in [
        ("crate", &path[..0]),
        ("super", &path[..path.len().saturating_sub(1)]),
    ] {
        for (line, column) in source.words(word).filter(|&(line, _)| !source.test[line]) {
            let text = source.code_from(line, column + word.len());
            if let Some(rest) = text.strip_prefix("::") {
                named(rest, base.to_vec(), &mut found);
            }
        }
    }
    found
}

/// Adds the paths of a `use` tree (or of one path) that begins at `text`; returns what follows.
fn named<'t>(text: &'t str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = named(rest, path.clone(), found).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                Some(next) => return next.trim_start().strip_prefix('}').unwrap_or(""),
                None => return rest.strip_prefix('}').unwrap_or(""),
            }
        }
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    path.push(text[..end].to_string());
    match text[end..].strip_prefix("::") {
        Some(rest) => named(rest, path, found),
        None => {
            found.push(path);
            let rest = text[end..].trim_start();
            let renamed = rest.strip_prefix("as ").unwrap_or(rest);
            renamed.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
        }
    }
}

/// The modules that reach themselves, in order of their names.
fn in_circles(modules: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reaches_itself = |name: &&String| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&String> = modules[*name].iter().filter(|next| next != name).collect();
        while let Some(next) = open.pop() {
            if next == *name {
                return true;
            }
            if seen.insert(next) {
                open.extend(modules.get(next).into_iter().flatten());
            }
        }
        false
    };
    modules.keys().filter(reaches_itself).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::Source;
    use crate::tree::{Crate, Tree};

    fn tree(files: &[(&str, &str)], circles: &str) -> Tree {
        let source =
            |(file, text): &(&str, &str)| Source::new(&format!("crates/nacre-fs/src/{file}"), text);
        Tree {
            crates: vec![Crate {
                folder: "crates/nacre-fs".to_string(),
                manifest: String::new(),
                readme: None,
                sources: files.iter().map(source).collect(),
            }],
            circles: circles.to_string(),
            ..Tree::default()
        }
    }

    const CIRCLE: [(&str, &str); 3] = [
        ("a.rs", "use crate::{b::{B, C}, other as o};"),
        ("b.rs", "fn f() { crate::c::f(); }"),
        ("c.rs", "use super::a::A;"),
    ];

    #[test]
    fn canary_circles() {
        assert_eq!(check(&tree(&CIRCLE, "")).len(), 1);
        assert!(check(&tree(&CIRCLE, "crates/nacre-fs/src 3\n")).is_empty());
        assert_eq!(check(&tree(&CIRCLE, "crates/nacre-fs/src 4\n")).len(), 1);
        assert_eq!(check(&tree(&CIRCLE[..2], "")).len(), 0);
        assert_eq!(
            check(&tree(&CIRCLE[..2], "crates/nacre-fs/attic 2\n")).len(),
            1
        );
    }

    #[test]
    fn circles_inside_of_a_folder_are_counted_there() {
        let files = [
            ("data/mod.rs", "mod a;"),
            ("data/a.rs", "use super::b::B;"),
            ("data/b.rs", "use crate::data::a::A;"),
            ("top.rs", "use crate::data::a::A;"),
        ];
        assert!(check(&tree(&files, "crates/nacre-fs/src/data 2\n")).is_empty());
        assert_eq!(check(&tree(&files, "crates/nacre-fs/src 1\n")).len(), 2);
    }

    #[test]
    fn tests_may_import_what_they_like() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            (
                "b.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
        ];
        assert!(check(&tree(&files, "")).is_empty());
    }
}
