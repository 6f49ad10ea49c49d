//! What the kernel may keep (D65): attributes, while nobody else uses the pool.
//!
//! Whoever attaches waits until the kernel was told to forget. It gives attributes versions, so
//! that it keeps none of an answer to a request that it sent before.

use crate::attributes::NOT_KEPT;
use crate::descriptions;
use nacre_fs::{Fs, Stat};
use rustix::fs::FileType;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::Thread;
use std::time::Duration;

/// For so long at most: what a server that died has told is then asked for, in vain.
pub(crate) const KEPT: Duration = Duration::from_secs(1);
/// Answers that come with a new file are good for as long as the kernel needs to open it: it makes
/// at least a tick of its clock of it. They have no version.
const OPENED: Duration = Duration::from_millis(1);
/// Two ticks, of the slowest clock.
pub(crate) const OPENED_MOST: Duration = Duration::from_millis(20);
const SET_IDS: u32 = 0o6000;

/// Whether the kernel may keep anything now.
#[derive(Default)]
pub(crate) struct Keeping {
    pub(crate) may: AtomicBool,
    /// An old kernel keeps what it is told after it was told to forget.
    pub(crate) forgets: AtomicBool,
    pub(crate) ends: AtomicBool,
}

impl Keeping {
    /// For how long the attributes of a new file are good, which is opened now.
    pub(crate) fn good_to_open(&self, number: u64, stat: &Stat) -> Duration {
        self.good(number, stat).min(OPENED)
    }

    /// For how long an answer is good. A write takes the set-id bits of a file, which the kernel
    /// does not expect.
    pub(crate) fn good(&self, number: u64, stat: &Stat) -> Duration {
        let loses_bits = FileType::from_raw_mode(stat.mode).is_file() && stat.mode & SET_IDS != 0;
        let may = self.may.load(SeqCst) && self.forgets.load(SeqCst);
        match may && !loses_bits && descriptions::of_number(number).is_none() {
            true => KEPT,
            false => NOT_KEPT,
        }
    }

    /// The mount is gone.
    pub(crate) fn end(&self, fs: &Fs, thread: &Thread) {
        self.ends.store(true, SeqCst);
        fs.want_kernel_cache_end();
        thread.unpark();
    }
}
