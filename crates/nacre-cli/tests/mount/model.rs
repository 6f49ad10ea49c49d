//! Random operations on a mounted pool and on a folder of the kernel's own tmpfs have the same
//! results, and leave the same tree.

use crate::stage::Stage;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const OPERATIONS: usize = 2500;

/// Pseudorandom numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// One of few paths, so that operations meet. Most name a folder or a file by its first letter.
    fn path(&mut self) -> PathBuf {
        let depth = self.below(3);
        let mut path: PathBuf = (0..depth).map(|_| format!("d{}", self.below(2))).collect();
        path.push(match self.below(3) {
            0 => format!("d{}", self.below(2)),
            _ => format!("f{}", self.below(4)),
        });
        path
    }

    /// As [`Random::path`], usually of a file.
    fn file(&mut self) -> PathBuf {
        let path = self.path();
        match self.below(8) {
            0 => path,
            _ => path.with_file_name(format!("f{}", self.below(4))),
        }
    }

    /// As [`Random::path`], usually of a folder.
    fn folder(&mut self) -> PathBuf {
        let path = self.path();
        match self.below(8) {
            0 => path,
            _ => path.with_file_name(format!("d{}", self.below(2))),
        }
    }
}

#[derive(Debug)]
enum Operation {
    Write(PathBuf, u64, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    Read(PathBuf),
    Mkdir(PathBuf),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf, PathBuf),
    Chmod(PathBuf, u32),
}

fn random_operation(random: &mut Random) -> Operation {
    use Operation as Op;
    let path = random.file();
    let data = vec![random.below(256) as u8; random.below(9000) as usize];
    match random.below(14) {
        0 | 1 => Op::Write(path, random.below(20_000), data),
        2 => Op::Append(path, data),
        3 => Op::Truncate(path, random.below(20_000)),
        4 => Op::Read(path),
        5 | 6 => Op::Mkdir(random.folder()),
        7 | 8 => Op::Unlink(path),
        9 => Op::Rmdir(random.folder()),
        10 => {
            let flags = [
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
            ];
            let (from, to) = match random.below(3) {
                0 => (random.folder(), random.folder()),
                _ => (path, random.file()),
            };
            Op::Rename(from, to, flags[random.below(4) as usize])
        }
        11 => Op::Link(path, random.file()),
        12 => Op::Symlink(random.file(), path),
        _ => Op::Chmod(path, 0o600 | random.below(0o200) as u32),
    }
}

/// Does it below a folder; gives the errno, or what was read.
fn apply(root: &Path, operation: &Operation) -> Result<Vec<u8>, Option<i32>> {
    use Operation as Op;
    let done: io::Result<Vec<u8>> = match operation {
        Op::Write(path, at, data) => {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(root.join(path));
            file.and_then(|file| file.write_all_at(data, *at))
                .map(|()| vec![])
        }
        Op::Append(path, data) => {
            let file = OpenOptions::new().append(true).open(root.join(path));
            file.and_then(|mut file| file.write_all(data))
                .map(|()| vec![])
        }
        Op::Truncate(path, size) => {
            let file = OpenOptions::new().write(true).open(root.join(path));
            file.and_then(|file| file.set_len(*size)).map(|()| vec![])
        }
        Op::Read(path) => {
            let mut data = Vec::new();
            let file = File::open(root.join(path));
            file.and_then(|mut file| file.read_to_end(&mut data))
                .map(|_| data)
        }
        Op::Mkdir(path) => fs::create_dir(root.join(path)).map(|()| vec![]),
        Op::Unlink(path) => fs::remove_file(root.join(path)).map(|()| vec![]),
        Op::Rmdir(path) => fs::remove_dir(root.join(path)).map(|()| vec![]),
        Op::Rename(from, to, flags) => {
            let done = renameat_with(CWD, root.join(from), CWD, root.join(to), *flags);
            done.map(|()| vec![]).map_err(io::Error::from)
        }
        Op::Link(from, to) => fs::hard_link(root.join(from), root.join(to)).map(|()| vec![]),
        Op::Symlink(target, path) => symlink(target, root.join(path)).map(|()| vec![]),
        Op::Chmod(path, mode) => {
            let mode = Permissions::from_mode(*mode);
            fs::set_permissions(root.join(path), mode).map(|()| vec![])
        }
    };
    done.map_err(|error| error.raw_os_error())
}

/// Path, mode, links, size, and contents or target, of everything below a folder.
type Listing = BTreeMap<PathBuf, (u32, u64, u64, Vec<u8>)>;

fn list(root: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let name = folder.join(entry.unwrap().file_name());
            let path = root.join(&name);
            let found = fs::symlink_metadata(&path).unwrap();
            let (size, contents) = if found.is_dir() {
                folders.push(name.clone());
                (0, vec![])
            } else if found.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                (found.len(), target.into_os_string().into_encoded_bytes())
            } else {
                (found.len(), fs::read(&path).unwrap())
            };
            listing.insert(name, (found.mode(), found.nlink(), size, contents));
        }
    }
    listing
}

/// What differs after the same random operations. From the operation `skip_from` on, the first
/// change that succeeds is left out on the tmpfs.
fn difference(mount: &Path, seed: u64, skip_from: usize) -> Option<String> {
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = mount.join(format!("run-{seed}"));
    fs::create_dir(&here).unwrap();
    let (mut random, mut skipped, mut succeeded) = (Random(seed), false, 0);
    for number in 0..OPERATIONS {
        let operation = random_operation(&mut random);
        let mine = apply(&here, &operation);
        succeeded += usize::from(mine.is_ok());
        let changes = !matches!(operation, Operation::Read(_)) && mine.is_ok();
        if number >= skip_from && changes && !skipped {
            skipped = true;
            continue;
        }
        let theirs = apply(other.path(), &operation);
        if mine != theirs {
            return Some(format!(
                "{number} {operation:?}: {mine:?} instead of {theirs:?}"
            ));
        }
    }
    assert!(succeeded > OPERATIONS / 4, "too few succeed: {succeeded}");
    let (mine, theirs) = (list(&here), list(other.path()));
    (mine != theirs).then(|| format!("{:?} instead of {:?}", mine.keys(), theirs.keys()))
}

#[test]
fn random_operations_are_those_of_a_tmpfs() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    for seed in 1..=4 {
        let different = difference(&stage.mount, seed, usize::MAX);
        assert_eq!(different, None, "seed {seed}");
    }
    stage.unmount();
    stage.check();
}

#[test]
fn canary_an_operation_that_is_left_out_is_noticed() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    for seed in 1..=4 {
        let different = difference(&stage.mount, seed, OPERATIONS - 50);
        assert!(different.is_some(), "seed {seed}");
    }
}
