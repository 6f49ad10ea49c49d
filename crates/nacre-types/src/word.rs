//! Words that commit by themselves and therefore check themselves.

use crate::{check16, site};

const PAYLOAD_BITS: u32 = 48;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

/// An 8-byte word: payload in bits 0..48, its check in bits 48..64.
///
/// Payload 0 is the all-zero word under every salt, so zeroed media reads as "none".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckedWord(pub u64);

impl CheckedWord {
    /// The largest payload.
    pub const MAX: u64 = PAYLOAD_MASK;
    /// Payload 0.
    pub const ZERO: Self = Self(0);

    /// Builds the word. `payload` must not exceed [`CheckedWord::MAX`].
    #[inline]
    pub const fn seal(payload: u64, salt: u64) -> Self {
        assert!(payload <= PAYLOAD_MASK, "payload exceeds 48 bits");
        if payload == 0 {
            return Self::ZERO;
        }
        Self(payload | (check16(payload, salt) as u64) << PAYLOAD_BITS)
    }

    /// As [`CheckedWord::seal`], of a payload that is not 0 and not too large: who makes many words
    /// knows it of all at once.
    #[inline(always)]
    pub const fn seal_some(payload: u64, salt: u64) -> Self {
        debug_assert!(payload > 0 && payload <= PAYLOAD_MASK);
        Self(payload | (check16(payload, salt) as u64) << PAYLOAD_BITS)
    }

    /// The payload of a word that was opened before, under its salt.
    #[inline(always)]
    pub const fn opened_before(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    /// The payload, or `None` when the word is damaged or was sealed under another salt.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn open(self, salt: u64) -> Option<u64> {
        let payload = self.0 & PAYLOAD_MASK;
        let check = (self.0 >> PAYLOAD_BITS) as u16;
        // Payload 0 under a check is no word that anybody seals.
        let sealed = payload != 0 && check16(payload, salt) == check;
        if site::check(sealed || self.0 == 0) {
            Some(payload)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CheckedWord;

    #[test]
    fn what_was_sealed_opens() {
        assert_eq!(CheckedWord::seal_some(77, 9), CheckedWord::seal(77, 9));
        for payload in [0, 1, 4096, 0x1234_5678_9abc, CheckedWord::MAX] {
            assert_eq!(CheckedWord::seal(payload, 9).open(9), Some(payload));
        }
    }

    #[test]
    fn zero_is_the_zero_word_under_every_salt() {
        assert_eq!(CheckedWord::seal(0, 5), CheckedWord(0));
        assert_eq!(CheckedWord(0).open(6), Some(0));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let word = CheckedWord::seal(0xdead_beef, 3);
        for bit in 0..64 {
            assert_eq!(CheckedWord(word.0 ^ (1 << bit)).open(3), None, "bit {bit}");
        }
    }

    #[test]
    fn another_salt_does_not_open() {
        assert_eq!(CheckedWord::seal(0xdead_beef, 3).open(4), None);
    }
}
