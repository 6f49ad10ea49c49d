//! The medium: mapped devices, and the only place of the project that stores to, flushes or fences
//! them.
//!
//! # What survives what
//! "Fenced" is what [`Media::fence`] has returned for. Stores that are not yet fenced may survive a
//! failure or not, each 8 aligned bytes for themselves.
//!
//! | [`DeviceKind`] | flush | fenced stores survive | lost with |
//! |---|---|---|---|
//! | `DevDax`, `DaxFile` on NVM | clwb, clflushopt, clflush; none where the caches are in the power-fail domain | death of processes, kernel crash, power loss | the device |
//! | `CachedFile` (ext4, xfs, ... on a disk) | msync at the fence | death of processes, kernel crash, power loss (as far as the disk honours flushes) | the disk |
//! | `Disk` (the same, behind an [`Image`] in memory) | noted when stored; a commit writes it | death of processes; what was committed: kernel crash, power loss | the disk |
//! | `MemoryFile` (tmpfs, ramfs, memfd), `HugePageFile` | none | death of processes | kernel crash, restart, power loss, unmounting |
//! | `Anonymous` | none | nothing: it lives as long as the process and its children | the last of these processes |
//!
//! The death of a process loses nothing that it has stored, fenced or not, on any kind but
//! `Anonymous`.
//!
//! # Order
//! A store that flushes gives [`Unfenced`]; [`Media::fence`] takes it and answers whether the
//! stores are durable. A fence covers the earlier stores of its own thread. [`Media::order`] is for
//! fences between steps, behind which the same call stores more and fences: where nothing needs a
//! flush it is cheaper.
//!
//! # Failing devices and bad pointers
//! See [`fault`]: with its handler installed, a bad pointer of the program gives
//! [`CopyError::UserFault`], a truncated file or broken memory gives [`CopyError::MediaFault`] or
//! makes every later fence fail, and [`Media::health`] after a read; the process lives on.

mod address_range;
mod aio;
mod arch;
mod backing;
mod calls_at_once;
mod checked_range;
mod checked_slice;
mod compare;
mod confined;
mod device;
mod discard;
mod error;
pub mod fault;
mod granularity;
mod guest;
mod hold;
mod image;
mod imaged;
mod kind;
mod map;
mod media;
mod mirror;
mod observer;
mod own_writes;
mod parallel;
mod populated;
mod scrub_turn;
mod shared_file;
mod shared_mutex;
mod spare;
mod stable;
mod store;
mod suspects;
mod sysfs;
mod token;
mod traffic;
mod user;
pub mod write_back;
mod zeros;

pub use address_range::{AddressRange, RANGE_ALIGNMENT};
pub use arch::{crc32c_append, thread_address};
pub use calls_at_once::{FileCall, Results, together};
pub use checked_range::CheckedRange;
pub use checked_slice::CheckedSlice;
pub use compare::{Copies, Copy, Evidence, Finding, Judge, Make, Rules, Scrubbed};
pub use confined::{confine, confined_in_vain, is_confined};
pub use device::{Device, DeviceIdentity, Found, Owner, high_fd, lifted, remedy_for_few_fds};
pub use discard::discard;
pub use error::{CopyError, Fault, MediaError, MediaFailed};
pub use granularity::{COUNTS, Granularity, LENGTHS, ParsePolicyError, PieceTable, Policy};
pub use guest::{Caller, Numbers, tell_callers_apart};
pub use hold::Hold;
pub use image::blocks_of_sums;
pub use image::{
    Committer, DiskFds, DiskLegs, GRANULE, Image, ImageKey, ImageTraffic, ImageWord, Mapped, News,
    NewsRoom, Pace, SharedLegs,
};
pub use kind::{Access, DeviceKind, FlushMethod, Survives};
pub use media::Media;
pub use mirror::{
    LegFacts, LegRegistry, LegState, MIRROR_MOST_BYTES, MOST_LEGS, Mirror, MirrorCounts, NewLeg,
    RebuildProgress, SEALS_AT, Spans, States,
};
pub use observer::Observer;
pub use own_writes::{is_beyond_limit, met_limit, survive_limit, write_at};
pub use parallel::{One, each};
pub use shared_file::SharedMemory;
pub use shared_mutex::report_long_waits;
pub use spare::Spare;
pub use token::Unfenced;
pub use traffic::{Direction, LOOK, SharedTraffic, Traffic, Turn};
pub use user::{UserBytes, UserBytesMut};
pub use zeros::Zeros;
