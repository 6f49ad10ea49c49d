//! The allocator snapshot: what a clean detach leaves so that the next attach need not scan.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{StoreKind, UNIT_SIZE, UnitNo, crc32c, site};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::layout::{ONODES_PER_BLOCK, RawSnapshot, SNAPSHOT_MAGIC};
use crate::store::Store;
use crate::superblock::PoolState;

const HEAD: usize = size_of::<RawSnapshot>();

fn append_words(words: &[AtomicU64], area: &mut Vec<u8>) {
    for word in words {
        area.extend_from_slice(&word.load(Relaxed).to_le_bytes());
    }
}

impl Store {
    /// Writes the bitmaps and extra references to free units, durably, and names them in a state.
    /// `false`: no contiguous room. The units stay marked free, so that the saved bitmap does not
    /// hold its own area.
    pub(crate) fn write_snapshot(&self, state: &mut PoolState) -> Result<bool> {
        let area = self.snapshot_area();
        let units = (area.len() as u64).div_ceil(UNIT_SIZE);
        let Some(run) = self.allocator().take_exact(units) else {
            return Ok(false);
        };
        self.allocator().free(run.start, run.count);
        let stores = self
            .volume
            .write(run.start.offset(), &area, StoreKind::Metadata);
        // Free units: the next one may go home over it ahead of the version that names that one.
        self.volume
            .checks_itself(run.start.offset(), area.len() as u64);
        self.volume.fence(stores)?;
        (state.snapshot_unit, state.snapshot_bytes) = (run.start.0, area.len() as u64);
        state.snapshot_crc = Some(crc32c(&area[..HEAD]));
        Ok(true)
    }

    /// Fills the session from the allocator snapshot; false when it is not sound (the caller
    /// rebuilds).
    pub(crate) fn load_snapshot(&self, state: &PoolState) -> bool {
        let last = state
            .snapshot_unit
            .saturating_add(state.snapshot_bytes / UNIT_SIZE + 1);
        let inside = self.is_unit(state.snapshot_unit) && last <= self.units;
        if !inside || state.snapshot_bytes < HEAD as u64 {
            return false;
        }
        let mut area = vec![0; state.snapshot_bytes as usize];
        self.volume
            .read(UnitNo(state.snapshot_unit).offset(), &mut area);
        let (head, body) = area.split_at(HEAD);
        // On a disk the one of a later detach may be there ahead of the state that names it.
        if state.snapshot_crc != Some(crc32c(head)) {
            return false;
        }
        self.fill_from(head, body).is_some()
    }

    fn snapshot_area(&self) -> Vec<u8> {
        let units = self.session.unit_bits();
        let unit_words = units.len().min((self.units / 64) as usize);
        let object_words = (self.block_count() * ONODES_PER_BLOCK / 64) as usize;
        let objects = &self.session.object_bits()[..object_words];
        let mut area = Vec::with_capacity(HEAD + (unit_words + objects.len()) * 8);
        area.resize(HEAD, 0);
        append_words(&units[..unit_words], &mut area);
        append_words(objects, &mut area);
        let shared = self.append_shared(unit_words, &mut area);
        let body_crc = crc32c(&area[HEAD..]);
        let mut head = RawSnapshot {
            magic: SNAPSHOT_MAGIC.into(),
            crc: 0.into(),
            unit_words: (unit_words as u64).into(),
            object_words: (object_words as u64).into(),
            shared: shared.into(),
            body_crc: body_crc.into(),
            reserved: [0; 28],
        };
        head.crc = crc32c(&head.as_bytes()[8..]).into();
        area[..HEAD].copy_from_slice(head.as_bytes());
        area
    }

    /// Appends the extra references of used units; returns how many units have some. The counts of
    /// free units are zero, and not touched: a read would give memory to a sparse session.
    fn append_shared(&self, unit_words: usize, area: &mut Vec<u8>) -> u64 {
        let mut shared = 0;
        for (index, word) in self.session.unit_bits()[..unit_words].iter().enumerate() {
            let mut used = word.load(Relaxed);
            while used != 0 {
                let unit = index * 64 + used.trailing_zeros() as usize;
                used &= used - 1;
                let count = self.allocator().extra(UnitNo(unit as u64));
                if count != 0 {
                    area.extend_from_slice(&(unit as u64 | u64::from(count) << 48).to_le_bytes());
                    shared += 1;
                }
            }
        }
        shared
    }

    /// Fills the session, or changes nothing.
    fn fill_from(&self, head: &[u8], body: &[u8]) -> Option<()> {
        let raw = RawSnapshot::read_from_bytes(head).ok()?;
        let sound = raw.magic.get() == SNAPSHOT_MAGIC
            && site::check(raw.crc.get() == crc32c(&head[8..]))
            && site::check(raw.body_crc.get() == crc32c(body));
        let (words, rest) = body.as_chunks::<8>();
        let unit_words = usize::try_from(raw.unit_words.get()).ok()?;
        let object_words = usize::try_from(raw.object_words.get()).ok()?;
        let total = unit_words.checked_add(object_words)?;
        let expected = (self.block_count() * ONODES_PER_BLOCK / 64) as usize;
        if !sound || !rest.is_empty() || total > words.len() || object_words != expected {
            return None;
        }
        let units = self.session.unit_bits().get(..unit_words)?;
        let objects = self.session.object_bits().get(..object_words)?;
        let session_units = self.session.geometry().units;
        let shared = words[total..].iter().map(|word| u64::from_le_bytes(*word));
        let shared = shared.map(|entry| (entry & ((1 << 48) - 1), (entry >> 48) as u16));
        if !shared.clone().all(|(unit, _)| unit < session_units) {
            return None;
        }
        for (target, word) in units.iter().chain(objects).zip(words) {
            target.store(u64::from_le_bytes(*word), Relaxed);
        }
        for (unit, count) in shared {
            self.allocator().set_extra(UnitNo(unit), count);
        }
        Some(())
    }
}
