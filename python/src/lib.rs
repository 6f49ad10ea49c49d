//! The Python package `nacre`: `_nacre.pyi` says what there is, docs/objects.md what it promises.
#![forbid(unsafe_code)]

mod transaction;

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use nacre::{OpenOptions, Pool as Inner};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyBufferError, PyException, PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use transaction::Transaction;

create_exception!(nacre, Error, PyException);
create_exception!(nacre, NotFound, Error);
create_exception!(nacre, Exists, Error);
create_exception!(nacre, Changed, Error);

/// A pool, until it is closed, or nothing of Python names it any more.
pub(crate) struct Open(RwLock<Option<Inner>>);

type Shared = Arc<Open>;

impl Open {
    fn close(&self) -> nacre::Result<()> {
        let mut open = self.0.write().unwrap_or_else(|broken| broken.into_inner());
        open.take().map_or(Ok(()), Inner::close)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // As a file does: who wants to know of failures closes it.
        let _untold = self.close();
    }
}

/// A name, key or value: bytes, or text as UTF-8.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Bytes(copy_of(text.to_str()?.as_bytes())?));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Bytes(copy_of(bytes.as_bytes())?));
        }
        let buffer = PyBuffer::<u8>::get(&object);
        let buffer =
            buffer.map_err(|_| PyTypeError::new_err("bytes, a buffer or str is needed"))?;
        let mut bytes = zeros(buffer.item_count())?;
        buffer.copy_to_slice(object.py(), &mut bytes)?;
        Ok(Bytes(bytes))
    }
}

/// Room for so many bytes. A buffer may be a mapping that is larger than memory.
fn room(len: usize) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(len);
    reserved.map_err(|_| PyMemoryError::new_err("there is no memory for a copy of the bytes"))?;
    Ok(bytes)
}

fn copy_of(bytes: &[u8]) -> PyResult<Vec<u8>> {
    let mut copy = room(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

fn zeros(len: usize) -> PyResult<Vec<u8>> {
    let mut bytes = room(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// An exception of the right kind.
pub(crate) fn raise(error: nacre::Error) -> PyErr {
    use nacre::Error as E;
    let text = error.to_string();
    match error.cause() {
        E::NoSuchCollection(_) | E::NoSuchObject(..) | E::NoSuchKey(..) => NotFound::new_err(text),
        E::Exists(..) => Exists::new_err(text),
        E::Changed(..) => Changed::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Runs something on an open pool while other Python threads go on.
pub(crate) fn with<T: Send>(
    py: Python<'_>,
    pool: &Shared,
    work: impl FnOnce(&Inner) -> nacre::Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| {
        let open = pool.0.read().unwrap_or_else(|broken| broken.into_inner());
        match &*open {
            Some(pool) => work(pool).map_err(raise),
            None => Err(Error::new_err("the pool is closed")),
        }
    })
}

/// What an object is.
#[pyclass(frozen, get_all, module = "nacre")]
struct Stat {
    size: u64,
    attributes: u64,
    has_omap: bool,
}

/// A pool that holds collections of objects. A context manager: it is closed at the end of the block.
#[pyclass(frozen, module = "nacre")]
struct Pool {
    inner: Shared,
}

fn opened(pool: Inner) -> Pool {
    Pool {
        inner: Arc::new(Open(RwLock::new(Some(pool)))),
    }
}

fn list<'py>(py: Python<'py>, names: &[Vec<u8>]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, names.iter().map(|name| PyBytes::new(py, name)))
}

fn dict<'py>(py: Python<'py>, pairs: &[(Vec<u8>, Vec<u8>)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in pairs {
        dict.set_item(PyBytes::new(py, key), PyBytes::new(py, value))?;
    }
    Ok(dict)
}

fn no_such_key(key: &[u8]) -> nacre::Error {
    nacre::Error::NoSuchKey("omap key", String::from_utf8_lossy(key).into_owned())
}

fn start_of(start: Option<Bytes>) -> Vec<u8> {
    start.map(|start| start.0).unwrap_or_default()
}

/// Bytes behind `offset` of so many.
fn behind(offset: u64, size: u64) -> usize {
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX)
}

impl Pool {
    /// Bytes of an object behind `offset`.
    fn left(&self, py: Python<'_>, c: &[u8], o: &[u8], offset: u64) -> PyResult<usize> {
        let stat = with(py, &self.inner, |pool| pool.stat(c, o))?;
        Ok(behind(offset, stat.size))
    }
}

#[pymethods]
impl Pool {
    /// Makes a pool of `size` bytes, at least 19 MiB, in a file that does not exist or is empty, and opens it.
    #[staticmethod]
    fn create(py: Python<'_>, path: PathBuf, size: u64) -> PyResult<Pool> {
        py.detach(|| Inner::create(path, size))
            .map(opened)
            .map_err(raise)
    }

    /// Opens a pool by the path of any of its devices.
    #[staticmethod]
    #[pyo3(signature = (path, read_only = false))]
    fn open(py: Python<'_>, path: PathBuf, read_only: bool) -> PyResult<Pool> {
        let options = OpenOptions { read_only };
        py.detach(|| Inner::open(path, options))
            .map(opened)
            .map_err(raise)
    }

    /// Leaves the pool, if it was not left before. A pool that nothing names any more is left, too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.close()).map_err(raise)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.close(py).map(|()| false)
    }

    /// Operations that become durable together at the end of a `with` block, or when `commit()` is called.
    fn transaction(&self) -> Transaction {
        Transaction::of(Arc::clone(&self.inner))
    }

    /// Looks at everything in a pool that nobody uses: what is wrong, a line for each problem.
    #[staticmethod]
    fn check(py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
        py.detach(|| Inner::check(path)).map_err(raise)
    }

    /// Bytes of the pool, and how many of them are free.
    fn usage(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let usage = with(py, &self.inner, |pool| Ok(pool.usage()))?;
        Ok((usage.total, usage.free))
    }

    /// Names of collections from `start` on, in order.
    #[pyo3(signature = (start = None, limit = None))]
    fn collections<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bytes>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (start, limit) = (start_of(start), limit.unwrap_or(usize::MAX));
        let names = with(py, &self.inner, |pool| pool.collections(&start, limit))?;
        list(py, &names)
    }

    /// Whether a collection exists.
    fn has_collection(&self, py: Python<'_>, collection: Bytes) -> PyResult<bool> {
        with(py, &self.inner, |pool| pool.has_collection(&collection.0))
    }

    /// Names of objects from `start` on, in order.
    #[pyo3(signature = (collection, start = None, limit = None))]
    fn objects<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        start: Option<Bytes>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (start, limit) = (start_of(start), limit.unwrap_or(usize::MAX));
        let ask = |pool: &Inner| pool.objects(&collection.0, &start, limit);
        let names = with(py, &self.inner, ask)?;
        list(py, &names)
    }

    /// Whether an object exists, in a collection that does.
    fn exists(&self, py: Python<'_>, collection: Bytes, object: Bytes) -> PyResult<bool> {
        with(py, &self.inner, |pool| {
            pool.exists(&collection.0, &object.0)
        })
    }

    /// Size, number of attributes, and whether the omap holds anything.
    fn stat(&self, py: Python<'_>, collection: Bytes, object: Bytes) -> PyResult<Stat> {
        let found = with(py, &self.inner, |pool| pool.stat(&collection.0, &object.0))?;
        Ok(Stat {
            size: found.size,
            attributes: found.attributes,
            has_omap: found.has_omap,
        })
    }

    /// Bytes of an object, all behind `offset` if no length is told.
    #[pyo3(signature = (collection, object, offset = 0, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
        offset: u64,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (c, o) = (&collection.0, &object.0);
        let most = length.unwrap_or(usize::MAX);
        let mut wanted = self.left(py, c, o, offset)?.min(most);
        loop {
            let (mut read, mut size) = (0, 0);
            let bytes = PyBytes::new_with(py, wanted, |to| {
                let ask = |pool: &Inner| pool.read_with_size(c, o, offset, to);
                (read, size) = with(py, &self.inner, ask)?;
                Ok(())
            })?;
            match behind(offset, size).min(most) {
                // It has grown: what was read is not all of one moment.
                now if now > wanted => wanted = now,
                now if now == wanted => return Ok(bytes),
                _ => return Ok(PyBytes::new(py, &bytes.as_bytes()[..read])),
            }
        }
    }

    /// Reads into a buffer that can be written; how many bytes there were.
    #[pyo3(signature = (collection, object, buffer, offset = 0))]
    fn readinto(
        &self,
        py: Python<'_>,
        collection: Bytes,
        object: Bytes,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        let buffer = PyBuffer::<u8>::get(buffer)?;
        let cells = buffer.as_mut_slice(py);
        let cells = cells.ok_or_else(|| {
            PyBufferError::new_err("the buffer cannot be written, or has gaps between its bytes")
        })?;
        let (c, o) = (&collection.0, &object.0);
        let mut wanted = self.left(py, c, o, offset)?.min(cells.len());
        loop {
            let mut bytes = zeros(wanted)?;
            let ask = |pool: &Inner| pool.read_with_size(c, o, offset, &mut bytes);
            let (read, size) = with(py, &self.inner, ask)?;
            match behind(offset, size).min(cells.len()) {
                now if now > wanted => wanted = now,
                _ => {
                    let pairs = cells.iter().zip(&bytes[..read]);
                    pairs.for_each(|(cell, byte)| cell.set(*byte));
                    return Ok(read);
                }
            }
        }
    }

    /// Where bytes lie that were written, as pairs of offset and length, in order; all else reads as zeros.
    #[pyo3(signature = (collection, object, offset = 0, length = None, limit = None))]
    fn extents(
        &self,
        py: Python<'_>,
        collection: Bytes,
        object: Bytes,
        offset: u64,
        length: Option<u64>,
        limit: Option<usize>,
    ) -> PyResult<Vec<(u64, u64)>> {
        let range = offset..offset.saturating_add(length.unwrap_or(u64::MAX));
        let limit = limit.unwrap_or(usize::MAX);
        let ask = |pool: &Inner| pool.extents(&collection.0, &object.0, range, limit);
        let found = with(py, &self.inner, ask)?.into_iter();
        Ok(found
            .map(|part| (part.start, part.end - part.start))
            .collect())
    }

    /// The value of an attribute; NotFound if there is none.
    fn attribute<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
        name: Bytes,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ask = |pool: &Inner| pool.attribute(&collection.0, &object.0, &name.0);
        with(py, &self.inner, ask).map(|value| PyBytes::new(py, &value))
    }

    /// All attributes, by name.
    fn attributes<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
    ) -> PyResult<Bound<'py, PyDict>> {
        let ask = |pool: &Inner| pool.attributes(&collection.0, &object.0);
        dict(py, &with(py, &self.inner, ask)?)
    }

    /// The value of an omap key; NotFound if there is none.
    fn omap_get<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
        key: Bytes,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ask = |pool: &Inner| pool.omap(&collection.0, &object.0, &key.0);
        match with(py, &self.inner, ask)? {
            Some(value) => Ok(PyBytes::new(py, &value)),
            None => Err(raise(no_such_key(&key.0))),
        }
    }

    /// Keys and values of an omap from `start` on, in order.
    #[pyo3(signature = (collection, object, start = None, limit = None))]
    fn omap<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
        start: Option<Bytes>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (start, limit) = (start_of(start), limit.unwrap_or(usize::MAX));
        let ask = |pool: &Inner| pool.omap_range(&collection.0, &object.0, &start, limit);
        dict(py, &with(py, &self.inner, ask)?)
    }

    /// Keys and values of an omap before `end`, from the last one on backwards.
    #[pyo3(signature = (collection, object, end = None, limit = None))]
    fn omap_back<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
        end: Option<Bytes>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (end, limit) = (start_of(end), limit.unwrap_or(usize::MAX));
        let ask = |pool: &Inner| pool.omap_back(&collection.0, &object.0, &end, limit);
        dict(py, &with(py, &self.inner, ask)?)
    }

    /// The omap's header, empty if there is none.
    fn omap_header<'py>(
        &self,
        py: Python<'py>,
        collection: Bytes,
        object: Bytes,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ask = |pool: &Inner| pool.omap_header(&collection.0, &object.0);
        with(py, &self.inner, ask).map(|value| PyBytes::new(py, &value))
    }
}

#[pymodule]
fn _nacre(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<Pool>()?;
    module.add_class::<Stat>()?;
    module.add_class::<Transaction>()?;
    module.add("Error", py.get_type::<Error>())?;
    module.add("NotFound", py.get_type::<NotFound>())?;
    module.add("Changed", py.get_type::<Changed>())?;
    module.add("Exists", py.get_type::<Exists>())
}
