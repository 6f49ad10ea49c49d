//! Threads that change one small tree at once.

use crate::pools::{assert_sound, dir, fs, list, root};
use nacre_fs::{Cred, FileType, Found, Fs, FsError, InodeRef, RenameFlags, WriteAt};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

const THREADS: u8 = 4;
const STEPS: usize = 3000;

struct Actor<'a> {
    fs: &'a Fs,
    cred: Cred,
    random: TestRng,
}

impl Actor<'_> {
    fn number(&mut self, below: u32) -> u32 {
        self.random.next_u32() % below
    }

    fn name(&mut self) -> [u8; 1] {
        [b'a' + self.number(4) as u8]
    }

    /// A directory somewhere in the tree.
    fn dir(&mut self) -> InodeRef {
        let mut here = self.fs.root();
        for _ in 0..self.number(4) {
            let name = self.name();
            match self.fs.lookup(&self.cred, here, &name) {
                Ok(Found {
                    node,
                    file_type: FileType::Directory,
                }) => here = node,
                _ => break,
            }
        }
        here
    }

    fn step(&mut self) -> Result<(), FsError> {
        let (dir, name) = (self.dir(), self.name());
        let (other, other_name) = (self.dir(), self.name());
        match self.number(10) {
            0 | 1 => self.write_new(dir, &name),
            2 | 3 => self.fs.mkdir(&self.cred, dir, &name, 0o755).map(|_| ()),
            4 => self.fs.unlink(&self.cred, dir, &name),
            5 => self.fs.rmdir(&self.cred, dir, &name),
            6 => {
                let node = self.fs.lookup(&self.cred, dir, &name)?.node;
                self.fs.link(&self.cred, node, other, &other_name)
            }
            7 => self.fs.readdir(dir, 0, &mut |_| true),
            8 => self.fs.path_of(dir.ino).map(|_| ()),
            _ => {
                let flags = RenameFlags::from_bits_truncate(self.number(6));
                self.fs
                    .rename(&self.cred, dir, &name, other, &other_name, flags)
            }
        }
    }

    fn write_new(&self, dir: InodeRef, name: &[u8]) -> Result<(), FsError> {
        let node = self.fs.create(&self.cred, dir, name, 0o644)?;
        let written = self
            .fs
            .write(&self.cred, node, WriteAt::Append, b"contents"[..].into());
        assert_eq!(self.fs.size(node), Ok(8), "a pinned file is gone");
        self.fs.unpin(node.ino)?;
        written.map(|_| ())
    }
}

/// Errors that a race may give, but never damage or a fault.
fn assert_harmless(error: &FsError) {
    let serious = matches!(
        error,
        FsError::Corrupt(_)
            | FsError::Io
            | FsError::UserFault
            | FsError::SessionFull
            | FsError::NoSpace
    );
    assert!(!serious, "{error}");
}

/// Counts the directories of a tree, each of which must be its child's parent.
fn count_dirs(fs: &Fs, dir: InodeRef) -> u32 {
    let mut below = 0;
    let mut subdirs = 0;
    for (name, (_, file_type)) in list(fs, dir) {
        let child = fs.lookup(&root(), dir, &name).expect("lookup").node;
        if file_type == FileType::Directory {
            assert_eq!(fs.lookup(&root(), child, b"..").expect("parent").node, dir);
            below += count_dirs(fs, child);
            subdirs += 1;
        }
    }
    assert_eq!(fs.getattr(dir).expect("getattr").nlink, 2 + subdirs);
    below + subdirs
}

#[test]
fn threads_leave_a_sound_tree() {
    let fs = fs();
    for name in ["a", "b"] {
        let sub = dir(&fs, fs.root(), name);
        dir(&fs, sub, "c");
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[thread; 32]);
            let mut actor = Actor {
                fs: &fs,
                cred: root(),
                random,
            };
            scope.spawn(move || {
                for _ in 0..STEPS {
                    if let Err(error) = actor.step() {
                        assert_harmless(&error);
                    }
                }
            });
        }
    });
    count_dirs(&fs, fs.root());
    assert_sound(&fs);
}
