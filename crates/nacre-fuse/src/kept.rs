//! What the answer to a request lets the kernel keep, noted so that it can be called back.

use crate::attributes::NOT_KEPT;
use crate::contents::Contents;
use crate::descriptions;
use crate::names::NAME_KEPT;
use crate::operations::Pool;
use std::time::Duration;

impl Pool {
    /// For how long a name is good that the kernel is told now, or has `made`.
    pub(crate) fn good_name(&self, dir: u64, name: &[u8], number: u64, made: bool) -> Duration {
        if descriptions::of_number(number).is_some() {
            return NOT_KEPT;
        }
        let name = (dir, name.into());
        let kept = self.nodes.names(|names| {
            let kept = self.keeping.alone().is_some();
            names.found(name, number, kept, made);
            kept
        });
        if kept { NAME_KEPT } else { NOT_KEPT }
    }

    /// Whether the kernel may take it for granted that there is no such name.
    pub(crate) fn may_be_missed(&self, dir: u64, name: &[u8]) -> bool {
        let of_description = descriptions::of_name(name).is_some();
        let missed = || {
            self.nodes
                .names(|names| self.keeping.alone().is_some() && names.missed((dir, name.into())))
        };
        !of_description && missed()
    }

    /// Whether a file is read through the kernel's cache while others use the pool: it was opened
    /// before they came.
    pub(crate) fn is_left_over(&self, number: u64) -> bool {
        self.keeping.alone().is_none() && self.nodes.contents(number, Contents::is_cached)
    }
}
