//! Clones and snapshots of a tree, and their time within the call.
//!
//! `whole [files] [bytes of each] [folders] [rounds] [pool]`. The pool is one in memory, or a pool
//! that has nothing in it. The calls are as in `nacre clone` and `nacre snapshot`.

use std::path::Path;
use std::time::Instant;

use nacre_fs::{Cred, FileType, Found, Fs, InodeRef, Result, WriteAt};
use nacre_store::{AttachOptions, Store};
use nacre_testkit::pool::memory_pool;
use nacre_types::FileOffset;
use nacre_volume::{Access, Volume};

struct Bench {
    fs: Fs,
    cred: Cred,
    top: InodeRef,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, else_: usize| {
        let given = arguments.get(at).and_then(|given| given.parse().ok());
        given.unwrap_or(else_)
    };
    let (files, bytes, folders) = (number(0, 1000), number(1, 1 << 20), number(2, 1));
    let bench = Bench::new(arguments.get(4).map(Path::new), files, bytes, folders)?;
    for _ in 0..number(3, 1) {
        bench.round()?;
    }
    Ok(())
}

impl Bench {
    fn new(pool: Option<&Path>, files: usize, bytes: usize, folders: usize) -> Result<Bench> {
        let store = match pool {
            Some(path) => {
                let volume = Volume::open(path, Access::ReadWrite).expect("a pool");
                Store::attach(volume, &AttachOptions::default()).expect("a pool")
            }
            None => memory_pool(2 << 30),
        };
        let (fs, cred) = (Fs::new(store), Cred::root());
        let top = match fs.lookup(&cred, fs.root(), b"top") {
            Ok(found) => found.node,
            Err(_) => plant(&fs, &cred, files, bytes, folders)?,
        };
        Ok(Bench { fs, cred, top })
    }

    fn round(&self) -> Result<()> {
        let (fs, cred) = (&self.fs, &self.cred);
        let from = Found {
            node: self.top,
            file_type: FileType::Directory,
        };
        let timed = |what: &str, call: &dyn Fn() -> Result<()>| -> Result<()> {
            let start = Instant::now();
            call()?;
            println!("{what:10} {:9} us", start.elapsed().as_micros());
            Ok(())
        };
        timed("snapshot", &|| snapshot(fs, cred, self.top))?;
        timed("restore", &|| restore(fs, cred, self.top))?;
        timed("delete", &|| delete(fs, cred, self.top))?;
        timed("clone", &|| clone(fs, cred, from))?;
        timed("again", &|| snapshot(fs, cred, self.top))?;
        delete(fs, cred, self.top)?;
        let clone = fs.lookup(cred, fs.root(), b"clone")?.node;
        self.empty(clone)?;
        fs.rmdir(cred, fs.root(), b"clone")
    }

    /// Removes all that is in a folder of folders of files.
    fn empty(&self, top: InodeRef) -> Result<()> {
        for folder in names(&self.fs, top)? {
            let dir = self.fs.lookup(&self.cred, top, &folder)?.node;
            for name in names(&self.fs, dir)? {
                self.fs.unlink(&self.cred, dir, &name)?;
            }
            self.fs.rmdir(&self.cred, top, &folder)?;
        }
        Ok(())
    }
}

#[inline(never)]
fn snapshot(fs: &Fs, cred: &Cred, top: InodeRef) -> Result<()> {
    fs.snapshot(cred, top, b"one").map(|_| ())
}

#[inline(never)]
fn restore(fs: &Fs, cred: &Cred, top: InodeRef) -> Result<()> {
    fs.restore_snapshot(cred, top, b"one").map(|_| ())
}

#[inline(never)]
fn delete(fs: &Fs, cred: &Cred, top: InodeRef) -> Result<()> {
    fs.delete_snapshot(cred, top, b"one")
}

#[inline(never)]
fn clone(fs: &Fs, cred: &Cred, from: Found) -> Result<()> {
    fs.clone_tree(cred, from, fs.root(), b"clone").map(|_| ())
}

fn plant(fs: &Fs, cred: &Cred, files: usize, len: usize, folders: usize) -> Result<InodeRef> {
    let top = fs.mkdir(cred, fs.root(), b"top", 0o755)?;
    let bytes = vec![7; len];
    for folder in 0..folders {
        let dir = fs.mkdir(cred, top, format!("folder{folder}").as_bytes(), 0o755)?;
        for file in 0..files / folders {
            let node = fs.create(cred, dir, format!("file{file}").as_bytes(), 0o644)?;
            let start = WriteAt::Offset(FileOffset(0));
            fs.write(cred, node, start, bytes.as_slice().into())?;
            fs.unpin(node.ino)?;
        }
    }
    Ok(top)
}

fn names(fs: &Fs, dir: InodeRef) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 2, &mut |group| {
        names.extend(group.iter().map(|entry| entry.name.to_vec()));
        true
    })?;
    names.retain(|name| name != b".snapshots");
    Ok(names)
}
