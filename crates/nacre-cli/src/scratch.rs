//! Folders that go away with the benchmark.

use crate::failure::{Failure, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::path::{Path, PathBuf};

/// A new folder, removed with all that is in it when this is dropped.
pub struct Scratch {
    path: PathBuf,
    is_mounted: bool,
}

impl Scratch {
    pub fn in_folder(folder: &Path) -> Result<Scratch> {
        Self::named(folder, &format!("nacre-bench-{}", std::process::id()))
    }

    pub fn named(folder: &Path, name: &str) -> Result<Scratch> {
        let path = folder.join(name);
        fs::create_dir(&path).map_err(|error| Failure::io(path.display(), error))?;
        Ok(Scratch {
            path,
            is_mounted: false,
        })
    }

    /// A tmpfs of large pages over the empty `path`, such as the README advises for pools in
    /// memory; only this process and its children see it. Fails where mounting is not allowed, and
    /// where the kernel has no large pages.
    pub fn of_large_pages(path: PathBuf) -> nix::Result<Scratch> {
        const NOTHING: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(NOTHING, "/", NOTHING, private, NOTHING)?;
        let (kind, large) = (Some("tmpfs"), Some("huge=always"));
        mount(kind, &path, kind, MsFlags::empty(), large)?;
        Ok(Scratch {
            path,
            is_mounted: true,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new folder inside.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(|error| Failure::io(path.display(), error))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = &self.path;
        let done = match self.is_mounted {
            true => umount2(path, MntFlags::MNT_DETACH).map_err(Into::into),
            false => fs::remove_dir_all(path),
        };
        if let Err(error) = done {
            eprintln!("nacre: {}: cannot be removed: {error}", path.display());
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
