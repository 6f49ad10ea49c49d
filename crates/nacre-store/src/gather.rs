//! Pages of objects whose parts lie in two units get one unit again, when room runs short (D67,
//! D105).

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{ObjectId, VolumeOffset};

use crate::data::gather::PAGES;
use crate::error::Result;
use crate::layout::{ONODE_PARTS_AT, ONODES_PER_BLOCK, PARTS_HAVE_PLACES};
use crate::moving::BATCH_UNITS;
use crate::recovery::scan::for_each_object_of;
use crate::store::Store;

/// While less than this share of the pool is free, second units are given back. Those who warn of
/// full pools do so later, as a rule when less than 15 % are free.
const KEPT_SHARE: u64 = 5;
/// At least so many are given back at a time: who looks for them looks at many objects.
const LEAST: u64 = 1024;
/// No page has a second unit.
const ALL_GATHERED: u64 = u64::MAX;

impl Store {
    /// Gives back a few second units if the pool gets full: who looks how full it is shall not find
    /// what nobody needs. The caller holds no lock and has no transaction.
    #[inline]
    pub fn gather_some(&self) -> Result<u64> {
        let kept = self.volume.front_units() / KEPT_SHARE;
        match kept.saturating_sub(self.allocator().free_units()) {
            0 => Ok(0),
            missing => self.gather_ahead(missing.clamp(LEAST, BATCH_UNITS)),
        }
    }

    /// One thread at a time; and not again before there can be more than the last one found.
    #[cold]
    fn gather_ahead(&self, wanted: u64) -> Result<u64> {
        let Ok(mut in_vain) = self.gathered_in_vain.try_lock() else {
            return Ok(0);
        };
        let seen = self.session.shared().second_units.load(Relaxed);
        if *in_vain == Some(seen) {
            return Ok(0);
        }
        let freed = self.gather_parts(wanted)?;
        *in_vain = (freed == 0).then_some(seen);
        Ok(freed)
    }

    /// Some pages have got second units, or may have.
    #[cold]
    pub(crate) fn note_second_units(&self) {
        let second_units = &self.session.shared().second_units;
        second_units.fetch_add(1, Relaxed);
    }

    /// Gathers pages until so many units came free, or as far as nobody uses the objects; answers
    /// how many did. The caller holds no lock and has no transaction.
    pub(crate) fn gather_parts(&self, wanted: u64) -> Result<u64> {
        let second_units = &self.session.shared().second_units;
        let seen = second_units.load(Relaxed);
        let has_none = self.superblock.version < PARTS_HAVE_PLACES || !self.writable;
        if has_none || seen == ALL_GATHERED {
            return Ok(0);
        }
        let (freed, all) = self.gather_blocks(wanted)?;
        if all {
            // Unless a page has got one meanwhile.
            let _ = second_units.compare_exchange(seen, ALL_GATHERED, Relaxed, Relaxed);
        }
        Ok(freed)
    }

    /// How many units came free, and whether no page has a second unit any more. Goes on where the
    /// last one ended.
    fn gather_blocks(&self, wanted: u64) -> Result<(u64, bool)> {
        let (mut freed, mut all) = (0, true);
        for (id, onode) in self.objects_from(self.gathers_next.load(Relaxed)) {
            if freed >= wanted {
                self.gathers_next.store(id.0, Relaxed);
                return Ok((freed, false));
            }
            let gathered = self.gather_some_of(id, onode)?;
            freed += gathered.unwrap_or(0);
            all &= gathered.is_some_and(|pages| pages < PAGES as u64);
        }
        Ok((freed, all))
    }

    /// All objects whose pages may have second units, the one with this number first.
    fn objects_from(&self, first: u64) -> impl Iterator<Item = (ObjectId, VolumeOffset)> + '_ {
        let blocks = self.block_count();
        let of = |block| self.objects_with_parts(block).into_iter();
        let middle = (first / ONODES_PER_BLOCK).min(blocks);
        let behind = (middle..blocks).flat_map(of);
        let before = (0..blocks.min(middle + 1)).flat_map(of);
        let behind = behind.filter(move |(id, _)| id.0 >= first);
        behind.chain(before.filter(move |(id, _)| id.0 < first))
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
