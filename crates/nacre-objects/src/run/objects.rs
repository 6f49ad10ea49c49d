//! Operations on objects.

use std::ops::Range;

use nacre_store::Tree;
use nacre_store::keyed::layout::{ATTRIBUTE, HEADER_KEY, Link};
use smallvec::SmallVec;

use super::Run;
use crate::error::{Error, Result, shown};
use crate::transaction::{Name, Operation, Target};

impl<'t> Run<'_, 't> {
    pub(super) fn change_object(&mut self, operation: &'t Operation<'_>) -> Result<()> {
        match operation {
            Operation::Create(target) => match self.find(target)? {
                Some(_) => Err(Error::Exists("object", shown(&target.object))),
                None => self.create_object(target).map(drop),
            },
            Operation::Touch(target) => self.find_or_create(target).map(drop),
            Operation::Write(target, offset, bytes) => {
                let id = self.find_or_create(target)?.object;
                Ok(self.tx.data_write(id, *offset, bytes)?)
            }
            Operation::Zero(target, offset, len) => {
                let id = self.find_or_create(target)?.object;
                Ok(self.tx.data_zero(id, *offset, *len)?)
            }
            Operation::Truncate(target, size) => {
                let id = self.existing(target)?.object;
                Ok(self.tx.data_truncate(id, *size)?)
            }
            Operation::Remove(target) => self.remove_object(target),
            Operation::Clone(from, to) => self.clone_object(from, to),
            Operation::CloneRange(from, to, range, offset) => {
                self.clone_range(from, to, range, *offset)
            }
            other => self.change_keys(other),
        }
    }

    fn change_keys(&mut self, operation: &'t Operation<'_>) -> Result<()> {
        match operation {
            Operation::SetAttribute(target, name, value) => {
                let id = self.existing(target)?.object;
                self.set_attribute(id, &attribute_key(name), value)
            }
            Operation::RemoveAttribute(target, name) => {
                let id = self.existing(target)?.object;
                self.remove_attribute(id, &attribute_key(name))
            }
            Operation::RemoveAttributes(target) => {
                let id = self.existing(target)?.object;
                self.remove_attributes(id, ATTRIBUTE)
            }
            Operation::SetOmap(target, key, value) => {
                let id = self.existing(target)?.object;
                self.set_omap(id, key, value)
            }
            Operation::RemoveOmap(target, key) => {
                let id = self.existing(target)?.object;
                self.remove_omap(id, key)
            }
            Operation::RemoveOmapRange(target, from, to) => {
                let id = self.existing(target)?.object;
                self.remove_omap_range(id, from, Some(to))
            }
            Operation::ClearOmap(target) => {
                let id = self.existing(target)?.object;
                self.clear_omap(id)?;
                self.remove_attribute(id, HEADER_KEY)
            }
            Operation::SetOmapHeader(target, header) => {
                let id = self.existing(target)?.object;
                self.set_attribute(id, HEADER_KEY, header)
            }
            other => self.look(other),
        }
    }

    /// Fails if something is not as the transaction expects it.
    fn look(&mut self, operation: &'t Operation<'_>) -> Result<()> {
        match operation {
            Operation::ExpectAttribute(target, name, wanted) => {
                let found = match self.find(target)? {
                    Some(Link { object, .. }) => {
                        let item = self.get(object, Tree::Xattrs, &attribute_key(name))?;
                        self.is_value(object, item.as_deref(), wanted.as_deref())?
                    }
                    None => wanted.is_none(),
                };
                expected(found, "attribute", name)
            }
            Operation::ExpectOmap(target, key, wanted) => {
                let found = match self.find(target)? {
                    Some(Link { object, .. }) => {
                        let item = self.find_key(object, key)?;
                        self.is_value(object, item.as_deref(), wanted.as_deref())?
                    }
                    None => wanted.is_none(),
                };
                expected(found, "omap key", key)
            }
            _ => Err(Error::Invalid("not an operation on an object")),
        }
    }

    fn remove_object(&mut self, target: impl Into<Name<'t>>) -> Result<()> {
        let target = target.into();
        let link = self.existing(target)?;
        self.found = None;
        let collection = self.collection(target.collection)?;
        self.remove_key(collection.object, target.object)?;
        self.drop_named(link.object)?;
        Ok(self.tx.remove(link.object)?)
    }

    fn clone_object(&mut self, from: &'t Target<'_>, to: &'t [u8]) -> Result<()> {
        let source = self.existing(from)?.object;
        let to = Name {
            collection: &from.collection,
            object: to,
        };
        if to == Name::from(from) {
            return Ok(());
        }
        if self.find(to)?.is_some() {
            self.remove_object(to)?;
        }
        let target = self.create_object(to)?.object;
        let size = self.tx.data_size(source)?;
        self.tx.data_clone((source, 0), size, (target, 0))?;
        self.copy_attributes(source, target)?;
        self.copy_omap(source, target)
    }

    fn clone_range(
        &mut self,
        from: &'t Target<'_>,
        to: &'t [u8],
        range: &Range<u64>,
        offset: u64,
    ) -> Result<()> {
        let source = self.existing(from)?.object;
        let to = Name {
            collection: &from.collection,
            object: to,
        };
        let target = self.find_or_create(to)?.object;
        let len = range.end.saturating_sub(range.start);
        self.tx
            .data_clone((source, range.start), len, (target, offset))?;
        Ok(())
    }
}

fn expected(found: bool, what: &'static str, name: &[u8]) -> Result<()> {
    match found {
        true => Ok(()),
        false => Err(Error::Changed(what, shown(name))),
    }
}

/// The key of an attribute. Most names are short.
fn attribute_key(name: &[u8]) -> SmallVec<[u8; 64]> {
    let mut key = SmallVec::from_slice(&[ATTRIBUTE]);
    key.extend_from_slice(name);
    key
}
