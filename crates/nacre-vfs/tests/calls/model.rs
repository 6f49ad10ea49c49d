//! Random calls against a model: names, descriptors, shared positions, O_APPEND, links, holes.
//! Failures shrink.

use crate::world::{
    Harness, O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, SEEK_CUR, SEEK_END,
    SEEK_SET, value,
};
use nacre_vfs::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof, proptest};
use proptest::test_runner::{Config, TestError, TestRunner};
use std::collections::BTreeMap;

const NAMES: [&str; 5] = ["a", "b", "c", "long name of a file that is not short", "d"];
const ACCESS: [i32; 3] = [O_RDONLY, O_WRONLY, O_RDWR];
const ACCESS_MASK: i32 = 3;
const MODES: [i32; 6] = [
    0,
    O_CREAT,
    O_CREAT | O_EXCL,
    O_CREAT | O_TRUNC,
    O_APPEND,
    O_CREAT | O_APPEND,
];
const SLOTS: usize = 6;
/// No file of the model grows over this.
const MAX_SIZE: usize = 60_000;

/// Descriptors go by slots, so that a call means the same when others are left out: failures
/// shrink.
#[derive(Clone, Debug)]
enum Call {
    Open(usize, usize, usize, usize),
    Close(usize),
    Dup(usize, usize),
    Write(usize, usize, u8),
    Read(usize, usize),
    WriteAt(usize, usize, usize, u8),
    ReadAt(usize, usize, usize),
    Seek(usize, i64, usize),
    Resize(usize, usize),
    Rename(usize, usize),
    Link(usize, usize),
    Unlink(usize),
}

fn call() -> impl Strategy<Value = Call> {
    let name = || 0..NAMES.len();
    let fd = || 0..SLOTS;
    let place = || prop_oneof![0..100usize, 4000..4200usize, 0..20_000usize];
    prop_oneof![
        8 => (fd(), name(), 0..ACCESS.len(), 0..MODES.len())
            .prop_map(|(f, n, a, m)| Call::Open(f, n, a, m)),
        2 => fd().prop_map(Call::Close),
        4 => (fd(), fd()).prop_map(|(f, t)| Call::Dup(f, t)),
        4 => (fd(), place(), any::<u8>()).prop_map(|(f, l, b)| Call::Write(f, l, b)),
        4 => (fd(), place()).prop_map(|(f, l)| Call::Read(f, l)),
        2 => (fd(), place(), place(), any::<u8>()).prop_map(|(f, o, l, b)| Call::WriteAt(f, o, l, b)),
        2 => (fd(), place(), place()).prop_map(|(f, o, l)| Call::ReadAt(f, o, l)),
        2 => (fd(), -5000..20_000i64, 0..3usize).prop_map(|(f, o, w)| Call::Seek(f, o, w)),
        2 => (fd(), place()).prop_map(|(f, s)| Call::Resize(f, s)),
        2 => (name(), name()).prop_map(|(a, b)| Call::Rename(a, b)),
        2 => (name(), name()).prop_map(|(a, b)| Call::Link(a, b)),
        2 => name().prop_map(Call::Unlink),
    ]
}

#[derive(Clone, Copy)]
struct Description {
    file: usize,
    flags: i32,
    position: usize,
}

/// Both worlds.
struct Both {
    harness: Harness,
    files: Vec<Vec<u8>>,
    names: BTreeMap<usize, usize>,
    descriptions: Vec<Description>,
    fds: [Option<(i32, usize)>; SLOTS],
    /// The canary: a model that knows nothing of O_APPEND.
    forgetful: bool,
}

impl Both {
    fn new() -> Both {
        Both {
            harness: Harness::new(),
            files: Vec::new(),
            names: BTreeMap::new(),
            descriptions: Vec::new(),
            fds: [None; SLOTS],
            forgetful: false,
        }
    }

    fn run(&mut self, call: &Call) {
        match *call {
            Call::Open(slot, name, access, mode) => {
                let opened = self.open(name, ACCESS[access] | MODES[mode]);
                self.put(slot, opened);
            }
            Call::Rename(from, to) => self.rename(from, to),
            Call::Link(from, to) => self.link(from, to),
            Call::Unlink(name) => {
                let there = self.names.remove(&name).map(|_| 0);
                let done = self.harness.unlink(&path(name));
                assert_eq!(done, there.ok_or(ErrorKind::NotFound));
            }
            Call::Close(slot) => self.put(slot, None),
            Call::Dup(slot, _)
            | Call::Write(slot, ..)
            | Call::Read(slot, ..)
            | Call::WriteAt(slot, ..)
            | Call::ReadAt(slot, ..)
            | Call::Seek(slot, ..)
            | Call::Resize(slot, ..) => {
                if let Some((fd, index)) = self.fds[slot] {
                    self.run_on(fd, index, call);
                }
            }
        }
    }

    /// What was there before is closed.
    fn put(&mut self, slot: usize, opened: Option<(i32, usize)>) {
        if let Some((fd, _)) = std::mem::replace(&mut self.fds[slot], opened) {
            assert_eq!(self.harness.close(fd), Ok(0));
        }
    }

    fn open(&mut self, name: usize, flags: i32) -> Option<(i32, usize)> {
        let opened = self.harness.open(&path(name), flags);
        let there = self.names.get(&name).copied();
        let file = match there {
            Some(_) if flags & O_CREAT != 0 && flags & O_EXCL != 0 => {
                assert_eq!(opened, Err(ErrorKind::Exists));
                return None;
            }
            None if flags & O_CREAT == 0 => {
                assert_eq!(opened, Err(ErrorKind::NotFound));
                return None;
            }
            Some(file) => file,
            None => {
                self.files.push(Vec::new());
                self.names.insert(name, self.files.len() - 1);
                self.files.len() - 1
            }
        };
        if flags & O_TRUNC != 0 {
            self.files[file].clear();
        }
        self.descriptions.push(Description {
            file,
            flags,
            position: 0,
        });
        Some((opened.unwrap(), self.descriptions.len() - 1))
    }

    fn rename(&mut self, from: usize, to: usize) {
        let done = self.harness.rename(&path(from), &path(to));
        let Some(&file) = self.names.get(&from) else {
            return assert_eq!(done, Err(ErrorKind::NotFound));
        };
        assert_eq!(done, Ok(0));
        // Two names of one file both stay.
        if self.names.get(&to) != Some(&file) {
            self.names.remove(&from);
            self.names.insert(to, file);
        }
    }

    fn link(&mut self, from: usize, to: usize) {
        let done = self.harness.link(&path(from), &path(to));
        match (self.names.get(&from).copied(), self.names.get(&to)) {
            (None, _) => assert_eq!(done, Err(ErrorKind::NotFound)),
            (Some(_), Some(_)) => assert_eq!(done, Err(ErrorKind::Exists)),
            (Some(file), None) => {
                assert_eq!(done, Ok(0));
                self.names.insert(to, file);
            }
        }
    }

    fn run_on(&mut self, fd: i32, index: usize, call: &Call) {
        let description = self.descriptions[index];
        match *call {
            Call::Dup(_, to) => {
                let twin = value(self.harness.vfs.dup(fd)).unwrap();
                self.put(to, Some((twin as i32, index)));
            }
            Call::Write(_, len, byte) => self.write(fd, index, None, len, byte),
            Call::WriteAt(_, offset, len, byte) => self.write(fd, index, Some(offset), len, byte),
            Call::Read(_, len) => self.read(fd, index, None, len),
            Call::ReadAt(_, offset, len) => self.read(fd, index, Some(offset), len),
            Call::Seek(_, offset, whence) => self.seek(fd, index, offset, whence),
            Call::Resize(_, size) => {
                let done = value(self.harness.vfs.ftruncate(fd, size as i64));
                if description.flags & ACCESS_MASK == O_RDONLY {
                    return assert_eq!(done, Err(ErrorKind::Invalid));
                }
                assert_eq!(done, Ok(0));
                self.files[description.file].resize(size, 0);
            }
            _ => {}
        }
    }

    fn write(&mut self, fd: i32, index: usize, at: Option<usize>, len: usize, byte: u8) {
        let description = &mut self.descriptions[index];
        let file = &mut self.files[description.file];
        let start = match at {
            _ if description.flags & O_APPEND != 0 && !self.forgetful => file.len(),
            Some(at) => at,
            None => description.position,
        };
        if start + len > MAX_SIZE {
            return;
        }
        let bytes = vec![byte; len];
        let done = match at {
            Some(at) => value(self.harness.vfs.pwrite(fd, bytes[..].into(), at as i64)),
            None => value(self.harness.vfs.write(fd, bytes[..].into())),
        };
        if description.flags & ACCESS_MASK == O_RDONLY {
            return assert_eq!(done, Err(ErrorKind::BadFd));
        }
        assert_eq!(done, Ok(len as i64));
        if len > 0 {
            let end = file.len().max(start + len);
            file.resize(end, 0);
            file[start..start + len].fill(byte);
        }
        if at.is_none() && len > 0 {
            description.position = start + len;
        }
    }

    fn read(&mut self, fd: i32, index: usize, at: Option<usize>, len: usize) {
        let description = &mut self.descriptions[index];
        let mut bytes = vec![0; len];
        let done = match at {
            Some(at) => value(
                self.harness
                    .vfs
                    .pread(fd, bytes[..].as_mut().into(), at as i64),
            ),
            None => value(self.harness.vfs.read(fd, bytes[..].as_mut().into())),
        };
        if description.flags & ACCESS_MASK == O_WRONLY {
            return assert_eq!(done, Err(ErrorKind::BadFd));
        }
        let file = &self.files[description.file];
        let start = at.unwrap_or(description.position).min(file.len());
        let expected = &file[start..file.len().min(start + len)];
        assert_eq!(done, Ok(expected.len() as i64));
        assert!(bytes[..expected.len()] == *expected, "other bytes");
        if at.is_none() {
            description.position += expected.len();
        }
    }

    fn seek(&mut self, fd: i32, index: usize, offset: i64, whence: usize) {
        let description = &mut self.descriptions[index];
        let whences = [SEEK_SET, SEEK_CUR, SEEK_END];
        let done = value(self.harness.vfs.lseek(fd, offset, whences[whence]));
        let base = [0, description.position, self.files[description.file].len()][whence];
        match base as i64 + offset {
            before if before < 0 => assert_eq!(done, Err(ErrorKind::Invalid)),
            to => {
                assert_eq!(done, Ok(to));
                description.position = to as usize;
            }
        }
    }

    /// All names, sizes, link counts and contents.
    fn compare(&self) {
        for name in 0..NAMES.len() {
            let stat = self.harness.stat(&path(name));
            let Some(&file) = self.names.get(&name) else {
                assert_eq!(stat.err(), Some(ErrorKind::NotFound));
                continue;
            };
            let links = self.names.values().filter(|other| **other == file).count();
            let stat = stat.unwrap();
            assert_eq!(
                (stat.size, stat.nlink),
                (self.files[file].len() as _, links as _)
            );
            let fd = self.harness.open(&path(name), O_RDONLY).unwrap();
            let mut bytes = vec![0; MAX_SIZE];
            let got = value(self.harness.vfs.read(fd, bytes[..].as_mut().into())).unwrap();
            assert!(
                bytes[..got as usize] == self.files[file],
                "contents of {name}"
            );
            self.harness.close(fd).unwrap();
        }
    }
}

fn path(name: usize) -> String {
    format!("/nacre/{}", NAMES[name])
}

proptest! {
    #![proptest_config(Config { cases: 96, failure_persistence: None, ..Config::default() })]

    #[test]
    fn calls_do_what_the_model_does(calls in vec(call(), 1..80)) {
        let mut both = Both::new();
        for call in &calls {
            both.run(call);
        }
        both.compare();
    }
}

#[test]
fn canary_a_model_that_forgets_append_is_noticed_in_few_calls() {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    let found = TestRunner::new(config).run(&vec(call(), 1..80), |calls| {
        let mut both = Both {
            forgetful: true,
            ..Both::new()
        };
        calls.iter().for_each(|call| both.run(call));
        both.compare();
        Ok(())
    });
    let Err(TestError::Fail(_, calls)) = found else {
        panic!("not noticed");
    };
    assert!(calls.len() <= 8, "not shrunk: {calls:?}");
}
