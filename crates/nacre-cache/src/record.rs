//! A record as it is read.

use std::ops::Range;

use zerocopy::FromBytes;

use crate::draft::{HEAD, PIECE, SUM};
use crate::layout::{AT_HOME, BESIDE_MAX, RawPiece, RawRecord};
use crate::piece::Piece;

/// What a record says.
pub(crate) struct Record<'a> {
    /// So far from its start the bytes of its pieces begin.
    pub skip: usize,
    pub pieces: Vec<Piece<'a>>,
    /// What was written beside it.
    pub at_home: Vec<AtHome>,
}

/// A piece that was written beside a record.
pub(crate) struct AtHome {
    pub home: Range<u64>,
    /// Checksum of its bytes.
    pub crc: u32,
}

impl AtHome {
    fn len(&self) -> u64 {
        self.home.end - self.home.start
    }
}

impl<'a> Record<'a> {
    /// Of the bytes of a record without the zeros at its end; `None` if they contradict themselves.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = RawRecord::read_from_prefix(bytes).ok()?;
        let count = head.pieces.get() as usize;
        let (table, mut rest) = rest.split_at_checked(count.checked_mul(PIECE)?)?;
        let (mut pieces, mut at_home) = (Vec::with_capacity(count), Vec::new());
        for raw in table.chunks_exact(PIECE) {
            let raw = RawPiece::read_from_bytes(raw).ok()?;
            let (home, len) = (raw.home.get(), raw.len.get());
            let range = home..home.checked_add(len & !AT_HOME)?;
            if len & AT_HOME == 0 {
                let bytes = take(&mut rest, usize::try_from(len).ok()?)?;
                pieces.push(Piece { home, bytes });
            } else {
                let sum = take(&mut rest, SUM)?.try_into().ok()?;
                let crc = u32::from_le_bytes(sum);
                at_home.push(AtHome { home: range, crc });
            }
        }
        let beside: u64 = at_home.iter().map(AtHome::len).fold(0, u64::saturating_add);
        (rest.is_empty() && beside <= BESIDE_MAX).then_some(Self {
            skip: HEAD + table.len(),
            pieces,
            at_home,
        })
    }

    /// All places that it names.
    pub fn homes(&self) -> impl Iterator<Item = Range<u64>> {
        let at_home = self.at_home.iter().map(|one| one.home.clone());
        self.pieces.iter().map(Piece::range).chain(at_home)
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (now, later) = rest.split_at_checked(len)?;
    *rest = later;
    Some(now)
}
