//! Comparing contents of one object with the checksums of what is quiet, before they are read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{ControlFlow, Range};

use nacre_types::{ObjectId, UNIT_SIZE};
use nacre_volume::{Difference, ScrubbedSpan};

use super::gathered::gathered;
use super::{Damage, Owners};
use crate::data::Extent;
use crate::error::{Result, StoreError};
use crate::store::Store;

/// So often contents that move while they are compared are compared again.
const TRIES: usize = 16;

/// What came of some contents of an object.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Where copies held something else, and hold what was sealed now.
    pub repaired: Vec<Damage>,
    /// The first byte, if no copy of it is as it was sealed. What lies before it is sound.
    pub lost: Option<u64>,
    /// Bytes for which no checksum stands; holes need none.
    pub unsealed: u64,
    /// Where all of that lies.
    extents: Vec<Extent>,
}

impl Store {
    /// Reads contents of an object as `read` does, after what is sealed of them was compared. What
    /// moves meanwhile is compared again; what does not come to rest is being written, and counts
    /// as not sealed. Bytes from the first one that is lost on are not read.
    pub fn read_verified<E: From<StoreError>>(
        &self,
        id: ObjectId,
        bytes: Range<u64>,
        mut read: impl FnMut(u64) -> std::result::Result<usize, E>,
    ) -> std::result::Result<(usize, Verified), E> {
        let mut repaired = Vec::new();
        for _ in 0..TRIES {
            let mut verified = verify(self, id, bytes.clone())?;
            repaired.append(&mut verified.repaired);
            let len = read(verified.lost.unwrap_or(bytes.end) - bytes.start)?;
            if contents(self, id, bytes.clone())? == verified.extents {
                verified.repaired = repaired;
                return Ok((len, verified));
            }
        }
        let len = read(bytes.end - bytes.start)?;
        let verified = Verified {
            repaired,
            unsealed: len as u64,
            ..Verified::default()
        };
        Ok((len, verified))
    }
}

/// Compares the spans that bytes of an object lie in with their checksums. Copies that hold
/// something else are repaired from one that does not. Others may use the pool meanwhile.
fn verify(store: &Store, id: ObjectId, bytes: Range<u64>) -> Result<Verified> {
    let mut verified = Verified {
        extents: contents(store, id, bytes.clone())?,
        ..Verified::default()
    };
    let mut spans = BTreeMap::new();
    let mut repaired = Vec::new();
    for (at, len, span) in parts(store, &verified.extents, &bytes) {
        let compared = match spans.entry(span) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let compared = store.volume().verify_span(span)?;
                repaired.extend(compared.found.iter().filter(|it| is_repaired(it)).cloned());
                place.insert(compared)
            }
        };
        if has_lost(compared) {
            verified.lost = Some(at);
            break;
        }
        verified.unsealed += if compared.sealed == 0 { len } else { 0 };
    }
    if !repaired.is_empty() {
        let owners = Owners::of(store, &repaired, &Default::default());
        let repaired = repaired.into_iter();
        verified.repaired = gathered(repaired.map(|one| owners.damage(one)));
    }
    Ok(verified)
}

fn is_repaired(found: &Difference) -> bool {
    found.evidence.is_some()
}

fn has_lost(compared: &ScrubbedSpan) -> bool {
    !compared.found.iter().all(is_repaired)
}

/// The extents that have bytes of their own.
fn contents(store: &Store, id: ObjectId, bytes: Range<u64>) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    store.extents(id, bytes.start, bytes.end, &mut |extent| {
        if !extent.unwritten {
            extents.push(extent);
        }
        ControlFlow::Continue(())
    })?;
    Ok(extents)
}

/// Those bytes unit by unit: where in the object, how many, in which span.
fn parts<'e>(
    store: &'e Store,
    extents: &'e [Extent],
    bytes: &'e Range<u64>,
) -> impl Iterator<Item = (u64, u64, u64)> + use<'e> {
    extents.iter().flat_map(move |extent| {
        (0..extent.len / UNIT_SIZE).filter_map(move |step| {
            let start = extent.offset + step * UNIT_SIZE;
            let (from, to) = (start.max(bytes.start), (start + UNIT_SIZE).min(bytes.end));
            let span = store.volume().span_of(extent.unit.add(step).offset());
            (from < to).then(|| (from, to - from, span))
        })
    })
}
