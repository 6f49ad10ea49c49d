//! What tells a pool with copies in the running system, its *home*: its image and its session are
//! found by that. A copy of its files has another one, however many of them are there.

use nacre_media::LegState;

use crate::label::LabelInfo;
use crate::members::Member;

impl Member {
    /// Whether the device is the one that its label was written to, not a copy of it. Earlier
    /// versions told so of the first device alone.
    pub fn is_where_it_was(&self) -> bool {
        let told = match self.label.at {
            (0, 0) => self.label.home,
            at => at,
        };
        told == self.device.identity().numbers()
    }

    /// Whether it is part of the pool as the table has it.
    pub fn is_stored_to(&self, table: &LabelInfo) -> bool {
        let entry = &table.devices[self.place.unwrap_or(0)];
        entry.state.is_none_or(LegState::is_stored_to)
    }
}

/// The home in the labels, if a device that counts is where it was. Else these are copies, or
/// devices that were moved all: their home is the first of them.
pub(super) fn home_of(members: &[Member], table: &LabelInfo) -> (u64, u64) {
    let mut count = members.iter().filter(|it| it.is_stored_to(table));
    if !table.has_copies() || count.clone().any(Member::is_where_it_was) {
        return table.home;
    }
    let first = count.next().or(members.first());
    let (device, number) = first.map_or(table.home, |it| it.device.identity().numbers());
    // A file that was made since may have the number of one that is gone, by which the pool that
    // these are copies of is known still.
    match (device, number) == table.home {
        true => (device, !number),
        false => (device, number),
    }
}
