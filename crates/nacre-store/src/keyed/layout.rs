//! Collections and their objects as they lie on the medium.
//!
//! All of them are onodes of types that no file has. A *registry* names collections, a *collection*
//! names objects, an object's entry tree is its omap. Keys longer than [`PART_MAX`] go on in a
//! *layer*, an onode whose entry tree holds the rests of all keys with the same beginning. Long
//! values lie in onodes of their own.

use std::borrow::Cow;

use nacre_types::ObjectId;

/// Longest name of a collection or object, longest omap key, in bytes.
pub const LONG_KEY_MAX: usize = 64 << 10;
/// Longest part of a key in one tree.
pub const PART_MAX: usize = 1000;
/// Follows a part whose rest lies in a layer.
pub const GOES_ON: u8 = 1;
/// Longest value that lies in a tree.
pub const PLAIN_VALUE_MAX: usize = 32 << 10;
/// Longest value.
pub const LONG_VALUE_MAX: usize = 256 << 20;
/// First byte of the key of an attribute in the tree of extended attributes; the name follows.
pub const ATTRIBUTE: u8 = b'a';
/// Key of the omap's header there.
pub const HEADER_KEY: &[u8] = b"h";
/// Longest name of an attribute.
pub const ATTRIBUTE_NAME_MAX: usize = 255;

const REGISTRY_MAGIC: [u8; 8] = *b"NACREOBJ";
const PLAIN: u8 = 0;
const LINK: u8 = 1;
/// Bytes of a link with its tag.
pub const LINK_LEN: usize = 14;
/// Bytes that the root directory's onode says of the registry.
pub const REGISTRY_LEN: usize = 20;

/// Types of such onodes, as in `d_type`; programs never see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Names collections.
    Registry = 3,
    /// Names objects.
    Collection = 5,
    /// Has bytes, attributes and an omap.
    Object = 7,
    /// Holds one long value as its bytes.
    Value = 9,
    /// Holds the rests of long keys.
    Layer = 11,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [
        Kind::Registry,
        Kind::Collection,
        Kind::Object,
        Kind::Value,
        Kind::Layer,
    ];

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// What the mode of such an onode is.
    pub fn mode(self) -> u32 {
        u32::from(self as u8) << 12 | 0o600
    }

    /// Whether an onode of this kind may name one of that.
    pub fn may_name(self, named: Kind) -> bool {
        match self {
            Kind::Registry => matches!(named, Kind::Collection | Kind::Layer),
            Kind::Collection => matches!(named, Kind::Object | Kind::Layer),
            Kind::Object => matches!(named, Kind::Value | Kind::Layer),
            Kind::Layer => named != Kind::Registry,
            Kind::Value => false,
        }
    }
}

/// Names another onode; the generation tells it from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Which.
    pub object: ObjectId,
    /// Its generation.
    pub generation: u32,
    /// Its kind.
    pub kind: Kind,
}

impl Link {
    fn body(self) -> [u8; LINK_LEN - 1] {
        let mut bytes = [0; LINK_LEN - 1];
        bytes[..8].copy_from_slice(&self.object.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes
    }

    fn from_body(body: &[u8]) -> Option<Link> {
        let (object, rest) = body.split_first_chunk::<8>()?;
        let (generation, rest) = rest.split_first_chunk::<4>()?;
        let [kind] = *rest else { return None };
        let object = u64::from_le_bytes(*object);
        let kind = Kind::from_number(kind)?;
        (object != 0).then_some(Link {
            object: ObjectId(object),
            generation: u32::from_le_bytes(*generation),
            kind,
        })
    }

    /// As a value of a tree.
    pub fn encode(self) -> [u8; LINK_LEN] {
        let mut bytes = [LINK; LINK_LEN];
        bytes[1..].copy_from_slice(&self.body());
        bytes
    }

    /// What the root directory's onode says of the registry.
    pub fn encode_registry(self) -> [u8; REGISTRY_LEN] {
        let mut bytes = [0; REGISTRY_LEN];
        bytes[..8].copy_from_slice(&REGISTRY_MAGIC);
        bytes[8..].copy_from_slice(&self.body()[..12]);
        bytes
    }

    /// Inverse of [`Link::encode_registry`].
    pub fn decode_registry(bytes: &[u8]) -> Option<Link> {
        let rest = bytes.strip_prefix(&REGISTRY_MAGIC)?;
        let mut body = [Kind::Registry as u8; LINK_LEN - 1];
        body[..12].copy_from_slice(rest.get(..12).filter(|_| rest.len() == 12)?);
        Link::from_body(&body)
    }
}

/// A value of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'v> {
    /// These bytes.
    Plain(&'v [u8]),
    /// What is named.
    Link(Link),
}

impl<'v> Item<'v> {
    /// `None` for what nobody writes.
    pub fn decode(bytes: &'v [u8]) -> Option<Item<'v>> {
        match bytes.split_first()? {
            (&PLAIN, rest) => Some(Item::Plain(rest)),
            (&LINK, rest) => Link::from_body(rest).map(Item::Link),
            _ => None,
        }
    }

    /// Puts a value that fits into a tree into `to`.
    pub fn encode_plain(value: &[u8], to: &mut Vec<u8>) {
        to.clear();
        to.reserve(1 + value.len());
        to.push(PLAIN);
        to.extend_from_slice(value);
    }
}

/// The key in this tree, and what of a long key goes on in a layer.
pub fn split_key(key: &[u8]) -> (Cow<'_, [u8]>, Option<&[u8]>) {
    match key.split_at_checked(PART_MAX) {
        Some((part, rest)) if !rest.is_empty() => ([part, &[GOES_ON]].concat().into(), Some(rest)),
        _ => (key.into(), None),
    }
}

/// Whether a key of a tree leads to a layer.
pub fn goes_on(key: &[u8]) -> bool {
    key.len() == PART_MAX + 1
}

const _: () = assert!(PART_MAX < crate::layout::KEY_MAX);
const _: () = assert!(PLAIN_VALUE_MAX < crate::layout::VALUE_MAX);
const _: () = assert!(REGISTRY_LEN <= crate::layout::INLINE_MAX);
