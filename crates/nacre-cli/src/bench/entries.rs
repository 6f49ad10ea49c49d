//! Making, finding, renaming and removing files and folders.

use super::measure::Work;
use super::row::Action;
use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};

/// Names in a folder while it is worked on.
const NAMES: usize = 256;

/// What a kind of operation does with the names of one folder.
pub struct Entries {
    action: Action,
    names: Vec<PathBuf>,
    other: PathBuf,
    contents: Vec<u8>,
}

impl Entries {
    /// In `folder`, which is made; names of different callers differ.
    pub fn new(action: Action, folder: &Path, caller: usize, size: usize) -> io::Result<Entries> {
        fs::create_dir_all(folder)?;
        let name = |index| folder.join(format!("entry-{caller}-{index}"));
        let entries = Entries {
            action,
            names: (0..NAMES).map(name).collect(),
            other: folder.join(format!("missing-{caller}")),
            contents: super::files::contents(size),
        };
        if entries.only_looks() {
            entries.make_files()?;
        }
        Ok(entries)
    }

    /// Whether files stay as they are.
    fn only_looks(&self) -> bool {
        matches!(
            self.action,
            Action::OpenClose | Action::Stat | Action::StatMissing
        )
    }

    fn make_files(&self) -> io::Result<()> {
        self.names
            .iter()
            .try_for_each(|name| fs::write(name, &self.contents))
    }

    fn each<T>(
        &self,
        from: usize,
        to: usize,
        act: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<()> {
        self.names[from..to]
            .iter()
            .try_for_each(|name| act(name).map(|_| ()))
    }
}

impl Work for Entries {
    fn chunk(&self) -> usize {
        if self.only_looks() { usize::MAX } else { NAMES }
    }

    fn prepare(&mut self) -> io::Result<()> {
        match self.action {
            Action::UnlinkEmpty | Action::UnlinkFull | Action::Rename => self.make_files(),
            Action::Rmdir => self.each(0, NAMES, |name| fs::create_dir(name)),
            _ => Ok(()),
        }
    }

    fn step(&mut self, index: usize) -> io::Result<()> {
        let name = &self.names[index % NAMES];
        match self.action {
            Action::OpenClose => File::open(name).map(drop),
            Action::Stat => fs::metadata(name).map(|meta| {
                black_box(meta);
            }),
            Action::StatMissing => match self.other.try_exists()? {
                false => Ok(()),
                true => Err(io::ErrorKind::AlreadyExists.into()),
            },
            Action::CreateClose => File::create_new(name).map(drop),
            // There and back, so that the names end as they began.
            Action::Rename if index.is_multiple_of(2) => fs::rename(name, &self.other),
            Action::Rename => fs::rename(&self.other, &self.names[index - 1]),
            Action::Mkdir => fs::create_dir(name),
            Action::Rmdir => fs::remove_dir(name),
            _ => fs::remove_file(name),
        }
    }

    fn clean(&mut self, done: usize) -> io::Result<()> {
        match self.action {
            Action::CreateClose => self.each(0, done, |name| fs::remove_file(name)),
            Action::Mkdir => self.each(0, done, |name| fs::remove_dir(name)),
            Action::Rmdir => self.each(done, NAMES, |name| fs::remove_dir(name)),
            Action::Rename => {
                if done % 2 == 1 {
                    fs::rename(&self.other, &self.names[done - 1])?;
                }
                self.each(0, NAMES, |name| fs::remove_file(name))
            }
            Action::UnlinkEmpty | Action::UnlinkFull => {
                self.each(done, NAMES, |name| fs::remove_file(name))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a large folder to its end; the time is divided by its entries.
pub struct Readdir {
    folder: PathBuf,
    entries: usize,
}

impl Readdir {
    /// Makes the folder if it is not there.
    pub fn new(folder: &Path, entries: usize) -> io::Result<Readdir> {
        if fs::create_dir(folder).is_ok() {
            (0..entries).try_for_each(|index| {
                File::create_new(folder.join(format!("entry-{index:06}"))).map(drop)
            })?;
        }
        Ok(Readdir {
            folder: folder.to_path_buf(),
            entries,
        })
    }
}

impl Work for Readdir {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let mut seen = 0;
        for entry in fs::read_dir(&self.folder)? {
            black_box(entry?);
            seen += 1;
        }
        if seen == self.entries {
            return Ok(());
        }
        let text = format!("{seen} entries read of {}", self.entries);
        Err(io::Error::other(text))
    }

    fn parts(&self) -> f64 {
        self.entries as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Entries, NAMES, Readdir};
    use crate::bench::measure::Work;
    use crate::bench::row::Action;
    use std::fs;

    #[test]
    fn whatever_was_done_the_folder_ends_empty() {
        let changing = [
            Action::CreateClose,
            Action::Rename,
            Action::UnlinkEmpty,
            Action::UnlinkFull,
            Action::Mkdir,
            Action::Rmdir,
        ];
        for action in changing {
            for done in [0, 1, 2, 7, NAMES] {
                let folder = tempfile::tempdir().expect("a folder");
                let mut work = Entries::new(action, folder.path(), 0, 8).expect("made");
                work.prepare().expect("prepared");
                (0..done).for_each(|index| work.step(index).expect("a step"));
                work.clean(done).expect("cleaned");
                let left = fs::read_dir(folder.path()).expect("a folder").count();
                assert_eq!(left, 0, "{action:?} {done}");
            }
        }
    }

    #[test]
    fn looking_changes_nothing() {
        for action in [Action::OpenClose, Action::Stat, Action::StatMissing] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut work = Entries::new(action, folder.path(), 1, 8).expect("made");
            (0..NAMES + 3).for_each(|index| work.step(index).expect("a step"));
            let left = fs::read_dir(folder.path()).expect("a folder").count();
            assert_eq!(left, NAMES);
        }
    }

    #[test]
    fn a_lost_entry_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("many");
        let mut work = Readdir::new(&path, 20).expect("made");
        work.step(0).expect("all there");
        fs::remove_file(path.join("entry-000007")).expect("removed");
        assert!(work.step(0).is_err());
    }
}
