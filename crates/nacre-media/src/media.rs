//! One mapped window of a device: opening, facts, loads. Stores are in `store`.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nacre_types::{DeviceOffset, LINE_SIZE, PAGE_SIZE};

use crate::address_range::AddressRange;
use crate::arch::{Copier, copier};
use crate::device::{Device, refused};
use crate::error::{CopyError, MediaError, MediaFailed};
use crate::fault::{POISON, Watched};
use crate::granularity::{Cutter, Granularity, first_piece};
use crate::guest;
use crate::image::{Image, Mapped};
use crate::kind::{Access, DeviceKind, FlushMethod, Survives};
use crate::map::{self, Window};
use crate::mirror::Mirror;
use crate::observer::{Observer, Watcher};
use crate::populated::Populated;
use crate::traffic::{Direction, SharedTraffic};
use crate::user::UserBytesMut;

const LINE: usize = LINE_SIZE as usize;

/// A mapped window of one device, the only way to its bytes.
///
/// Offsets are counted from the start of the device, not of the window. Ranges that do not lie in
/// the window are a bug of the caller and panic: whoever follows an offset found on media checks it
/// first.
///
/// Other processes may change the bytes at any time, so no reference to them is ever made. A load
/// of 1, 2, 4 or 8 aligned bytes is atomic and sees what was stored before what it has seen
/// (acquire); longer reads may be torn.
pub struct Media {
    /// First byte of the mapping.
    base: *mut u8,
    /// First byte of the window, as a device offset.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// `len`, or 0 behind an image or of a mirror, which are asked each time.
    pub(crate) readable: u64,
    /// `readable`, or 0 if opened for reading only.
    pub(crate) writable: u64,
    access: Access,
    pub(crate) flush: FlushMethod,
    pub(crate) copier: Copier,
    /// From how many bytes on stores bypass the cache.
    pub(crate) stream_min: usize,
    pub(crate) watcher: OnceLock<Watcher>,
    pub(crate) cutter: OnceLock<Cutter>,
    /// Whether there is a watcher or a cutter.
    is_attended: AtomicBool,
    /// Empty where that is of no use.
    populated: Populated,
    kind: DeviceKind,
    device: Option<Arc<Device>>,
    /// What is mapped instead of the device.
    pub(crate) image: OnceLock<Image>,
    /// The devices that hold what is stored, if there are several.
    pub(crate) mirror: Option<Box<Mirror>>,
    /// Keeps the device's description open where the device itself is not mapped.
    _held: Option<AddressRange>,
    pub(crate) watched: Watched,
    /// Keeps the mapping; after `watched`, so that a fault handler never meets a range that is
    /// gone.
    place: AddressRange,
}

// SAFETY: the mapping is shared between processes anyway; all access to it is by atomics or by
// copies that take whatever they find, and the remaining fields are Send and Sync themselves.
unsafe impl Send for Media {}
// SAFETY: shared references store by atomics, or by copies whose torn results are allowed.
unsafe impl Sync for Media {}

impl Media {
    /// Opens and maps the whole of an existing device.
    pub fn open(path: &Path, access: Access) -> Result<Self, MediaError> {
        let device = Arc::new(Device::open(path, access)?);
        let len = device.len() & !(device.granule() - 1);
        Self::map(&device, DeviceOffset(0), len, None)
    }

    /// Maps `len` bytes of a device from `start` on (both multiples of its granule), as it was
    /// opened: read-only or writable.
    ///
    /// With `place`, at its addresses; it must be at least `len` long and aligned to the granule.
    pub fn map(
        device: &Arc<Device>,
        start: DeviceOffset,
        len: u64,
        place: Option<AddressRange>,
    ) -> Result<Self, MediaError> {
        let (window, place) = prepare(device, start, len, place)?;
        let kind = map::map_device(device, window, &place)?;
        let writable = if device.access() == Access::ReadWrite {
            len
        } else {
            0
        };
        Self::of_device(device, window, place, kind, writable)
    }

    fn of_device(
        device: &Arc<Device>,
        window: Window,
        place: AddressRange,
        kind: DeviceKind,
        writable: u64,
    ) -> Result<Self, MediaError> {
        let flush = map::flush_method(device, kind);
        let granule = device.granule() as usize;
        let watched = Watched::new(place.start(), window.len as usize, granule)?;
        let device = Some(Arc::clone(device));
        Ok(Self::assemble(
            window, writable, flush, kind, device, watched, place,
        ))
    }

    /// Anonymous memory of `len` zero bytes (rounded up to 4 KiB), shared with children that are
    /// forked later.
    pub fn memory(len: u64) -> Result<Self, MediaError> {
        let place = AddressRange::reserve(len)?;
        Self::memory_at(len, place)
    }

    /// As [`Media::memory`], at a reserved place of at least `len` bytes.
    pub fn memory_at(len: u64, place: AddressRange) -> Result<Self, MediaError> {
        let len = len.max(1).next_multiple_of(PAGE_SIZE);
        map::map_memory(len, &place)?;
        let watched = Watched::new(place.start(), len as usize, PAGE_SIZE as usize)?;
        let window = Window { start: 0, len };
        Ok(Self::assemble(
            window,
            len,
            FlushMethod::None,
            DeviceKind::Anonymous,
            None,
            watched,
            place,
        ))
    }

    /// As [`Media::map`], of a device behind an image, which [`Media::set_image`] maps later.
    /// Before that nothing of it can be used. The range is the image's, which may be one of several
    /// devices. Its kind is [`DeviceKind::Disk`] where the kernel
    /// writes pages back when it likes, else that of the memory.
    pub fn map_behind_image(
        device: &Arc<Device>,
        start: DeviceOffset,
        len: u64,
        place: Option<AddressRange>,
    ) -> Result<Self, MediaError> {
        let window = Window {
            start: start.get(),
            len,
        };
        let place = place.map_or_else(|| AddressRange::reserve(len), Ok)?;
        let (held, kind) = map::hold_open(device)?;
        let media = Self::of_device(device, window, place, DeviceKind::Disk, len)?;
        Ok(Self {
            readable: 0,
            writable: 0,
            access: device.access(),
            kind: match kind {
                DeviceKind::CachedFile => DeviceKind::Disk,
                memory => memory,
            },
            _held: Some(held),
            ..media
        })
    }

    /// Maps the image of the device. Only the first counts.
    pub fn set_image(&self, mut image: Image) -> Result<(), MediaError> {
        let window = Window {
            start: self.start,
            len: self.len,
        };
        image.use_window(window.start..window.start + window.len, self.base_addr());
        map::map_image(image.fd(), window, &self.place)
            .map_err(|errno| refused("the image".as_ref(), "map it", errno))?;
        // A second one is refused, as documented.
        let _ = self.image.set(image);
        Ok(())
    }

    /// As [`Media::map`], of several devices that hold the same. Nothing is mapped at `place`,
    /// whose addresses stand for the range.
    pub fn mirrored(mirror: Mirror, place: AddressRange) -> Result<Self, MediaError> {
        let first = mirror.reader();
        let window = Window {
            start: first.start,
            len: first.len,
        };
        let watched = Watched::new(place.start(), window.len as usize, PAGE_SIZE as usize)?;
        let (kind, access) = (first.kind, first.access);
        let device = first.device.clone();
        let flush = FlushMethod::Msync;
        let media = Self::assemble(window, 0, flush, kind, device, watched, place);
        Ok(Self {
            readable: 0,
            access,
            mirror: Some(Box::new(mirror)),
            ..media
        })
    }

    /// The devices that hold what is stored, if there are several.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_deref()
    }

    /// The image of the device, once it has one.
    pub fn image(&self) -> Option<&Image> {
        self.image.get()
    }

    fn assemble(
        window: Window,
        writable: u64,
        flush: FlushMethod,
        kind: DeviceKind,
        device: Option<Arc<Device>>,
        watched: Watched,
        place: AddressRange,
    ) -> Self {
        let base = std::ptr::with_exposed_provenance_mut(place.start());
        let populated = match map::has_small_pages(kind) {
            true => Populated::of(window.len.div_ceil(map::WINDOW)),
            false => Populated::default(),
        };
        Self {
            base,
            start: window.start,
            len: window.len,
            readable: window.len,
            writable,
            access: match writable {
                0 => Access::ReadOnly,
                _ => Access::ReadWrite,
            },
            flush,
            copier: copier(),
            stream_min: map::stream_min(kind),
            watcher: OnceLock::new(),
            cutter: OnceLock::new(),
            is_attended: AtomicBool::new(false),
            populated,
            kind,
            device,
            image: OnceLock::new(),
            mirror: None,
            _held: None,
            watched,
            place,
        }
    }

    /// First mapped byte, as a device offset.
    #[inline]
    pub const fn start(&self) -> DeviceOffset {
        DeviceOffset(self.start)
    }

    /// Mapped bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Never: there are no empty windows.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the device is.
    pub const fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// How stores become durable.
    pub const fn flush_method(&self) -> FlushMethod {
        self.flush
    }

    /// Which failures fenced stores survive.
    pub const fn survives(&self) -> Survives {
        self.kind.survives()
    }

    /// Whether stores are allowed.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The device behind it; `None` for anonymous memory.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// The kernel fd of the device, of its image, or of the one of several that is read, to map
    /// parts of it elsewhere; `None` for anonymous memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some(mirror) = &self.mirror {
            return mirror.reader().fd();
        }
        let device = self.device.as_ref().map(|device| device.fd());
        self.image.get().map(Image::fd).or(device)
    }

    /// Address of the first mapped byte.
    pub const fn base_addr(&self) -> usize {
        self.place.start()
    }

    /// Fails for good once the device has: a memory error outside of a copy for the program, or a
    /// failed write-back. For who has read: stores learn it from their fence.
    #[inline]
    pub fn health(&self) -> Result<(), MediaFailed> {
        self.watched.health()
    }

    /// Reports every later store, flush and fence to `observer`, under the device number `device`.
    /// Only the first observer counts.
    pub fn set_observer(&self, device: u16, observer: Arc<dyn Observer>) {
        // A second observer is refused, as documented.
        let _ = self.watcher.set(Watcher::new(device, observer));
        self.is_attended.store(true, Ordering::Release);
    }

    /// Cuts later stores of data and reads for programs as `granularity` says, by the threads that
    /// `memory` counts for device number `device`. Only the first call counts.
    pub fn set_granularity(
        &self,
        granularity: &Granularity,
        memory: Arc<dyn SharedTraffic>,
        device: u16,
    ) {
        if let Some(cutter) = Cutter::new(granularity, memory, device) {
            // A second one is refused, as documented.
            let _ = self.cutter.set(cutter);
            self.is_attended.store(true, Ordering::Release);
        }
    }

    /// Names the calling process by a number of its own among those that share the device, so that
    /// their threads are told apart. In a child in this process's memory only the child's.
    pub fn set_share(&self, number: u64) {
        if let Some(cutter) = self.cutter.get().filter(|_| guest::caller() == 0) {
            cutter.set_share(number);
        }
        if let Some(image) = self.image.get() {
            image.set_share(number);
        }
        let Some(mirror) = &self.mirror else {
            return;
        };
        if guest::caller() == 0 {
            mirror.set_share(number);
        }
        for (_, leg) in mirror.mapped() {
            leg.set_share(number);
        }
    }

    /// The child that had a number is gone, and this process goes on with its memory.
    pub fn end_share(&self, number: u64) {
        if let Some(image) = self.image.get() {
            image.end_share(number);
        }
    }

    /// Says that bytes around `at`, which this process has not used yet, will be stored to. Their
    /// pages are then made many at a time instead of by one fault each. A hint: nothing depends on
    /// it.
    #[inline]
    pub fn expect_stores(&self, at: DeviceOffset) {
        let window = (at.get() - self.start) / map::WINDOW;
        if self.populated.is_first(window) {
            self.populate(window);
        }
    }

    #[cold]
    fn populate(&self, window: u64) {
        let skip = window * map::WINDOW;
        if let Some(mirror) = &self.mirror {
            return mirror.expect_stores(DeviceOffset(self.start + skip));
        }
        let len = self.writable.saturating_sub(skip).min(map::WINDOW);
        if len > 0 {
            let address = self.base.wrapping_add(skip as usize);
            map::populate(address.cast(), len as usize);
        }
    }

    /// Address of `len` bytes at `at`, which must lie in the window.
    #[inline(always)]
    pub(crate) fn address(&self, at: DeviceOffset, len: u64) -> *mut u8 {
        match self.behind_start(at.get().wrapping_sub(self.start), len, self.readable) {
            Some(address) => address,
            None => self.imaged_address(at, len),
        }
    }

    /// As `address`, for stores that are not made behind an image.
    #[inline(always)]
    pub(crate) fn store_address(&self, at: DeviceOffset, len: u64) -> *mut u8 {
        match self.plain_address(at, len) {
            Some(address) => address,
            None => self.refuse(at, len),
        }
    }

    /// As `store_address`; `None` behind an image, and if it is not allowed.
    #[inline(always)]
    pub(crate) fn plain_address(&self, at: DeviceOffset, len: u64) -> Option<*mut u8> {
        self.behind_start(at.get().wrapping_sub(self.start), len, self.writable)
    }

    /// Address of the `len` bytes that begin `skip` bytes behind the start of the window, if they
    /// lie in its first `room` bytes.
    #[inline(always)]
    pub(crate) fn behind_start(&self, skip: u64, len: u64, room: u64) -> Option<*mut u8> {
        (skip.checked_add(len)? <= room).then(|| self.base.wrapping_add(skip as usize))
    }

    /// As `address`, of an aligned integer.
    #[inline]
    fn aligned<T>(&self, at: DeviceOffset) -> *mut T {
        let address = self.address(at, size_of::<T>() as u64).cast::<T>();
        assert!(address.is_aligned(), "load at a misaligned offset");
        address
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(&self, at: DeviceOffset, len: u64) -> ! {
        panic!(
            "{len} bytes at {at} are not in the window of {} bytes from {}, {} of them writable",
            self.len,
            self.start,
            match self.access {
                Access::ReadWrite => self.len,
                Access::ReadOnly => 0,
            }
        )
    }

    /// The 8 bytes at `at` (a multiple of 8), little-endian.
    #[inline]
    pub fn load_u64(&self, at: DeviceOffset) -> u64 {
        let address = self.aligned::<u64>(at);
        // SAFETY: `aligned` checked that the mapping holds 8 aligned bytes there; everybody
        // accesses them atomically.
        u64::from_le(unsafe { AtomicU64::from_ptr(address) }.load(Ordering::Acquire))
    }

    /// `N` neighbouring words, each as [`Media::load_u64`], checked once.
    #[inline]
    pub fn load_words<const N: usize>(&self, at: DeviceOffset) -> [u64; N] {
        let first = self.address(at, N as u64 * 8).cast::<u64>();
        assert!(first.is_aligned(), "load at a misaligned offset");
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            let place = first.wrapping_add(i);
            // SAFETY: as in `load_u64`, for each of the N words.
            *word = u64::from_le(unsafe { AtomicU64::from_ptr(place) }.load(Ordering::Acquire));
        }
        words
    }

    /// The 4 bytes at `at` (a multiple of 4), little-endian.
    #[inline]
    pub fn load_u32(&self, at: DeviceOffset) -> u32 {
        let address = self.aligned::<u32>(at);
        // SAFETY: as in `load_u64`.
        u32::from_le(unsafe { AtomicU32::from_ptr(address) }.load(Ordering::Acquire))
    }

    /// The 2 bytes at `at` (a multiple of 2), little-endian.
    #[inline]
    pub fn load_u16(&self, at: DeviceOffset) -> u16 {
        let address = self.aligned::<u16>(at);
        // SAFETY: as in `load_u64`.
        u16::from_le(unsafe { AtomicU16::from_ptr(address) }.load(Ordering::Acquire))
    }

    /// The byte at `at`.
    #[inline]
    pub fn load_u8(&self, at: DeviceOffset) -> u8 {
        let address = self.aligned::<u8>(at);
        // SAFETY: as in `load_u64`.
        unsafe { AtomicU8::from_ptr(address) }.load(Ordering::Acquire)
    }

    /// Copies device bytes to `to`. Where the device fails it gives poison and [`Media::health`]
    /// tells.
    #[inline]
    pub fn read(&self, at: DeviceOffset, to: &mut [u8]) {
        self.copy_out(at, to);
        self.tell_read(at, to.len() as u64);
    }

    /// As [`Media::read`], unseen by the observer.
    #[inline]
    pub(crate) fn copy_out(&self, at: DeviceOffset, to: &mut [u8]) {
        let len = to.len() as u64;
        let from = self.behind_start(at.get().wrapping_sub(self.start), len, self.readable);
        // SAFETY: `to` is ours alone, and no reference covers the mapping.
        let done = unsafe {
            match from {
                Some(from) => self.copier.plain.copy(to.as_mut_ptr(), from, to.len()),
                None => self.imaged_read(at, to.as_mut_ptr(), to.len()),
            }
        };
        if done.is_err() {
            self.watched.fail();
            to.fill(POISON);
        }
    }

    /// Whether the device has these bytes at `at`; it is not behind an image. `false` where it
    /// fails, and [`Media::health`] tells.
    pub(crate) fn has(&self, at: DeviceOffset, bytes: &[u8]) -> bool {
        let (lines, rest) = bytes.split_at(bytes.len() & !(LINE - 1));
        let mut found = [0; LINE];
        let found = &mut found[..rest.len()];
        self.copy_out(DeviceOffset(at.get() + lines.len() as u64), found);
        found == rest && self.has_lines(at, lines)
    }

    fn has_lines(&self, at: DeviceOffset, lines: &[u8]) -> bool {
        let device = self.address(at, lines.len() as u64);
        // SAFETY: the bytes are in the mapping, as `address` saw, and no reference covers it.
        let same = unsafe { self.copier.are_equal(device, lines.as_ptr(), lines.len()) };
        same.unwrap_or_else(|_| {
            self.watched.fail();
            false
        })
    }

    /// The `N` device bytes at `at`. Where the device fails it gives poison and [`Media::health`]
    /// tells.
    #[inline]
    pub fn read_array<const N: usize>(&self, at: DeviceOffset) -> [u8; N] {
        let from = self.address(at, N as u64);
        let mut to = MaybeUninit::<[u8; N]>::uninit();
        // SAFETY: `to` is ours alone and has N bytes, and no reference covers the mapping.
        if unsafe { self.copier.plain.copy(to.as_mut_ptr().cast(), from, N) }.is_err() {
            self.watched.fail();
            return [POISON; N];
        }
        // SAFETY: the copy succeeded, so all N bytes were written.
        unsafe { to.assume_init() }
    }

    /// Copies device bytes to the program's buffer and fills it, unless there is an error, which
    /// may leave a part copied.
    #[inline]
    pub fn read_user(&self, at: DeviceOffset, to: UserBytesMut<'_>) -> Result<(), CopyError> {
        let len = to.len() as u64;
        match self.behind_start(at.get().wrapping_sub(self.start), len, self.readable) {
            // SAFETY: the address was just checked.
            Some(from) => unsafe { self.read_from(from, at, to) },
            None => self.imaged_read_user(at, to),
        }
    }

    /// # Safety
    /// `from` is the address of `at`, and as many bytes are mapped there as `to` is long.
    #[inline(always)]
    pub(crate) unsafe fn read_from(
        &self,
        from: *const u8,
        at: DeviceOffset,
        mut to: UserBytesMut<'_>,
    ) -> Result<(), CopyError> {
        if self.is_attended.load(Ordering::Acquire) {
            return self.read_attended(at, to);
        }
        // SAFETY: the destination is the program's, as `UserBytesMut::from_raw` demands; no
        // reference covers the mapping.
        unsafe { self.copier.plain.copy(to.as_mut_ptr(), from, to.len()) }
    }

    #[inline(never)]
    fn read_attended(&self, at: DeviceOffset, to: UserBytesMut<'_>) -> Result<(), CopyError> {
        match self.cutter.get() {
            Some(cutter) if cutter.concerns(Direction::Read, to.len()) => {
                self.read_cut(cutter, at, to)
            }
            _ => self.read_whole(at, to),
        }
    }

    fn read_cut(
        &self,
        cutter: &Cutter,
        at: DeviceOffset,
        mut to: UserBytesMut<'_>,
    ) -> Result<(), CopyError> {
        let (_turn, piece) = cutter.enter(Direction::Read, to.len());
        let mut done = 0;
        while done < to.len() {
            let at = at.add(done as u64);
            let len = first_piece(at.get(), to.len() - done, piece);
            self.read_whole(at, to.slice(done..done + len))?;
            done += len;
        }
        Ok(())
    }

    /// To who watches the device.
    pub(crate) fn tell_read(&self, at: DeviceOffset, len: u64) {
        if let Some(watcher) = self.watcher.get() {
            watcher.read(at, len);
        }
    }

    fn read_whole(&self, at: DeviceOffset, mut to: UserBytesMut<'_>) -> Result<(), CopyError> {
        let from = self.address(at, to.len() as u64);
        self.tell_read(at, to.len() as u64);
        // SAFETY: the destination is the program's, as `UserBytesMut::from_raw` demands; no
        // reference covers the mapping.
        unsafe { self.copier.plain.copy(to.as_mut_ptr(), from, to.len()) }
    }
}

impl Mapped for Media {
    // SAFETY: as the trait demands: the place is mapped and the caller's alone.
    unsafe fn fetch(&self, at: DeviceOffset, len: u64, to: *mut u8) -> Result<(), MediaFailed> {
        let from = self.address(at, len);
        // SAFETY: the caller's promise; no reference covers the mapping.
        let done = unsafe { self.copier.plain.copy(to, from, len as usize) };
        self.tell_read(at, len);
        done.map_err(|_| MediaFailed)
    }
}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Media")
            .field("kind", &self.kind)
            .field("start", &self.start)
            .field("len", &self.len)
            .field("path", &self.device.as_ref().map(|device| device.path()))
            .finish_non_exhaustive()
    }
}

/// The window of a device, and addresses for it.
fn prepare(
    device: &Arc<Device>,
    start: DeviceOffset,
    len: u64,
    place: Option<AddressRange>,
) -> Result<(Window, AddressRange), MediaError> {
    let window = Window {
        start: start.get(),
        len,
    };
    Ok((window, map::prepare(device, window, place)?))
}
