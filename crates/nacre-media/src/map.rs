//! Mapping windows of devices.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use nacre_types::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::address_range::{AddressRange, RANGE_ALIGNMENT};
use crate::arch;
use crate::confined::is_confined;
use crate::device::{Backing, Device, refused};
use crate::error::MediaError;
use crate::kind::Access;
use crate::kind::{DeviceKind, FlushMethod};

/// A range of a device.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub start: u64,
    pub len: u64,
}

/// Checks that `window` can be mapped, and finds it a place unless it has one.
pub(crate) fn prepare(
    device: &Device,
    window: Window,
    place: Option<AddressRange>,
) -> Result<AddressRange, MediaError> {
    let granule = device.granule();
    let path = || device.path().to_owned();
    if granule > RANGE_ALIGNMENT || !granule.is_power_of_two() {
        return Err(MediaError::GranuleTooLarge {
            path: path(),
            granule,
            most: RANGE_ALIGNMENT,
        });
    }
    if window.len == 0
        || !window.len.is_multiple_of(granule)
        || !window.start.is_multiple_of(granule)
    {
        return Err(MediaError::BadSize {
            path: path(),
            size: window.len,
            granule,
        });
    }
    match window.start.checked_add(window.len) {
        Some(end) if end <= device.len() => {}
        end => {
            return Err(MediaError::TooShort {
                path: path(),
                actual: device.len(),
                needed: end.unwrap_or(u64::MAX),
            });
        }
    }
    let place = place.map_or_else(|| AddressRange::reserve(window.len), Ok)?;
    assert!(
        place.len() as u64 >= window.len,
        "the place is shorter than the window"
    );
    assert!(
        (place.start() as u64).is_multiple_of(granule),
        "the place is not aligned to the granule"
    );
    Ok(place)
}

/// Maps `window` over the start of `place` and tells what the device turned out to be.
pub(crate) fn map_device(
    device: &Device,
    window: Window,
    place: &AddressRange,
) -> Result<DeviceKind, MediaError> {
    let prot = match device.access() {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    let kind = map_as(device, window, place, prot)?;
    advise_huge_pages(kind, window, place);
    leave_out_of_core_dumps(address(place).addr(), window.len as usize);
    Ok(kind)
}

/// Maps in the way in which such a device can be mapped.
fn map_as(
    device: &Device,
    window: Window,
    place: &AddressRange,
    prot: ProtFlags,
) -> Result<DeviceKind, MediaError> {
    let (flags, kind) = match device.backing() {
        Backing::DevDax => (MapFlags::SHARED, DeviceKind::DevDax),
        Backing::Memory => (MapFlags::SHARED, DeviceKind::MemoryFile),
        Backing::HugePages => (MapFlags::SHARED, DeviceKind::HugePageFile),
        Backing::File if can_be_synced(device, prot) => (SYNCED, DeviceKind::DaxFile),
        Backing::File | Backing::Block => (MapFlags::SHARED, DeviceKind::CachedFile),
    };
    map_fixed(device, window, place, (prot, flags))
        .map(|()| kind)
        .map_err(|errno| refused(device.path(), "map it", errno))
}

const SYNCED: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);

/// Whether the device's file system maps it itself. It is asked at an address of the kernel's
/// choice: a mapping at a fixed one that is refused leaves a hole there, which the kernel may give
/// to another thread.
fn can_be_synced(device: &Device, prot: ProtFlags) -> bool {
    let len = PAGE_SIZE as usize;
    // SAFETY: a new mapping at an address that the kernel chooses disturbs nobody.
    let mapped = unsafe { mmap(null_mut(), len, prot, SYNCED, device.fd(), 0) };
    mapped.is_ok_and(|at| {
        // SAFETY: it was mapped here, and nothing refers to it.
        let _ = unsafe { munmap(at, len) };
        true
    })
}

fn map_fixed(
    device: &Device,
    window: Window,
    place: &AddressRange,
    (prot, flags): (ProtFlags, MapFlags),
) -> Result<(), Errno> {
    let flags = flags | MapFlags::FIXED;
    // SAFETY: the range belongs to `place`, which the caller holds and into which nothing else is
    // mapped.
    let mapped = unsafe {
        mmap(
            address(place),
            window.len as usize,
            prot,
            flags,
            device.fd(),
            window.start,
        )
    };
    mapped.map(|_| ())
}

/// Maps the contents of an image over the start of `place`.
pub(crate) fn map_image(
    image: BorrowedFd<'_>,
    window: Window,
    place: &AddressRange,
) -> Result<(), Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    let len = window.len as usize;
    // SAFETY: the range belongs to `place`, which the caller holds and into which nothing else is
    // mapped.
    unsafe { mmap(address(place), len, prot, flags, image, window.start) }?;
    leave_out_of_core_dumps(address(place).addr(), len);
    Ok(())
}

/// Keeps shared memory out of the core dumps of the process: there it would be all files of
/// everybody, maybe of many gigabytes, also where the user asks for what the program shares.
pub(crate) fn leave_out_of_core_dumps(start: usize, len: usize) {
    // SAFETY: the advice changes no contents. Where it is refused, the user's filter alone counts.
    let _ = unsafe {
        madvise(
            std::ptr::without_provenance_mut(start),
            len,
            Advice::LinuxDontDump,
        )
    };
}

/// Maps a page of a device that nobody uses, for what lasts as long as a mapping does. Tells what
/// the device is.
pub(crate) fn hold_open(device: &Device) -> Result<(AddressRange, DeviceKind), MediaError> {
    let window = Window {
        start: 0,
        len: device.granule(),
    };
    let place = AddressRange::reserve(window.len)?;
    let kind = map_as(device, window, &place, ProtFlags::empty())?;
    Ok((place, kind))
}

/// Maps zeroed memory of `len` bytes over the start of `place`.
pub(crate) fn map_memory(len: u64, place: &AddressRange) -> Result<(), MediaError> {
    assert!(
        place.len() as u64 >= len,
        "the place is shorter than the memory"
    );
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range belongs to `place`, which the caller holds and into which nothing else is
    // mapped.
    let mapped = unsafe {
        mmap_anonymous(
            address(place),
            len as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    };
    mapped
        .map(|_| ())
        .map_err(|errno| refused("memory".as_ref(), "map it", errno))
}

fn address(place: &AddressRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(place.start())
}

/// Asks for 2 MiB pages where the kernel gives 4 KiB pages unless asked.
fn advise_huge_pages(kind: DeviceKind, window: Window, place: &AddressRange) {
    if kind == DeviceKind::MemoryFile {
        // SAFETY: the range was just mapped; the advice changes no contents.
        // It may be refused, and then pages are small.
        let _ = unsafe { madvise(address(place), window.len as usize, Advice::LinuxHugepage) };
    }
}

/// Pages of a mapping are made this many bytes at a time when stores are expected.
pub(crate) const WINDOW: u64 = 128 << 10;

/// Whether a device mapped as `kind` has small pages that cost a fault each, and making one early
/// costs nothing else: of a cached file it would make the page dirty.
pub(crate) fn has_small_pages(kind: DeviceKind) -> bool {
    matches!(
        kind,
        DeviceKind::MemoryFile | DeviceKind::Anonymous | DeviceKind::DaxFile
    )
}

/// Makes the pages of a range of a mapping for stores.
pub(crate) fn populate(address: *mut c_void, len: usize) {
    // Without it, each page is made by a fault.
    if is_confined() {
        return;
    }
    // SAFETY: the range belongs to a mapping of ours; the advice changes no contents.
    let _ = unsafe { madvise(address, len, Advice::LinuxPopulateWrite) };
}

/// How stores to a device that is mapped as `kind` become durable.
pub(crate) fn flush_method(device: &Device, kind: DeviceKind) -> FlushMethod {
    match kind {
        DeviceKind::MemoryFile | DeviceKind::HugePageFile | DeviceKind::Anonymous => {
            FlushMethod::None
        }
        DeviceKind::CachedFile => FlushMethod::Msync,
        DeviceKind::Disk => FlushMethod::Commit,
        DeviceKind::DevDax | DeviceKind::DaxFile if device.caches_persist() => FlushMethod::None,
        DeviceKind::DevDax | DeviceKind::DaxFile => arch::best_flush(),
    }
}

/// As [`stream_min`], at most, where the cache does not hold the lines.
pub(crate) const STREAM_MIN_FRESH: usize = 4096;

/// From how many bytes on stores to such a device bypass the cache.
///
/// NVM writes 256 bytes at once, best undisturbed by evictions. Memory gains from bypassing only
/// where fetching the lines first would cost more than the next reader gains from finding them in
/// the cache.
pub(crate) fn stream_min(kind: DeviceKind) -> usize {
    match kind {
        DeviceKind::DevDax | DeviceKind::DaxFile => 256,
        _ => 8192,
    }
}
