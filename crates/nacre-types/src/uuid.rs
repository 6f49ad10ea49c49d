//! Identities of pools and devices.

use std::fmt;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

/// A 128-bit identity, written as in RFC 9562.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

/// The text is not a UUID of the form 8-4-4-4-12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID: expected 8-4-4-4-12 hexadecimal digits")]
pub struct ParseUuidError;

impl Uuid {
    /// A new random (version 4) identity.
    pub fn random() -> Self {
        let mut bytes = random_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// Its bytes as two words.
    pub const fn words(self) -> [u64; 2] {
        let all = u128::from_le_bytes(self.0);
        [all as u64, (all >> 64) as u64]
    }
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    bytes
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let text = text.as_bytes();
        if text.len() != 36 || [8, 13, 18, 23].iter().any(|&i| text[i] != b'-') {
            return Err(ParseUuidError);
        }
        let mut digits = text
            .iter()
            .filter(|&&c| c != b'-')
            .map(|&c| (c as char).to_digit(16));
        let mut digit = || digits.next().flatten().ok_or(ParseUuidError);
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = (digit()? << 4 | digit()?) as u8;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::{ParseUuidError, Uuid};

    #[test]
    fn text_and_bytes_convert_both_ways() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.0[..3], [0x00, 0x11, 0x22]);
        assert_eq!(uuid.to_string(), text);
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in [
            "",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899-aabbccddeefg",
            "001122334-455-6677-8899-aabbccddeeff",
            "--------------------------------------",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(ParseUuidError), "{text}");
        }
    }

    #[test]
    fn random_identities_differ_and_are_version_4() {
        let (a, b) = (Uuid::random(), Uuid::random());
        assert_ne!(a, b);
        assert_eq!(a.0[6] >> 4, 4);
        assert_eq!(a.0[8] >> 6, 2);
    }
}
