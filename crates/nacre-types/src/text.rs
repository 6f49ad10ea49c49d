//! Looking for bytes in short texts, eight at a time.

const ONES: u64 = 0x0101_0101_0101_0101;

/// Where the first byte lies that is one of `wanted`.
#[inline]
pub fn position_of<const N: usize>(text: &[u8], wanted: [u8; N]) -> Option<usize> {
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        if let Some(place) = place_in(*word, wanted) {
            return Some(index * 8 + place);
        }
    }
    match text.last_chunk::<8>() {
        // Of these the first ones are known to be others.
        Some(last) if !rest.is_empty() => {
            place_in(*last, wanted).map(|place| text.len() - 8 + place)
        }
        Some(_) => None,
        None => text.iter().position(|byte| wanted.contains(byte)),
    }
}

/// Where the last byte lies that is `wanted`.
#[inline]
pub fn last_position_of(text: &[u8], wanted: u8) -> Option<usize> {
    let (rest, words) = text.as_rchunks::<8>();
    for (index, word) in words.iter().enumerate().rev() {
        // Bytes swapped, the last one is the first.
        if let Some(place) = place_in(u64::from_be_bytes(*word).to_le_bytes(), [wanted]) {
            return Some(rest.len() + index * 8 + 7 - place);
        }
    }
    rest.iter().rposition(|&byte| byte == wanted)
}

/// The words of a text, different for different texts of one length: its whole words, but the last
/// one covers its last eight bytes.
#[inline(always)]
pub fn words_of(text: &[u8]) -> WordsOf<'_> {
    WordsOf { text, at: 0 }
}

/// A text that is being cut into words; see [`words_of`].
#[derive(Debug)]
pub struct WordsOf<'t> {
    text: &'t [u8],
    at: usize,
}

impl Iterator for WordsOf<'_> {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let left = &self.text[self.at..];
        match left.split_first_chunk::<8>() {
            Some((word, rest)) if !rest.is_empty() => {
                self.at += 8;
                Some(u64::from_le_bytes(*word))
            }
            _ if left.is_empty() => None,
            _ => {
                self.at = self.text.len();
                Some(last_word_of(self.text))
            }
        }
    }
}

/// The word of a text's last bytes: its last eight, or all of fewer, in a way that, for one length,
/// different bytes give different words. The text is not empty.
#[inline]
pub fn last_word_of(text: &[u8]) -> u64 {
    if let Some(last) = text.last_chunk::<8>() {
        return u64::from_le_bytes(*last);
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*last)) << 32 | u64::from(u32::from_le_bytes(*first));
    }
    let bytes = [text[0], text[text.len() / 2], text[text.len() - 1], 0];
    u64::from(u32::from_le_bytes(bytes))
}

/// The lowest bit that is set stands for the first byte that is wanted; higher ones may be wrong.
#[inline]
fn place_in<const N: usize>(word: [u8; 8], wanted: [u8; N]) -> Option<usize> {
    let word = u64::from_le_bytes(word);
    let found = wanted.iter().fold(0, |found, &byte| {
        let differs = word ^ (ONES * u64::from(byte));
        found | (differs.wrapping_sub(ONES) & !differs & (ONES << 7))
    });
    (found != 0).then_some(found.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::{last_position_of, position_of, words_of};
    use std::collections::HashSet;

    #[test]
    fn the_last_of_the_wanted_bytes_is_found() {
        for len in 0..40 {
            for fill in [b'a', b'.', b'0', 1, 0x80, 0xff] {
                let mut text = vec![fill; len];
                assert_eq!(last_position_of(&text, b'/'), None, "{text:?}");
                for place in 0..len {
                    text[place] = b'/';
                    assert_eq!(last_position_of(&text, b'/'), Some(place), "{text:?}");
                }
            }
        }
        assert_eq!(last_position_of(b"/.0/0.0.0.0", b'/'), Some(3));
    }

    #[test]
    fn texts_of_one_length_that_differ_have_different_words() {
        for len in 1..30 {
            let mut seen = HashSet::new();
            let mut text = vec![b'a'; len];
            assert!(seen.insert(words_of(&text).collect::<Vec<_>>()));
            for place in 0..len {
                for byte in [0, b'b', 0xff] {
                    text[place] = byte;
                    assert!(seen.insert(words_of(&text).collect()), "{text:?}");
                }
                text[place] = b'a';
            }
            assert_eq!(words_of(&text).count(), len.div_ceil(8));
        }
    }

    #[test]
    fn the_first_of_the_wanted_bytes_is_found() {
        let slow = |text: &[u8]| text.iter().position(|&byte| byte == b'/' || byte == 0);
        for len in 0..40 {
            for fill in [b'a', b'0', b'.', 1, 0x80, 0xff] {
                let mut text = vec![fill; len];
                assert_eq!(position_of(&text, *b"/\0"), None, "{text:?}");
                for place in 0..len {
                    text[place] = if place % 2 == 0 { b'/' } else { 0 };
                    assert_eq!(position_of(&text, *b"/\0"), slow(&text), "{text:?}");
                    let last = position_of(&text[place..], *b"/\0");
                    assert_eq!(last, Some(0), "{text:?}");
                    text[place] = fill;
                }
            }
        }
        assert_eq!(position_of(b"0.0.0.0.a/", *b"/"), Some(9));
    }
}
