//! Copies are rebuilt by what the session knows to be used.

use std::ops::ControlFlow;

use nacre_types::{UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::{RebuildProgress, Usage, VolumeError};

use crate::layout::HEADER_UNITS;
use crate::scrub::Report;
use crate::store::Store;

impl Store {
    /// As `Volume::rebuild_copies`, in memory on so many threads. Disks do not get what nobody has
    /// taken (D82). Answers how many are whole now, and what was not as it was sealed.
    pub fn rebuild_copies(
        &self,
        threads: usize,
        told: impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<(usize, Report), VolumeError> {
        let usage = |at: VolumeOffset| {
            let unit = UnitNo(at.0 / UNIT_SIZE);
            match unit.0 >= HEADER_UNITS && self.is_known_free(unit) {
                true => Usage::Free,
                false => Usage::Used,
            }
        };
        let rebuilt = self.volume().rebuild_used(&usage, threads, told)?;
        Ok((rebuilt.whole, Report::of(self, rebuilt.found)))
    }

    /// Whether a unit is free for sure. What hangs on metadata that is damaged only seems so, and a
    /// pool with such metadata is not served for writing.
    pub(crate) fn is_known_free(&self, unit: UnitNo) -> bool {
        self.is_writable() && self.allocator().is_untaken(unit)
    }
}
