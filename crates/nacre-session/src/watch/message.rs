//! What a name in a shadow says: events, a cookie and a name, as inotify tells them.
//!
//! A name holds any byte but 0 and `/`, so numbers are written in digits of seven bits with the
//! highest bit set: `01`, key (10), watch (10), events (5), cookie (5), name. What does not fit in
//! 255 bytes stands in a symbolic link instead, that the reader of the event removes.

/// Longest file name.
const NAME_MAX: usize = 255;
const FIRST: u8 = 1;
/// The name stands in the target of a link of this name.
const FIRST_OF_LINK: u8 = 2;
const DIGITS_OF_WORD: usize = 10;
const DIGITS_OF_HALF: usize = 5;
const HEAD: usize = 1 + 2 * DIGITS_OF_WORD + 2 * DIGITS_OF_HALF;

/// Tells messages of a session from names that others make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageKey(pub(crate) u64);

/// Something that happened, for one watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'n> {
    /// The watch.
    pub watch: u64,
    /// `IN_*`.
    pub events: u32,
    /// Connects the two halves of a rename; else 0.
    pub cookie: u32,
    /// The name in the watched directory; empty for the watched inode itself.
    pub name: &'n [u8],
    /// The name stands in a link of this message's own name.
    pub linked: bool,
}

impl<'n> Message<'n> {
    /// The name that says it, and the target if it is to be a link.
    pub(crate) fn encode(&self, key: MessageKey) -> (Vec<u8>, Option<&'n [u8]>) {
        let linked = HEAD + self.name.len() > NAME_MAX;
        let mut text = Vec::with_capacity(NAME_MAX);
        text.push(if linked { FIRST_OF_LINK } else { FIRST });
        put(&mut text, key.0, DIGITS_OF_WORD);
        put(&mut text, self.watch, DIGITS_OF_WORD);
        put(&mut text, u64::from(self.events), DIGITS_OF_HALF);
        put(&mut text, u64::from(self.cookie), DIGITS_OF_HALF);
        if linked {
            // So that two names at a time do not share a link.
            put(&mut text, sum_of(self.name), DIGITS_OF_WORD);
            return (text, Some(self.name));
        }
        text.extend(self.name);
        (text, None)
    }

    /// What a name says; `None` for a name that is no message of the session.
    pub fn decode(key: MessageKey, text: &'n [u8]) -> Option<Message<'n>> {
        let (&first, rest) = text.split_first()?;
        let linked = match first {
            FIRST => false,
            FIRST_OF_LINK => true,
            _ => return None,
        };
        let (found, rest) = take(rest, DIGITS_OF_WORD)?;
        let (watch, rest) = take(rest, DIGITS_OF_WORD)?;
        let (events, rest) = take(rest, DIGITS_OF_HALF)?;
        let (cookie, rest) = take(rest, DIGITS_OF_HALF)?;
        (found == key.0).then_some(Message {
            watch,
            events: events as u32,
            cookie: cookie as u32,
            name: if linked { b"" } else { rest },
            linked,
        })
    }
}

fn put(text: &mut Vec<u8>, number: u64, digits: usize) {
    text.extend((0..digits).map(|at| 0x80 | (number >> (7 * at)) as u8));
}

fn take(text: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at_checked(digits)?;
    let number = digits.iter().rev();
    let number = number.fold(0u64, |sum, digit| sum << 7 | u64::from(digit & 0x7f));
    Some((number, rest))
}

/// FNV-1a.
fn sum_of(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{Message, MessageKey, NAME_MAX};

    const KEY: MessageKey = MessageKey(u64::MAX - 12345);

    fn message(name: &[u8]) -> Message<'_> {
        Message {
            watch: u64::MAX / 3,
            events: 0x4000_0100,
            cookie: u32::MAX,
            name,
            linked: false,
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        for name in [&b""[..], b"file", &[b'n'; 224]] {
            let (text, target) = message(name).encode(KEY);
            assert!(text.len() <= NAME_MAX && target.is_none());
            assert!(!text.contains(&0) && !text.contains(&b'/'));
            assert_eq!(Message::decode(KEY, &text), Some(message(name)));
        }
    }

    #[test]
    fn long_names_stand_in_links_that_differ() {
        let (one, other) = ([b'n'; 225], [b'm'; 255]);
        let (text, target) = message(&one).encode(KEY);
        assert_eq!(target, Some(&one[..]));
        assert!(Message::decode(KEY, &text).is_some_and(|said| said.linked));
        assert_ne!(text, message(&other).encode(KEY).0);
    }

    #[test]
    fn other_names_are_no_messages() {
        let (text, _) = message(b"file").encode(KEY);
        assert_eq!(Message::decode(MessageKey(7), &text), None);
        assert_eq!(Message::decode(KEY, &text[..30]), None);
        assert_eq!(Message::decode(KEY, b"file"), None);
    }
}
