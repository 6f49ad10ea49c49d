//! Writing versions, bringing them home, finding them again.

use std::mem;
use std::ops::Range;

use nacre_types::{crc32c, crc32c_append, site};
use zerocopy::{FromBytes, IntoBytes};

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::draft::{Draft, HEAD, RECORD_CRC_AT, padded};
use crate::error::JournalError;
use crate::layout::{
    BLOCK, HEADER_MAGIC, MIN_JOURNAL, RECORD_MAGIC, RECORDS_AT, RawHeader, RawRecord,
};
use crate::newest::Newest;
use crate::passes;
use crate::piece::Piece;
use crate::record::{AtHome, Record};

const HEADER_CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);
/// Records are read in pieces of at least this size.
const WINDOW: u64 = 256 << 10;
/// Home places are written in pieces of at most this size.
const HOME_MAX: u64 = 1 << 20;
/// From so many bytes on records that go home are read in pieces.
const HOME_WINDOW: u64 = 4 << 20;
/// So many times records go home while the journal fills, at least.
const BATCHES: u64 = 16;

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
    /// Checksum of the newest record that was ever written: two disks that went on from a copy of
    /// one another differ in it, though their numbers may be the same.
    pub past: u32,
    /// The first record that may have to go home.
    pub home: At,
}

/// A record: its number and where it is, counted from the journal's start. What is before it went
/// home. Number 0: nobody knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    /// Its number.
    pub number: u64,
    /// Its place.
    pub place: u64,
}

/// What is remembered of records that were written: fills the bytes with what is known of a place
/// of the journal, or answers `false`. They count only as far as checksums say, so it may be wrong.
pub type Recall<'r> = &'r dyn Fn(u64, &mut [u8]) -> bool;

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
    /// As in [`Position`].
    past: u32,
    home: At,
    /// Of the records that were found, the checksum of each and, first, of what was before them.
    found: Vec<u32>,
    /// The newest record that was found.
    newest: Option<Found>,
    failed: bool,
}

impl<D: Disk> Journal<D> {
    /// Makes an empty journal of `len` bytes at `at`. What was there is lost.
    pub fn create(disk: D, pool: [u8; 16], at: u64, len: u64) -> Result<Self, JournalError> {
        let mut journal = Self::at(disk, pool, at, len)?;
        // Written once, so that later writes need no new space, and no old record counts.
        let zeros = vec![0; HOME_MAX.min(len) as usize];
        for skip in (0..len).step_by(zeros.len()) {
            let rest = zeros.len().min((len - skip) as usize);
            journal.disk.write(at + skip, &zeros[..rest])?;
        }
        journal.disk.sync()?;
        journal.disk.forget(at, len);
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
        journal.past = header.past.get();
        journal.found = vec![journal.past];
        let mut window = Window::default();
        while let Some(found) = journal.read_record(&mut window, journal.end, journal.next)? {
            journal.end += padded(found.len);
            journal.next = journal.next.wrapping_add(1);
            journal.found.push(found.crc);
            journal.newest = Some(found);
        }
        // J6.
        let at_home = journal.newest.iter().flat_map(|newest| &newest.at_home);
        if !site::check(journal.are_at_home(at_home)?) {
            journal.end -= journal.newest.take().map_or(0, |newest| padded(newest.len));
            journal.next = journal.next.wrapping_sub(1);
            journal.found.pop();
        }
        journal.past = *journal.found.last().unwrap_or(&0);
        Ok(journal)
    }

    /// Writes what was found last once more, durably: who wrote it may have failed or died, and
    /// what the kernel shows of it may not have reached the disk (J7). That is the newest record,
    /// or the header, if no record is behind it.
    pub fn affirm(&mut self) -> Result<(), JournalError> {
        let Some(newest) = self.newest.take() else {
            let header = self.turn % 2 * BLOCK;
            return self.copy_from(self, header..header + BLOCK);
        };
        for one in &newest.at_home {
            copy((&self.disk, &self.disk), one.home.clone(), 0)?;
        }
        self.copy_from(self, self.end - padded(newest.len)..self.end)
    }

    /// Whether what was to be written beside a record is there.
    fn are_at_home<'a>(&self, all: impl Iterator<Item = &'a AtHome>) -> Result<bool, JournalError> {
        for one in all {
            if self.sum_of(&one.home)? != one.crc {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The checksum of what the disk has in a range.
    fn sum_of(&self, range: &Range<u64>) -> Result<u32, JournalError> {
        let (mut sum, mut buffer) = (0, Buffer::default());
        // It was written past the page cache.
        self.disk.forget(range.start, range.end - range.start);
        for start in range.clone().step_by(HOME_MAX as usize) {
            buffer.set_len((range.end - start).min(HOME_MAX) as usize);
            self.disk.read(start, buffer.bytes_mut())?;
            sum = crc32c_append(sum, buffer.bytes());
        }
        Ok(sum)
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
            past: position.past,
            home: position.home,
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
            past: self.past,
            home: self.home,
        }
    }

    /// Whether the journal, which has just been opened, may go on from where another one was: it is
    /// there, or one step further, which its user may not have noted. Who uses it beside that one
    /// begins with a header (J8), so he is a step further before his first record, and two with it.
    pub fn goes_on_from(&self, position: Position) -> bool {
        let headers = self.turn.wrapping_sub(position.turn);
        let records = self.next.wrapping_sub(position.next);
        let known = usize::try_from(position.next.wrapping_sub(self.first)).ok();
        let past = known.and_then(|known| self.found.get(known));
        headers.saturating_add(records) <= 1 && past == Some(&position.past)
    }

    /// Whether the other journal is where this one is, or was before its last step. Both have just
    /// been opened.
    pub(crate) fn is_at_most_a_step_ahead_of<E>(&self, other: &Journal<E>) -> bool {
        let is_step = match self.turn.wrapping_sub(other.turn) {
            0 => self.first == other.first && self.next.wrapping_sub(other.next) <= 1,
            // A header comes when all records before it are on all disks, and before new ones.
            1 => self.first == other.next && self.next == self.first,
            _ => false,
        };
        let known = usize::try_from(other.next.wrapping_sub(self.first)).ok();
        let past = known.and_then(|known| self.found.get(known));
        is_step && past == Some(&other.past)
    }

    /// Does what this one lacks of its last step, which another journal has.
    pub(crate) fn catch_up<E: Disk>(&mut self, ahead: &Journal<E>) -> Result<(), JournalError> {
        if self.turn != ahead.turn {
            let slot = ahead.turn % 2 * BLOCK;
            self.copy_from(ahead, slot..slot + BLOCK)?;
        } else {
            self.copy_from(ahead, self.end..ahead.end)?;
        }
        (self.turn, self.first) = (ahead.turn, ahead.first);
        (self.next, self.end, self.past) = (ahead.next, ahead.end, ahead.past);
        Ok(())
    }

    fn copy_from<E: Disk>(
        &self,
        other: &Journal<E>,
        range: Range<u64>,
    ) -> Result<(), JournalError> {
        let places = other.at + range.start..other.at + range.end;
        copy(
            (&other.disk, &self.disk),
            places,
            self.at.wrapping_sub(other.at),
        )
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
            past: 0,
            home: At::default(),
            found: Vec::new(),
            newest: None,
            failed: false,
        })
    }

    /// Bytes that are free before the next checkpoint.
    pub const fn room(&self) -> u64 {
        self.len - self.end
    }

    /// Number of the newest version; 0 for none.
    pub const fn version(&self) -> u64 {
        self.next.wrapping_sub(1)
    }

    /// Writes a version: after a crash all of it is there or nothing. Durable on return. A home
    /// place in the journal, or where none may be, is a bug of the caller and panics.
    pub fn append(&mut self, draft: &mut Draft) -> Result<(), JournalError> {
        self.append_beside(draft, &[])
    }

    /// As [`Journal::append`], of which these pieces are written to their home places at the same
    /// time, as many as the draft says. Nothing that counts needs what is there now, and nobody
    /// writes there before the next record is durable (J6).
    pub fn append_beside(
        &mut self,
        draft: &mut Draft,
        beside: &[Piece<'_>],
    ) -> Result<(), JournalError> {
        let homes = draft.homes().iter().cloned();
        let mut homes = homes.chain(beside.iter().map(Piece::range));
        let are_homes = homes.all(|home| self.is_home(&home));
        assert!(are_homes, "a home place where none may be");
        assert_eq!(draft.beside(), beside.len(), "what is written beside it");
        let needed = draft.needed();
        let room = self.len - RECORDS_AT;
        match needed {
            _ if self.failed => return Err(JournalError::Failed),
            needed if needed > room => return Err(JournalError::TooLarge { needed, room }),
            needed if needed > self.room() => return Err(JournalError::Full),
            _ => {}
        }
        let (record, crc) = draft.seal((self.next, self.pool), beside, self.disk.grain());
        self.guarded(|journal| {
            let place = journal.at + journal.end;
            match beside {
                [] => journal.disk.write_through(place, record)?,
                _ => {
                    let pieces = beside.iter().map(|piece| (piece.home, piece.bytes));
                    let all: Vec<_> = pieces.chain([(place, record)]).collect();
                    journal.disk.write_all_through(&all)?;
                }
            }
            journal.end += needed;
            journal.next = journal.next.wrapping_add(1);
            journal.past = crc;
            Ok(())
        })
    }

    /// Writes records home that are not there yet, if that gathers in memory and there are enough
    /// of them (J3). Nobody waits for the disk: it begins to write what has gathered while the
    /// journal fills. So a checkpoint has little to wait for.
    ///
    /// The newest record is the one that was appended last. The caller has noted the
    /// [position](Journal::position) behind it. Without it another process would put its next
    /// record over one of which parts are home already. `room` is memory for older records, which
    /// is wanted again.
    pub fn bring_home(
        &mut self,
        newest: &Draft,
        room: &mut Buffer,
        recall: Recall<'_>,
    ) -> Result<(), JournalError> {
        let grown = newest.needed();
        let Some(enough) = self.disk.gathers().filter(|_| !self.failed) else {
            return Ok(());
        };
        let (len, from) = (self.len - RECORDS_AT, self.away_from());
        let batch = enough.min(len / BATCHES).max(grown);
        if self.end - from.place >= batch {
            let newest = (self.end - grown, newest.sealed());
            let mut window = Window::recalled((from.place, newest), mem::take(room), recall);
            // More than comes, where somebody died and did not say how far he was.
            (self.home, _) = self.write_home(from, 2 * batch, &mut window)?;
            *room = window.bytes;
            let read = from.place;
            self.disk.forget(self.at + read, self.len - read);
        }
        let filled = self.end - RECORDS_AT;
        for range in passes::begun((filled - grown, filled), len, self.at) {
            self.disk.begin_writing(range);
        }
        Ok(())
    }

    /// The first record that may not be home.
    const fn away_from(&self) -> At {
        let behind_first = self.home.number.wrapping_sub(self.first);
        match behind_first <= self.next.wrapping_sub(self.first) && self.home.number != 0 {
            true => self.home,
            false => At {
                number: self.first,
                place: RECORDS_AT,
            },
        }
    }

    /// The next record.
    const fn next_at(&self) -> At {
        At {
            number: self.next,
            place: self.end,
        }
    }

    /// Calls `found` with the pieces of all records that count, in their order, and where in the
    /// journal their bytes are.
    pub fn each_piece(
        &self,
        found: impl FnMut(Piece<'_>, u64) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let first = At {
            number: self.first,
            place: RECORDS_AT,
        };
        self.each_piece_from(first, u64::MAX, &mut Window::default(), found)
            .map(drop)
    }

    /// As `each_piece`, from a record on, until its and the next ones' bytes are `most`. Answers
    /// which record is the next.
    fn each_piece_from(
        &self,
        from: At,
        most: u64,
        window: &mut Window<'_>,
        mut found: impl FnMut(Piece<'_>, u64) -> Result<(), JournalError>,
    ) -> Result<At, JournalError> {
        let At {
            mut number,
            mut place,
        } = from;
        while place < self.end && place - from.place < most {
            let bytes = self.record(window, place, number)?;
            let record = Record::of(bytes).ok_or(JournalError::Damaged)?;
            let mut at = place + record.skip as u64;
            for piece in record.pieces {
                found(piece, at)?;
                at += piece.bytes.len() as u64;
            }
            place += padded(bytes.len() as u64);
            number = number.wrapping_add(1);
        }
        Ok(At { number, place })
    }

    /// A record that counts, without the zeros at its end.
    fn record<'w>(
        &self,
        window: &'w mut Window<'_>,
        place: u64,
        number: u64,
    ) -> Result<&'w [u8], JournalError> {
        if let Some(newest) = window.newest.filter(|newest| newest.0 == place) {
            return Ok(newest.1);
        }
        let mut found = self.read_record(window, place, number)?;
        if found.is_none() && window.is_recalled {
            window.clear();
            found = self.read_record(window, place, number)?;
        }
        let found = found.ok_or(JournalError::Damaged)?;
        Ok(window.part(place, found.len))
    }

    /// Brings all versions to their home places and begins the journal again; answers how many
    /// bytes that were, but for those that have gone home before. What a later version replaces is
    /// not written. After an error nothing is lost: the journal is opened and this is done again.
    pub fn checkpoint(&mut self) -> Result<u64, JournalError> {
        if self.failed {
            return Err(JournalError::Failed);
        }
        self.guarded(|journal| {
            let from = journal.away_from();
            let mut window = Window::at_most(from.place..journal.end);
            let (_, written) = journal.write_home(from, u64::MAX, &mut window)?;
            // J2.
            journal.disk.sync()?;
            journal.write_header()?;
            journal.end = RECORDS_AT;
            journal.home = journal.next_at();
            journal.disk.forget(journal.at, journal.len);
            Ok(written)
        })
    }

    /// Writes the newest bytes of each place of some records, in the order of places. Answers which
    /// record is the next, and how many bytes it wrote.
    fn write_home(
        &self,
        from: At,
        most: u64,
        window: &mut Window<'_>,
    ) -> Result<(At, u64), JournalError> {
        let mut newest = Newest::default();
        let next = self.each_piece_from(from, most, window, |piece, place| {
            newest.put(piece.range(), place);
            Ok(())
        })?;
        newest.each_run(HOME_MAX, |run, _| {
            self.disk.prepare_write(run);
            Ok::<_, JournalError>(())
        })?;
        let (mut buffer, mut written) = (Buffer::default(), 0);
        newest.each_run(HOME_MAX, |run, parts| {
            written += run.end - run.start;
            if let [(home, place)] = parts
                && let Some(known) = window.get(*place, home.end - home.start)
            {
                return self.disk.write(run.start, known);
            }
            buffer.set_len((run.end - run.start) as usize);
            for (home, place) in parts {
                let (start, end) = (home.start - run.start, home.end - run.start);
                let bytes = &mut buffer.bytes_mut()[start as usize..end as usize];
                match window.get(*place, end - start) {
                    Some(known) => bytes.copy_from_slice(known),
                    None => self.disk.read(self.at + place, bytes)?,
                }
            }
            self.disk.write(run.start, buffer.bytes())
        })?;
        Ok((next, written))
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

    /// The record at `place`, if it counts as `number`. It is in the window then.
    fn read_record(
        &self,
        window: &mut Window<'_>,
        place: u64,
        number: u64,
    ) -> Result<Option<Found>, JournalError> {
        if place + BLOCK > self.len {
            return Ok(None);
        }
        self.look_at(window, place, HEAD as u64)?;
        let Ok(raw) = RawRecord::read_from_bytes(&*window.part(place, HEAD as u64)) else {
            return Ok(None);
        };
        let len = raw.len.get();
        let known = raw.magic.get() == RECORD_MAGIC && raw.pool == self.pool;
        let fits = len >= HEAD as u64 && len <= self.len - place;
        if !known || !fits || raw.number.get() != number {
            return Ok(None);
        }
        self.look_at(window, place, len)?;
        let bytes = window.part(place, len);
        bytes[RECORD_CRC_AT..HEAD].fill(0);
        let crc = crc32c(bytes);
        let record = Record::of(bytes).filter(|_| crc == raw.crc.get());
        let sound = record.filter(|record| record.homes().all(|home| self.is_home(&home)));
        Ok(sound.map(|Record { at_home, .. }| Found { len, crc, at_home }))
    }

    /// Sees to it that a part of the journal is in the window.
    fn look_at(&self, window: &mut Window<'_>, place: u64, len: u64) -> Result<(), JournalError> {
        if window.has(place, len) {
            return Ok(());
        }
        window.place = place;
        window.is_recalled = false;
        // While records are looked for, nobody knows where they end.
        let end = match place < self.end {
            true => self.end,
            false => self.len,
        };
        window
            .bytes
            .set_len(len.max(window.least.max(WINDOW).min(end - place)) as usize);
        let read = self.disk.read(self.at + place, window.bytes.bytes_mut());
        if read.is_err() {
            window.clear();
        }
        Ok(read?)
    }

    /// Whether a home place lies where it may, and outside of the journal.
    fn is_home(&self, home: &Range<u64>) -> bool {
        let homes = self.disk.homes();
        let is_outside = home.end <= self.at || home.start >= self.at + self.len;
        is_outside && homes.start <= home.start && home.end <= homes.end
    }

    /// The records before the next one do not count from now on; durable on return (J4).
    fn write_header(&mut self) -> Result<(), JournalError> {
        let turn = self.turn.wrapping_add(1);
        let mut raw = RawHeader {
            magic: HEADER_MAGIC.into(),
            turn: turn.into(),
            pool: self.pool,
            first: self.next.into(),
            past: self.past.into(),
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..HEADER_CRC_AT]).into();
        let place = self.at + turn % 2 * BLOCK;
        let mut block = [0; BLOCK as usize];
        block[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        let used = (raw.as_bytes().len() as u64).next_multiple_of(self.disk.grain());
        self.disk.write_through(place, &block[..used as usize])?;
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

/// Writes what one disk has in a range to another one, so much further behind, durably.
fn copy(
    (from, to): (&impl Disk, &impl Disk),
    range: Range<u64>,
    further: u64,
) -> Result<(), JournalError> {
    let mut buffer = Buffer::default();
    for start in range.clone().step_by(HOME_MAX as usize) {
        buffer.set_len((range.end - start).min(HOME_MAX) as usize);
        from.read(start, buffer.bytes_mut())?;
        to.write_through(start.wrapping_add(further), buffer.bytes())?;
    }
    Ok(())
}

/// What is known of a record that counts.
struct Found {
    /// Its length without the zeros at its end.
    len: u64,
    /// Its checksum.
    crc: u32,
    at_home: Vec<AtHome>,
}

/// A part of the journal as it was read.
#[derive(Default)]
struct Window<'r> {
    place: u64,
    bytes: Buffer,
    /// So much is read at once, if there is so much.
    least: u64,
    /// It is what somebody remembers, and may be wrong.
    is_recalled: bool,
    /// The record that was written last, and where: it is known for sure.
    newest: Option<(u64, &'r [u8])>,
}

impl<'r> Window<'r> {
    /// Nothing yet; as much as there is in these places is read at once.
    fn at_most(places: Range<u64>) -> Self {
        Self {
            place: places.start,
            least: (places.end - places.start).min(HOME_WINDOW),
            ..Self::default()
        }
    }

    /// What is remembered of the journal from a place on, or nothing, to be read as much at once;
    /// and its newest record.
    fn recalled((from, newest): (u64, (u64, &'r [u8])), room: Buffer, recall: Recall<'_>) -> Self {
        let mut window = Self {
            bytes: room,
            newest: Some(newest),
            ..Self::at_most(from..newest.0)
        };
        window.bytes.set_len(window.least as usize);
        window.is_recalled = recall(window.place, window.bytes.bytes_mut());
        if !window.is_recalled {
            window.clear();
        }
        window
    }

    fn clear(&mut self) {
        self.bytes.set_len(0);
        self.is_recalled = false;
    }

    /// A part of the journal, if it is here.
    fn get(&self, place: u64, len: u64) -> Option<&[u8]> {
        let of_newest = self.newest.and_then(|newest| part_of(newest, place, len));
        of_newest.or_else(|| part_of((self.place, self.bytes.bytes()), place, len))
    }

    fn has(&self, place: u64, len: u64) -> bool {
        let end = self.place + self.bytes.bytes().len() as u64;
        place >= self.place && place + len <= end
    }

    fn part(&mut self, place: u64, len: u64) -> &mut [u8] {
        let start = (place - self.place) as usize;
        &mut self.bytes.bytes_mut()[start..start + len as usize]
    }
}

/// The bytes at a place, if they are among those that begin at `from`.
fn part_of((from, bytes): (u64, &[u8]), place: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(place.checked_sub(from)?).ok()?;
    bytes.get(start..start + len as usize)
}
