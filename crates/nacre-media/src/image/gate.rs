//! The gate between stores and versions: a version is taken while nobody is inside.

use std::sync::atomic::Ordering;

use nacre_types::DeviceOffset;

use super::{Image, units};
use crate::error::MediaFailed;

/// While it lives, no version is taken.
pub(crate) struct Entered<'a>(&'a Image);

impl Image {
    /// Notes a store that is about to be made, which is in the same version as the note. The units
    /// are there, and stay until it is over.
    #[inline]
    pub(crate) fn begin(&self, at: DeviceOffset, len: u64) -> Result<Entered<'_>, MediaFailed> {
        let entered = self.enter_present(at, len)?;
        self.note(at.get(), len);
        Ok(entered)
    }

    /// Keeps versions from being taken, and units that are there from going.
    #[inline]
    pub(super) fn enter_present(
        &self,
        at: DeviceOffset,
        len: u64,
    ) -> Result<Entered<'_>, MediaFailed> {
        self.slow_down();
        loop {
            self.ensure(at, len)?;
            let entered = self.enter_gate();
            // C8: what is not there must not be noted.
            let range = units(at.get()..at.get() + len);
            if self.present.has_all(range.clone()) {
                self.used.set_all(range);
                return Ok(entered);
            }
        }
    }

    #[inline]
    pub(super) fn enter_gate(&self) -> Entered<'_> {
        if let Some(committer) = self.committer.get() {
            committer.enter();
        }
        Entered(self)
    }

    /// A fence that is the last of its call: the disk has all, if each is to be a commit.
    pub(crate) fn fence(&self) -> Result<(), MediaFailed> {
        match self.commits_fences.load(Ordering::Relaxed) {
            true => self.committer.get().map_or(Ok(()), |one| one.commit()),
            false => Ok(()),
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(committer) = self.0.committer.get() {
            committer.leave();
        }
    }
}
