//! Operations that shall happen together.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Error, Result, shown};
use nacre_store::keyed::layout::{ATTRIBUTE_NAME_MAX, LONG_KEY_MAX, LONG_VALUE_MAX};

/// Bytes of a transaction: its own, or lent to it.
pub type Bytes<'b> = Cow<'b, [u8]>;

/// A collection and an object in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'b> {
    /// The collection's name.
    pub collection: Bytes<'b>,
    /// The object's name.
    pub object: Bytes<'b>,
}

/// Which names of a collection a split moves: those with certain bits at a certain place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashBits {
    /// Where in the name they begin, in bytes; the upper bit of a byte comes first.
    pub offset: usize,
    /// How many they are, at most 64. Names that end before are not meant.
    pub bits: u32,
    /// What they are, as a number.
    pub value: u64,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Transaction's functions say what they do")]
pub enum Operation<'b> {
    CreateCollection(Bytes<'b>),
    RemoveCollection(Bytes<'b>),
    Create(Target<'b>),
    Touch(Target<'b>),
    Write(Target<'b>, u64, Bytes<'b>),
    Zero(Target<'b>, u64, u64),
    Truncate(Target<'b>, u64),
    Remove(Target<'b>),
    SetAttribute(Target<'b>, Bytes<'b>, Bytes<'b>),
    RemoveAttribute(Target<'b>, Bytes<'b>),
    RemoveAttributes(Target<'b>),
    Clone(Target<'b>, Bytes<'b>),
    CloneRange(Target<'b>, Bytes<'b>, Range<u64>, u64),
    SetOmap(Target<'b>, Bytes<'b>, Bytes<'b>),
    RemoveOmap(Target<'b>, Bytes<'b>),
    RemoveOmapRange(Target<'b>, Bytes<'b>, Bytes<'b>),
    ClearOmap(Target<'b>),
    SetOmapHeader(Target<'b>, Bytes<'b>),
    ExpectAttribute(Target<'b>, Bytes<'b>, Option<Bytes<'b>>),
    ExpectOmap(Target<'b>, Bytes<'b>, Option<Bytes<'b>>),
    Rename(Target<'b>, Target<'b>),
    Split(Bytes<'b>, Bytes<'b>, HashBits),
    Merge(Bytes<'b>, Bytes<'b>),
    IfExists(Box<Operation<'b>>),
}

/// Operations that [`Pool::commit`](crate::Pool::commit) makes durable all together or not at all,
/// in this order.
///
/// Bytes that are lent are not copied before the commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction<'b> {
    pub(crate) operations: Vec<Operation<'b>>,
    /// What is wrong with the first operation that cannot be, and which one it is.
    pub(crate) refused: Option<(usize, &'static str)>,
}

fn copied<'b>(bytes: &[u8]) -> Bytes<'b> {
    Cow::Owned(bytes.to_vec())
}

fn target<'b>(collection: &[u8], object: &[u8]) -> Target<'b> {
    Target {
        collection: copied(collection),
        object: copied(object),
    }
}

impl<'b> Transaction<'b> {
    /// A transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many operations it has.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Its operations, in their order.
    pub fn operations(&self) -> &[Operation<'b>] {
        &self.operations
    }

    /// Adds an operation.
    pub fn push(&mut self, operation: Operation<'b>) -> &mut Self {
        if let Err(what) = operation.validate()
            && self.refused.is_none()
        {
            self.refused = Some((self.operations.len(), what));
        }
        self.operations.push(operation);
        self
    }

    /// The operation that was added last does nothing if its object does not exist; without this it
    /// makes the transaction fail, or the object. Operations on collections stay as they are.
    pub fn if_exists(&mut self) -> &mut Self {
        match self.operations.pop() {
            None => {}
            Some(once @ Operation::IfExists(_)) => self.operations.push(once),
            Some(last) => self.operations.push(Operation::IfExists(Box::new(last))),
        }
        self
    }

    /// Creates a collection that does not exist.
    pub fn create_collection(&mut self, name: &[u8]) -> &mut Self {
        self.push(Operation::CreateCollection(copied(name)))
    }

    /// Removes an empty collection.
    pub fn remove_collection(&mut self, name: &[u8]) -> &mut Self {
        self.push(Operation::RemoveCollection(copied(name)))
    }

    /// Creates an object that does not exist.
    pub fn create(&mut self, collection: &[u8], object: &[u8]) -> &mut Self {
        self.push(Operation::Create(target(collection, object)))
    }

    /// Creates an object if it does not exist.
    pub fn touch(&mut self, collection: &[u8], object: &[u8]) -> &mut Self {
        self.push(Operation::Touch(target(collection, object)))
    }

    /// Writes bytes; creates the object if it does not exist.
    pub fn write(
        &mut self,
        collection: &[u8],
        object: &[u8],
        offset: u64,
        bytes: impl Into<Bytes<'b>>,
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::Write(target, offset, bytes.into()))
    }

    /// As if zeros were written, without room for them.
    pub fn zero(&mut self, collection: &[u8], object: &[u8], offset: u64, len: u64) -> &mut Self {
        self.push(Operation::Zero(target(collection, object), offset, len))
    }

    /// Sets the size; new bytes are zeros.
    pub fn truncate(&mut self, collection: &[u8], object: &[u8], size: u64) -> &mut Self {
        self.push(Operation::Truncate(target(collection, object), size))
    }

    /// Removes an object.
    pub fn remove(&mut self, collection: &[u8], object: &[u8]) -> &mut Self {
        self.push(Operation::Remove(target(collection, object)))
    }

    /// Sets an attribute.
    pub fn set_attribute(
        &mut self,
        collection: &[u8],
        object: &[u8],
        name: &[u8],
        value: impl Into<Bytes<'b>>,
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::SetAttribute(target, copied(name), value.into()))
    }

    /// Removes an attribute if it is there.
    pub fn remove_attribute(&mut self, collection: &[u8], object: &[u8], name: &[u8]) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::RemoveAttribute(target, copied(name)))
    }

    /// Removes all attributes.
    pub fn remove_attributes(&mut self, collection: &[u8], object: &[u8]) -> &mut Self {
        self.push(Operation::RemoveAttributes(target(collection, object)))
    }

    /// Makes `to`, whatever it was, what `object` is: bytes, attributes, omap and header. Units are
    /// shared, not copied.
    pub fn clone_object(&mut self, collection: &[u8], object: &[u8], to: &[u8]) -> &mut Self {
        self.push(Operation::Clone(target(collection, object), copied(to)))
    }

    /// Copies bytes of `object`, as far as it has them, to `offset` of `to`, which is created if it
    /// does not exist.
    pub fn clone_range(
        &mut self,
        collection: &[u8],
        object: &[u8],
        range: Range<u64>,
        to: &[u8],
        offset: u64,
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::CloneRange(target, copied(to), range, offset))
    }

    /// Sets a key of the omap.
    pub fn set_omap(
        &mut self,
        collection: &[u8],
        object: &[u8],
        key: &[u8],
        value: impl Into<Bytes<'b>>,
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::SetOmap(target, copied(key), value.into()))
    }

    /// Removes a key of the omap if it is there.
    pub fn remove_omap(&mut self, collection: &[u8], object: &[u8], key: &[u8]) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::RemoveOmap(target, copied(key)))
    }

    /// Removes the keys of the omap that are not before `from`, but before `to`.
    pub fn remove_omap_range(
        &mut self,
        collection: &[u8],
        object: &[u8],
        from: &[u8],
        to: &[u8],
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::RemoveOmapRange(target, copied(from), copied(to)))
    }

    /// Removes all keys of the omap, and its header.
    pub fn clear_omap(&mut self, collection: &[u8], object: &[u8]) -> &mut Self {
        self.push(Operation::ClearOmap(target(collection, object)))
    }

    /// Sets the omap's header.
    pub fn set_omap_header(
        &mut self,
        collection: &[u8],
        object: &[u8],
        header: impl Into<Bytes<'b>>,
    ) -> &mut Self {
        let target = target(collection, object);
        self.push(Operation::SetOmapHeader(target, header.into()))
    }

    /// Does nothing if an attribute has this value, or none with `None`; else the commit fails with
    /// [`Error::Changed`]. An object that does not exist has no attributes.
    pub fn expect_attribute<V: Into<Bytes<'b>>>(
        &mut self,
        collection: &[u8],
        object: &[u8],
        name: &[u8],
        value: Option<V>,
    ) -> &mut Self {
        let (target, value) = (target(collection, object), value.map(Into::into));
        self.push(Operation::ExpectAttribute(target, copied(name), value))
    }

    /// As [`Transaction::expect_attribute`], of a key of the omap.
    pub fn expect_omap<V: Into<Bytes<'b>>>(
        &mut self,
        collection: &[u8],
        object: &[u8],
        key: &[u8],
        value: Option<V>,
    ) -> &mut Self {
        let (target, value) = (target(collection, object), value.map(Into::into));
        self.push(Operation::ExpectOmap(target, copied(key), value))
    }

    /// Moves an object to another name, in this or another collection, where no object may be.
    pub fn rename(&mut self, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> &mut Self {
        let (from, to) = (target(from.0, from.1), target(to.0, to.1));
        self.push(Operation::Rename(from, to))
    }

    /// Moves the objects whose names have these bits to another collection, which exists.
    pub fn split(&mut self, collection: &[u8], to: &[u8], which: HashBits) -> &mut Self {
        self.push(Operation::Split(copied(collection), copied(to), which))
    }

    /// Moves all objects of a collection to another one, which exists, and removes the collection.
    pub fn merge(&mut self, collection: &[u8], into: &[u8]) -> &mut Self {
        self.push(Operation::Merge(copied(collection), copied(into)))
    }
}

impl Operation<'_> {
    /// The collections that it uses.
    pub(crate) fn collections(&self) -> [Option<&[u8]>; 2] {
        let (first, second) = match self.itself() {
            Operation::CreateCollection(name) | Operation::RemoveCollection(name) => (name, None),
            Operation::Rename(from, to) => (&from.collection, Some(&to.collection)),
            Operation::Split(from, to, _) | Operation::Merge(from, to) => (from, Some(to)),
            other => match other.object() {
                Some(target) => (&target.collection, None),
                None => return [None, None],
            },
        };
        [Some(&first[..]), second.map(|name| &name[..])]
    }

    /// The object that it changes, or that it reads first; `None`: it is one on collections.
    pub(crate) fn object(&self) -> Option<&Target<'_>> {
        match self.itself() {
            Operation::CreateCollection(_)
            | Operation::RemoveCollection(_)
            | Operation::Split(..)
            | Operation::Merge(..)
            | Operation::IfExists(_) => None,
            Operation::Create(target)
            | Operation::Touch(target)
            | Operation::Write(target, ..)
            | Operation::Zero(target, ..)
            | Operation::Truncate(target, _)
            | Operation::Remove(target)
            | Operation::SetAttribute(target, ..)
            | Operation::RemoveAttribute(target, _)
            | Operation::RemoveAttributes(target)
            | Operation::Clone(target, _)
            | Operation::CloneRange(target, ..)
            | Operation::SetOmap(target, ..)
            | Operation::RemoveOmap(target, _)
            | Operation::RemoveOmapRange(target, ..)
            | Operation::ClearOmap(target)
            | Operation::SetOmapHeader(target, _)
            | Operation::ExpectAttribute(target, ..)
            | Operation::ExpectOmap(target, ..)
            | Operation::Rename(target, _) => Some(target),
        }
    }

    /// Without its conditions.
    fn itself(&self) -> &Self {
        match self {
            Operation::IfExists(inner) => inner.itself(),
            other => other,
        }
    }

    /// Whether it changes which collections there are.
    pub(crate) fn changes_registry(&self) -> bool {
        matches!(
            self.itself(),
            Operation::CreateCollection(_)
                | Operation::RemoveCollection(_)
                | Operation::Merge(_, _)
        )
    }

    fn validate(&self) -> std::result::Result<(), &'static str> {
        self.collections()
            .into_iter()
            .flatten()
            .try_for_each(check_key)?;
        if let Some(target) = self.object() {
            check_key(&target.object)?;
        }
        match self.itself() {
            Operation::SetAttribute(_, name, value) => {
                check_attribute(name)?;
                check_value(value)
            }
            Operation::RemoveAttribute(_, name) | Operation::ExpectAttribute(_, name, _) => {
                check_attribute(name)
            }
            Operation::SetOmap(_, key, value) => {
                check_key(key)?;
                check_value(value)
            }
            Operation::RemoveOmap(_, key) | Operation::ExpectOmap(_, key, _) => check_key(key),
            Operation::SetOmapHeader(_, header) => check_value(header),
            Operation::Clone(_, to) | Operation::CloneRange(_, to, ..) => check_key(to),
            Operation::Rename(_, to) => check_key(&to.object),
            Operation::Split(_, _, which) if which.bits > 64 => {
                Err("a split looks at 64 bits at most")
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn check_key(key: &[u8]) -> std::result::Result<(), &'static str> {
    match key.len() {
        0 => Err("a key must have at least one byte"),
        len if len > LONG_KEY_MAX => Err("a key may have 64 KiB at most"),
        _ => Ok(()),
    }
}

pub(crate) fn check_attribute(name: &[u8]) -> std::result::Result<(), &'static str> {
    match (1..=ATTRIBUTE_NAME_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err("the name of an attribute has 1 to 255 bytes"),
    }
}

fn check_value(value: &[u8]) -> std::result::Result<(), &'static str> {
    match value.len() <= LONG_VALUE_MAX {
        true => Ok(()),
        false => Err("a value may have 256 MiB at most"),
    }
}

impl HashBits {
    /// Whether a key has these bits.
    pub fn select(&self, key: &[u8]) -> bool {
        let Some(behind) = key.get(self.offset..) else {
            return false;
        };
        let bytes = self.bits.min(u64::BITS).div_ceil(8) as usize;
        let mut number = [0; 8];
        match behind.get(..bytes) {
            Some(first) => number[..bytes].copy_from_slice(first),
            None => return false,
        }
        // All bits of no number: a shift by 64 is none.
        let shift = u64::BITS - self.bits.min(u64::BITS);
        let found = u64::from_be_bytes(number).checked_shr(shift);
        found.unwrap_or(0) == self.value
    }
}

/// As [`Target`], of names that somebody else holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'t> {
    pub(crate) collection: &'t [u8],
    pub(crate) object: &'t [u8],
}

impl<'t> From<&'t Target<'_>> for Name<'t> {
    fn from(target: &'t Target<'_>) -> Name<'t> {
        Name {
            collection: &target.collection,
            object: &target.object,
        }
    }
}

impl Name<'_> {
    pub(crate) fn missing(self) -> Error {
        Error::NoSuchObject(shown(self.collection), shown(self.object))
    }
}

pub(crate) fn at(number: usize, error: Error) -> Error {
    Error::Operation {
        number,
        source: Box::new(error),
    }
}

pub(crate) fn accepted(transaction: &Transaction<'_>) -> Result<()> {
    match transaction.refused {
        Some((number, what)) => Err(at(number, Error::Invalid(what))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::HashBits;

    #[test]
    fn keys_are_told_apart_by_up_to_64_bits() {
        let key = 0x8123_4567_89AB_CDEFu64.to_be_bytes();
        let bits = |offset, bits, value| HashBits {
            offset,
            bits,
            value,
        };
        assert!(bits(0, 0, 0).select(&key) && bits(8, 0, 0).select(&key));
        assert!(bits(0, 1, 1).select(&key) && !bits(0, 1, 0).select(&key));
        assert!(bits(1, 32, 0x2345_6789).select(&key));
        assert!(bits(0, 33, 0x8123_4567_89AB_CDEF >> 31).select(&key));
        assert!(bits(0, 64, 0x8123_4567_89AB_CDEF).select(&key));
        assert!(!bits(0, 64, 0x8123_4567_89AB_CDEE).select(&key));
        assert!(!bits(1, 64, 0).select(&key) && !bits(9, 0, 0).select(&key));
    }
}
