//! Writing versions, bringing them home, finding them again.

use nacre_types::crc32c;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::layout::{
    BLOCK, HEADER_MAGIC, MIN_JOURNAL, RECORD_MAGIC, RECORDS_AT, RawHeader, RawPiece, RawRecord,
};

const HEAD: usize = size_of::<RawRecord>();
const PIECE: usize = size_of::<RawPiece>();
const HEADER_CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);
const RECORD_CRC_AT: usize = std::mem::offset_of!(RawRecord, crc);

/// Bytes and the place on the disk where they belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// The first byte of the place. It lies outside of the journal.
    pub home: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// How far a journal has got: all that a process must know that goes on with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Counts headers.
    pub turn: u64,
    /// Number of the first record that counts.
    pub first: u64,
    /// Number of the next record.
    pub next: u64,
    /// Where it goes, counted from the journal's start.
    pub end: u64,
}

/// The journal of a pool, at a fixed place of a disk. Only one may be open for writing at a time.
pub struct Journal<D> {
    disk: D,
    pool: [u8; 16],
    at: u64,
    len: u64,
    turn: u64,
    /// Number of the first record that counts.
    first: u64,
    /// Number of the next record.
    next: u64,
    /// Where it goes, counted from the journal's start.
    end: u64,
    failed: bool,
}

impl<D: Disk> Journal<D> {
    /// Makes an empty journal of `len` bytes at `at`. What was there is lost.
    pub fn create(disk: D, pool: [u8; 16], at: u64, len: u64) -> Result<Self, JournalError> {
        let mut journal = Self::at(disk, pool, at, len)?;
        // Written once, so that later writes need no new space, and no old record counts.
        let zeros = [0; BLOCK as usize];
        for skip in (0..len).step_by(BLOCK as usize) {
            journal.disk.write(at + skip, &zeros)?;
        }
        journal.disk.sync()?;
        journal.write_header()?;
        Ok(journal)
    }

    /// Finds the records that count. They stay in the journal until the next checkpoint.
    pub fn open(disk: D, pool: [u8; 16], at: u64, len: u64) -> Result<Self, JournalError> {
        let mut journal = Self::at(disk, pool, at, len)?;
        let mut newest: Option<RawHeader> = None;
        for slot in 0..2 {
            let found = journal.read_header(slot)?;
            let turn = |header: &RawHeader| header.turn.get();
            if found.as_ref().map(turn) > newest.as_ref().map(turn) {
                newest = found;
            }
        }
        let header = newest.ok_or(JournalError::Damaged)?;
        journal.turn = header.turn.get();
        journal.first = header.first.get();
        journal.next = journal.first;
        while let Some(record) = journal.read_record(journal.end, journal.next)? {
            journal.end += padded(record.len() as u64);
            journal.next = journal.next.wrapping_add(1);
        }
        Ok(journal)
    }

    /// Goes on where another process stopped: nothing is read. The caller sees to it that nobody
    /// has written since.
    pub fn resume(
        disk: D,
        pool: [u8; 16],
        (at, len): (u64, u64),
        position: Position,
    ) -> Result<Self, JournalError> {
        let journal = Self::at(disk, pool, at, len)?;
        Ok(Self {
            turn: position.turn,
            first: position.first,
            next: position.next,
            end: position.end,
            ..journal
        })
    }

    /// For [`Journal::resume`].
    pub const fn position(&self) -> Position {
        Position {
            turn: self.turn,
            first: self.first,
            next: self.next,
            end: self.end,
        }
    }

    fn at(disk: D, pool: [u8; 16], at: u64, len: u64) -> Result<Self, JournalError> {
        if len < MIN_JOURNAL || !len.is_multiple_of(BLOCK) {
            return Err(JournalError::BadSize(len));
        }
        Ok(Self {
            disk,
            pool,
            at,
            len,
            turn: 0,
            first: 1,
            next: 1,
            end: RECORDS_AT,
            failed: false,
        })
    }

    /// Bytes that a version of so many pieces and bytes takes.
    pub const fn needed(pieces: usize, bytes: u64) -> u64 {
        padded((HEAD + pieces * PIECE) as u64 + bytes)
    }

    /// Bytes that are free before the next checkpoint.
    pub const fn room(&self) -> u64 {
        self.len - self.end
    }

    /// Number of the newest version; 0 for none.
    pub const fn version(&self) -> u64 {
        self.next.wrapping_sub(1)
    }

    /// Writes the pieces as one version: after a crash all of them are there or none. Durable on
    /// return. Pieces of one version do not overlap. A home place in the journal is a bug of the
    /// caller and panics.
    pub fn append(&mut self, pieces: &[Piece<'_>]) -> Result<(), JournalError> {
        let outside = pieces.iter().all(|piece| self.is_outside(piece));
        assert!(outside, "a home place in the journal");
        let bytes = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        let needed = Self::needed(pieces.len(), bytes);
        let room = self.len - RECORDS_AT;
        match needed {
            _ if self.failed => return Err(JournalError::Failed),
            needed if needed > room => return Err(JournalError::TooLarge { needed, room }),
            needed if needed > self.room() => return Err(JournalError::Full),
            _ => {}
        }
        let record = self.seal(pieces, needed);
        self.guarded(|journal| {
            journal
                .disk
                .write_through(journal.at + journal.end, &record)?;
            journal.end += needed;
            journal.next = journal.next.wrapping_add(1);
            Ok(())
        })
    }

    /// Calls `found` with the pieces of all records that count, in their order.
    pub fn each_piece(
        &self,
        mut found: impl FnMut(Piece<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut place = RECORDS_AT;
        let mut number = self.first;
        while place < self.end {
            let record = self.read_record(place, number)?;
            let record = record.ok_or(JournalError::Damaged)?;
            for piece in pieces_of(&record).ok_or(JournalError::Damaged)? {
                found(piece)?;
            }
            place += padded(record.len() as u64);
            number = number.wrapping_add(1);
        }
        Ok(())
    }

    /// Brings all versions to their home places and begins the journal again; answers how many
    /// bytes that were. After an error nothing is lost: the journal is opened and this is done
    /// again.
    pub fn checkpoint(&mut self) -> Result<u64, JournalError> {
        if self.failed {
            return Err(JournalError::Failed);
        }
        self.guarded(|journal| {
            let mut written = 0;
            journal.each_piece(|piece| {
                written += piece.bytes.len() as u64;
                Ok(journal.disk.write(piece.home, piece.bytes)?)
            })?;
            // J2.
            journal.disk.sync()?;
            journal.write_header()?;
            journal.end = RECORDS_AT;
            Ok(written)
        })
    }

    /// After a failed write nobody knows what is on the disk, so nothing more is written.
    fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let done = work(self);
        self.failed |= done.is_err();
        done
    }

    fn seal(&self, pieces: &[Piece<'_>], needed: u64) -> Vec<u8> {
        let mut record = Vec::with_capacity(needed as usize);
        let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let head = RawRecord {
            magic: RECORD_MAGIC.into(),
            number: self.next.into(),
            pool: self.pool,
            len: ((HEAD + pieces.len() * PIECE + bytes) as u64).into(),
            pieces: (pieces.len() as u32).into(),
            crc: 0.into(),
        };
        record.extend_from_slice(head.as_bytes());
        for piece in pieces {
            let raw = RawPiece {
                home: piece.home.into(),
                len: (piece.bytes.len() as u64).into(),
            };
            record.extend_from_slice(raw.as_bytes());
        }
        for piece in pieces {
            record.extend_from_slice(piece.bytes);
        }
        let crc = crc32c(&record);
        record[RECORD_CRC_AT..HEAD].copy_from_slice(&crc.to_le_bytes());
        record.resize(needed as usize, 0);
        record
    }

    /// The record at `place` without the zeros at its end, if it counts as `number`.
    fn read_record(&self, place: u64, number: u64) -> Result<Option<Vec<u8>>, JournalError> {
        if place + BLOCK > self.len {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        self.disk.read(self.at + place, &mut head)?;
        let Ok(raw) = RawRecord::read_from_bytes(&head) else {
            return Ok(None);
        };
        let len = raw.len.get();
        let known = raw.magic.get() == RECORD_MAGIC && raw.pool == self.pool;
        let fits = len >= HEAD as u64 && len <= self.len - place;
        if !known || !fits || raw.number.get() != number {
            return Ok(None);
        }
        let mut record = vec![0; len as usize];
        self.disk.read(self.at + place, &mut record)?;
        record[RECORD_CRC_AT..HEAD].fill(0);
        let whole = crc32c(&record) == raw.crc.get();
        let sound = pieces_of(&record)
            .is_some_and(|pieces| pieces.iter().all(|piece| self.is_outside(piece)));
        Ok((whole && sound).then_some(record))
    }

    /// Whether the home place of a piece lies outside of the journal.
    fn is_outside(&self, piece: &Piece<'_>) -> bool {
        let end = piece.home.saturating_add(piece.bytes.len() as u64);
        end <= self.at || piece.home >= self.at + self.len
    }

    /// The records before the next one do not count from now on; durable on return (J4).
    fn write_header(&mut self) -> Result<(), JournalError> {
        let turn = self.turn.wrapping_add(1);
        let mut raw = RawHeader {
            magic: HEADER_MAGIC.into(),
            turn: turn.into(),
            pool: self.pool,
            first: self.next.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..HEADER_CRC_AT]).into();
        let place = self.at + turn % 2 * BLOCK;
        let mut block = [0; BLOCK as usize];
        block[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        self.disk.write_through(place, &block)?;
        self.turn = turn;
        self.first = self.next;
        Ok(())
    }

    fn read_header(&self, slot: u64) -> Result<Option<RawHeader>, JournalError> {
        let mut bytes = [0; size_of::<RawHeader>()];
        self.disk.read(self.at + slot * BLOCK, &mut bytes)?;
        let raw = RawHeader::read_from_bytes(&bytes).ok();
        Ok(raw.filter(|raw| {
            let whole = raw.crc.get() == crc32c(&bytes[..HEADER_CRC_AT]);
            whole && raw.magic.get() == HEADER_MAGIC && raw.pool == self.pool
        }))
    }
}

const fn padded(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// The pieces of a record; `None` if it contradicts itself.
fn pieces_of(record: &[u8]) -> Option<Vec<Piece<'_>>> {
    let (head, rest) = RawRecord::read_from_prefix(record).ok()?;
    let count = head.pieces.get() as usize;
    let (table, mut bytes) = rest.split_at_checked(count.checked_mul(PIECE)?)?;
    let mut pieces = Vec::with_capacity(count);
    for raw in table.chunks_exact(PIECE) {
        let raw = RawPiece::read_from_bytes(raw).ok()?;
        let len = usize::try_from(raw.len.get()).ok()?;
        let (now, later) = bytes.split_at_checked(len)?;
        let home = raw.home.get();
        home.checked_add(len as u64)?;
        pieces.push(Piece { home, bytes: now });
        bytes = later;
    }
    bytes.is_empty().then_some(pieces)
}
