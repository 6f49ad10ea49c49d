//! Log records: building, reading back, applying.

use nacre_media::crc32c_append;
use nacre_types::{BLOCK_SIZE, LINE_SIZE, StoreKind, UnitNo, VolumeOffset, site};
use nacre_volume::{Unfenced, Volume};
use zerocopy::{FromBytes, IntoBytes};

use super::long;
use crate::error::{Result, StoreError};
use crate::layout::{
    HEADER_UNITS, LONG_MAGIC, LogEntry, LogTail, MAX_RECORD, RECORD_MAGIC, RawRecord,
};

const HEAD: usize = size_of::<RawRecord>();
const CRC_END: usize = 8;

/// A record being built in DRAM. The buffer is kept from one transaction to the next.
#[derive(Default)]
pub(crate) struct Record {
    /// Longer than the record: what was used before need not be zeroed again.
    buffer: Vec<u8>,
    len: usize,
    count: u32,
    /// What the lane holds instead if the changes lie elsewhere.
    short: Vec<u8>,
    /// Names of new bytes, at the end of the buffer.
    fresh: usize,
    fresh_crc: u32,
    names_fresh: bool,
    stamp: u32,
}

/// New bytes that a record needs, which nobody else reaches: where they are, and their checksum.
#[derive(Default)]
pub(crate) struct FreshBytes {
    names: Vec<u64>,
    crc: u32,
    len: usize,
}

impl FreshBytes {
    /// Bytes that come to `at` before the record.
    pub(crate) fn add(&mut self, at: VolumeOffset, bytes: &[u8]) {
        let mut at = at;
        for piece in bytes.chunks(LogEntry::MAX_LEN) {
            let entry = LogEntry {
                at,
                len: piece.len(),
                data: false,
            };
            self.names.push(entry.encode());
            at = at.add(piece.len() as u64);
        }
        self.crc = crc32c_append(self.crc, bytes);
        self.len += bytes.len();
    }

    pub(crate) fn clear(&mut self) {
        self.names.clear();
        (self.crc, self.len) = (0, 0);
    }

    /// How many bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Record {
    /// Bytes that the record keeps.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.len()
    }

    /// Empties the record.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.count = 0;
        self.short.clear();
        (self.fresh, self.fresh_crc, self.stamp) = (0, 0, 0);
        self.names_fresh = false;
        self.room(HEAD);
    }

    /// The next bytes of the record, to be filled.
    #[inline]
    fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        if self.len > self.buffer.len() {
            self.grow();
        }
        &mut self.buffer[start..self.len]
    }

    #[cold]
    fn grow(&mut self) {
        self.buffer.resize(self.len.next_power_of_two(), 0);
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Adds the change "these bytes go to `at`".
    pub(crate) fn add(&mut self, at: VolumeOffset, bytes: &[u8], data: bool) {
        let mut at = at;
        for piece in bytes.chunks(LogEntry::MAX_LEN) {
            let (there, padding) = self.change(at, piece.len(), data).split_at_mut(piece.len());
            there.copy_from_slice(piece);
            padding.fill(0);
            at = VolumeOffset(at.0 + piece.len() as u64);
        }
    }

    /// Adds a change of a few words of metadata.
    pub(crate) fn add_words(&mut self, at: VolumeOffset, words: &[u8]) {
        self.add_with(at, words.len(), |there| {
            match (there.first_chunk_mut::<8>(), words.first_chunk()) {
                (Some(there), Some(word)) if words.len() == 8 => *there = *word,
                _ => there.copy_from_slice(words),
            }
        });
    }

    /// Adds the change "these bytes go to `at`", `len` of them (a multiple of 8), all of which
    /// `fill` makes.
    #[inline]
    pub(crate) fn add_with(&mut self, at: VolumeOffset, len: usize, fill: impl FnOnce(&mut [u8])) {
        debug_assert!(len.is_multiple_of(8) && len <= LogEntry::MAX_LEN);
        fill(self.change(at, len, false));
    }

    /// Begins a change: its bytes, padded to 8, to be filled.
    #[inline]
    fn change(&mut self, at: VolumeOffset, len: usize, data: bool) -> &mut [u8] {
        let entry = LogEntry { at, len, data };
        self.count += 1;
        let (head, bytes) = self.room(8 + len.next_multiple_of(8)).split_at_mut(8);
        if let Some(head) = head.first_chunk_mut() {
            *head = entry.encode().to_le_bytes();
        }
        bytes
    }

    /// The record shall count only if these bytes are there, too. Nothing is added behind that.
    pub(crate) fn add_fresh(&mut self, fresh: &FreshBytes) {
        for word in &fresh.names {
            self.room(8).copy_from_slice(&word.to_le_bytes());
        }
        (self.fresh, self.fresh_crc) = (fresh.names.len(), fresh.crc);
        self.names_fresh = true;
    }

    /// Whether all that is new may become durable with the record.
    pub(crate) fn names_fresh(&self) -> bool {
        self.names_fresh && !self.is_long()
    }

    /// Whether the changes lie elsewhere.
    pub(crate) fn is_long(&self) -> bool {
        !self.short.is_empty()
    }

    /// Where the record stands among those of other lanes.
    pub(crate) fn set_stamp(&mut self, stamp: u32) {
        self.stamp = stamp;
    }

    pub(crate) fn stamp(&self) -> u32 {
        self.stamp
    }

    /// How many changes the record holds.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes that the record takes in the lane.
    pub(crate) fn len(&self) -> u64 {
        match self.short.len() {
            0 => self.len as u64,
            short => short as u64,
        }
    }

    /// The changes, without the head.
    pub(crate) fn changes(&self) -> &[u8] {
        let end = self.len.saturating_sub(8 * self.fresh);
        self.bytes().get(HEAD..end).unwrap_or_default()
    }

    /// Where the new bytes are that the record needs.
    fn fresh_parts(&self) -> impl Iterator<Item = LogEntry> {
        let names = self.bytes().get(HEAD + self.changes().len()..);
        let (names, _) = names.unwrap_or_default().as_chunks::<8>();
        names
            .iter()
            .map(|name| LogEntry::decode(u64::from_le_bytes(*name)))
    }

    /// Whether the new bytes that a sound record needs are there (I3).
    pub(crate) fn has_its_bytes(&self, volume: &Volume) -> bool {
        let mut fresh = FreshBytes::default();
        for part in self.fresh_parts() {
            let mut bytes = vec![0; part.len];
            volume.read(part.at, &mut bytes);
            fresh.add(part.at, &bytes);
        }
        site::check(fresh.crc == self.fresh_crc)
    }

    /// The lane shall hold this instead.
    pub(crate) fn set_short(&mut self, short: Vec<u8>) {
        self.short = short;
    }

    /// Refuses a record that no lane could hold.
    pub(crate) fn check_len(&self) -> Result<()> {
        if self.len > MAX_RECORD {
            return Err(StoreError::TooLarge {
                bytes: self.len as u64,
                limit: MAX_RECORD as u64,
            });
        }
        Ok(())
    }

    /// Fills the head in for the number; `seed` is the lane's ([`lane_seed`]). Returns the bytes to
    /// write.
    pub(crate) fn seal(&mut self, seed: u32, seq: u32) -> &[u8] {
        let is_long = !self.short.is_empty();
        let mut head = RawRecord {
            magic: if is_long { LONG_MAGIC } else { RECORD_MAGIC }.into(),
            crc: 0.into(),
            len: (self.len() as u32).into(),
            count: self.count.into(),
            seq: seq.into(),
            fresh: (if is_long { 0 } else { self.fresh as u32 }).into(),
            fresh_crc: self.fresh_crc.into(),
            stamp: self.stamp.into(),
        };
        let bytes = match is_long {
            true => {
                let changes = &self.buffer[HEAD..self.len - 8 * self.fresh];
                long::seal(&mut self.short, seed, changes);
                &mut self.short[..]
            }
            false => &mut self.buffer[..self.len],
        };
        bytes[..HEAD].copy_from_slice(head.as_bytes());
        head.crc = crc32c_append(seed, &bytes[CRC_END..]).into();
        bytes[..HEAD].copy_from_slice(head.as_bytes());
        bytes
    }

    /// Reads the record that would follow `retired` in the log block; `None` when there is none or
    /// it is incomplete (I3).
    pub(crate) fn read(
        volume: &Volume,
        block: UnitNo,
        seed: u32,
        retired: LogTail,
    ) -> Option<Record> {
        let start = u64::from(retired.next) * LINE_SIZE;
        if start + HEAD as u64 > BLOCK_SIZE {
            return None;
        }
        let at = VolumeOffset(block.offset().0 + start);
        let head = RawRecord::read_from_bytes(&volume.read_array::<HEAD>(at)).ok()?;
        let (len, fresh) = (head.len.get() as usize, head.fresh.get() as usize);
        let plausible = [RECORD_MAGIC, LONG_MAGIC].contains(&head.magic.get())
            && site::check(head.seq.get() == retired.seq.wrapping_add(1))
            && (HEAD..=MAX_RECORD).contains(&len)
            && len.is_multiple_of(8)
            && fresh <= (len - HEAD) / 8
            && start + len as u64 <= BLOCK_SIZE;
        if !plausible {
            return None;
        }
        let mut bytes = vec![0; len];
        volume.read(at, &mut bytes);
        let complete = site::check(head.crc.get() == crc32c_append(seed, &bytes[CRC_END..]));
        if !complete {
            return None;
        }
        if head.magic.get() == LONG_MAGIC {
            let (changes, count) = long::read(volume, &bytes, seed)?;
            let buffer = [&[0; HEAD][..], &changes].concat();
            let len = buffer.len();
            let short = bytes;
            return Some(Record {
                buffer,
                len,
                count,
                short,
                stamp: head.stamp.get(),
                ..Record::default()
            });
        }
        Some(Record {
            buffer: bytes,
            len,
            count: head.count.get(),
            fresh,
            fresh_crc: head.fresh_crc.get(),
            stamp: head.stamp.get(),
            ..Record::default()
        })
    }

    /// Checks that every change lies in the pool's allocatable part; a record with a right checksum
    /// that fails here was not written by us. `at` is where the record lies.
    pub(crate) fn validate(&self, volume: &Volume, at: VolumeOffset) -> Result<()> {
        let inside = |entry: LogEntry| {
            let end = entry.at.0 + entry.len as u64;
            entry.at.unit().0 >= HEADER_UNITS && end <= volume.len()
        };
        let mut seen = 0;
        for (entry, payload) in self.entries() {
            if !inside(entry) || payload.len() != entry.len {
                return Err(StoreError::corrupt(None, "log record", at));
            }
            seen += 1;
        }
        match seen == self.count && self.fresh_parts().all(inside) {
            true => Ok(()),
            false => Err(StoreError::corrupt(None, "log record", at)),
        }
    }

    /// Whether all changes are in place.
    pub(crate) fn is_applied(&self, volume: &Volume) -> bool {
        self.entries().all(|(entry, payload)| {
            let mut there = vec![0; payload.len()];
            let inside = entry.at.0 + payload.len() as u64 <= volume.len();
            inside && {
                volume.read(entry.at, &mut there);
                there == payload
            }
        })
    }

    /// Stores all changes in place. Idempotent.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn apply(&self, volume: &Volume) -> Unfenced {
        let mut stores = Unfenced::nothing();
        for (entry, payload) in self.entries() {
            let kind = if entry.data {
                StoreKind::Data
            } else {
                StoreKind::Metadata
            };
            stores = stores.and(match <[u8; 8]>::try_from(payload) {
                Ok(word) if entry.at.is_aligned(8) => {
                    volume.store_u64(entry.at, u64::from_le_bytes(word), kind)
                }
                _ => volume.write(entry.at, payload, kind),
            });
        }
        stores
    }

    fn entries(&self) -> impl Iterator<Item = (LogEntry, &[u8])> {
        let mut rest = self.changes();
        std::iter::from_fn(move || {
            let (word, tail) = rest.split_first_chunk::<8>()?;
            let entry = LogEntry::decode(u64::from_le_bytes(*word));
            let payload = &tail[..entry.len.min(tail.len())];
            rest = tail
                .get(entry.len.next_multiple_of(8)..)
                .unwrap_or_default();
            Some((entry, payload))
        })
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::{StoreKind, UnitNo, VolumeOffset};
    use nacre_volume::Volume;

    use super::Record;
    use crate::error::StoreError;
    use crate::layout::{LogTail, MAX_RECORD, RING_AT};
    use crate::superblock::lane_seed;

    const BLOCK: UnitNo = UnitNo(1024);
    const FIRST: LogTail = LogTail {
        seq: 6,
        next: (RING_AT / 64) as u16,
    };

    fn written(record: &mut Record, lane: u32) -> Volume {
        let volume = Volume::memory(16 << 20).unwrap();
        let at = VolumeOffset(BLOCK.offset().0 + RING_AT);
        let stores = volume.write(at, record.seal(lane_seed(7, lane), 7), StoreKind::Log);
        volume.fence(stores).unwrap();
        volume
    }

    fn sample() -> Record {
        let mut record = Record::default();
        record.clear();
        record.add(VolumeOffset(0x90000), &[1, 2, 3], true);
        record.add(VolumeOffset(0x90040), &[9; 64], false);
        record
    }

    #[test]
    fn a_record_reads_back_and_applies() {
        let volume = written(&mut sample(), 2);
        let record = Record::read(&volume, BLOCK, lane_seed(7, 2), FIRST).unwrap();
        record.validate(&volume, BLOCK.offset()).unwrap();
        volume.fence(record.apply(&volume)).unwrap();
        assert_eq!(volume.read_array::<4>(VolumeOffset(0x90000)), [1, 2, 3, 0]);
        assert_eq!(volume.read_array::<64>(VolumeOffset(0x90040)), [9; 64]);
    }

    #[test]
    fn another_lane_salt_or_number_is_no_record() {
        let volume = written(&mut sample(), 2);
        assert!(Record::read(&volume, BLOCK, lane_seed(7, 3), FIRST).is_none());
        assert!(Record::read(&volume, BLOCK, lane_seed(8, 2), FIRST).is_none());
        assert!(
            Record::read(&volume, BLOCK, lane_seed(7, 2), LogTail { seq: 7, ..FIRST }).is_none()
        );
    }

    #[test]
    fn any_flipped_byte_makes_the_record_incomplete() {
        let mut record = sample();
        let len = record.seal(lane_seed(7, 2), 7).len();
        for byte in 0..len as u64 {
            let volume = written(&mut record, 2);
            let at = VolumeOffset(BLOCK.offset().0 + RING_AT + byte);
            let flipped = volume.load_u8(at) ^ 0x10;
            volume
                .fence(volume.write(at, &[flipped], StoreKind::Log))
                .unwrap();
            assert!(
                Record::read(&volume, BLOCK, lane_seed(7, 2), FIRST).is_none(),
                "byte {byte}"
            );
        }
    }

    #[test]
    fn a_change_of_the_front_is_refused() {
        let mut record = Record::default();
        record.clear();
        record.add(VolumeOffset(4096), &[0; 8], false);
        let volume = written(&mut record, 0);
        let read = Record::read(&volume, BLOCK, lane_seed(7, 0), FIRST).unwrap();
        assert!(matches!(
            read.validate(&volume, BLOCK.offset()),
            Err(StoreError::Corrupt(_))
        ));
    }

    #[test]
    fn a_record_over_the_limit_is_refused() {
        let mut record = Record::default();
        record.clear();
        record.add(VolumeOffset(1 << 20), &vec![0; MAX_RECORD], false);
        assert!(matches!(
            record.check_len(),
            Err(StoreError::TooLarge { .. })
        ));
    }
}
