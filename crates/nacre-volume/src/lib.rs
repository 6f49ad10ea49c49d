//! Volumes: one or more unlike devices as one contiguous address space.
//!
//! Each device carries a [label](LabelInfo) in two copies, at its start and at its end (what
//! destroys one, like another program's header, a partition table or a truncation, seldom reaches
//! the other). A label holds the table of all devices with the paths where they were last seen, so
//! any member opens the pool.
//!
//! Data starts 2 MiB into each device, to stay aligned to 2 MiB pages, and is a multiple of 4 MiB
//! long.
#![forbid(unsafe_code)]

mod create;
mod delete;
mod devices;
mod disk;
mod error;
mod image;
mod kinds;
mod label;
mod layout;
mod members;
mod open;
mod scrub;
#[cfg(feature = "explore")]
pub mod tap;
mod volume;

pub use create::{Caching, Checksums, Common, CreateOptions, DeviceSpec};
pub use devices::leave::Room;
pub use disk::cache::CacheInfo;
pub use error::VolumeError;
pub use image::version::{Version, VersionRoom};
pub use kinds::memory_copies::{CopyInfo, Rebuilt};
pub use label::placement::{Arrangement, ParseStripeError, Placement, Stripe};
pub use label::stay::Stay;
pub use label::{LabelDevice, LabelInfo};
pub use layout::{LEAST_ROOM, MAX_DEVICES};
pub use members::presence::Presence;
pub use nacre_cache::JournalError;
pub use nacre_media::fault::install_handler;
pub use nacre_media::{
    Access, COUNTS, CheckedRange, CheckedSlice, Committer, CopyError, DeviceIdentity, DeviceKind,
    Evidence, Fault, FlushMethod, Granularity, LENGTHS, LegState, MediaError, MediaFailed,
    MirrorCounts, Numbers, Observer, Owner, Pace, ParsePolicyError, PieceTable, Policy,
    RebuildProgress, SharedTraffic, Survives, Unfenced, UserBytes, UserBytesMut, each,
};
pub use open::lock::{PoolLock, WaitReport, report_waits_for_locks};
pub use scrub::{Difference, ScrubRules, ScrubbedSpan, Usage};
pub use volume::names::Strayed;
pub use volume::{DeviceInfo, ProvingGround, Volume};
