//! Calls that a device fails in the middle of.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use nacre_fs::{Fs, FsError, RenameFlags, Result};
use nacre_store::Store;
use nacre_testkit::pool::{PRIVATE, PoolFiles};
use nacre_types::{DeviceOffset, StoreKind, VolumeOffset};
use nacre_volume::{Access, Observer, Volume};

use crate::pools::{POOL_BYTES, file, root};

const LOST: u64 = 8 << 20;

/// Takes the end of the device away, and touches it, at one of the stores that follow.
struct Failing {
    fs: OnceLock<&'static Fs>,
    device: PathBuf,
    /// The store that fails, counted from 1; 0 for none.
    at: AtomicU64,
}

impl Failing {
    fn fail(&self, fs: &Fs) {
        let device = OpenOptions::new().write(true).open(&self.device).unwrap();
        let len = device.metadata().unwrap().len();
        device.set_len(len - LOST).unwrap();
        let volume = fs.store().volume();
        volume.read(VolumeOffset(volume.len() - 4096), &mut [0; 8]);
        assert!(volume.health().is_err());
    }
}

impl Observer for Failing {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        let next = |at: u64| at.checked_sub(1);
        if self.at.fetch_update(SeqCst, SeqCst, next) == Ok(1)
            && let Some(fs) = self.fs.get()
        {
            self.fail(fs);
        }
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}
    fn fence(&self, _: u16) {}
}

type Call = fn(&Fs) -> Result<()>;

/// What names and removes, each called with `a` and `b` there, and `c` not.
const CALLS: [(&str, Call); 4] = [
    ("unlink", |fs| fs.unlink(&root(), fs.root(), b"a")),
    ("create", |fs| {
        fs.create(&root(), fs.root(), b"c", 0o600).map(drop)
    }),
    ("rename", |fs| rename(fs, b"c")),
    ("rename over", |fs| rename(fs, b"b")),
];

fn rename(fs: &Fs, to: &[u8]) -> Result<()> {
    fs.rename(
        &root(),
        fs.root(),
        b"a",
        fs.root(),
        to,
        RenameFlags::empty(),
    )
}

/// A call, whose store of this number fails; `None`: it has not that many.
fn called(call: Call, at: u64) -> Option<Result<()>> {
    let files = PoolFiles::new(POOL_BYTES);
    let volume = Volume::open(&files.path(), Access::ReadWrite).unwrap();
    let failing = Arc::new(Failing {
        fs: OnceLock::new(),
        device: files.path(),
        at: AtomicU64::new(0),
    });
    let observer: Arc<dyn Observer> = Arc::clone(&failing) as _;
    volume.set_observer(&observer);
    let store = Store::attach(volume, &PRIVATE).unwrap();
    // What failed is not left in order.
    let fs: &'static Fs = Box::leak(Box::new(Fs::new(store)));
    assert!(failing.fs.set(fs).is_ok());
    for name in ["a", "b"] {
        file(fs, fs.root(), name);
    }
    failing.at.store(at, SeqCst);
    let done = call(fs);
    (failing.at.load(SeqCst) == 0).then_some(done)
}

#[test]
fn a_call_that_may_have_been_done_is_not_tried_again() {
    nacre_media::fault::install_handler();
    for (name, call) in CALLS {
        let mut failed = 0;
        for at in 1.. {
            let Some(done) = called(call, at) else { break };
            failed += usize::from(done.is_err());
            let told = matches!(done, Ok(()) | Err(FsError::Io));
            assert!(told, "{name}, store {at}: {done:?}");
        }
        assert!(failed > 2, "{name}: {failed}");
    }
}
