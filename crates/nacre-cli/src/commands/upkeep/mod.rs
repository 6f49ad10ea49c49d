//! What whoever stays beside the programs that use pools does for the pools meanwhile.

mod cold;
mod dirty;
mod names;
mod scrub;

pub use dirty::tell_unwritten;
pub use names::Names;

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use nacre_fs::Fs;
use nacre_store::Store;

/// The end of the work beside which pools are kept.
#[derive(Default)]
pub struct End {
    came: Mutex<bool>,
    told: Condvar,
}

/// Tells the end, also if the work failed, and wakes who rests meanwhile.
struct Tell<'e> {
    end: &'e End,
    pools: &'e [(&'e Path, &'e Fs)],
}

impl End {
    fn came(&self) -> MutexGuard<'_, bool> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it comes within a time.
    pub fn within(&self, time: Duration) -> bool {
        let waited = self
            .told
            .wait_timeout_while(self.came(), time, |came| !*came);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        *self.end.came() = true;
        self.end.told.notify_all();
        let stores = self.pools.iter().map(|(_, fs)| fs.store());
        stores.for_each(Store::wake_who_rests);
    }
}

/// Works. Meanwhile pools with copies are scrubbed, each when `pause` is over since its last time,
/// what is cold moves to devices behind, and disks get what gathers in memory.
pub fn beside<'p, T>(
    pools: impl Iterator<Item = (&'p Path, &'p Fs)>,
    pause: Option<Duration>,
    work: impl FnOnce() -> T,
) -> T {
    let end = End::default();
    let pools: Vec<_> = pools.collect();
    thread::scope(|scope| {
        for &(path, fs) in &pools {
            let volume = fs.store().volume();
            if volume.has_copies() {
                start(scope, || scrub::now_and_then(path, fs, pause, &end));
            }
            if volume.has_image() {
                start(scope, || dirty::keep_small(path, fs, &end));
            }
            if volume.has_behind() {
                start(scope, || cold::keep_moving(path, fs, &end));
            }
        }
        let _told = Tell {
            end: &end,
            pools: &pools,
        };
        work()
    })
}

/// Who may start no thread does without.
fn start<'s>(scope: &'s Scope<'s, '_>, job: impl FnOnce() + Send + 's) {
    let _started = thread::Builder::new().spawn_scoped(scope, job);
}
