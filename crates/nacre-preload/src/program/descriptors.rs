//! Descriptors of this process: which there are, and which are our own.

use core::sync::atomic::{
    AtomicI32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};

use crate::runtime::kernel::{call, checked};

const INTERNAL_MAX: usize = 256;

/// Descriptors that the library keeps open; the program must not close them.
static INTERNAL: [AtomicI32; INTERNAL_MAX] = [const { AtomicI32::new(-1) }; INTERNAL_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// From now on `fd` is ours; false if that cannot be remembered.
pub fn keep_internal(fd: i32) -> bool {
    let place = INTERNAL.get(COUNT.fetch_add(1, AcqRel));
    if let Some(place) = place {
        place.store(fd, Release);
    }
    place.is_some()
}

/// Our own descriptors.
pub fn internal() -> impl Iterator<Item = i32> {
    INTERNAL
        .iter()
        .take(COUNT.load(Acquire))
        .map(|fd| fd.load(Acquire))
        .filter(|&fd| fd >= 0)
}

/// Whether a descriptor is one of our own.
pub fn is_internal(fd: i32) -> bool {
    internal().any(|one| one == fd)
}

/// All open descriptors, from /proc/self/fd.
pub fn open() -> Vec<i32> {
    let path = c"/proc/self/fd";
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags];
    let Ok(folder) = checked(libc::SYS_openat, &args) else {
        return Vec::new();
    };
    let mut fds = Vec::new();
    let mut buffer = vec![0u64; 512];
    while let Ok(len @ 1..) = checked(
        libc::SYS_getdents64,
        &[folder, buffer.as_mut_ptr() as usize, buffer.len() * 8],
    ) {
        fds.extend(numbers(zerocopy::IntoBytes::as_bytes(
            &buffer[..len.div_ceil(8)],
        )));
    }
    call(libc::SYS_close, &[folder]);
    fds.retain(|&fd| fd as usize != folder);
    fds
}

/// The numbers among the names of directory entries.
fn numbers(mut entries: &[u8]) -> Vec<i32> {
    const NAME: usize = 19;
    let mut found = Vec::new();
    while entries.len() > NAME {
        let len = usize::from(u16::from_le_bytes([entries[16], entries[17]]));
        let Some(entry) = entries.get(NAME..len) else {
            break;
        };
        let name = entry.split(|&b| b == 0).next().unwrap_or(&[]);
        found.extend(
            core::str::from_utf8(name)
                .ok()
                .and_then(|n| n.parse::<i32>().ok()),
        );
        entries = &entries[len..];
    }
    found
}
