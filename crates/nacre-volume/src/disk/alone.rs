//! What disks that hold a common part do with what each holds alone (D80).
//!
//! - **T5 What was not written is not trusted.** Nothing is written to a disk that is lost. Before
//!   a write to its own part is passed over, the labels say durably that the disk has failed. So
//!   one that was only missing has all that was ever at home there.
//! - **T6 Contents are not given up for one call.** A disk that fails a call is lost only if it
//!   does not take its label either, and never for a read. Else the call fails, as of a single
//!   disk.

use std::ops::Range;

use nacre_cache::DiskFailed;
use nacre_media::LegState;
use nacre_types::Uuid;

use super::file::FileDisk;
use super::legs::{LegsDisk, Seat, failed};
use super::one::One;
use super::own::Piece;
use crate::label::LabelInfo;
use crate::members::labels::write_as;

impl LegsDisk {
    /// The parts of the logical disk that are on disks which are lost.
    pub fn lost_parts(&self) -> Vec<Range<u64>> {
        let own = self.own().into_iter();
        let parts = own.flat_map(|own| own.parts().iter().enumerate().map(move |it| (own, it)));
        let lost = parts.filter(|(own, (owner, part))| {
            !own.holes().contains(part) && self.owner(*owner).is_none()
        });
        lost.map(|(_, (_, part))| part.clone()).collect()
    }

    /// Whether a disk is there that has a place.
    pub fn holds(&self, at: u64) -> bool {
        match self.own().and_then(|own| own.find(at)) {
            Some((Some(owner), _, _)) => self.owner(owner).is_some(),
            _ => true,
        }
    }

    /// The place of a disk in the table.
    pub fn index_of(&self, uuid: Uuid) -> Option<usize> {
        Some(self.view().ok()?.0.seat(uuid)?.index)
    }

    /// The disk at a place of the table, if it is there and not lost.
    pub(super) fn owner(&self, index: usize) -> Option<&Seat> {
        let (view, word) = self.view().ok()?;
        let seat = view.stored_to(word).find(|seat| seat.index == index);
        seat.filter(|seat| seat.leg.is_some())
    }

    /// Does something to the one disk that has a place. One that fails is lost; what was for one
    /// that is lost is passed over (T5).
    pub(super) fn on_owner(
        &self,
        index: usize,
        work: impl FnOnce(One<'_>) -> Result<(), DiskFailed>,
    ) -> Result<(), DiskFailed> {
        self.settle_labels()?;
        let Some(seat) = self.owner(index) else {
            return self.pass_over(index);
        };
        let one = seat.one().ok_or_else(|| failed("it is not there"));
        let done = one.and_then(|one| work(one).and_then(|()| one.1.check_len()));
        if done.is_err() {
            self.doubt_seals();
            if !self.still_lives(seat) {
                self.lose(seat.uuid);
                self.settle_labels()?;
            }
        }
        done
    }

    /// Whether a disk that failed a call is not to be given up for it: contents that it alone holds
    /// would be given up, too, and it takes its label. The call fails then, as of a single disk.
    pub(super) fn still_lives(&self, seat: &Seat) -> bool {
        let Some(leg) = seat.leg.as_ref().filter(|_| self.own().is_some()) else {
            return false;
        };
        self.changing_labels(|| {
            let table = self.labels().newest();
            let is_cut = leg.device.is_cut();
            !is_cut && table.is_some_and(|table| write_as(&table, seat.uuid, &leg.device).is_ok())
        })
    }

    /// The labels say durably that a disk lacks something, on return (T5).
    pub(super) fn pass_over(&self, index: usize) -> Result<(), DiskFailed> {
        let is_known = |table: &LabelInfo| table.devices[index].state == Some(LegState::Failed);
        let (view, _) = self.view()?;
        if view.seats[index].state == LegState::Failed {
            return Ok(());
        }
        self.changing_labels(|| {
            let mut table = self.newest(view.sequence)?;
            match is_known(&table) {
                true => Ok(()),
                false => {
                    table.devices[index].state = Some(LegState::Failed);
                    self.write_table(table, 0)
                }
            }
        })
    }

    /// Does something with each piece of a range: to all disks, or to the one that has it.
    pub(super) fn by_piece(
        &self,
        (at, len): (u64, usize),
        mut on_all: impl FnMut(u64, Range<usize>) -> Result<(), DiskFailed>,
        on_one: impl Fn(One<'_>, u64, Range<usize>) -> Result<(), DiskFailed>,
    ) -> Result<(), DiskFailed> {
        let Some(own) = self.own() else {
            return on_all(at, 0..len);
        };
        for Piece { owner, at, piece } in own.pieces(at, len)? {
            match owner {
                None => on_all(at, piece)?,
                Some(owner) => self.on_owner(owner, |one| on_one(one, at, piece.clone()))?,
            }
        }
        Ok(())
    }

    /// As `each`, for hints about a range.
    pub(super) fn each_of(&self, range: Range<u64>, mut work: impl FnMut(&FileDisk, Range<u64>)) {
        let Some(own) = self.own() else {
            return self.each(|file| work(file, range.clone()));
        };
        let pieces = own.pieces(range.start, (range.end - range.start) as usize);
        for Piece { owner, at, piece } in pieces.into_iter().flatten() {
            let there = at..at + piece.len() as u64;
            match owner {
                None => self.each(|file| work(file, there.clone())),
                Some(owner) => {
                    let leg = self.owner(owner).and_then(|seat| seat.leg.as_ref());
                    leg.into_iter()
                        .for_each(|leg| work(&leg.file, there.clone()));
                }
            }
        }
    }
}
