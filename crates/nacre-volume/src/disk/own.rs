//! What disks that hold a common part have of their own besides (D80).
//!
//! The logical disk is what all hold, then what each holds alone, one behind the other, and the
//! journal, which all hold. On each disk its own part lies behind its copy of the journal.

use std::ops::Range;

use nacre_cache::DiskFailed;
use nacre_types::Uuid;

use crate::label::LabelInfo;
use crate::label::stay::Stay;
use crate::layout::DATA_START;

/// Which places of the logical disk are on one disk alone.
#[derive(Debug)]
pub(crate) struct Own {
    /// Of each disk, in the order of the table.
    parts: Vec<Range<u64>>,
    /// Which of them are holes: their disks left the pool, and took what they alone held (D95).
    holes: Vec<Range<u64>>,
    /// The disk for which another one has come, and its part.
    replaced: Option<(Uuid, Range<u64>)>,
    /// Where all hold what is before that ends.
    common_end: u64,
    journal: u64,
}

/// Neighbours that are on the same disks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The place of the disk in the table; `None`: all hold them.
    pub owner: Option<usize>,
    /// Where they are there.
    pub at: u64,
    /// Their place in the range that was asked for.
    pub piece: Range<usize>,
}

impl Own {
    /// `None`: the disks of this table hold the same.
    pub fn of(table: &LabelInfo) -> Option<Self> {
        let common_end = DATA_START + table.common_len();
        let mut end = common_end;
        let part = |data: u64| {
            let start = end;
            end += data;
            start..end
        };
        let parts = table.devices.iter().map(|device| device.data).map(part);
        let parts: Vec<Range<u64>> = parts.collect();
        let each = parts.iter().zip(&table.devices);
        let holes = each.filter(|(_, device)| device.stay == Stay::Gone);
        let holes = holes.map(|(part, _)| part.clone()).collect();
        let old = table.devices.iter().find_map(|device| device.replaces);
        let mut each = parts.iter().zip(&table.devices);
        let replaced = each.find(|(_, device)| Some(device.uuid) == old);
        let replaced = replaced.map(|(part, device)| (device.uuid, part.clone()));
        (table.common > 0).then_some(Self {
            parts,
            holes,
            replaced,
            common_end,
            journal: table.journal,
        })
    }

    /// Of each disk, in the order of the table.
    pub fn parts(&self) -> &[Range<u64>] {
        &self.parts
    }

    /// The disk for which another one has come, and its part.
    pub fn replaced(&self) -> Option<(Uuid, Range<u64>)> {
        self.replaced.clone()
    }

    /// Those of disks that left the pool.
    pub fn holes(&self) -> &[Range<u64>] {
        &self.holes
    }

    /// Where what all hold ends, and the journal begins on each disk.
    pub fn common_end(&self) -> u64 {
        self.common_end
    }

    fn end(&self) -> u64 {
        self.parts.last().map_or(self.common_end, |last| last.end)
    }

    /// The owner of a place, how many bytes nearer to the start it lies there (modulo 2^64), and
    /// where its neighbours end.
    pub fn find(&self, at: u64) -> Option<(Option<usize>, u64, u64)> {
        let end = self.end();
        if at < self.common_end {
            return Some((None, 0, self.common_end));
        }
        if (end..end + self.journal).contains(&at) {
            return Some((None, end - self.common_end, end + self.journal));
        }
        let owner = self.parts.iter().position(|part| part.contains(&at))?;
        let part = &self.parts[owner];
        // Behind its copy of the journal, which may be farther from the start.
        let there = self.common_end + self.journal;
        Some((Some(owner), part.start.wrapping_sub(there), part.end))
    }

    /// The pieces of a range. A place that a record names may be anywhere.
    pub(super) fn pieces(&self, at: u64, len: usize) -> Result<Vec<Piece>, DiskFailed> {
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < len {
            let place = at.checked_add(done as u64);
            let found = place.and_then(|place| Some((place, self.find(place)?)));
            let Some((place, (owner, back, end))) = found else {
                return Err(DiskFailed("a place that is on none of the disks".into()));
            };
            let room = usize::try_from(end - place).unwrap_or(usize::MAX);
            let piece = done..len.min(done.saturating_add(room));
            done = piece.end;
            pieces.push(Piece {
                owner,
                at: place.wrapping_sub(back),
                piece,
            });
        }
        Ok(pieces)
    }
}
