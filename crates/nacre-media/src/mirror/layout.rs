//! What each leg has in front of its data, as it lies on the medium. Words are little-endian and
//! stored whole.
//!
//! Bit `n` of the bitmap is of the bytes from `n * REGION` on, counted from the start of the
//! device. On a leg that is current it says that the legs may differ there since they were last
//! known to agree; on one that is being rebuilt, that the region is still to come.
//!
//! Seal `n` is of the `n`-th span: as many regions as it takes for all seals to find room, a power
//! of two. Bits 32..64 are the CRC-32C of the span's data, bits 0..32 the CRC-32C of the pool's
//! uuid, `n` and those bits; 0: none. It counts while no bit of the span is set.

/// Device offset of the seals.
pub const SEALS_AT: u64 = 512 << 10;
/// Bytes of the seals.
pub const SEALS_LEN: u64 = 512 << 10;
/// Device offset of the bitmap.
pub const BITMAP_AT: u64 = 1 << 20;
/// Bytes of the bitmap.
pub const BITMAP_LEN: u64 = 1 << 20;
/// Bytes that one bit stands for.
pub const REGION: u64 = 1 << 20;
/// The largest device that the bitmap has bits for.
pub const MOST_BYTES: u64 = BITMAP_LEN * 8 * REGION;

const _: () = {
    assert!(BITMAP_AT.is_multiple_of(4096) && BITMAP_LEN.is_multiple_of(8));
    assert!(SEALS_AT + SEALS_LEN == BITMAP_AT && SEALS_AT.is_multiple_of(4096));
    assert!(REGION.is_multiple_of(4096));
};
