//! The workspace, read into memory so that rules can be tested on planted trees.

use crate::source::Source;
use std::fs;
use std::io;
use std::path::Path;

/// One crate of the workspace.
pub struct Crate {
    /// Folder from the workspace root, e.g. `crates/nacre-media`.
    pub folder: String,
    pub manifest: String,
    pub readme: Option<String>,
    pub sources: Vec<Source>,
}

/// A text file that is not Rust: scripts, Makefile.
pub struct Script {
    pub path: String,
    pub text: String,
}

/// Everything the rules look at.
#[derive(Default)]
pub struct Tree {
    pub crates: Vec<Crate>,
    pub scripts: Vec<Script>,
    pub budget: String,
    /// How many modules of which folder still import each other in circles.
    pub circles: String,
    /// Recorded instructions of each call.
    pub instructions: String,
    /// Paths of all files of the project, but for what is built and what is hidden.
    pub files: Vec<String>,
    /// Markdown: at the top, in docs and beside each crate.
    pub documents: Vec<Script>,
}

impl Crate {
    /// The crate's name without the `nacre-` prefix.
    pub fn short_name(&self) -> &str {
        let name = self.folder.rsplit('/').next().unwrap_or(&self.folder);
        name.strip_prefix("nacre-").unwrap_or(name)
    }
}

impl Tree {
    /// All Rust sources with the short name of their crate.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.crates.iter().flat_map(pairs)
    }

    /// Reads `crates/*`, `xtask`, `tests` and the build scripts below a workspace root.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut folders: Vec<String> = names(&root.join("crates"))?
            .into_iter()
            .map(|name| format!("crates/{name}"))
            .collect();
        folders.push("xtask".to_string());
        let mut tree = Tree {
            budget: optional(&root.join("xtask/budget.txt"))?.unwrap_or_default(),
            circles: optional(&root.join("xtask/circles.txt"))?.unwrap_or_default(),
            instructions: optional(&root.join("docs/icount.tsv"))?.unwrap_or_default(),
            ..Tree::default()
        };
        for folder in folders {
            if root.join(&folder).join("Cargo.toml").is_file() {
                tree.crates.push(read_crate(root, folder)?);
            }
        }
        for start in ["Makefile", ".ci", "tests"] {
            read_scripts(root, start, &mut tree.scripts)?;
        }
        read_documents(root, &mut tree)?;
        for name in names(root)? {
            if name != "target" && !name.starts_with('.') {
                walk(root, &name, &mut tree.files)?;
            }
        }
        Ok(tree)
    }
}

fn pairs(of: &Crate) -> impl Iterator<Item = (&str, &Source)> {
    of.sources.iter().map(|source| (of.short_name(), source))
}

fn read_crate(root: &Path, folder: String) -> io::Result<Crate> {
    let mut paths = Vec::new();
    for part in ["src", "tests", "benches", "examples"] {
        walk(root, &format!("{folder}/{part}"), &mut paths)?;
    }
    let rust = paths.iter().filter(|path| path.ends_with(".rs"));
    let sources = rust
        .map(|path| Ok(Source::new(path, &fs::read_to_string(root.join(path))?)))
        .collect::<io::Result<_>>()?;
    Ok(Crate {
        manifest: fs::read_to_string(root.join(&folder).join("Cargo.toml"))?,
        readme: optional(&root.join(&folder).join("README.md"))?,
        sources,
        folder,
    })
}

fn read_scripts(root: &Path, start: &str, scripts: &mut Vec<Script>) -> io::Result<()> {
    let mut paths = Vec::new();
    walk(root, start, &mut paths)?;
    for path in paths {
        if let Ok(text) = String::from_utf8(fs::read(root.join(&path))?) {
            scripts.push(Script { path, text });
        }
    }
    Ok(())
}

fn read_documents(root: &Path, tree: &mut Tree) -> io::Result<()> {
    let top = names(root)?;
    let folders = tree
        .crates
        .iter()
        .map(|of| format!("{}/README.md", of.folder));
    let mut paths: Vec<String> = top.into_iter().chain(folders).collect();
    walk(root, "docs", &mut paths)?;
    paths.retain(|path| path.ends_with(".md") && root.join(path).is_file());
    for path in paths {
        let text = fs::read_to_string(root.join(&path))?;
        tree.documents.push(Script { path, text });
    }
    Ok(())
}

/// Adds all files at or below `start`, in order.
fn walk(root: &Path, start: &str, found: &mut Vec<String>) -> io::Result<()> {
    let here = root.join(start);
    if here.is_file() {
        found.push(start.to_string());
    } else if here.is_dir() {
        for name in names(&here)? {
            walk(root, &format!("{start}/{name}"), found)?;
        }
    }
    Ok(())
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn optional(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
