//! What the kernel may keep while nobody else uses the pool: attributes (D65), names, and what it
//! has read of files (D109).
//!
//! Whoever attaches waits until the kernel was told to forget. It gives attributes versions, so
//! that it keeps none of an answer to a request that it sent before.

use crate::attributes::NOT_KEPT;
use crate::descriptions;
use nacre_fs::{Fs, Stat};
use nacre_types::Timestamp;
use rustix::fs::FileType;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// For so long at most: what a server that died has told is then asked for, in vain.
pub(crate) const KEPT: Duration = Duration::from_secs(1);
/// Answers that come with a new file are good for as long as the kernel needs to open it: it makes
/// at least a tick of its clock of it. They have no version.
const OPENED: Duration = Duration::from_millis(1);
/// Two ticks, of the slowest clock.
const OPENED_MOST: Duration = Duration::from_millis(20);
const NANOS: u32 = 1_000_000_000;
const SET_IDS: u32 = 0o6000;

/// Whether the kernel may keep anything now.
#[derive(Default)]
pub(crate) struct Keeping {
    pub(crate) may: AtomicBool,
    /// An old kernel keeps what it is told after it was told to forget.
    pub(crate) forgets: AtomicBool,
    /// This kernel lets names expire, and drops what it has read where it writes past its cache.
    pub(crate) forgets_more: AtomicBool,
    /// Counts the times without others.
    pub(crate) times: AtomicU64,
    /// Counts times that were told for others; see [`Keeping::another`].
    told: AtomicU32,
    /// Held while a name is looked up or made, until its answer was sent.
    pub(crate) looking: RwLock<()>,
    /// When the last answer came with a new file.
    opened: Mutex<Option<Instant>>,
    pub(crate) ends: AtomicBool,
}

impl Keeping {
    /// For how long the attributes of a new file are good, which is opened now.
    pub(crate) fn good_to_open(&self, number: u64, stat: &Stat) -> Duration {
        let good = self.good(number, stat).min(OPENED);
        if good > NOT_KEPT {
            *self.opened() = Some(Instant::now());
        }
        good
    }

    /// How long the answers that came with new files are still good.
    pub(crate) fn still_good_to_open(&self) -> Duration {
        let passed = self.opened().map(|opened| opened.elapsed());
        passed.map_or(NOT_KEPT, |passed| OPENED_MOST.saturating_sub(passed))
    }

    fn opened(&self) -> MutexGuard<'_, Option<Instant>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Which time without others it is, if the kernel may keep names and contents.
    pub(crate) fn alone(&self) -> Option<u64> {
        let may = self.may.load(SeqCst) && self.forgets_more.load(SeqCst);
        may.then(|| self.times.load(SeqCst))
    }

    /// A time that the kernel has not been told yet, so that it drops what it has read of the file.
    /// (Were it told to drop it, it would ignore the size in this answer.) No program sees it: the
    /// attributes are good for no time.
    pub(crate) fn another(&self, time: Timestamp) -> Timestamp {
        let fraction = self.told.fetch_add(1, SeqCst) % NANOS;
        let differs = u32::from(fraction == time.nanoseconds());
        Timestamp::from_parts(time.seconds(), (fraction + differs) % NANOS)
    }

    /// The mount is gone.
    pub(crate) fn end(&self, fs: &Fs, thread: &Thread) {
        self.ends.store(true, SeqCst);
        fs.want_kernel_cache_end();
        thread.unpark();
    }
}
