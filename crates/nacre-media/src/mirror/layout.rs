//! The bitmap that each leg has in front of its data, as it lies on the medium. Words are
//! little-endian and stored whole.
//!
//! Bit `n` is of the bytes from `n * REGION` on, counted from the start of the device. On a leg
//! that is current it says that the legs may differ there since they were last known to agree; on
//! one that is being rebuilt, that the region is still to come.

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
    assert!(REGION.is_multiple_of(4096));
};
