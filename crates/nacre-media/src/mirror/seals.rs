//! Checksums of what nobody stores to. They tell which leg is right where legs differ.
//!
//! A seal is of a *span* of regions. It counts while no region of the span has its bit, which is
//! durable before the first store there (M1); so stores need not know of seals. Whoever clears bits
//! removes the seals first (M6).

use std::ops::Range;

use nacre_types::{DeviceOffset, StoreKind, crc32c_append};

use super::layout::{REGION, SEALS_AT, SEALS_LEN};
use super::shared::regions;
use super::{Leg, Mirror};
use crate::error::MediaFailed;
use crate::token::Unfenced;

/// The spans that have data of a window, and the regions of one, a power of two.
pub(super) fn layout_of(window: &Range<u64>) -> (Range<u64>, u64) {
    let all = regions(window.clone());
    let of_one = all.end.div_ceil(SEALS_LEN / 8).next_power_of_two();
    (all.start / of_one..all.end.div_ceil(of_one), of_one)
}

impl Mirror {
    /// Regions of one span.
    fn span(&self) -> u64 {
        layout_of(&self.window).1
    }

    /// The spans that have data.
    pub fn spans(&self) -> Range<u64> {
        layout_of(&self.window).0
    }

    /// The span that a byte of the devices is in.
    pub fn span_of(&self, at: u64) -> u64 {
        at / REGION / self.span()
    }

    /// The regions of a span.
    pub(super) fn regions_of(&self, span: u64) -> Range<u64> {
        let all = regions(self.window.clone());
        let of_span = span * self.span()..(span + 1) * self.span();
        of_span.start.max(all.start)..of_span.end.min(all.end)
    }

    /// The data of a span.
    pub(super) fn bytes_of_span(&self, span: u64) -> Range<u64> {
        let regions = self.regions_of(span);
        let (first, last) = (regions.start, regions.end.saturating_sub(1));
        self.bytes_of(first).start..self.bytes_of(last).end
    }

    fn seal_word(&self, span: u64, crc: u32) -> u64 {
        let salted = crc32c_append(0, &self.pool);
        let check = crc32c_append(salted, &(span << 32 ^ u64::from(crc)).to_le_bytes());
        u64::from(crc) << 32 | u64::from(check)
    }

    /// What the bytes of a span were when it was sealed, by any leg that is current.
    pub(super) fn seal_of<'l>(
        &self,
        span: u64,
        mut legs: impl Iterator<Item = &'l Leg>,
    ) -> Option<u32> {
        legs.find_map(|leg| {
            let word = leg.seal(span);
            let crc = (word >> 32) as u32;
            (word == self.seal_word(span, crc)).then_some(crc)
        })
    }

    /// Seals a span on some legs, durably. The caller holds the lock of bits; no bit is set there.
    pub(super) fn set_seal<'l>(
        &self,
        (span, crc): (u64, u32),
        legs: impl Iterator<Item = &'l Leg>,
    ) -> Result<(), MediaFailed> {
        let word = self.seal_word(span, crc);
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
        let mut spans: Vec<u64> = noted.iter().map(|region| region / self.span()).collect();
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
