//! Reads, writes and appends many times over a pool in memory and prints the time of one call.
//!
//! `data [calls]`. Each call has a function of its own here, so that `valgrind --tool=callgrind`
//! with `callgrind_annotate --inclusive=yes` gives its instructions.

use std::hint::black_box;
use std::time::Instant;

use nacre_fs::{Cred, Fs, InodeRef, Result, WriteAt};
use nacre_media::{UserBytes, UserBytesMut};
use nacre_testkit::pool::memory_pool;
use nacre_types::FileOffset;

/// Bytes of the file that is read and overwritten.
const FILE: usize = 64 << 20;

struct Bench {
    fs: Fs,
    cred: Cred,
    full: InodeRef,
    calls: usize,
}

type Call = fn(&Bench) -> Result<()>;

fn main() -> Result<()> {
    let calls = std::env::args().nth(1).and_then(|arg| arg.parse().ok());
    let bench = Bench::new(calls.unwrap_or(1000))?;
    let rows: [(&str, Call); 10] = [
        ("read 64 B", read_64),
        ("read 4 KiB", read_4k),
        ("read 64 KiB", read_64k),
        ("write 64 B", write_64),
        ("write 4 KiB", write_4k),
        ("write 64 KiB", write_64k),
        ("write 64 B + fsync", write_fsync),
        ("append 64 B", append_64),
        ("append 4 KiB", append_4k),
        ("append 64 KiB", append_64k),
    ];
    for (name, call) in rows {
        let start = Instant::now();
        call(&bench)?;
        let each = start.elapsed().as_nanos() / bench.calls as u128;
        println!("{name:20} {each:6} ns");
    }
    Ok(())
}

impl Bench {
    fn new(calls: usize) -> Result<Bench> {
        let fs = Fs::new(memory_pool(1 << 30));
        let cred = Cred::root();
        let full = fs.create(&cred, fs.root(), b"full", 0o644)?;
        let bench = Bench {
            fs,
            cred,
            full,
            calls,
        };
        let bytes = vec![1; 1 << 20];
        for _ in 0..FILE / bytes.len() {
            bench.write(full, WriteAt::Append, &bytes)?;
        }
        Ok(bench)
    }

    /// Offset of call `call` among the pieces of `size` bytes of the full file, in a scattered
    /// order.
    fn scattered(call: usize, size: usize) -> FileOffset {
        FileOffset((call * 7919 % (FILE / size) * size) as u64)
    }

    #[inline]
    fn write(&self, node: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<()> {
        let written = self
            .fs
            .write(&self.cred, node, at, UserBytes::from(black_box(bytes)))?;
        assert_eq!(written.len, bytes.len());
        Ok(())
    }

    #[inline]
    fn reads<const SIZE: usize>(&self) -> Result<()> {
        let mut bytes = [0; SIZE];
        for call in 0..self.calls {
            let to = UserBytesMut::from(&mut bytes[..]);
            let len = self.fs.read(self.full, Bench::scattered(call, SIZE), to)?;
            assert_eq!(black_box(len), SIZE);
        }
        Ok(())
    }

    #[inline]
    fn writes<const SIZE: usize>(&self, sync: bool) -> Result<()> {
        let bytes = [2; SIZE];
        for call in 0..self.calls {
            let at = WriteAt::Offset(Bench::scattered(call, SIZE));
            self.write(self.full, at, &bytes)?;
            if sync {
                self.fs.fsync(self.full)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn appends<const SIZE: usize>(&self) -> Result<()> {
        let bytes = [3; SIZE];
        let name = format!("grows by {SIZE}");
        let (root, cred) = (self.fs.root(), &self.cred);
        let node = self.fs.create(cred, root, name.as_bytes(), 0o644)?;
        for _ in 0..self.calls {
            self.write(node, WriteAt::Append, &bytes)?;
        }
        self.fs.unlink(cred, root, name.as_bytes())?;
        self.fs.unpin(node.ino)
    }
}

#[inline(never)]
fn read_64(bench: &Bench) -> Result<()> {
    bench.reads::<64>()
}

#[inline(never)]
fn read_4k(bench: &Bench) -> Result<()> {
    bench.reads::<4096>()
}

#[inline(never)]
fn read_64k(bench: &Bench) -> Result<()> {
    bench.reads::<65536>()
}

#[inline(never)]
fn write_64(bench: &Bench) -> Result<()> {
    bench.writes::<64>(false)
}

#[inline(never)]
fn write_4k(bench: &Bench) -> Result<()> {
    bench.writes::<4096>(false)
}

#[inline(never)]
fn write_64k(bench: &Bench) -> Result<()> {
    bench.writes::<65536>(false)
}

#[inline(never)]
fn write_fsync(bench: &Bench) -> Result<()> {
    bench.writes::<64>(true)
}

#[inline(never)]
fn append_64(bench: &Bench) -> Result<()> {
    bench.appends::<64>()
}

#[inline(never)]
fn append_4k(bench: &Bench) -> Result<()> {
    bench.appends::<4096>()
}

#[inline(never)]
fn append_64k(bench: &Bench) -> Result<()> {
    bench.appends::<65536>()
}
