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
    use super::position_of;

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
