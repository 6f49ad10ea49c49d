//! Runs each metadata call of the file system many times over a pool in memory and prints the time
//! of one.
//!
//! `metadata [directory size] [calls]`. Each call has a function of its own here, so that
//! `valgrind --tool=callgrind` with `callgrind_annotate --inclusive=yes` gives its instructions.

use std::hint::black_box;
use std::time::Instant;

use nacre_fs::{Cred, Fs, InodeRef, RenameFlags, Result};
use nacre_testkit::pool::memory_pool;

struct Bench {
    fs: Fs,
    cred: Cred,
    dir: InodeRef,
    entries: usize,
    calls: usize,
    names: [Vec<Vec<u8>>; 5],
}

type Call = fn(&Bench) -> Result<()>;

/// Prefixes of the names in `Bench::names`.
const KINDS: [&str; 5] = ["old", "gone", "new", "moved", "dir"];
const OLD: usize = 0;
const GONE: usize = 1;
const NEW: usize = 2;
const MOVED: usize = 3;
const DIR: usize = 4;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map_while(|arg| arg.parse().ok());
    let entries = numbers.next().unwrap_or(1000);
    let calls = numbers.next().unwrap_or(1000);
    let bench = Bench::new(entries, calls)?;
    let rows: [(&str, Call); 9] = [
        ("getattr", call_getattr),
        ("lookup", call_lookup),
        ("lookup of a missing name", call_missing),
        ("create + unpin", call_create),
        ("rename", call_rename),
        ("unlink", call_unlink),
        ("mkdir", call_mkdir),
        ("rmdir", call_rmdir),
        ("readdir, an entry", call_readdir),
    ];
    for (name, call) in rows {
        let start = Instant::now();
        call(&bench)?;
        let each = start.elapsed().as_nanos() / calls as u128;
        println!("{name:26} {each:6} ns");
    }
    Ok(())
}

impl Bench {
    fn new(entries: usize, calls: usize) -> Result<Bench> {
        let fs = Fs::new(memory_pool(1 << 30));
        let cred = Cred::root();
        let dir = fs.mkdir(&cred, fs.root(), b"directory", 0o755)?;
        let bench = Bench {
            fs,
            cred,
            dir,
            entries,
            calls,
            names: KINDS.map(|kind| (0..entries.max(calls)).map(|n| name(kind, n)).collect()),
        };
        for name in &bench.names[OLD][..entries] {
            let node = bench.fs.create(&bench.cred, dir, name, 0o644)?;
            bench.fs.unpin(node.ino)?;
        }
        Ok(bench)
    }

    /// As many names as calls, in a scattered order of the first `len` ones.
    fn scattered(&self, kind: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let names = &self.names[kind][..len];
        (0..self.calls).map(move |call| &names[call * 7919 % len][..])
    }
}

fn name(kind: &str, index: usize) -> Vec<u8> {
    format!("{kind}-{index:08}").into_bytes()
}

#[inline(never)]
fn call_getattr(bench: &Bench) -> Result<()> {
    for _ in 0..bench.calls {
        black_box(bench.fs.getattr(black_box(bench.dir))?);
    }
    Ok(())
}

#[inline(never)]
fn call_lookup(bench: &Bench) -> Result<()> {
    for name in bench.scattered(OLD, bench.entries) {
        black_box(bench.fs.lookup(&bench.cred, bench.dir, name)?);
    }
    Ok(())
}

#[inline(never)]
fn call_missing(bench: &Bench) -> Result<()> {
    for name in bench.scattered(GONE, bench.entries) {
        let found = bench.fs.lookup(&bench.cred, bench.dir, name);
        assert!(found.is_err());
    }
    Ok(())
}

#[inline(never)]
fn call_create(bench: &Bench) -> Result<()> {
    for name in &bench.names[NEW][..bench.calls] {
        let node = bench.fs.create(&bench.cred, bench.dir, name, 0o644)?;
        bench.fs.unpin(node.ino)?;
    }
    Ok(())
}

#[inline(never)]
fn call_rename(bench: &Bench) -> Result<()> {
    let flags = RenameFlags::empty();
    let (from, to) = (&bench.names[NEW], &bench.names[MOVED]);
    for (from, to) in from.iter().zip(to).take(bench.calls) {
        let (cred, dir) = (&bench.cred, bench.dir);
        bench.fs.rename(cred, dir, from, dir, to, flags)?;
    }
    Ok(())
}

#[inline(never)]
fn call_unlink(bench: &Bench) -> Result<()> {
    for name in &bench.names[MOVED][..bench.calls] {
        bench.fs.unlink(&bench.cred, bench.dir, name)?;
    }
    Ok(())
}

#[inline(never)]
fn call_mkdir(bench: &Bench) -> Result<()> {
    for name in &bench.names[DIR][..bench.calls] {
        black_box(bench.fs.mkdir(&bench.cred, bench.dir, name, 0o755)?);
    }
    Ok(())
}

#[inline(never)]
fn call_rmdir(bench: &Bench) -> Result<()> {
    for name in &bench.names[DIR][..bench.calls] {
        bench.fs.rmdir(&bench.cred, bench.dir, name)?;
    }
    Ok(())
}

#[inline(never)]
fn call_readdir(bench: &Bench) -> Result<()> {
    let mut seen = 0;
    while seen < bench.calls {
        bench.fs.readdir(bench.dir, 0, &mut |entry| {
            black_box(entry);
            seen += 1;
            seen < bench.calls
        })?;
    }
    Ok(())
}
