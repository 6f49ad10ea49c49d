//! The label, as it lies on each device (format version 1). Integers are little-endian.
//!
//! | place | what |
//! |---|---|
//! | device bytes 0..4096 | label, first copy |
//! | 4096..8192 of devices that each hold a part | the number of the use that it was last part of (`generation.rs`) |
//! | 8192..2 MiB | reserved; nothing in it is kept: `nacre calibrate` stores to it |
//! | 1 MiB..2 MiB of a pool with copies | bitmap of the regions in which copies may differ (`mirror/layout.rs` of nacre-media) |
//! | 1 MiB..1 MiB + 32 of such a pool on disks | how far the rebuild of this one is |
//! | 512 KiB..1 MiB of such a pool | checksums of what nobody stores to (the same file); of disks, of what is at home |
//! | 2 MiB.. | data: the device's part of the volume, a multiple of 4 MiB |
//! | behind the data, if there is one | journal (nacre-cache), a multiple of 4 MiB; of disks that each hold a part, on the first, and once that is gone within the data of another one |
//! | of disks with data of their own: 2 MiB.. | what all hold, then the journal, then what this one holds alone (D80) |
//! | last 4096 bytes | label, second copy |
//!
//! A copy is written whole and its CRC tells whether it is; the second is written and fenced before
//! the first, so one of them is always intact. Magic, version and CRC keep their place and meaning
//! in all later versions.

use nacre_media::{COUNTS, LENGTHS};
use nacre_types::BLOCK_SIZE;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most devices that a pool can have.
pub const MAX_DEVICES: usize = 16;

pub(crate) const MAGIC: [u8; 8] = *b"NACREdev";
pub(crate) const VERSION: u32 = 1;
/// Feature: the device is a disk, and its data is what the journal makes of it.
pub(crate) const JOURNAL: u64 = 1;
/// Feature: all devices hold the same data (D57).
pub(crate) const COPIES: u64 = 2;
/// Feature: the last devices stand behind the others, and hold what is cold (D68).
pub(crate) const BEHIND: u64 = 4;
/// Feature: a device is leaving, or has left (D70).
pub(crate) const LEAVES: u64 = 8;
/// Feature: the disk that has a journal is several that hold the same (D76).
pub(crate) const DISKS: u64 = 16;
/// Feature: the disk that has a journal is several that hold each a part; the first one has the
/// journal (D77).
pub(crate) const PARTS: u64 = 32;
/// Feature: of several disks each has data of its own besides what all hold (D80).
pub(crate) const COMMON: u64 = 64;
/// Feature: of several disks that hold each a part one is leaving, or has left (D85).
pub(crate) const PARTS_LEAVE: u64 = 128;
/// Feature: a record may be written beside contents that it needs (D123).
pub(crate) const BESIDE: u64 = 256;
/// Feature: units have checksums in blocks of the volume (D130).
pub(crate) const SUMS: u64 = 512;
/// All features that this program knows.
pub(crate) const KNOWN: u64 =
    JOURNAL | COPIES | BEHIND | LEAVES | DISKS | PARTS | COMMON | PARTS_LEAVE | BESIDE | SUMS;
/// The most devices of a pool with copies, one of them on its way in.
const MAX_COPIES: usize = nacre_media::MOST_LEGS + 1;
/// The largest journal.
const JOURNAL_MAX: u64 = 256 << 20;
/// A block that becomes one of metadata changes as a whole.
const JOURNAL_MIN: u64 = 2 * BLOCK_SIZE;
/// The least that all devices hold where each has a part of its own: the pool's header, a block of
/// inodes, a log, and as much to begin with.
pub(crate) const COMMON_MIN: u64 = 6 * BLOCK_SIZE;
/// The shortest stripe: a unit.
pub(crate) const STRIPE_MIN: u64 = 4096;
/// The longest stripe: what one lowest node of a file's map holds.
pub(crate) const STRIPE_MAX: u64 = 2 << 20;
/// The smallest room of an image in memory.
pub const LEAST_ROOM: u64 = 1 << 20;
/// Bytes of a label copy.
pub(crate) const LABEL_SIZE: u64 = 4096;
/// Device offset of [`RawGeneration`].
pub(crate) const GENERATION_AT: u64 = LABEL_SIZE;
/// Device offset of the first byte that keeps nothing.
pub(crate) const RESERVED_START: u64 = 2 * LABEL_SIZE;
/// Device offset of the data.
pub(crate) const DATA_START: u64 = 2 << 20;
/// The smallest device: room for the labels and one block.
#[cfg(test)]
const MIN_DEVICE: u64 = DATA_START + BLOCK_SIZE + LABEL_SIZE;
/// Labels have lower sequence numbers: one word tells such a number and which disks are lost.
pub(crate) const SEQUENCE_END: u64 = 1 << 48;
/// The longest name of a device profile that a label remembers.
pub(crate) const EMULATES_MAX: usize = 64;
/// The longest path that a label remembers.
pub(crate) const PATH_MAX: usize = 192;

/// One copy of a label.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawLabel {
    pub magic: [u8; 8],
    pub version: U32,
    /// CRC-32C of the whole label with this field zero.
    pub crc: U32,
    /// Features that a program must know to use the pool: [`JOURNAL`], [`COPIES`], [`BEHIND`],
    /// [`LEAVES`], [`DISKS`], [`PARTS`], [`COMMON`], [`PARTS_LEAVE`], [`BESIDE`], [`SUMS`].
    pub incompatible: U64,
    /// Counts changes of the table; the highest among a pool's labels is valid.
    pub sequence: U64,
    /// The pool.
    pub pool: [u8; 16],
    /// This device.
    pub device: [u8; 16],
    /// This device's place in the table.
    pub index: U16,
    /// Entries of the table in use.
    pub devices: U16,
    pub granularity: RawGranularity,
    /// Name of the device profile that the pool emulates, UTF-8, padded with zeros; zeros for none.
    pub emulates: [u8; EMULATES_MAX],
    /// Bytes of the journal behind the data: of the only device, of each that holds the same, or
    /// of the first of those that hold each a part; 0 for none.
    pub journal: U64,
    /// Bytes of memory that the image of a disk may take; 0 for half of what there is for it.
    pub cache: U64,
    /// Milliseconds after which the disk gets what was stored, of a pool in memory that is saved to
    /// it; 0 where `fsync` waits for the disk.
    pub saved_every: U32,
    /// Bytes of a file that lie side by side on a device before the next device's turn: a power of
    /// two from [`STRIPE_MIN`] to [`STRIPE_MAX`]; 0: a device is filled before the next.
    pub stripe: U64,
    /// How many devices, the last ones of the table, stand behind the others.
    pub behind: U16,
    /// Once the first device is gone: where the pool's header lies, the device and bytes from the
    /// start of its data; else 0.
    pub header_device: U16,
    pub header_at: U64,
    /// Bytes of data that all devices hold, if each has data of its own behind; else 0.
    pub common: U64,
    /// As `header_device`, of the journal of disks that hold each a part: it lies within data that
    /// nobody gets.
    pub journal_device: U16,
    pub journal_at: U64,
    /// MB a second at which this device stores and loads what it holds, measured; 0 for not known.
    pub speed: U32,
    pub reserved: [u8; 50],
    /// With copies: identity of this device in the running system when its label was written. A
    /// copy of its file has another one.
    pub at: [U64; 2],
    /// With copies: what tells the pool in the running system, as long as a device is where its
    /// label says. As a rule the identity of the first device when it was made, or came here.
    pub home: [U64; 2],
    pub table: [RawDevice; MAX_DEVICES],
}

/// In which sizes the device likes to be written and read.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawGranularity {
    /// [`POLICY_NONE`], [`POLICY_OPTANE`] or [`POLICY_CALIBRATED`].
    pub policy: U16,
    /// Modules of the device, for the policy that counts them; else 0.
    pub modules: U16,
    /// When the tables were measured, seconds since 1970; 0 for never.
    pub measured: U64,
    /// Sizes of pieces of stores as powers of two, 0 for whole: rows from 1, 2, 4 ... threads on,
    /// columns from 256 bytes, 1 KiB, 4 KiB ... on.
    pub writes: [[u8; LENGTHS]; COUNTS],
    /// The same of loads.
    pub reads: [[u8; LENGTHS]; COUNTS],
}

/// Device offset of [`RawRebuilt`].
pub(crate) const REBUILT_AT: u64 = 1 << 20;

/// How far the rebuild of a disk is, as long as its label says that it is being rebuilt.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRebuilt {
    /// The pool.
    pub pool: [u8; 16],
    /// Bytes of the device that are as on the others, from its start.
    pub end: U64,
    pub reserved: U32,
    /// CRC-32C of all before it.
    pub crc: U32,
}

/// The number of the use of the pool that a device was last part of, where each holds a part.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawGeneration {
    /// The pool.
    pub pool: [u8; 16],
    /// This device.
    pub device: [u8; 16],
    pub number: U64,
    /// 1 once all devices have this number; else 0.
    pub common: U32,
    /// CRC-32C of all before it.
    pub crc: U32,
}

pub(crate) const POLICY_NONE: u16 = 0;
pub(crate) const POLICY_OPTANE: u16 = 1;
pub(crate) const POLICY_CALIBRATED: u16 = 2;

/// One device in the table. The volume is their data in table order, behind what all hold.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDevice {
    pub device: [u8; 16],
    /// Bytes of the device, up to the end of the second label copy.
    pub size: U64,
    /// Bytes of data, a multiple of 4 MiB; of its own, if all hold something besides.
    pub data: U64,
    pub path_len: U16,
    /// What the device is to the others that hold the same, as `LegState` counts. Without copies:
    /// 0, 16 while it leaves, 17 once it is gone.
    pub state: u8,
    /// With copies: 1 if a copy has left this place, which stays as long as the pool is in use, and
    /// until another one gets it (D81), or for good where each holds a part alone (D95); else 0.
    pub vacant: u8,
    /// With copies: 1 and the place of the copy that goes once this one is current (D81); else 0.
    pub replaces: u8,
    pub reserved: [u8; 3],
    /// Where it was last seen: an absolute path, or a file name if that is too long.
    pub path: [u8; PATH_MAX],
}

const _: () = {
    assert!(size_of::<RawDevice>() == 232);
    assert!(size_of::<RawGeneration>() == 48);
    assert!(size_of::<RawRebuilt>() == 32 && std::mem::offset_of!(RawRebuilt, crc) == 28);
    assert!(size_of::<RawGranularity>() == 108);
    assert!(std::mem::offset_of!(RawLabel, granularity) == 68);
    assert!(size_of::<RawLabel>() == LABEL_SIZE as usize);
    assert!(std::mem::offset_of!(RawLabel, pool) == 32);
    assert!(std::mem::offset_of!(RawLabel, index) == 64);
    assert!(std::mem::offset_of!(RawLabel, stripe) == 260);
    assert!(std::mem::offset_of!(RawLabel, behind) == 268);
    assert!(std::mem::offset_of!(RawLabel, header_at) == 272);
    assert!(std::mem::offset_of!(RawLabel, common) == 280);
    assert!(std::mem::offset_of!(RawLabel, speed) == 298);
    assert!(std::mem::offset_of!(RawLabel, at) == 352);
    assert!(std::mem::offset_of!(RawLabel, home) == 368);
    assert!(std::mem::offset_of!(RawLabel, table) == 384);
};

/// How many places of the table copies have, where devices hold so much together, or all (0).
pub(crate) const fn most_places(common: u64) -> usize {
    match common {
        0 => MAX_COPIES,
        _ => MAX_DEVICES,
    }
}

/// Bytes of data on a device of `size` bytes, `None` if it is too small for any.
pub(crate) fn data_len(size: u64) -> Option<u64> {
    let data = size.checked_sub(DATA_START + LABEL_SIZE)? / BLOCK_SIZE * BLOCK_SIZE;
    (data > 0).then_some(data)
}

/// A size of a device with room for so many bytes of data; whole pages of 2 MiB, which hugetlbfs
/// needs.
pub(crate) fn device_for(data: u64) -> u64 {
    let data = data.next_multiple_of(BLOCK_SIZE).max(BLOCK_SIZE);
    (data + DATA_START + LABEL_SIZE).next_multiple_of(2 << 20)
}

/// Bytes of the journal of a disk of `size` bytes: an eighth of it, but at least what a new pool
/// changes at once, and at most 256 MiB.
pub(crate) fn journal_len(size: u64) -> u64 {
    let len = (size / 8).clamp(JOURNAL_MIN, JOURNAL_MAX);
    len.next_multiple_of(BLOCK_SIZE).min(JOURNAL_MAX)
}

/// Device offset of the second label copy on a device of `size` bytes.
pub(crate) fn second_copy(size: u64) -> Option<u64> {
    let end = size / LABEL_SIZE * LABEL_SIZE;
    end.checked_sub(LABEL_SIZE).filter(|&at| at >= DATA_START)
}

#[cfg(test)]
mod tests {
    use super::{DATA_START, LABEL_SIZE, MIN_DEVICE, data_len, second_copy};

    #[test]
    fn data_never_reaches_the_second_label() {
        for size in [
            MIN_DEVICE,
            MIN_DEVICE + 4096,
            64 << 20,
            (64 << 20) + 12345,
            10 << 30,
        ] {
            let data = data_len(size).unwrap();
            assert!(data.is_multiple_of(4 << 20) && data > 0);
            assert!(DATA_START + data <= second_copy(size).unwrap());
            assert!(second_copy(size).unwrap() + LABEL_SIZE <= size);
        }
    }

    #[test]
    fn small_devices_hold_no_data() {
        assert_eq!(data_len(MIN_DEVICE - 1), None);
        assert_eq!(data_len(0), None);
        assert_eq!(second_copy(4096), None);
    }
}
