//! CRC-32C of a few bytes by the processor's instruction: no tables, nothing to prepare.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

/// From how many bytes on several streams at a time are faster than one.
const LONG: usize = 1024;

/// The same as [`nacre_types::crc32c_append`], made for metadata of a few dozen bytes.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as was just asked.
        unsafe { by_instruction(crc, bytes) }
    } else {
        nacre_types::crc32c_append(crc, bytes)
    }
}

#[target_feature(enable = "sse4.2")]
fn by_instruction(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = u64::from(!crc);
    for &word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(word));
    }
    let mut state = state as u32;
    for &byte in rest {
        state = _mm_crc32_u8(state, byte);
    }
    !state
}

#[cfg(test)]
mod tests {
    use super::crc32c_append;

    #[test]
    fn short_and_long_inputs_give_the_same_as_the_general_routine() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * 7 / 3) as u8).collect();
        for len in (0..200).chain([1016, 1023, 1024, 1025, 3000]) {
            for crc in [0, 0x1234_5678, u32::MAX] {
                let expected = nacre_types::crc32c_append(crc, &bytes[..len]);
                assert_eq!(crc32c_append(crc, &bytes[..len]), expected, "{len} bytes");
            }
        }
    }
}
