//! Who takes a version of a disk keeps everybody from storing. Meanwhile no memory is asked for: a
//! debugger that stops the process in the kernel may want to store, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use nacre_testkit::pool::{CAREFUL, Devices};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Caching, CreateOptions, Volume};

/// How often memory was asked for while [`WATCHED`] was not 0.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static WATCHED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(WATCHED.load(SeqCst), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ASKED.fetch_add(WATCHED.load(SeqCst), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn asked(work: impl FnOnce()) -> usize {
    ASKED.store(0, SeqCst);
    WATCHED.store(1, SeqCst);
    work();
    WATCHED.store(0, SeqCst);
    ASKED.load(SeqCst)
}

fn store(volume: &Volume, pieces: u64, len: usize) {
    for piece in 0..pieces {
        let at = VolumeOffset((8 << 20) + piece * (2 * len as u64 + 8192));
        let stored = volume.write(at, &vec![7; len], StoreKind::Data);
        volume.fence(stored).unwrap();
    }
}

#[test]
fn a_version_is_taken_without_asking_for_memory() {
    let devices = Devices::below("/dev/shm".as_ref());
    let options = CreateOptions {
        caching: Caching::Always,
        ..CAREFUL
    };
    drop(devices.volume(&["a"], 64 << 20, options));
    let volume = devices.imaged("a");
    for (pieces, len) in [(1, 100), (300, 100), (3, 300 << 10), (20, 20_000)] {
        store(&volume, pieces, len);
        let mut room = volume.room_for_version();
        let mut version = None;
        let times = asked(|| version = volume.take_version_in(&mut room));
        assert_eq!(times, 0, "{pieces} pieces of {len} bytes");
        volume.write_version(version.unwrap()).unwrap();
    }
    // The canary: who has no room is seen to ask.
    store(&volume, 300, 100);
    assert_ne!(asked(|| drop(volume.take_version())), 0);
}
