//! Words that every layer of Nacre shares: address types, unit sizes, checksums, identities, time.
//!
//! Nothing here performs I/O except asking the kernel for the time and for random bytes.
#![forbid(unsafe_code)]

mod address;
mod checksum;
mod kind;
pub mod mount_table;
pub mod reach;
pub mod site;
mod text;
mod time;
mod uuid;
mod version_lock;
mod word;

pub use address::{DeviceOffset, FileOffset, Ino, ObjectId, UnitNo, VolumeOffset};
pub use checksum::{check16, crc32c, crc32c_append, name_hash};
pub use kind::StoreKind;
pub use text::{WordsOf, last_position_of, last_word_of, position_of, words_of};
pub use time::{Clock, Timestamp};
pub use uuid::{ParseUuidError, Uuid};
pub use version_lock::VersionLock;
pub use word::CheckedWord;

/// Bytes in a unit, the allocation granule of a pool.
pub const UNIT_SIZE: u64 = 4096;
/// `UNIT_SIZE == 1 << UNIT_SHIFT`.
pub const UNIT_SHIFT: u32 = 12;
/// Bytes in a cache line, the granule of flushing.
pub const LINE_SIZE: u64 = 64;
/// Bytes in a page, the least that the kernel maps.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes in a metadata or log block.
pub const BLOCK_SIZE: u64 = if cfg!(feature = "explore") {
    256 << 10
} else {
    4 << 20
};
/// Units in a metadata or log block.
pub const UNITS_PER_BLOCK: u64 = BLOCK_SIZE / UNIT_SIZE;
