//! Pages of an object whose parts lie in two units get one unit again (D67).

use nacre_types::{ObjectId, StoreKind, VolumeOffset};

use super::pages_of;
use crate::block_map::layout::{PART, PARTS_OF_PAGE};
use crate::data::map::PartsMap;
use crate::error::Result;
use crate::layout::ONODE_PARTS_AT;
use crate::store::Store;
use crate::tx::Tx;

/// Pages that one transaction gathers.
pub(crate) const PAGES: usize = 256;

impl Store {
    /// Gathers some pages of an object, and answers how many. `None`: somebody uses it.
    pub(crate) fn gather_some_of(&self, id: ObjectId, onode: VolumeOffset) -> Result<Option<u64>> {
        let Some(_guard) = self.try_lock(id)? else {
            return Ok(None);
        };
        if self.volume.load_u64(onode.add(ONODE_PARTS_AT)) == 0 {
            return Ok(Some(0));
        }
        let mut tx = self.begin()?;
        tx.allow_any_size();
        tx.place_entries();
        let gathered = tx.gather_pages(id, onode)?;
        tx.commit()?;
        Ok(Some(gathered))
    }
}

impl Tx<'_> {
    fn gather_pages(&mut self, id: ObjectId, onode: VolumeOffset) -> Result<u64> {
        let map = PartsMap::of_parts(self.store, id, onode);
        let end = map.reach()?.min(pages_of(self.data_size(id)?));
        let staged = self.stage(id)?;
        let (mut page, mut gathered) = (0, 0);
        while page < end && gathered < PAGES as u64 {
            let run = map.run_at(page, end)?;
            if !run.entry.is_hole() {
                gathered += u64::from(self.gather_page(staged, page)?);
            }
            page = match run.entry.is_hole() {
                true => run.end(),
                false => page + 1,
            };
        }
        Ok(gathered)
    }

    /// Writes the parts of a page on the medium that lie in its second unit to where nobody reads
    /// them: in the first one, which others may then share. False: it has no second unit.
    pub(super) fn gather_to_share(&mut self, (staged, page): (usize, u64)) -> Result<bool> {
        let Some(parts) = self.parts_of(staged, page)? else {
            return Ok(false);
        };
        let bytes = self.page_bytes(staged, page)?;
        for (part, piece) in bytes.chunks_exact(PART).enumerate() {
            if parts.unit_of(part) == parts.second {
                let at = parts.unit.offset().add((part * PART) as u64);
                let stored = self.store.volume.write(at, piece, StoreKind::Data);
                self.fresh_bytes(at, piece, stored);
            }
        }
        Ok(true)
    }

    /// Writes the parts in the unit that has fewer where nobody reads them: in the other one.
    fn gather_page(&mut self, staged: usize, page: u64) -> Result<bool> {
        let Some(parts) = self.parts_of(staged, page)? else {
            return Ok(false);
        };
        let bytes = self.page_bytes(staged, page)?;
        let moves_second = parts.there.count_ones() as usize <= PARTS_OF_PAGE / 2;
        let mut now = parts;
        for (part, piece) in bytes.chunks_exact(PART).enumerate() {
            if (parts.unit_of(part) == parts.second) == moves_second {
                now = self.write_parts(staged, page, now, (part * PART, piece));
            }
        }
        Ok(true)
    }
}
