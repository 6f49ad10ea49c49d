//! CRC-32C of long ranges by folding (carry-less multiplication): what is kept of all lines so far
//! is one line that has their checksum. (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Intel, 2009.)

use std::arch::is_x86_feature_detected;

/// The polynomial, its lowest bit for the highest power, as all here.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Bits of a line.
const LINE_BITS: u32 = 512;

/// A sum under way. There is none where the processor lacks the instruction.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Folded {
    line: [u64; 8],
    /// What the halves of 16 bytes are multiplied by, to stand a line further on.
    factors: [u64; 2],
}

impl Folded {
    /// Of nothing yet.
    pub fn new() -> Option<Self> {
        is_x86_feature_detected!("pclmulqdq").then_some(Self {
            line: [START as u64, 0, 0, 0, 0, 0, 0, 0],
            factors: [factor(LINE_BITS + 32), factor(LINE_BITS - 32)],
        })
    }

    /// The checksum of what was summed up.
    pub fn sum(&self) -> u32 {
        let line = self.line.map(u64::to_le_bytes);
        nacre_types::crc32c_append(u32::MAX, line.as_flattened())
    }
}

/// A checksum begins with ones. As the line before the first one these bits come to that.
const START: u32 = {
    let (mut state, mut bits) = (u32::MAX, 0);
    while bits < LINE_BITS {
        state = match state >> 31 {
            0 => state << 1,
            _ => (state ^ POLYNOMIAL) << 1 | 1,
        };
        bits += 1;
    }
    state
};

/// x to a power, modulo the polynomial. The product of two numbers that are written the other way
/// round stands one bit too low.
const fn factor(power: u32) -> u64 {
    let (mut state, mut done) = (1 << 31, 0);
    while done < power {
        state = (state >> 1) ^ ((state & 1) * POLYNOMIAL);
        done += 1;
    }
    (state as u64) << 1
}

#[cfg(test)]
mod tests {
    use super::Folded;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 255 + 1) as u8).collect()
    }

    fn summed(parts: &[(&[u8], &[u8])]) -> Option<(bool, u32)> {
        let (mut sum, mut alike) = (Folded::new()?, true);
        for (a, b) in parts {
            let len = a.len().min(b.len());
            // SAFETY: both slices have so many bytes.
            alike &= unsafe { sum.add(a.as_ptr(), b.as_ptr(), len) }.unwrap();
        }
        Some((alike, sum.sum()))
    }

    #[test]
    fn a_folded_sum_is_the_one_of_the_general_routine() {
        let bytes = pattern(5000);
        for (from, lines) in (0..70).flat_map(|lines| [(0, lines), (3, lines)]) {
            let whole = &bytes[from..from + lines * 64 + 64];
            let Some(found) = summed(&[(whole, whole)]) else {
                return;
            };
            assert_eq!(found, (true, nacre_types::crc32c(whole)), "{lines} lines");
            let (a, b) = whole.split_at(64 * (lines / 2) + 64);
            let parts: &[_] = if b.is_empty() {
                &[(a, a)]
            } else {
                &[(a, a), (b, b)]
            };
            assert_eq!(summed(parts), Some(found), "{lines} lines in parts");
        }
    }

    #[test]
    fn each_byte_that_differs_is_seen_by_a_sum_too() {
        let (a, mut b) = (pattern(256), pattern(256));
        for at in 0..a.len() {
            b[at] ^= 4;
            let Some((alike, sum)) = summed(&[(&a, &b)]) else {
                return;
            };
            assert!(!alike, "byte {at}");
            assert_eq!(sum, nacre_types::crc32c(&b));
            b[at] ^= 4;
        }
    }
}
