//! Checksums of what nobody stores to. They tell which leg is right where legs differ.
//!
//! A seal is of a *span* of regions. It counts while no region of the span has its bit, which is
//! durable before the first store there (M1); so stores need not know of seals. Whoever clears bits
//! removes the seals first (M6).

use std::ops::Range;

use nacre_types::{DeviceOffset, StoreKind};

use super::layout::SEALS_AT;
use super::{Leg, Mirror, Spans};
use crate::error::MediaFailed;
use crate::token::Unfenced;

impl Mirror {
    /// How data is divided in spans.
    pub fn division(&self) -> &Spans {
        &self.spans
    }

    /// The regions of a span.
    pub(super) fn regions_of(&self, span: u64) -> Range<u64> {
        self.spans.regions(span)
    }

    /// What the bytes of a span were when it was sealed, by any leg that is current.
    pub(super) fn seal_of<'l>(
        &self,
        span: u64,
        mut legs: impl Iterator<Item = &'l Leg>,
    ) -> Option<u32> {
        legs.find_map(|leg| self.spans.sealed(span, leg.seal(span)))
    }

    /// Seals a span on some legs, durably. The caller holds the lock of bits; no bit is set there.
    pub(super) fn set_seal<'l>(
        &self,
        (span, crc): (u64, u32),
        legs: impl Iterator<Item = &'l Leg>,
    ) -> Result<(), MediaFailed> {
        let word = self.spans.seal(span, crc);
        for leg in legs {
            if leg.seal(span) != word {
                leg.set_seals(std::iter::once(span), word)?;
                self.shared().move_seal_epoch();
            }
        }
        Ok(())
    }

    /// Removes the seals of some regions from a leg, durably. (M6)
    pub(super) fn break_seals(&self, leg: &Leg, noted: &[u64]) -> Result<(), MediaFailed> {
        let of_one = self.spans.regions_of_one();
        let mut spans: Vec<u64> = noted.iter().map(|region| region / of_one).collect();
        spans.dedup();
        leg.set_seals(spans.into_iter(), 0)
    }
}

impl Leg {
    fn seal(&self, span: u64) -> u64 {
        self.front.load_u64(DeviceOffset(SEALS_AT + span * 8))
    }

    /// Makes some seals the same word, durably.
    pub(super) fn set_seals(
        &self,
        spans: impl Iterator<Item = u64>,
        word: u64,
    ) -> Result<(), MediaFailed> {
        let mut stored = None;
        for span in spans.filter(|&span| self.seal(span) != word) {
            let at = DeviceOffset(SEALS_AT + span * 8);
            let one = self.front.store_u64(at, word, StoreKind::Metadata);
            stored.get_or_insert_with(Unfenced::nothing).join(one);
        }
        stored.map_or(Ok(()), |stored| self.front.fence(stored))
    }
}
