//! Making, finding, renaming and removing files and folders: by the C library's functions, as most
//! programs do, and not by Rust's `std::fs`, which takes as long to prepare a `stat` as Nacre to
//! serve it.

use super::files::{contents, path_of};
use super::measure::Work;
use super::row::Action;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, renameat};
use nix::sys::stat::{Mode, stat};
use nix::unistd::{UnlinkatFlags, mkdir, unlink, unlinkat};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;

const FOLDER: Mode = Mode::S_IRWXU;
const READABLE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
const NEW: OFlag = OFlag::O_RDWR.union(OFlag::O_CREAT).union(OFlag::O_EXCL);

/// Names in a folder while it is worked on.
const NAMES: usize = 256;

fn rename(from: &CStr, to: &CStr) -> nix::Result<()> {
    renameat(AT_FDCWD, from, AT_FDCWD, to)
}

fn rmdir(name: &CStr) -> nix::Result<()> {
    unlinkat(AT_FDCWD, name, UnlinkatFlags::RemoveDir)
}

/// What a kind of operation does with the names of one folder.
pub struct Entries {
    action: Action,
    names: Vec<CString>,
    other: CString,
    contents: Vec<u8>,
}

impl Entries {
    /// In `folder`, which is made; names of different callers differ.
    pub fn new(action: Action, folder: &Path, caller: usize, size: usize) -> io::Result<Entries> {
        fs::create_dir_all(folder)?;
        let path = |name: String| path_of(&folder.join(name));
        let name = |index| path(format!("entry-{caller}-{index}"));
        let entries = Entries {
            action,
            names: (0..NAMES).map(name).collect::<io::Result<_>>()?,
            other: path(format!("missing-{caller}"))?,
            contents: contents(size),
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
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
        self.names.iter().try_for_each(|name| {
            let file = open(name.as_c_str(), flags, READABLE)?;
            File::from(file).write_all(&self.contents)
        })
    }

    fn each<T>(
        &self,
        from: usize,
        to: usize,
        act: impl Fn(&CStr) -> nix::Result<T>,
    ) -> io::Result<()> {
        self.names[from..to]
            .iter()
            .try_for_each(|name| act(name).map(|_| ()))?;
        Ok(())
    }
}

impl Work for Entries {
    fn chunk(&self) -> usize {
        if self.only_looks() { usize::MAX } else { NAMES }
    }

    fn prepare(&mut self) -> io::Result<()> {
        match self.action {
            Action::UnlinkEmpty | Action::UnlinkFull | Action::Rename => self.make_files(),
            Action::Rmdir => self.each(0, NAMES, |name| mkdir(name, FOLDER)),
            _ => Ok(()),
        }
    }

    fn step(&mut self, index: usize) -> io::Result<()> {
        let name = self.names[index % NAMES].as_c_str();
        let other = self.other.as_c_str();
        match self.action {
            Action::OpenClose => open(name, OFlag::O_RDONLY, Mode::empty()).map(drop),
            Action::Stat => stat(name).map(|found| {
                black_box(found);
            }),
            Action::StatMissing => match stat(other) {
                Err(Errno::ENOENT) => Ok(()),
                Err(error) => Err(error),
                Ok(_) => Err(Errno::EEXIST),
            },
            Action::CreateClose => open(name, NEW, READABLE).map(drop),
            // There and back, so that the names end as they began.
            Action::Rename if index.is_multiple_of(2) => rename(name, other),
            Action::Rename => rename(other, &self.names[index - 1]),
            Action::Mkdir => mkdir(name, FOLDER),
            Action::Rmdir => rmdir(name),
            _ => unlink(name),
        }?;
        Ok(())
    }

    fn clean(&mut self, done: usize) -> io::Result<()> {
        match self.action {
            Action::CreateClose => self.each(0, done, unlink),
            Action::Mkdir => self.each(0, done, rmdir),
            Action::Rmdir => self.each(done, NAMES, rmdir),
            Action::Rename => {
                if done % 2 == 1 {
                    rename(&self.other, &self.names[done - 1])?;
                }
                self.each(0, NAMES, unlink)
            }
            Action::UnlinkEmpty | Action::UnlinkFull => self.each(done, NAMES, unlink),
            _ => Ok(()),
        }
    }
}

/// Reads a large folder to its end; the time is divided by its entries.
pub struct Readdir {
    folder: CString,
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
            folder: path_of(folder)?,
            entries,
        })
    }
}

impl Work for Readdir {
    fn step(&mut self, _: usize) -> io::Result<()> {
        // With `.` and `..`.
        let seen = nacre_calls::count_entries(&self.folder)? - 2;
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
