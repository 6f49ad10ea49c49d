//! Log records: building, reading back, applying.

use nacre_media::crc32c_append;
use nacre_types::{BLOCK_SIZE, LINE_SIZE, StoreKind, UnitNo, VolumeOffset, crc32c, site};
use nacre_volume::{Unfenced, Volume};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Result, StoreError};
use crate::layout::{FRONT_UNITS, LogEntry, MAX_RECORD, RECORD_MAGIC, RawRecord, Retired};

const HEAD: usize = size_of::<RawRecord>();
const CRC_END: usize = 8;

/// A record being built in DRAM. The buffer is kept from one transaction to the next.
#[derive(Default)]
pub(crate) struct Record {
    bytes: Vec<u8>,
    count: u32,
}

impl Record {
    /// Empties the record.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEAD, 0);
        self.count = 0;
    }

    /// Adds the change "these bytes go to `at`".
    pub(crate) fn add(&mut self, at: VolumeOffset, bytes: &[u8], data: bool) {
        let mut at = at;
        for piece in bytes.chunks(LogEntry::MAX_LEN) {
            self.head(at, piece.len(), data);
            self.bytes.extend_from_slice(piece);
            let padding = piece.len().wrapping_neg() % 8;
            if padding > 0 {
                self.bytes.extend_from_slice(&[0; 8][..padding]);
            }
            at = VolumeOffset(at.0 + piece.len() as u64);
        }
    }

    /// Adds a change of a few words of metadata.
    pub(crate) fn add_words(&mut self, at: VolumeOffset, words: &[u8]) {
        debug_assert!(words.len().is_multiple_of(8) && words.len() <= LogEntry::MAX_LEN);
        self.head(at, words.len(), false);
        self.bytes.extend_from_slice(words);
    }

    /// Begins a change: `len` bytes follow, padded to 8.
    #[inline]
    fn head(&mut self, at: VolumeOffset, len: usize, data: bool) {
        let entry = LogEntry { at, len, data };
        self.bytes.reserve(8 + len.next_multiple_of(8));
        self.bytes.extend_from_slice(&entry.encode().to_le_bytes());
        self.count += 1;
    }

    /// Adds the change "these bytes go to `at`", `len` of them (a multiple of 8), which `fill` makes.
    pub(crate) fn add_with(&mut self, at: VolumeOffset, len: usize, fill: impl FnOnce(&mut [u8])) {
        debug_assert!(len.is_multiple_of(8) && len <= LogEntry::MAX_LEN);
        self.head(at, len, false);
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        fill(&mut self.bytes[start..]);
    }

    /// How many changes the record holds.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the record.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Refuses a record that no lane could hold.
    pub(crate) fn check_len(&self) -> Result<()> {
        if self.bytes.len() > MAX_RECORD {
            let bytes = self.bytes.len() as u64;
            return Err(StoreError::TooLarge {
                bytes,
                limit: MAX_RECORD as u64,
            });
        }
        Ok(())
    }

    /// Fills the head in for the number; `seed` is the lane's ([`lane_seed`]). Returns the bytes to write.
    pub(crate) fn seal(&mut self, seed: u32, seq: u32) -> &[u8] {
        let mut head = RawRecord {
            magic: RECORD_MAGIC.into(),
            crc: 0.into(),
            len: (self.bytes.len() as u32).into(),
            count: self.count.into(),
            seq: seq.into(),
            reserved: [0; 12],
        };
        self.bytes[..HEAD].copy_from_slice(head.as_bytes());
        head.crc = crc32c_append(seed, &self.bytes[CRC_END..]).into();
        self.bytes[..HEAD].copy_from_slice(head.as_bytes());
        &self.bytes
    }

    /// Reads the record that would follow `retired` in the log block; `None` when there is none or
    /// it is incomplete (I3).
    pub(crate) fn read(
        volume: &Volume,
        block: UnitNo,
        seed: u32,
        retired: Retired,
    ) -> Option<Record> {
        let start = u64::from(retired.next) * LINE_SIZE;
        if start + HEAD as u64 > BLOCK_SIZE {
            return None;
        }
        let at = VolumeOffset(block.offset().0 + start);
        let head = RawRecord::read_from_bytes(&volume.read_array::<HEAD>(at)).ok()?;
        let len = head.len.get() as usize;
        let plausible = head.magic.get() == RECORD_MAGIC
            && site::check(head.seq.get() == retired.seq.wrapping_add(1))
            && (HEAD..=MAX_RECORD).contains(&len)
            && len.is_multiple_of(8)
            && start + len as u64 <= BLOCK_SIZE;
        if !plausible {
            return None;
        }
        let mut bytes = vec![0; len];
        volume.read(at, &mut bytes);
        let complete = site::check(head.crc.get() == crc32c_append(seed, &bytes[CRC_END..]));
        complete.then_some(Record {
            bytes,
            count: head.count.get(),
        })
    }

    /// Checks that every change lies in the pool's allocatable part; a record with a right checksum
    /// that fails here was not written by us. `at` is where the record lies.
    pub(crate) fn validate(&self, volume: &Volume, at: VolumeOffset) -> Result<()> {
        let mut seen = 0;
        for (entry, payload) in self.entries() {
            let end = entry.at.0 + entry.len as u64;
            let inside = entry.at.unit().0 >= FRONT_UNITS && end <= volume.len();
            if !inside || payload.len() != entry.len {
                return Err(StoreError::corrupt(None, "log record", at));
            }
            seen += 1;
        }
        match seen == self.count {
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
        let mut rest = self.bytes.get(HEAD..).unwrap_or_default();
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

/// What the checksum of a lane's records starts from: that of the pool's secret and the lane's number.
pub(crate) fn lane_seed(salt: u64, lane: u32) -> u32 {
    crc32c_append(crc32c(&salt.to_le_bytes()), &u64::from(lane).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use nacre_types::{StoreKind, UnitNo, VolumeOffset};
    use nacre_volume::Volume;

    use super::{Record, lane_seed};
    use crate::error::StoreError;
    use crate::layout::{MAX_RECORD, RING_AT, Retired};

    const BLOCK: UnitNo = UnitNo(1024);
    const FIRST: Retired = Retired {
        seq: 6,
        next: (RING_AT / 64) as u16,
    };

    fn written(record: &mut Record, lane: u32) -> Volume {
        let volume = Volume::memory(16 << 20).unwrap();
        let at = VolumeOffset(BLOCK.offset().0 + RING_AT);
        let stores = volume.write(at, record.seal(lane_seed(7, lane), 7), StoreKind::Log);
        volume.fence(stores);
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
        volume.fence(record.apply(&volume));
        assert_eq!(volume.read_array::<4>(VolumeOffset(0x90000)), [1, 2, 3, 0]);
        assert_eq!(volume.read_array::<64>(VolumeOffset(0x90040)), [9; 64]);
    }

    #[test]
    fn another_lane_salt_or_number_is_no_record() {
        let volume = written(&mut sample(), 2);
        assert!(Record::read(&volume, BLOCK, lane_seed(7, 3), FIRST).is_none());
        assert!(Record::read(&volume, BLOCK, lane_seed(8, 2), FIRST).is_none());
        assert!(
            Record::read(&volume, BLOCK, lane_seed(7, 2), Retired { seq: 7, ..FIRST }).is_none()
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
            volume.fence(volume.write(at, &[flipped], StoreKind::Log));
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
            Err(StoreError::Corrupt { .. })
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
