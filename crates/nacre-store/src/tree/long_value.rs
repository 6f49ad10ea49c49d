//! Values that lie out of line.

use std::ops::Range;

use nacre_types::{UNIT_SIZE, UnitNo, VolumeOffset, crc32c, site};

use crate::alloc::Run;

/// An out-of-line value, as its entry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongValue {
    pub(crate) start: UnitNo,
    /// In bytes.
    pub(crate) len: usize,
    crc: u32,
}

impl LongValue {
    pub(crate) fn new(start: UnitNo, len: usize, crc: u32) -> Self {
        Self { start, len, crc }
    }

    /// Its units.
    pub(crate) fn run(self) -> Run {
        Run {
            start: self.start,
            count: (self.len as u64).div_ceil(UNIT_SIZE).max(1),
        }
    }

    /// Where it lies, in whole units.
    pub(crate) fn range(self) -> Range<VolumeOffset> {
        let run = self.run();
        run.start.offset()..run.start.add(run.count).offset()
    }

    /// Whether bytes begin with it.
    pub(crate) fn is_in(self, bytes: &[u8]) -> bool {
        let own = bytes.get(..self.len);
        site::check(own.is_some_and(|own| crc32c(own) == self.crc))
    }
}
