//! Memory faults: in copies (a bad pointer of the program), on mapped devices (a truncated file,
//! broken memory), and in shared memory whose file system has no room for the first touch of a
//! page.
//!
//! A handler of SIGSEGV and SIGBUS asks [`resolve`] what to do. Without a handler such a fault ends
//! the process, as ever.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};

use crate::arch;
use crate::error::{MediaError, MediaFailed};

/// What is found in the place of bytes that the device does not give. Zeros would be believed: they
/// say that there is nothing. A word of poison fails every check.
pub const POISON: u8 = 0xff;

/// What a SIGSEGV or SIGBUS handler is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Continue at this instruction address: the copy that faulted returns an error.
    ResumeAt(usize),
    /// Return from the handler: the access will now work, and the device counts as failed.
    Retry,
    /// The fault is none of ours.
    NotOurs,
}

/// Says what a SIGSEGV or SIGBUS handler is to do about a fault of the instruction at `rip` on
/// `address` (`si_addr`).
///
/// Async-signal-safe. A fault of a copy routine makes the copy return an error: a media fault if
/// `address` is of a mapped device, else a user fault. Any other access to a mapped device finds
/// [`POISON`] there from now on, and the device has failed. Where another device holds the same,
/// its bytes take the place of those that are lost, and every access goes on. An access to
/// [`SharedRange`] memory waits a moment and is tried again.
pub fn resolve(rip: usize, address: usize) -> Resolution {
    if SHARED.iter().any(|range| range.holds(address)) {
        wait_for_room();
        return Resolution::Retry;
    }
    let mapping = Mapping::find(address);
    if mapping.is_some_and(|mapping| mapping.show_spare(address)) {
        return Resolution::Retry;
    }
    if let Some(landings) = arch::landings(rip) {
        return Resolution::ResumeAt(if mapping.is_some() {
            landings.media
        } else {
            landings.user
        });
    }
    match mapping {
        Some(mapping) if mapping.replace_page(address) => Resolution::Retry,
        _ => Resolution::NotOurs,
    }
}

/// If `rip` is in a copy routine: where it continues, to return a user fault.
pub fn fault_landing(rip: usize) -> Option<usize> {
    arch::landings(rip).map(|landings| landings.user)
}

/// Ranges of shared memory that one process can have at once; more are not watched.
const SHARED_RANGES: usize = 64;

/// Where memory lies that processes share and that nobody can do without.
struct Bounds {
    start: AtomicUsize,
    end: AtomicUsize,
}

static SHARED: [Bounds; SHARED_RANGES] = [const {
    Bounds {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; SHARED_RANGES];

impl Bounds {
    fn holds(&self, address: usize) -> bool {
        self.start.load(Ordering::Acquire) <= address && address < self.end.load(Ordering::Acquire)
    }
}

/// Registration of a mapped file whose pages get their memory when they are first touched, until
/// dropped. When the file system has none, whoever touches one is not killed: it says so once and
/// waits until there is room.
#[derive(Debug)]
pub struct SharedRange(Option<usize>);

impl SharedRange {
    /// Registers `start..start + len`.
    pub fn new(start: usize, len: usize) -> SharedRange {
        let claim = |range: &Bounds| {
            let claimed =
                range
                    .start
                    .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        };
        let index = SHARED.iter().position(claim);
        if let Some(index) = index {
            SHARED[index].end.store(start + len, Ordering::Release);
            SHARED[index].start.store(start, Ordering::Release);
        }
        SharedRange(index)
    }
}

impl Drop for SharedRange {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            SHARED[index].end.store(0, Ordering::Release);
            SHARED[index].start.store(0, Ordering::Release);
        }
    }
}

/// Async-signal-safe.
#[cold]
pub(crate) fn wait_for_room() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    const WARNING: &[u8] =
        b"nacre: no room for shared memory beside the session file (is /dev/shm full?): waiting for some\n";
    if !TOLD.swap(true, Ordering::Relaxed) {
        // SAFETY: a number of standard error for this one call; if it is closed, nothing is told.
        let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
        // Whoever does not listen waits all the same.
        let _ = rustix::io::write(stderr, WARNING);
    }
    let moment = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    // Woken early, it is tried again early.
    let _ = rustix::thread::nanosleep(&moment);
}

/// Mapped device ranges that one process can have at once.
const MAPPINGS: usize = 256;
/// Start of a slot that is taken but not yet filled in: no address is that high.
const CLAIMED: usize = usize::MAX;

/// A mapped range of a device, known to the fault handler.
#[derive(Debug)]
struct Mapping {
    start: AtomicUsize,
    end: AtomicUsize,
    granule: AtomicUsize,
    failed: AtomicBool,
    /// Where the same bytes are mapped from another device; 0: nowhere.
    spare: AtomicUsize,
    /// Bytes of the other device took the place of some.
    lost: AtomicBool,
}

static TABLE: [Mapping; MAPPINGS] = [const {
    Mapping {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        granule: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        spare: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAPPINGS];

/// Whether a page of a mapping can be read, as far as the kernel tells.
fn is_readable(page: usize, len: usize) -> bool {
    const POPULATE_READ: c_int = 22;
    // SAFETY: the page belongs to a mapping of ours; the advice changes no contents.
    let done = unsafe { libc::madvise(page as *mut c_void, len, POPULATE_READ) };
    // Kernels before 5.14 do not know the advice.
    done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// A private page of that many bytes, all poison. It is filled before it takes its place: nobody
/// may meet zeros there.
fn poisoned_page(len: usize) -> Option<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, which nobody knows.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.ok()?;
    // SAFETY: all of it is ours and may be written.
    unsafe { std::ptr::write_bytes(page.cast::<u8>(), POISON, len) };
    Some(page)
}

impl Mapping {
    fn find(address: usize) -> Option<&'static Self> {
        TABLE.iter().find(|mapping| mapping.holds(address))
    }

    fn holds(&self, address: usize) -> bool {
        self.start.load(Ordering::Acquire) <= address && address < self.end.load(Ordering::Acquire)
    }

    fn claim(&self) -> bool {
        self.start
            .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Puts the page of another device that holds the same over the page of `address`, if there is
    /// one that can be read.
    fn show_spare(&self, address: usize) -> bool {
        let spare = self.spare.load(Ordering::Acquire);
        let granule = self.granule.load(Ordering::Relaxed);
        let page = address & !(granule - 1);
        let from = spare.wrapping_add(page.wrapping_sub(self.start.load(Ordering::Acquire)));
        if spare == 0 || !is_readable(from, granule) {
            return false;
        }
        self.lost.store(true, Ordering::Release);
        // SAFETY: a second view of a shared mapping of ours over a page of a device range that
        // `Watched` keeps mapped; all access to it is by raw pointers, which take whatever value
        // they find. A length of 0 leaves the first view as it is.
        let shown = unsafe {
            libc::mremap(
                from as *mut c_void,
                0,
                granule,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                page as *mut c_void,
            )
        };
        shown != libc::MAP_FAILED
    }

    /// Puts private poison over the page of `address`, so that the access does not fault again.
    fn replace_page(&self, address: usize) -> bool {
        let granule = self.granule.load(Ordering::Relaxed);
        let page = address & !(granule - 1);
        self.failed.store(true, Ordering::Release);
        let Some(poison) = poisoned_page(granule) else {
            return false;
        };
        // SAFETY: the page is part of a device range that `Watched` keeps mapped; all access to it
        // is by raw pointers, which take whatever value they find.
        unsafe {
            let to = page as *mut c_void;
            mremap_fixed(poison, granule, granule, MremapFlags::MAYMOVE, to)
        }
        .is_ok()
    }
}

/// Registration of a mapped range with the fault handler, until dropped.
#[derive(Debug)]
pub(crate) struct Watched(&'static Mapping);

impl Watched {
    /// Registers `start..start + len`, which is mapped in pages of `granule` bytes.
    pub fn new(start: usize, len: usize, granule: usize) -> Result<Self, MediaError> {
        let mapping = TABLE
            .iter()
            .find(|mapping| mapping.claim())
            .ok_or(MediaError::TooManyMappings(MAPPINGS))?;
        mapping.failed.store(false, Ordering::Relaxed);
        mapping.lost.store(false, Ordering::Relaxed);
        mapping.spare.store(0, Ordering::Relaxed);
        mapping.granule.store(granule, Ordering::Relaxed);
        mapping.end.store(start + len, Ordering::Release);
        mapping.start.store(start, Ordering::Release);
        Ok(Self(mapping))
    }

    #[inline]
    pub fn health(&self) -> Result<(), MediaFailed> {
        if self.0.failed.load(Ordering::Acquire) {
            Err(MediaFailed)
        } else {
            Ok(())
        }
    }

    /// Where the same bytes are mapped from another device; 0: nowhere.
    pub fn set_spare(&self, start: usize) {
        self.0.spare.store(start, Ordering::Release);
    }

    /// Whether bytes of the other device took the place of some.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }

    #[cold]
    pub fn fail(&self) {
        self.0.failed.store(true, Ordering::Release);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mapping = self.0;
        mapping.end.store(0, Ordering::Release);
        mapping.start.store(0, Ordering::Release);
    }
}

/// Installs handlers of SIGSEGV and SIGBUS that apply [`resolve`]. For programs that are not under
/// the preload front end (the command line, tests). A fault that is none of ours goes to what
/// handled the signal before.
pub fn install_handler() {
    // Whoever comes second waits until it is done.
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        install(libc::SIGSEGV, &PREVIOUS_SEGV);
        install(libc::SIGBUS, &PREVIOUS_BUS);
    });
}

/// The action that a signal had before ours, as a leaked box; 0: none yet.
static PREVIOUS_SEGV: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS_BUS: AtomicUsize = AtomicUsize::new(0);

fn install(signal: c_int, previous: &AtomicUsize) {
    // SAFETY: all-zero is a valid `sigaction`.
    let (mut ours, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: reads the present action of the signal into a live struct.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut old) };
    previous.store(
        Box::into_raw(Box::new(old)).expose_provenance(),
        Ordering::Release,
    );
    // SAFETY: `on_fault` is async-signal-safe and has the signature that SA_SIGINFO asks for.
    unsafe { libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) };
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, frame: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and frame of this thread, nobody else uses them
    // meanwhile.
    let (address, frame) = unsafe { ((*info).si_addr().addr(), &mut *frame.cast::<ucontext_t>()) };
    match resolve(arch::resume_address(frame), address) {
        Resolution::ResumeAt(landing) => arch::set_resume_address(frame, landing),
        Resolution::Retry => {}
        Resolution::NotOurs => restore(signal),
    }
}

/// Gives the signal back to its previous action; the instruction faults again and meets that.
fn restore(signal: c_int) {
    let previous = if signal == libc::SIGSEGV {
        &PREVIOUS_SEGV
    } else {
        &PREVIOUS_BUS
    };
    let old =
        std::ptr::with_exposed_provenance::<libc::sigaction>(previous.load(Ordering::Acquire));
    // SAFETY: `install` stored a leaked, valid action before it installed our handler.
    unsafe { libc::sigaction(signal, old, std::ptr::null_mut()) };
}
