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

mod cache;
mod commit;
mod copies;
mod create;
mod data;
mod delete;
mod disk;
mod disk_scrub;
mod disks;
mod error;
mod further;
mod generation;
mod grow;
mod grow_copies;
mod join;
mod label;
mod labels;
mod layout;
mod leave;
mod lock;
mod member;
mod names;
mod open;
mod parts;
mod placement;
mod presence;
mod relabel;
mod replace;
mod scrub;
mod seats;
mod segment;
mod stay;
#[cfg(feature = "explore")]
pub mod tap;
mod version;
mod volume;

pub use cache::CacheInfo;
pub use copies::{CopyInfo, Rebuilt};
pub use create::{Caching, Common, CreateOptions, DeviceSpec};
pub use error::VolumeError;
pub use label::{LabelDevice, LabelInfo};
pub use layout::{LEAST_ROOM, MAX_DEVICES};
pub use leave::Room;
pub use lock::PoolLock;
pub use nacre_cache::JournalError;
pub use nacre_media::fault::install_handler;
pub use nacre_media::{
    Access, COUNTS, CheckedRange, CheckedSlice, Committer, CopyError, DeviceIdentity, DeviceKind,
    Evidence, Fault, FlushMethod, Granularity, LENGTHS, LegState, MediaError, MediaFailed,
    MirrorCounts, Numbers, Observer, Owner, Pace, ParsePolicyError, PieceTable, Policy,
    RebuildProgress, SharedTraffic, Survives, Unfenced, UserBytes, UserBytesMut, each,
};
pub use names::Strayed;
pub use placement::{Arrangement, ParseStripeError, Placement, Stripe};
pub use presence::Presence;
pub use scrub::{Difference, ScrubRules, ScrubbedSpan, Usage};
pub use stay::Stay;
pub use version::{Version, VersionRoom};
pub use volume::{DeviceInfo, ProvingGround, Volume};
