//! The places that copies have in the label (D81).

use std::path::PathBuf;

use nacre_media::{LegState, MOST_LEGS};
use nacre_types::Uuid;

use crate::label::stay::Stay;
use crate::label::{LabelDevice, LabelInfo};
use crate::layout::most_places;

/// What a copy comes for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comes {
    /// It gets the place of one that is lost.
    InPlaceOf(Uuid),
    /// For one that goes once this one is current.
    For(Uuid),
    /// It is one more.
    Further,
}

impl LabelInfo {
    /// Gives a copy its place. Copies keep theirs as long as the pool is in use (T3), so one that
    /// left has left its own. Where each disk holds a part alone it is gone for good (D95).
    pub(crate) fn seat(
        &mut self,
        mut entry: LabelDevice,
        comes: Comes,
    ) -> Result<(), &'static str> {
        if let Comes::InPlaceOf(lost) = comes
            && (self.common == 0 || lost == entry.uuid)
        {
            let place = self.devices.iter_mut().find(|it| it.uuid == lost);
            let place = place.ok_or("has no such device")?;
            entry.replaces = place.replaces;
            *place = entry;
            return Ok(());
        }
        if let Comes::For(old) = comes {
            entry.replaces = Some(old);
        }
        if let Comes::InPlaceOf(lost) = comes {
            self.vacate(lost);
        }
        let is_whole = self.common == 0;
        let vacant = self.devices.iter_mut();
        let vacant = vacant.filter(|_| is_whole).find(|it| it.stay == Stay::Gone);
        match vacant {
            Some(place) => *place = entry,
            None => self.devices.push(entry),
        }
        let staying = self.copies().filter(|(_, it)| it.replaces.is_none());
        match staying.count() <= MOST_LEGS && self.devices.len() <= most_places(self.common) {
            true => Ok(()),
            false if self.common == 0 => Err("has four copies already, which is the most"),
            false => Err("has four devices already, or sixteen with those that left"),
        }
    }

    /// A copy leaves its place. Whoever came for it is there now for the one that it came for.
    pub(crate) fn vacate(&mut self, left: Uuid) {
        let task = self.devices.iter().find(|entry| entry.uuid == left);
        let task = task.and_then(|entry| entry.replaces);
        for entry in &mut self.devices {
            if entry.replaces == Some(left) {
                entry.replaces = task;
            }
            if entry.uuid == left {
                (entry.state, entry.stay) = (Some(LegState::Failed), Stay::Gone);
                (entry.path, entry.replaces) = (PathBuf::new(), None);
            }
        }
    }

    /// Without a copy for which another one has come that is current; `None`: it has not.
    pub(crate) fn without_replaced(&self, old: Uuid) -> Option<Self> {
        let is_there =
            |it: &LabelDevice| it.replaces == Some(old) && it.state == Some(LegState::Current);
        let mut next = self.devices.iter().any(is_there).then(|| self.clone())?;
        next.vacate(old);
        Some(next)
    }
}
