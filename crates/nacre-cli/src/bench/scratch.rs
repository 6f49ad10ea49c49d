//! Folders that go away with the benchmark.

use crate::failure::{Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A new folder, removed with all that is in it when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn in_folder(folder: &Path) -> Result<Scratch> {
        let path = folder.join(format!("nacre-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Failure::io(path.display(), error))?;
        Ok(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A new folder inside.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path).map_err(|error| Failure::io(path.display(), error))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("nacre: {}: cannot be removed: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Scratch;

    #[test]
    fn nothing_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let scratch = Scratch::in_folder(folder.path()).expect("made");
        let inside = scratch.folder("inside").expect("made");
        std::fs::write(inside.join("file"), "x").expect("written");
        drop(scratch);
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}
