//! Random numbers that are the same on every run.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// xorshift64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed and stream.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(mix(seed ^ mix(stream)).max(1));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        mix(self.next()).checked_rem(limit).unwrap_or(0)
    }
}

/// Spreads the bits of a number.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ value >> 33
}

/// A hash of bytes that starts from `seed`.
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}
