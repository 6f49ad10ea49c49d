//! Memory of a file that has no room for a page yet.

use std::fs::File;
use std::time::Duration;

use nacre_media::fault::{SharedRange, install_handler};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE: usize = 4096;

#[test]
fn who_touches_shared_memory_without_room_waits_for_it() {
    install_handler();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    // A page behind the end of a file faults as one does that the file system has no room for.
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            flags,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    let base = base.unwrap();
    let watched = SharedRange::new(base as usize, PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            file.set_len(PAGE as u64).unwrap();
        });
        // SAFETY: inside of the mapping, which this test alone uses.
        unsafe { base.cast::<u64>().write_volatile(7) };
    });
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[..8], 7_u64.to_le_bytes());
    drop(watched);
    // SAFETY: the mapping of above, which nobody uses any more.
    unsafe { munmap(base, PAGE) }.unwrap();
}
