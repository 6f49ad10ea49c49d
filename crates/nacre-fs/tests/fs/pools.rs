//! Pools in memory and short ways to use them.

use nacre_fs::{Cred, FileType, Fs, InodeRef, Result, WriteAt};
use nacre_store::WriteMode;
use nacre_testkit::pool::memory_pool_in;
use nacre_types::FileOffset;
use std::collections::BTreeMap;

pub const POOL_BYTES: u64 = 64 << 20;

pub fn fs() -> Fs {
    fs_in(WriteMode::Direct)
}

pub fn fs_in(mode: WriteMode) -> Fs {
    Fs::new(memory_pool_in(POOL_BYTES, mode))
}

pub fn root() -> Cred {
    Cred::root()
}

/// A user without privileges, in no group but their own.
pub fn user(uid: u32) -> Cred {
    Cred::user(uid, uid, Vec::new())
}

/// Makes a file and lets go of its pin.
pub fn file(fs: &Fs, dir: InodeRef, name: &str) -> InodeRef {
    file_by(fs, &root(), dir, name, 0o644).expect("create")
}

pub fn file_by(fs: &Fs, cred: &Cred, dir: InodeRef, name: &str, mode: u32) -> Result<InodeRef> {
    let node = fs.create(cred, dir, name.as_bytes(), mode)?;
    fs.unpin(node.ino)?;
    Ok(node)
}

pub fn dir(fs: &Fs, parent: InodeRef, name: &str) -> InodeRef {
    fs.mkdir(&root(), parent, name.as_bytes(), 0o755)
        .expect("mkdir")
}

/// A file of the root folder.
pub fn open(fs: &Fs, name: &str) -> InodeRef {
    let found = fs.lookup(&root(), fs.root(), name.as_bytes());
    found.expect("lookup").node
}

/// Contents in which each place differs from the others and from those of another salt.
pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let word = |place: u64| (place / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (0..len as u64)
        .map(|place| word(place).to_le_bytes()[(place % 8) as usize])
        .collect()
}

/// Writes here and there to the file of a number, which has the pattern of that number, and
/// compares it with what it should hold.
pub fn keep_writing(fs: &Fs, number: u64, steps: usize) {
    let node = open(fs, &format!("f{number}"));
    let mut model = read(fs, node, 0, 6 << 20);
    assert!(model == pattern(6 << 20, number));
    for step in 0..steps {
        let at = (step * 77_777 + 13) % (model.len() - 9000);
        let bytes = pattern(1 + step * 13 % 9000, step as u64);
        write(fs, node, at as u64, &bytes);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        if step % 16 == 0 {
            assert!(read(fs, node, 0, model.len()) == model);
        }
    }
    assert!(read(fs, node, 0, model.len() + 1) == model);
}

pub fn write(fs: &Fs, node: InodeRef, at: u64, bytes: &[u8]) {
    let written = fs
        .write(&root(), node, WriteAt::Offset(FileOffset(at)), bytes.into())
        .expect("write");
    assert_eq!(written.len, bytes.len());
    assert_eq!(written.end.0, at + bytes.len() as u64);
}

/// Everything from `at` on, at most `len` bytes.
pub fn read(fs: &Fs, node: InodeRef, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let got = fs
        .read(node, FileOffset(at), bytes.as_mut_slice().into())
        .expect("read");
    bytes.truncate(got);
    bytes
}

/// Names and types, without the dots.
pub fn list(fs: &Fs, dir: InodeRef) -> BTreeMap<Vec<u8>, (u64, FileType)> {
    let mut names = BTreeMap::new();
    fs.readdir(dir, 2, &mut |group| {
        for entry in group {
            let before = names.insert(entry.name.to_vec(), (entry.ino.0, entry.file_type));
            assert_eq!(before, None, "a name was listed twice");
        }
        true
    })
    .expect("readdir");
    names
}

pub fn names(fs: &Fs, dir: InodeRef) -> Vec<String> {
    list(fs, dir)
        .into_keys()
        .map(|name| String::from_utf8(name).expect("utf-8"))
        .collect()
}

/// The pool has no contradictions.
pub fn assert_sound(fs: &Fs) {
    nacre_testkit::pool::assert_sound(fs.store());
}
