//! The checksum of what two devices hold of the same bytes, computed while they are compared.

use nacre_types::{DeviceOffset, LINE_SIZE, UNIT_SIZE, crc32c_append};

use crate::arch::Folded;
use crate::media::Media;

/// A CRC-32C under way.
pub(super) enum Sum {
    Folded(Folded),
    /// The processor cannot fold, or there are not only whole lines.
    Plain(u32),
}

impl Sum {
    /// Of nothing yet, to be of `len` bytes, or of parts that are whole lines if it is.
    pub fn of(len: u64) -> Self {
        let folded = Folded::new().filter(|_| len.is_multiple_of(LINE_SIZE));
        folded.map_or(Sum::Plain(0), Sum::Folded)
    }

    /// Sums up so many bytes more, in which both devices are alike. `false`: they differ.
    /// If one fails, [`Media::health`] or the mapping's watch tell, whatever the answer is.
    pub fn add(&mut self, at: DeviceOffset, len: u64, [one, other]: [&Media; 2]) -> bool {
        match self {
            Sum::Folded(sum) => {
                let places = (other.address(at, len), one.address(at, len));
                // SAFETY: the bytes are in the mappings, as `address` saw, and no reference covers
                // them.
                let alike = unsafe { sum.add(places.0, places.1, len as usize) };
                // Which one failed is found out the other way.
                alike.unwrap_or_else(|_| add_plain(&mut 0, at, len, [one, other]))
            }
            Sum::Plain(sum) => add_plain(sum, at, len, [one, other]),
        }
    }

    /// The checksum.
    pub fn value(self) -> u32 {
        match self {
            Sum::Folded(sum) => sum.sum(),
            Sum::Plain(sum) => sum,
        }
    }
}

fn add_plain(sum: &mut u32, at: DeviceOffset, len: u64, [one, other]: [&Media; 2]) -> bool {
    let mut bytes = [0; UNIT_SIZE as usize];
    let end = at.get() + len;
    let mut pieces = (at.get()..end).step_by(UNIT_SIZE as usize);
    pieces.all(|at| {
        let bytes = &mut bytes[..UNIT_SIZE.min(end - at) as usize];
        one.copy_out(DeviceOffset(at), bytes);
        *sum = crc32c_append(*sum, bytes);
        other.has(DeviceOffset(at), bytes)
    })
}
