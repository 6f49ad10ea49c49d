//! A record before it is written.

use std::ops::Range;

use nacre_types::crc32c;
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::layout::{AT_HOME, BLOCK, RECORD_MAGIC, RawPiece, RawRecord};
use crate::piece::Piece;

pub(crate) const HEAD: usize = size_of::<RawRecord>();
pub(crate) const PIECE: usize = size_of::<RawPiece>();
/// What a record has of the bytes of a piece that is written beside it: their checksum.
pub(crate) const SUM: usize = size_of::<u32>();
pub(crate) const RECORD_CRC_AT: usize = std::mem::offset_of!(RawRecord, crc);

pub(crate) const fn padded(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// A version that is about to be a record. Its bytes are put where they are written from, so they
/// are copied once.
#[derive(Debug, Default)]
pub struct Draft {
    buffer: Buffer,
    homes: Vec<Range<u64>>,
    /// How many pieces are written beside it.
    beside: usize,
    /// Bytes of the record without the zeros at its end.
    len: usize,
}

impl Draft {
    /// A version that changes these ranges of the disk, which do not overlap. The buffer's memory
    /// is used.
    pub fn new(buffer: Buffer, homes: Vec<Range<u64>>) -> Self {
        Self::with_beside(buffer, homes, 0)
    }

    /// As [`Draft::new`], of which so many pieces more are written home beside the record.
    pub fn with_beside(mut buffer: Buffer, homes: Vec<Range<u64>>, beside: usize) -> Self {
        let bytes: u64 = homes.iter().map(|home| home.end - home.start).sum();
        let table = (homes.len() + beside) * PIECE;
        let len = HEAD + table + bytes as usize + beside * SUM;
        buffer.set_len(padded(len as u64) as usize);
        buffer.bytes_mut()[len..].fill(0);
        Self {
            buffer,
            homes,
            beside,
            len,
        }
    }

    /// How many pieces are written beside it.
    pub fn beside(&self) -> usize {
        self.beside
    }

    fn table(&self) -> usize {
        (self.homes.len() + self.beside) * PIECE
    }

    /// The ranges.
    pub fn homes(&self) -> &[Range<u64>] {
        &self.homes
    }

    /// Calls `fill` with each range and the place for its bytes.
    pub fn fill(&mut self, mut fill: impl FnMut(&Range<u64>, &mut [u8])) {
        let table = self.table();
        let mut rest = &mut self.buffer.bytes_mut()[HEAD + table..];
        for home in &self.homes {
            let (bytes, behind) = rest.split_at_mut((home.end - home.start) as usize);
            fill(home, bytes);
            rest = behind;
        }
    }

    /// Its memory, for the next one.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// Bytes of the journal that it takes.
    pub fn needed(&self) -> u64 {
        self.buffer.bytes().len() as u64
    }

    /// As [`Draft::record`], without the zeros at its end.
    pub(crate) fn sealed(&self) -> &[u8] {
        &self.buffer.bytes()[..self.len]
    }

    /// The record as it was appended last.
    pub fn record(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// The record, with this number, up to a multiple of `grain`, and its checksum. It has the
    /// checksums of those pieces that are written beside it.
    pub(crate) fn seal(
        &mut self,
        (number, pool): (u64, [u8; 16]),
        beside: &[Piece<'_>],
        grain: u64,
    ) -> (&[u8], u32) {
        let head = RawRecord {
            magic: RECORD_MAGIC.into(),
            number: number.into(),
            pool,
            len: (self.len as u64).into(),
            pieces: ((self.homes.len() + beside.len()) as u32).into(),
            crc: 0.into(),
        };
        let table = self.table();
        let record = self.buffer.bytes_mut();
        record[..HEAD].copy_from_slice(head.as_bytes());
        let in_record = self
            .homes
            .iter()
            .map(|home| (home.start, home.end - home.start));
        let at_home = beside
            .iter()
            .map(|piece| (piece.home, piece.bytes.len() as u64 | AT_HOME));
        let places = record[HEAD..HEAD + table].chunks_exact_mut(PIECE);
        for ((home, len), place) in in_record.chain(at_home).zip(places) {
            let raw = RawPiece {
                home: home.into(),
                len: len.into(),
            };
            place.copy_from_slice(raw.as_bytes());
        }
        let sums = record[self.len - beside.len() * SUM..self.len].chunks_exact_mut(SUM);
        for (piece, place) in beside.iter().zip(sums) {
            place.copy_from_slice(&crc32c(piece.bytes).to_le_bytes());
        }
        let crc = crc32c(&record[..self.len]);
        record[RECORD_CRC_AT..HEAD].copy_from_slice(&crc.to_le_bytes());
        (&record[..self.len.next_multiple_of(grain as usize)], crc)
    }
}
