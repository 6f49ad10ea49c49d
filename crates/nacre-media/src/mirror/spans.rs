//! Checksums of what nobody stores to, in front of the data of each of several devices that hold
//! the same: seals. Each is of a *span* of the data.

use std::ops::Range;

use nacre_types::crc32c_append;

use super::layout::{REGION, SEALS_AT, SEALS_LEN};

const WORD: u64 = size_of::<u64>() as u64;

/// How data is divided in spans, and where their seals are.
#[derive(Clone, Debug)]
pub struct Spans {
    pool: [u8; 16],
    /// The data, on each device.
    window: Range<u64>,
}

impl Spans {
    /// Of a pool whose data lies in `window` of each device.
    pub fn new(pool: [u8; 16], window: Range<u64>) -> Self {
        Self { pool, window }
    }

    /// Those that have data.
    pub fn all(&self) -> Range<u64> {
        let span = self.regions_of_one() * REGION;
        self.window.start / span..self.window.end.div_ceil(span)
    }

    /// Regions of a span: as many as it takes for all seals to find room, a power of two.
    pub fn regions_of_one(&self) -> u64 {
        let regions = self.window.end.div_ceil(REGION);
        regions.div_ceil(SEALS_LEN / WORD).next_power_of_two()
    }

    /// The span that a byte of the devices is in.
    pub fn of(&self, at: u64) -> u64 {
        at / REGION / self.regions_of_one()
    }

    /// The spans that some data touches; none of what is no data.
    pub fn touched_by(&self, range: Range<u64>) -> Range<u64> {
        let (start, end) = (range.start, range.end.min(self.window.end));
        match start < self.window.start || start >= end {
            true => 0..0,
            false => self.of(start)..self.of(end - 1) + 1,
        }
    }

    /// The regions of a span.
    pub fn regions(&self, span: u64) -> Range<u64> {
        let first = span * self.regions_of_one();
        let all = self.window.start / REGION..self.window.end.div_ceil(REGION);
        first.max(all.start)..(first + self.regions_of_one()).min(all.end)
    }

    /// The data of a span.
    pub fn bytes(&self, span: u64) -> Range<u64> {
        let regions = self.regions(span);
        (regions.start * REGION).max(self.window.start)..(regions.end * REGION).min(self.window.end)
    }

    /// Where on each device the seals of some spans are.
    pub fn places(&self, spans: Range<u64>) -> Range<u64> {
        SEALS_AT + spans.start * WORD..SEALS_AT + spans.end * WORD
    }

    /// The seal of a span with this CRC-32C.
    pub fn seal(&self, span: u64, crc: u32) -> u64 {
        let salted = crc32c_append(0, &self.pool);
        let check = crc32c_append(salted, &(span << 32 ^ u64::from(crc)).to_le_bytes());
        u64::from(crc) << 32 | u64::from(check)
    }

    /// The CRC-32C that a seal tells, if it is one of that span.
    pub fn sealed(&self, span: u64, seal: u64) -> Option<u32> {
        let crc = (seal >> 32) as u32;
        (seal == self.seal(span, crc)).then_some(crc)
    }
}
