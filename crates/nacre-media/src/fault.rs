//! Memory faults in copies and in mapped devices. Skeleton.

/// What a SIGSEGV or SIGBUS handler is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Continue at this instruction address: the copy there returns an error.
    ResumeAt(usize),
    /// Return from the handler: the access will now work, and the media has failed.
    Retry,
    /// The fault is none of ours.
    NotOurs,
}

/// Says what a SIGSEGV or SIGBUS handler is to do about a fault at instruction `rip` on `address` (`si_addr`).
///
/// Async-signal-safe. A fault of a copy routine on the program's memory makes the copy return
/// [`Fault`](crate::Fault); a fault anywhere on a mapped device gives a media failure.
pub fn resolve(rip: usize, address: usize) -> Resolution {
    unreachable!("{rip} {address}")
}

/// Whether `rip` is in a copy routine, and where it continues with a user fault.
pub fn fault_landing(rip: usize) -> Option<usize> {
    unreachable!("{rip}")
}

/// Installs handlers for SIGSEGV and SIGBUS that apply [`resolve`] and pass other faults on. For programs that
/// are not under the preload door (tests, the command line).
pub fn install_handler() {
    unreachable!()
}
