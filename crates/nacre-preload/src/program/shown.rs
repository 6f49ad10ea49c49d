//! Links of the host that lead into a pool while the kernel shows it. The kernel follows them to
//! its own mount, whose files have another device number. So who meets such a file looks at each
//! path of the host from then on, and serves what leads into the pool.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::arch::x86_64::path_filter;
use crate::program::by_kernel;
use crate::program::mounts::Mount;

/// Device numbers of the host that are looked at, at most.
const MOST: usize = 16;
/// Those that are no pool's.
static HOSTS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// That of the kernel's mount of a pool; 0 if none was met.
static SHOWN: AtomicU64 = AtomicU64::new(0);

/// Whether paths of the host are looked at before calls: the kernel showed a pool when the program
/// started, or such a file was met.
static LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// The program starts.
pub fn start(mounts: &[Mount]) {
    LOOKED_AT.store(mounts.iter().any(by_kernel::is_fuse_at), Relaxed);
}

/// Whether paths of the host are looked at, those of calls that open at least.
#[inline(always)]
pub fn are_looked_at() -> bool {
    LOOKED_AT.load(Relaxed)
}

/// Whether a device number that the kernel has told is to be looked at. Those of its mounts of
/// pools have no major part.
#[inline(always)]
pub fn may_be(device: u64) -> bool {
    libc::major(device) == 0 && is_new(device)
}

#[inline(never)]
fn is_new(device: u64) -> bool {
    let count = COUNT.load(Relaxed);
    let mut hosts = HOSTS.iter().take(count);
    count < MOST && hosts.all(|one| one.load(Relaxed) != device)
}

/// Whether files with this device number are a pool's, shown by the kernel.
pub fn is(device: u64) -> bool {
    may_be(device) && look(device)
}

fn look(device: u64) -> bool {
    if device == SHOWN.load(Relaxed) {
        return true;
    }
    let found = by_kernel::shows_as(device);
    match found {
        true => {
            SHOWN.store(device, Relaxed);
            LOOKED_AT.store(true, Relaxed);
            path_filter::stop_serving();
        }
        false => {
            let place = HOSTS.get(COUNT.load(Relaxed));
            place.inspect(|place| place.store(device, Relaxed));
            COUNT.fetch_add(1, Relaxed);
        }
    }
    found
}

/// Whether such a file was met.
#[inline(always)]
pub fn was_met() -> bool {
    SHOWN.load(Relaxed) != 0
}
