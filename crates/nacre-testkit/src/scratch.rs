//! Folders of tests, which go with who holds them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use tempfile::TempDir;

const PREFIX: &str = "nacre-tests-";
/// Whoever has just made a folder may not hold it yet.
const YOUNG: Duration = Duration::from_secs(60);

/// A folder that goes when this does. If the process is killed, it goes when the next one is made
/// beside it, from a minute on.
pub struct Scratch {
    folder: TempDir,
    _held: File,
}

impl Scratch {
    /// Makes one below `base`.
    pub fn below(base: &Path) -> io::Result<Self> {
        sweep(base, YOUNG)?;
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
        let held = File::open(folder.path())?;
        flock(&held, FlockOperation::NonBlockingLockShared)?;
        Ok(Self {
            folder,
            _held: held,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders that nobody holds, of this age at least.
fn sweep(base: &Path, age: Duration) -> io::Result<()> {
    for entry in fs::read_dir(base)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            // What is another user's stays, and what is going just now goes.
            let _stays = remove_if_left(&entry.path(), age);
        }
    }
    Ok(())
}

/// Anybody may make such a name where all may make names: what was opened is asked.
fn remove_if_left(folder: &Path, age: Duration) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let left = File::from(open(folder, flags, Mode::empty())?);
    let found = left.metadata()?;
    let is_old = found.modified()?.elapsed().is_ok_and(|since| since >= age);
    if is_old && found.uid() == geteuid().as_raw() {
        flock(&left, FlockOperation::NonBlockingLockExclusive)?;
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::mem::forget;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::{PREFIX, Scratch, YOUNG, sweep};

    #[test]
    fn what_nobody_holds_goes_unless_it_is_new() {
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        let held = Scratch::below(base.path()).unwrap();
        let Scratch {
            folder,
            _held: gone,
        } = Scratch::below(base.path()).unwrap();
        let left = folder.path().to_owned();
        forget(folder);
        drop(gone);
        fs::create_dir(base.path().join("other")).unwrap();
        // Whoever opened it would wait for a writer.
        let pipe = base.path().join(format!("{PREFIX}pipe"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let link = base.path().join(format!("{PREFIX}link"));
        symlink("other", &link).unwrap();
        fs::write(left.join("file"), "").unwrap();
        sweep(base.path(), YOUNG).unwrap();
        assert!(left.exists(), "it is new");
        sweep(base.path(), Duration::ZERO).unwrap();
        assert!(!left.exists() && held.path().exists());
        assert!(base.path().join("other").exists() && pipe.exists() && link.is_symlink());
    }
}
