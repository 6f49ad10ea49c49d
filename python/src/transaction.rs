//! Transactions for Python.

use nacre::{HashBits, Operation, Target, Transaction as T};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{Bytes, Error, Shared, with};

/// Operations, or a write of a `bytes` object, which is not copied, and whether only to an object
/// that exists.
enum Step {
    Plain(T<'static>),
    Write(Target<'static>, u64, Py<PyBytes>, bool),
}

/// Operations that become durable together or not at all.
#[pyclass(module = "nacre")]
pub struct Transaction {
    pool: Shared,
    /// `None` once it was committed or dropped.
    steps: Option<Vec<Step>>,
}

impl Transaction {
    pub fn of(pool: Shared) -> Transaction {
        Transaction {
            pool,
            steps: Some(Vec::new()),
        }
    }

    fn steps(&mut self) -> PyResult<&mut Vec<Step>> {
        let over = || Error::new_err("the transaction is over");
        self.steps.as_mut().ok_or_else(over)
    }

    fn add(&mut self, operation: impl FnOnce(&mut T<'static>)) -> PyResult<()> {
        let steps = self.steps()?;
        if !matches!(steps.last(), Some(Step::Plain(_))) {
            steps.push(Step::Plain(T::new()));
        }
        if let Some(Step::Plain(t)) = steps.last_mut() {
            operation(t);
        }
        Ok(())
    }
}

#[pymethods]
impl Transaction {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &mut self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if !kind.is_none() {
            self.steps = None;
        } else if self.steps.is_some() {
            self.commit(py)?;
        }
        Ok(false)
    }

    fn __len__(&self) -> usize {
        let steps = self.steps.iter().flatten();
        let lens = steps.map(|step| match step {
            Step::Plain(t) => t.len(),
            Step::Write(..) => 1,
        });
        lens.sum()
    }

    /// Makes all operations durable, or none.
    fn commit(&mut self, py: Python<'_>) -> PyResult<()> {
        let over = || Error::new_err("the transaction is over");
        let steps = self.steps.take().ok_or_else(over)?;
        let mut all = T::new();
        for step in &steps {
            match step {
                Step::Plain(t) => t.operations().iter().for_each(|operation| {
                    all.push(operation.clone());
                }),
                Step::Write(target, offset, bytes, if_exists) => {
                    let bytes = bytes.bind(py).as_bytes().into();
                    all.push(Operation::Write(target.clone(), *offset, bytes));
                    if *if_exists {
                        all.if_exists();
                    }
                }
            }
        }
        with(py, &self.pool, |pool| pool.commit(&all))
    }

    /// The operation that was added last does nothing if its object does not exist; without this it makes the
    /// transaction fail, or the object.
    fn if_exists(&mut self) -> PyResult<()> {
        match self.steps()?.last_mut() {
            None => return Err(Error::new_err("the transaction has no operation yet")),
            Some(Step::Plain(t)) => drop(t.if_exists()),
            Some(Step::Write(_, _, _, if_exists)) => *if_exists = true,
        }
        Ok(())
    }

    /// Writes bytes at an offset; creates the object if it does not exist. A `bytes` object is not copied before the commit.
    #[pyo3(signature = (collection, object, data, offset = 0))]
    fn write(
        &mut self,
        collection: Bytes,
        object: Bytes,
        data: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<()> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            let target = Target {
                collection: collection.0.into(),
                object: object.0.into(),
            };
            let bytes = bytes.clone().unbind();
            self.steps()?
                .push(Step::Write(target, offset, bytes, false));
            return Ok(());
        }
        let data: Bytes = data.extract()?;
        self.add(|t| {
            T::write(t, &collection.0, &object.0, offset, data.0);
        })
    }

    /// Copies `length` bytes at `offset`, as far as the object has them; creates `to` if it does not exist.
    fn clone_range(
        &mut self,
        collection: Bytes,
        object: Bytes,
        offset: u64,
        length: u64,
        to: Bytes,
        to_offset: u64,
    ) -> PyResult<()> {
        let range = offset..offset.saturating_add(length);
        self.add(|t| {
            T::clone_range(t, &collection.0, &object.0, range, &to.0, to_offset);
        })
    }

    /// Creates a collection that does not exist.
    fn create_collection(&mut self, collection: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::create_collection(t, &collection.0);
        })
    }

    /// Removes an empty collection.
    fn remove_collection(&mut self, collection: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::remove_collection(t, &collection.0);
        })
    }

    /// Creates an object that does not exist.
    fn create(&mut self, collection: Bytes, object: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::create(t, &collection.0, &object.0);
        })
    }

    /// Creates an object if it does not exist.
    fn touch(&mut self, collection: Bytes, object: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::touch(t, &collection.0, &object.0);
        })
    }

    /// As if zeros were written, without room for them; creates the object if it does not exist.
    fn zero(&mut self, collection: Bytes, object: Bytes, offset: u64, length: u64) -> PyResult<()> {
        self.add(|t| {
            T::zero(t, &collection.0, &object.0, offset, length);
        })
    }

    /// Sets the size; new bytes are zeros.
    fn truncate(&mut self, collection: Bytes, object: Bytes, size: u64) -> PyResult<()> {
        self.add(|t| {
            T::truncate(t, &collection.0, &object.0, size);
        })
    }

    /// Removes an object.
    fn remove(&mut self, collection: Bytes, object: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::remove(t, &collection.0, &object.0);
        })
    }

    /// Sets an attribute.
    fn set_attribute(
        &mut self,
        collection: Bytes,
        object: Bytes,
        name: Bytes,
        value: Bytes,
    ) -> PyResult<()> {
        self.add(|t| {
            T::set_attribute(t, &collection.0, &object.0, &name.0, value.0);
        })
    }

    /// Removes an attribute if it is there.
    fn remove_attribute(&mut self, collection: Bytes, object: Bytes, name: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::remove_attribute(t, &collection.0, &object.0, &name.0);
        })
    }

    /// Removes all attributes.
    fn remove_attributes(&mut self, collection: Bytes, object: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::remove_attributes(t, &collection.0, &object.0);
        })
    }

    /// Makes `to`, whatever it was, what the object is: bytes, attributes, omap and header.
    fn clone(&mut self, collection: Bytes, object: Bytes, to: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::clone_object(t, &collection.0, &object.0, &to.0);
        })
    }

    /// Sets a key of the omap.
    fn set_omap(
        &mut self,
        collection: Bytes,
        object: Bytes,
        key: Bytes,
        value: Bytes,
    ) -> PyResult<()> {
        self.add(|t| {
            T::set_omap(t, &collection.0, &object.0, &key.0, value.0);
        })
    }

    /// Removes a key of the omap if it is there.
    fn remove_omap(&mut self, collection: Bytes, object: Bytes, key: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::remove_omap(t, &collection.0, &object.0, &key.0);
        })
    }

    /// Removes the keys of the omap that are not before `start`, but before `end`.
    fn remove_omap_range(
        &mut self,
        collection: Bytes,
        object: Bytes,
        start: Bytes,
        end: Bytes,
    ) -> PyResult<()> {
        self.add(|t| {
            T::remove_omap_range(t, &collection.0, &object.0, &start.0, &end.0);
        })
    }

    /// Removes all keys of the omap, and its header.
    fn clear_omap(&mut self, collection: Bytes, object: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::clear_omap(t, &collection.0, &object.0);
        })
    }

    /// Sets the omap's header.
    fn set_omap_header(&mut self, collection: Bytes, object: Bytes, header: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::set_omap_header(t, &collection.0, &object.0, header.0);
        })
    }

    /// Does nothing if an attribute has this value, or is not there with `None`; else the commit raises `Changed`.
    fn expect_attribute(
        &mut self,
        collection: Bytes,
        object: Bytes,
        name: Bytes,
        value: Option<Bytes>,
    ) -> PyResult<()> {
        let value = value.map(|value| value.0);
        self.add(|t| {
            T::expect_attribute(t, &collection.0, &object.0, &name.0, value);
        })
    }

    /// Does nothing if a key of the omap has this value, or is not there with `None`; else the commit raises `Changed`.
    fn expect_omap(
        &mut self,
        collection: Bytes,
        object: Bytes,
        key: Bytes,
        value: Option<Bytes>,
    ) -> PyResult<()> {
        let value = value.map(|value| value.0);
        self.add(|t| {
            T::expect_omap(t, &collection.0, &object.0, &key.0, value);
        })
    }

    /// Moves an object to another name, in this or another collection, where no object may be.
    fn rename(
        &mut self,
        collection: Bytes,
        object: Bytes,
        to_collection: Bytes,
        to: Bytes,
    ) -> PyResult<()> {
        self.add(|t| {
            T::rename(t, (&collection.0, &object.0), (&to_collection.0, &to.0));
        })
    }

    /// Moves to another collection, which exists, the objects whose names have, `offset` bytes from their start,
    /// these `bits` bits, at most 64: the upper bit of a byte comes first, `value` is what they are as a number.
    fn split(
        &mut self,
        collection: Bytes,
        to: Bytes,
        offset: usize,
        bits: u32,
        value: u64,
    ) -> PyResult<()> {
        self.add(|t| {
            T::split(
                t,
                &collection.0,
                &to.0,
                HashBits {
                    offset,
                    bits,
                    value,
                },
            );
        })
    }

    /// Moves all objects of a collection to another one, which exists, and removes the collection.
    fn merge(&mut self, collection: Bytes, into: Bytes) -> PyResult<()> {
        self.add(|t| {
            T::merge(t, &collection.0, &into.0);
        })
    }
}
