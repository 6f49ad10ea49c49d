//! The kinds of addresses. Each conversion between two kinds exists once, here.

use std::fmt;

use crate::{UNIT_SHIFT, UNIT_SIZE};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! byte_address {
    ($name:ident) => {
        impl $name {
            /// The address `bytes` further on. The sum must fit in 64 bits.
            #[inline]
            #[must_use]
            pub const fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }

            /// The address `bytes` further on, or `None` past the end of 64 bits.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Whether the address is a multiple of `alignment` (a power of two).
            #[inline]
            pub const fn is_aligned(self, alignment: u64) -> bool {
                self.0 & (alignment - 1) == 0
            }
        }
    };
}

address!(
    /// A byte on one device, counted from the device's first byte.
    DeviceOffset
);
address!(
    /// A byte of a pool's volume, counted over all its devices.
    VolumeOffset
);
address!(
    /// A byte of an object's data.
    FileOffset
);
address!(
    /// A 4 KiB unit of a volume: volume offset / 4096.
    UnitNo
);
address!(
    /// The number of an object in its pool. 0 names no object.
    ObjectId
);
address!(
    /// An inode number, as programs see it.
    Ino
);
byte_address!(DeviceOffset);
byte_address!(VolumeOffset);
byte_address!(FileOffset);

impl VolumeOffset {
    /// The unit that holds this byte.
    #[inline]
    pub const fn unit(self) -> UnitNo {
        UnitNo(self.0 >> UNIT_SHIFT)
    }

    /// This byte's place within its unit, 0..4096.
    #[inline]
    pub const fn in_unit(self) -> u64 {
        self.0 & (UNIT_SIZE - 1)
    }
}

impl UnitNo {
    /// The first byte of the unit. The unit number must be below 2^52.
    #[inline]
    pub const fn offset(self) -> VolumeOffset {
        VolumeOffset(self.0 << UNIT_SHIFT)
    }

    /// The unit `units` further on.
    #[inline]
    #[must_use]
    pub const fn add(self, units: u64) -> Self {
        Self(self.0 + units)
    }
}

impl FileOffset {
    /// The 4 KiB page of the object's data that holds this byte.
    #[inline]
    pub const fn page(self) -> u64 {
        self.0 >> UNIT_SHIFT
    }

    /// This byte's place within its page, 0..4096.
    #[inline]
    pub const fn in_page(self) -> u64 {
        self.0 & (UNIT_SIZE - 1)
    }

    /// The first byte of a page. The page number must be below 2^52.
    #[inline]
    pub const fn of_page(page: u64) -> Self {
        Self(page << UNIT_SHIFT)
    }
}

impl ObjectId {
    /// The root directory.
    pub const ROOT: Self = Self(1);

    /// The inode number that programs see for this object.
    #[inline]
    pub const fn ino(self) -> Ino {
        Ino(self.0)
    }
}

impl Ino {
    /// The object behind the inode.
    #[inline]
    pub const fn object(self) -> ObjectId {
        ObjectId(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{FileOffset, UnitNo, VolumeOffset};

    #[test]
    fn units_and_offsets_convert_both_ways() {
        assert_eq!(VolumeOffset(8191).unit(), UnitNo(1));
        assert_eq!(VolumeOffset(8191).in_unit(), 4095);
        assert_eq!(UnitNo(3).offset(), VolumeOffset(12288));
    }

    #[test]
    fn pages_and_offsets_convert_both_ways() {
        assert_eq!(FileOffset(4097).page(), 1);
        assert_eq!(FileOffset(4097).in_page(), 1);
        assert_eq!(FileOffset::of_page(2), FileOffset(8192));
    }

    #[test]
    fn sums_past_the_end_are_refused() {
        assert_eq!(VolumeOffset(u64::MAX).checked_add(1), None);
        assert_eq!(VolumeOffset(1).checked_add(2), Some(VolumeOffset(3)));
    }
}
