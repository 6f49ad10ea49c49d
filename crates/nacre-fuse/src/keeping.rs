//! What the kernel may keep (D65): attributes, while nobody else uses the pool.
//!
//! Whoever attaches waits until the kernel was told to forget. It gives attributes versions, so
//! that it keeps none of an answer to a request that it sent before.

use crate::attributes::NOT_KEPT;
use crate::descriptions;
use crate::device::Device;
use crate::operations::Pool;
use crate::wire::Output;
use nacre_fs::{Fs, Stat};
use rustix::fs::FileType;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// For so long at most: what a server that died has told is then asked for, in vain.
const SECONDS: u64 = 1;
/// How often it is looked whether the others have gone.
const ROUND: Duration = Duration::from_secs(1);
/// A new inode's answer may be with the kernel, but not yet in its table.
const AGAIN: Duration = Duration::from_millis(1);
const NOTIFY_INVALIDATE_INODE: i32 = 2;
const SET_IDS: u32 = 0o6000;

/// Whether the kernel may keep anything now.
#[derive(Default)]
pub(crate) struct Keeping {
    may: AtomicBool,
    /// An old kernel keeps what it is told after it was told to forget.
    pub(crate) forgets: AtomicBool,
    ends: AtomicBool,
}

impl Keeping {
    /// For how many seconds an answer is good. A write takes the set-id bits of a file, which the
    /// kernel does not expect.
    pub(crate) fn good(&self, number: u64, stat: &Stat) -> u64 {
        let loses_bits = FileType::from_raw_mode(stat.mode).is_file() && stat.mode & SET_IDS != 0;
        let may = self.may.load(SeqCst) && self.forgets.load(SeqCst);
        match may && !loses_bits && descriptions::of_number(number).is_none() {
            true => SECONDS,
            false => NOT_KEPT,
        }
    }

    /// The mount is gone.
    pub(crate) fn end(&self, fs: &Fs, keeper: &Thread) {
        self.ends.store(true, SeqCst);
        fs.want_kernel_cache_end();
        keeper.unpark();
    }
}

impl Pool {
    /// Lets the kernel keep things while nobody else uses the pool. In a thread of its own.
    pub(crate) fn keep(&self, device: &Device) {
        let keeping = &self.keeping;
        while !keeping.ends.load(SeqCst) {
            if !self.descriptions.is_empty() || !self.fs.begin_kernel_cache() {
                thread::park_timeout(ROUND);
                continue;
            }
            keeping.may.store(true, SeqCst);
            while !keeping.ends.load(SeqCst) && !self.fs.wait_for_kernel_cache_end(ROUND) {}
            keeping.may.store(false, SeqCst);
            self.make_forget(device);
            self.fs.end_kernel_cache();
            // Who attaches stays for a while.
            thread::park_timeout(ROUND);
        }
    }

    fn make_forget(&self, device: &Device) {
        let mut left = self.nodes.numbers();
        left.push(self.fs.root().ino.0);
        let begin = Instant::now();
        loop {
            left.retain(|&number| {
                !device.notify(invalidation(number).message(0, -NOTIFY_INVALIDATE_INODE))
            });
            // Those that the kernel has dropped meanwhile are no longer known.
            left.retain(|&number| self.node(number).is_ok());
            if left.is_empty() || begin.elapsed() > Duration::from_secs(SECONDS) {
                return;
            }
            thread::sleep(AGAIN);
        }
    }
}

/// The attributes of an inode, and not its contents, are to be asked for.
fn invalidation(number: u64) -> Output {
    let mut all = Output::new();
    all.u64(number).u64(u64::MAX).u64(0);
    all
}
