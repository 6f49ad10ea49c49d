//! Random namespace operations against a model that keeps everything in maps.

use crate::pools::{assert_sound, fs, list, root};
use nacre_fs::{FileType, Fs, FsError, InodeRef, RenameFlags};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert_eq, proptest, test_runner::TestCaseError};
use std::collections::BTreeMap;

/// The directories by number; 0 is the root.
const DIRS: usize = 6;

#[derive(Clone, Debug)]
enum Op {
    Create(usize, u8),
    Mkdir(usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Link((usize, u8), (usize, u8)),
    Rename((usize, u8), (usize, u8), u8),
}

fn place() -> impl Strategy<Value = (usize, u8)> {
    (0..DIRS, 0..6u8)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        place().prop_map(|(d, n)| Op::Create(d, n)),
        place().prop_map(|(d, n)| Op::Mkdir(d, n)),
        place().prop_map(|(d, n)| Op::Unlink(d, n)),
        place().prop_map(|(d, n)| Op::Rmdir(d, n)),
        (place(), place()).prop_map(|(a, b)| Op::Link(a, b)),
        (place(), place(), prop_oneof![Just(0), any::<u8>()]).prop_map(|(a, b, f)| Op::Rename(
            a,
            b,
            f % 8
        )),
    ]
}

/// What the model knows of an inode.
#[derive(Clone, Debug)]
struct Inode {
    /// Entries of a directory.
    entries: Option<BTreeMap<Vec<u8>, usize>>,
    parent: usize,
    links: u32,
}

struct Model {
    inodes: BTreeMap<usize, Inode>,
    next: usize,
}

type Outcome = Result<(), FsError>;

impl Model {
    fn new() -> Model {
        let top = Inode {
            entries: Some(BTreeMap::new()),
            parent: 0,
            links: 2,
        };
        Model {
            inodes: BTreeMap::from([(0, top)]),
            next: 1,
        }
    }

    /// The directory that an operation with directory number `d` means: the d-th that exists.
    fn dir(&self, d: usize) -> usize {
        let dirs: Vec<usize> = self
            .inodes
            .iter()
            .filter(|(_, i)| i.entries.is_some())
            .map(|(id, _)| *id)
            .collect();
        dirs[d % dirs.len()]
    }

    fn entries(&mut self, dir: usize) -> &mut BTreeMap<Vec<u8>, usize> {
        let inode = self.inodes.get_mut(&dir).expect("dir");
        inode.entries.as_mut().expect("entries")
    }

    fn get(&self, dir: usize, name: &[u8]) -> Option<usize> {
        self.inodes[&dir]
            .entries
            .as_ref()
            .expect("entries")
            .get(name)
            .copied()
    }

    fn is_dir(&self, id: usize) -> bool {
        self.inodes[&id].entries.is_some()
    }

    fn is_empty(&self, id: usize) -> bool {
        self.inodes[&id]
            .entries
            .as_ref()
            .is_none_or(BTreeMap::is_empty)
    }

    fn add(&mut self, dir: usize, name: &[u8], directory: bool) -> Outcome {
        if self.get(dir, name).is_some() {
            return Err(FsError::Exists);
        }
        let id = self.next;
        self.next += 1;
        let (entries, links) = if directory {
            (Some(BTreeMap::new()), 2)
        } else {
            (None, 1)
        };
        self.inodes.insert(
            id,
            Inode {
                entries,
                parent: dir,
                links,
            },
        );
        self.entries(dir).insert(name.to_vec(), id);
        if directory {
            self.links(dir, 1);
        }
        Ok(())
    }

    fn links(&mut self, id: usize, change: i32) {
        let inode = self.inodes.get_mut(&id).expect("inode");
        inode.links = inode.links.checked_add_signed(change).expect("links");
    }

    fn remove(&mut self, dir: usize, name: &[u8], directory: bool) -> Outcome {
        let id = self.get(dir, name).ok_or(FsError::NotFound)?;
        match (directory, self.is_dir(id)) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            _ => {}
        }
        if !self.is_empty(id) {
            return Err(FsError::NotEmpty);
        }
        self.entries(dir).remove(name);
        self.lose(dir, id);
        Ok(())
    }

    /// An inode lost a name in `dir`.
    fn lose(&mut self, dir: usize, id: usize) {
        if self.is_dir(id) {
            self.links(dir, -1);
            self.inodes.remove(&id);
        } else {
            self.links(id, -1);
            if self.inodes[&id].links == 0 {
                self.inodes.remove(&id);
            }
        }
    }

    fn link(&mut self, from: (usize, &[u8]), to: (usize, &[u8])) -> Outcome {
        let id = self.get(from.0, from.1).ok_or(FsError::NotFound)?;
        if self.get(to.0, to.1).is_some() {
            return Err(FsError::Exists);
        }
        if self.is_dir(id) {
            return Err(FsError::NotPermitted);
        }
        self.entries(to.0).insert(to.1.to_vec(), id);
        self.links(id, 1);
        Ok(())
    }

    /// Whether `dir` is `top` or lies below it.
    fn below(&self, mut dir: usize, top: usize) -> bool {
        while dir != top && dir != 0 {
            dir = self.inodes[&dir].parent;
        }
        dir == top
    }

    fn rename(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), flags: RenameFlags) -> Outcome {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags != RenameFlags::EXCHANGE {
            return Err(FsError::Invalid);
        }
        let source = self.get(from.0, from.1).ok_or(FsError::NotFound)?;
        let target = self.get(to.0, to.1);
        match target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(FsError::Exists),
            None if exchange => return Err(FsError::NotFound),
            _ => {}
        }
        if from.0 != to.0 && self.is_dir(source) && self.below(to.0, source) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target {
            if from.0 != to.0 && self.is_dir(target) && self.below(from.0, target) {
                return Err(if exchange {
                    FsError::Invalid
                } else {
                    FsError::NotEmpty
                });
            }
            if target == source {
                return Ok(());
            }
            if !exchange {
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) => return Err(FsError::NotDirectory),
                    (false, true) => return Err(FsError::IsDirectory),
                    _ if !self.is_empty(target) => return Err(FsError::NotEmpty),
                    _ => {}
                }
            }
        }
        self.move_name(from, to, source, target, exchange);
        if flags.contains(RenameFlags::WHITEOUT) {
            return self.add(from.0, from.1, false);
        }
        Ok(())
    }

    fn move_name(
        &mut self,
        from: (usize, &[u8]),
        to: (usize, &[u8]),
        source: usize,
        target: Option<usize>,
        exchange: bool,
    ) {
        self.entries(from.0).remove(from.1);
        if let Some(target) = target {
            if exchange {
                self.put(from, target);
                self.move_parent(target, to.0, from.0);
            } else {
                self.lose(to.0, target);
            }
        }
        self.put(to, source);
        self.move_parent(source, from.0, to.0);
    }

    fn put(&mut self, at: (usize, &[u8]), id: usize) {
        self.entries(at.0).insert(at.1.to_vec(), id);
    }

    fn move_parent(&mut self, id: usize, from: usize, to: usize) {
        if self.is_dir(id) {
            self.links(from, -1);
            self.links(to, 1);
            self.inodes.get_mut(&id).expect("inode").parent = to;
        }
    }
}

/// The real tree and the model side by side; directories are found by their model number.
struct Both {
    fs: Fs,
    model: Model,
}

impl Both {
    /// Path of a model directory, walked in the real tree.
    fn real(&self, dir: usize) -> InodeRef {
        if dir == 0 {
            return self.fs.root();
        }
        let parent = self.model.inodes[&dir].parent;
        let entries = self.model.inodes[&parent]
            .entries
            .as_ref()
            .expect("entries");
        let name = entries.iter().find(|(_, id)| **id == dir).expect("name").0;
        self.fs
            .lookup(&root(), self.real(parent), name)
            .expect("directory")
            .node
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let cred = root();
        let place = |(d, n): (usize, u8)| (self.model.dir(d), vec![b'a' + n]);
        let (expected, real) = match *op {
            Op::Create(d, n) => {
                let (dir, name) = place((d, n));
                let real = self.fs.create(&cred, self.real(dir), &name, 0o644);
                let real = real.and_then(|node| self.fs.unpin(node.ino));
                (self.model.add(dir, &name, false), real)
            }
            Op::Mkdir(d, n) => {
                let (dir, name) = place((d, n));
                let real = self.fs.mkdir(&cred, self.real(dir), &name, 0o755).map(drop);
                (self.model.add(dir, &name, true), real)
            }
            Op::Unlink(d, n) => {
                let (dir, name) = place((d, n));
                let real = self.fs.unlink(&cred, self.real(dir), &name);
                (self.model.remove(dir, &name, false), real)
            }
            Op::Rmdir(d, n) => {
                let (dir, name) = place((d, n));
                let real = self.fs.rmdir(&cred, self.real(dir), &name);
                (self.model.remove(dir, &name, true), real)
            }
            Op::Link(from, to) => {
                let ((a, x), (b, y)) = (place(from), place(to));
                let node = self.fs.lookup(&cred, self.real(a), &x);
                let real = node.and_then(|found| self.fs.link(&cred, found.node, self.real(b), &y));
                (self.model.link((a, &x), (b, &y)), real)
            }
            Op::Rename(from, to, flags) => {
                let ((a, x), (b, y)) = (place(from), place(to));
                let flags = RenameFlags::from_bits_truncate(flags.into());
                let real = self
                    .fs
                    .rename(&cred, self.real(a), &x, self.real(b), &y, flags);
                (self.model.rename((a, &x), (b, &y), flags), real)
            }
        };
        prop_assert_eq!(real, expected, "{:?}", op);
        Ok(())
    }

    /// The whole real tree equals the model.
    fn compare(&self) -> Result<(), TestCaseError> {
        let mut numbers = BTreeMap::new();
        for (id, inode) in &self.model.inodes {
            let Some(entries) = &inode.entries else {
                continue;
            };
            let dir = self.real(*id);
            let stat = self.fs.getattr(dir).expect("getattr");
            prop_assert_eq!(stat.nlink, inode.links);
            let parent = self.fs.lookup(&root(), dir, b"..").expect("parent").node;
            prop_assert_eq!(parent, self.real(inode.parent));
            let listed = list(&self.fs, dir);
            prop_assert_eq!(
                listed.keys().collect::<Vec<_>>(),
                entries.keys().collect::<Vec<_>>()
            );
            for (name, child) in entries {
                let (ino, file_type) = listed[name];
                prop_assert_eq!(file_type == FileType::Directory, self.model.is_dir(*child));
                prop_assert_eq!(*numbers.entry(*child).or_insert(ino), ino);
                let stat = self
                    .fs
                    .getattr(self.fs.lookup(&root(), dir, name).expect("lookup").node);
                prop_assert_eq!(stat.expect("getattr").nlink, self.model.inodes[child].links);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn namespace_operations_do_what_the_model_does(ops in proptest::collection::vec(op(), 1..60)) {
        let mut both = Both { fs: fs(), model: Model::new() };
        for op in &ops {
            both.apply(op)?;
            both.compare()?;
        }
        assert_sound(&both.fs);
    }
}
