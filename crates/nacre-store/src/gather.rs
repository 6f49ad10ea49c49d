//! Pages of objects whose parts lie in two units get one unit again, when room runs short (D67).

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{ObjectId, VolumeOffset};

use crate::data::gather::PAGES;
use crate::error::Result;
use crate::layout::{ONODE_PARTS_AT, PARTS_HAVE_PLACES};
use crate::recovery::scan::for_each_object_of;
use crate::store::Store;

impl Store {
    /// Gathers pages until so many units came free, or as far as nobody uses the objects; answers
    /// how many did. The caller holds no lock and has no transaction.
    pub(crate) fn gather_parts(&self, wanted: u64) -> Result<u64> {
        let all_gathered = &self.session.shared().all_gathered;
        let has_none = self.superblock.version < PARTS_HAVE_PLACES || !self.writable;
        if has_none || all_gathered.load(Relaxed) != 0 {
            return Ok(0);
        }
        // Who takes a second unit from now on says so again.
        all_gathered.store(1, Relaxed);
        let gathering = self.gather_blocks(wanted);
        if !matches!(gathering, Ok((_, true))) {
            all_gathered.store(0, Relaxed);
        }
        Ok(gathering?.0)
    }

    /// How many units came free, and whether no page has a second unit any more.
    fn gather_blocks(&self, wanted: u64) -> Result<(u64, bool)> {
        let (mut freed, mut all) = (0, true);
        for block in 0..self.block_count() {
            for (id, onode) in self.objects_with_parts(block) {
                if freed >= wanted {
                    return Ok((freed, false));
                }
                let gathered = self.gather_some_of(id, onode)?;
                freed += gathered.unwrap_or(0);
                all &= gathered.is_some_and(|pages| pages < PAGES as u64);
            }
        }
        Ok((freed, all))
    }

    fn objects_with_parts(&self, block: u64) -> Vec<(ObjectId, VolumeOffset)> {
        let mut found = Vec::new();
        for_each_object_of(self, block, &mut |id, onode| {
            if self.volume.load_u64(onode.add(ONODE_PARTS_AT)) != 0 {
                found.push((id, onode));
            }
        });
        found
    }
}
