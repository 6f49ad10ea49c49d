//! Records longer than a lane holds.

use nacre_types::{StoreKind, UNIT_SIZE};

use super::Tx;
use crate::error::{Result, StoreError};
use crate::layout::{MAX_LONG_RECORD, MAX_RECORD};
use crate::log::long;
use crate::log::record::Record;

impl Tx<'_> {
    /// Puts the changes of a record into free units; they are durable before the short record is
    /// written.
    pub(crate) fn spill(&mut self, record: &mut Record) -> Result<()> {
        let len = record.changes().len();
        let too_large = StoreError::TooLarge {
            bytes: len as u64,
            limit: MAX_LONG_RECORD as u64,
        };
        if len > MAX_LONG_RECORD {
            return Err(too_large);
        }
        let mut segments = Vec::new();
        let mut done = 0;
        while done < len {
            let want = ((len - done) as u64).div_ceil(UNIT_SIZE);
            let run = self
                .store
                .take_space(|alloc| alloc.take_for_metadata(None, want))?;
            self.adopt(run);
            self.free_after_commit(run);
            let part = (len - done).min((run.count * UNIT_SIZE) as usize);
            let bytes = &record.changes()[done..done + part];
            let volume = &self.store.volume;
            let stored = volume.write(run.start.offset(), bytes, StoreKind::Log);
            self.fresh(stored);
            segments.push(run);
            done += part;
        }
        let short = long::encode(&segments, len, record.count());
        if short.len() > MAX_RECORD {
            return Err(too_large);
        }
        record.set_short(short);
        Ok(())
    }
}
