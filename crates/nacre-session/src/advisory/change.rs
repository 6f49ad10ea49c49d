//! Changing what one owner holds: merge, split, shrink.

use crate::Session;
use crate::error::Full;
use crate::slot_ref::SlotRef;

use super::LockRange;
use super::list::{Claim, Fate, Held, LockedBucket};

/// Most entries that one change can need: the lock itself and the far part of a split.
struct Spares<'a> {
    session: &'a Session,
    claims: [Option<Claim>; 2],
}

impl<'a> Spares<'a> {
    fn claim(session: &'a Session, me: SlotRef, count: usize) -> Result<Spares<'a>, Full> {
        let mut spares = Spares {
            session,
            claims: [None, None],
        };
        for claim in spares.claims.iter_mut().take(count) {
            *claim = Some(session.claim_entry(me)?);
        }
        Ok(spares)
    }

    fn take(&mut self) -> Option<Claim> {
        self.claims.iter_mut().find_map(Option::take)
    }
}

impl Drop for Spares<'_> {
    fn drop(&mut self) {
        while let Some(claim) = self.take() {
            self.session.unclaim(claim);
        }
    }
}

#[inline]
fn is_own(held: &Held, wanted: &Held) -> bool {
    held.is_same_file(wanted) && held.owner == wanted.owner
}

/// Gives `wanted` to its owner, in place of whatever the owner held on these bytes. Nobody else may
/// hold a lock that excludes it. True if others may profit.
pub(super) fn acquire(
    session: &Session,
    me: SlotRef,
    bucket: &LockedBucket<'_>,
    wanted: &Held,
) -> Result<bool, Full> {
    let mut merged = *wanted;
    let mut splits = false;
    let mut others_kind = false;
    let mut present = false;
    let mut touched = false;
    bucket.visit(|held| {
        if !is_own(held, wanted) {
        } else if held.kind == wanted.kind {
            present |= held.range.contains(wanted.range);
            if held.range.touches(wanted.range) {
                touched = true;
                merged.range = merged.range.union(held.range);
            }
        } else if held.range.overlaps(wanted.range) {
            others_kind = true;
            splits |= held.range.surrounds(wanted.range);
        }
    });
    if present && !others_kind {
        return Ok(false);
    }
    let mut spares = Spares::claim(session, me, 1 + usize::from(splits))?;
    if splits {
        carve_far_part(bucket, &mut spares, wanted, |held| held.kind != wanted.kind);
    }
    if let Some(claim) = spares.take() {
        bucket.link(claim, &merged);
    }
    Ok((touched || others_kind) && drop_replaced(bucket, wanted, &merged))
}

/// Takes the bytes `range` from what `owner` holds of the file. True if there was anything.
pub(super) fn release(
    session: &Session,
    me: SlotRef,
    bucket: &LockedBucket<'_>,
    unwanted: &Held,
) -> Result<bool, Full> {
    let mut splits = false;
    bucket.visit(|held| splits |= is_own(held, unwanted) && held.range.surrounds(unwanted.range));
    if splits {
        let mut spares = Spares::claim(session, me, 1)?;
        carve_far_part(bucket, &mut spares, unwanted, |_| true);
    }
    Ok(bucket.sweep(|held| {
        if is_own(held, unwanted) {
            carve(held, unwanted.range)
        } else {
            Fate::Keep
        }
    }))
}

/// The first step of a split: the part behind `cut` gets an entry of its own while the old entry
/// still covers it too.
fn carve_far_part(
    bucket: &LockedBucket<'_>,
    spares: &mut Spares<'_>,
    cut: &Held,
    applies: impl Fn(&Held) -> bool,
) {
    let mut far = None;
    bucket.visit(|held| {
        if is_own(held, cut) && applies(held) && held.range.surrounds(cut.range) {
            far = Some(Held {
                range: LockRange {
                    first: cut.range.last + 1,
                    last: held.range.last,
                },
                ..*held
            });
        }
    });
    if let Some(far) = far
        && let Some(claim) = spares.take()
    {
        bucket.link(claim, &far);
    }
}

/// The last step: what `merged` has made needless goes, what it overlaps shrinks.
fn drop_replaced(bucket: &LockedBucket<'_>, wanted: &Held, merged: &Held) -> bool {
    let mut kept_merged = false;
    bucket.sweep(|held| {
        if !is_own(held, wanted) {
            return Fate::Keep;
        }
        if held.kind != wanted.kind {
            return carve(held, wanted.range);
        }
        let is_merged = held.range == merged.range && !kept_merged;
        kept_merged |= is_merged;
        if is_merged || !merged.range.contains(held.range) {
            Fate::Keep
        } else {
            Fate::Remove
        }
    })
}

/// What remains of a lock without the bytes `cut`. Of a split it is the near part, the far part has
/// its own entry already.
fn carve(held: &Held, cut: LockRange) -> Fate {
    let LockRange { first, last } = held.range;
    if !held.range.overlaps(cut) {
        Fate::Keep
    } else if cut.contains(held.range) {
        Fate::Remove
    } else if first < cut.first {
        Fate::Trim(LockRange {
            first,
            last: cut.first - 1,
        })
    } else {
        Fate::Trim(LockRange {
            first: cut.last + 1,
            last,
        })
    }
}
