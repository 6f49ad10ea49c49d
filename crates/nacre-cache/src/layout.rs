//! Header and record of a journal, as they lie on the disk. Integers are little-endian.
//!
//! | bytes of the journal | what |
//! |---|---|
//! | 0..4096 | header, written in turn with the next |
//! | 4096..8192 | header |
//! | 8192.. | records, one behind the other, each a multiple of 4096 bytes long |
//!
//! A record is its head, one entry for each piece, the bytes of all pieces, and zeros, as far as
//! the disk has to write them. Of pieces that were written home beside it, which come last, it has
//! the CRC-32C instead of the bytes (D123).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Records begin and end at multiples of this.
pub(crate) const BLOCK: u64 = 4096;
/// Where the first record is.
pub const RECORDS_AT: u64 = 2 * BLOCK;
/// The smallest journal: room for the headers and one record.
pub const MIN_JOURNAL: u64 = RECORDS_AT + BLOCK;

pub(crate) const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"NACREjrh");
pub(crate) const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"NACREjrr");

/// Which records count.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub magic: U64,
    /// Counts headers: of two, the higher counts.
    pub turn: U64,
    pub pool: [u8; 16],
    /// Number of the first record that counts; it lies at the first place for records.
    pub first: U64,
    /// Checksum of the newest record before it; 0 if none was known.
    pub past: U32,
    /// CRC-32C of all before it.
    pub crc: U32,
}

/// The head of a record.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRecord {
    pub magic: U64,
    pub number: U64,
    pub pool: [u8; 16],
    /// Bytes of the record without the zeros at its end.
    pub len: U64,
    pub pieces: U32,
    /// CRC-32C of all `len` bytes with this field zero.
    pub crc: U32,
}

/// So many bytes are written beside a record at most: they are read when it is found.
pub const BESIDE_MAX: u64 = 16 << 20;
/// Bit of the length of a piece that was written beside the record.
pub(crate) const AT_HOME: u64 = 1 << 63;

/// Where the bytes of a piece belong.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawPiece {
    pub home: U64,
    /// And [`AT_HOME`].
    pub len: U64,
}

const _: () = {
    assert!(size_of::<RawHeader>() == 48);
    assert!(std::mem::offset_of!(RawHeader, crc) == 44);
    assert!(size_of::<RawRecord>() == 48);
    assert!(std::mem::offset_of!(RawRecord, crc) == 44);
    assert!(size_of::<RawPiece>() == 16);
};
