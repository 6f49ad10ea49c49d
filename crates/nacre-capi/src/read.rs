//! Reading.

use std::ffi::{c_int, c_void};

use nacre_objects::Pool;

use crate::errors::{Failed, guarded};
use crate::{MOST_BYTES, PoolHandle, Slice, hand_out, invalid, pool_of, put};

/// What an object is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ObjectStat {
    /// Bytes.
    pub size: u64,
    /// Attributes.
    pub attributes: u64,
    /// 1 if its omap holds anything, else 0.
    pub has_omap: u32,
    /// 0.
    pub reserved: u32,
}

/// Bytes of an object that were written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Names, or names and values, in order.
pub struct ListHandle(Vec<(Vec<u8>, Vec<u8>)>);

const NO_BYTES: Slice = Slice {
    data: std::ptr::null(),
    len: 0,
};

pub(crate) fn names(found: Vec<Vec<u8>>) -> ListHandle {
    ListHandle(found.into_iter().map(|name| (name, Vec::new())).collect())
}

/// Makes a list of what a pool answers.
///
/// # Safety
/// `pool` is null or an open pool; `list` is null or may be written.
unsafe fn list_of(
    pool: *const PoolHandle,
    list: *mut *mut ListHandle,
    ask: impl FnOnce(&Pool) -> Result<ListHandle, Failed>,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let found = ask(unsafe { pool_of(pool) }?)?;
        // SAFETY: this function's contract.
        unsafe { hand_out(list, found) }
    })
}

/// Copies what a pool answers to the caller's buffer.
///
/// # Safety
/// `pool` is null or an open pool; `capacity` bytes at `buffer` may be written; `len` is null or
/// may be written.
unsafe fn copy_of(
    pool: *const PoolHandle,
    (buffer, capacity, len): (*mut c_void, usize, *mut usize),
    ask: impl FnOnce(&Pool) -> Result<Vec<u8>, Failed>,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let found = ask(unsafe { pool_of(pool) }?)?;
        // SAFETY: this function's contract.
        unsafe { put(len, found.len()) };
        refuse_no_buffer(buffer, found.len().min(capacity))?;
        if found.len() > capacity {
            return Err(Failed::new(libc::ERANGE, "the buffer is too short"));
        }
        if !found.is_empty() {
            // SAFETY: the buffer has room for that many bytes, and nobody else knows of `found`.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), buffer.cast(), found.len()) };
        }
        Ok(())
    })
}

/// Refuses a buffer that is not there, unless nothing goes there.
fn refuse_no_buffer<T>(buffer: *const T, capacity: usize) -> Result<(), Failed> {
    match buffer.is_null() && capacity > 0 {
        true => Err(invalid("the buffer is NULL, but has a length")),
        false => Ok(()),
    }
}

/// 0 if the collection exists, -ENOENT if not.
///
/// # Safety
/// `pool` is an open pool; the slice is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_collection_exists(
    pool: *const PoolHandle,
    collection: Slice,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let (pool, name) = unsafe { (pool_of(pool)?, collection.bytes()?) };
        match pool.has_collection(name)? {
            true => Ok(()),
            false => Err(Failed::new(libc::ENOENT, "there is no such collection")),
        }
    })
}

/// Names of collections from `from` on, at most `limit`. They are the keys of the list.
///
/// # Safety
/// `pool` is an open pool; the slice is readable; `list` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_collections(
    pool: *const PoolHandle,
    from: Slice,
    limit: usize,
    list: *mut *mut ListHandle,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        list_of(pool, list, |pool| {
            Ok(names(pool.collections(from.bytes()?, limit)?))
        })
    }
}

/// Names of objects of a collection from `from` on, at most `limit`. They are the keys of the list.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `list` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_objects(
    pool: *const PoolHandle,
    collection: Slice,
    from: Slice,
    limit: usize,
    list: *mut *mut ListHandle,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        list_of(pool, list, |pool| {
            let found = pool.objects(collection.bytes()?, from.bytes()?, limit)?;
            Ok(names(found))
        })
    }
}

/// 0 if the object exists, -ENOENT if not.
///
/// # Safety
/// `pool` is an open pool; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_exists(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let (pool, c, o) = unsafe { (pool_of(pool)?, collection.bytes()?, object.bytes()?) };
        match pool.exists(c, o)? {
            true => Ok(()),
            false => Err(Failed::new(libc::ENOENT, "there is no such object")),
        }
    })
}

/// What an object is; -ENOENT if there is none.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `found` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_stat(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    found: *mut ObjectStat,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let (pool, c, o) = unsafe { (pool_of(pool)?, collection.bytes()?, object.bytes()?) };
        let stat = pool.stat(c, o)?;
        let answer = ObjectStat {
            size: stat.size,
            attributes: stat.attributes,
            has_omap: stat.has_omap.into(),
            reserved: 0,
        };
        // SAFETY: this function's contract.
        unsafe { put(found, answer) };
        Ok(())
    })
}

/// Reads up to `capacity` bytes of an object from `offset` on; `len` says how many there were.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
/// and `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_read(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    offset: u64,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let (pool, c, o) = unsafe { (pool_of(pool)?, collection.bytes()?, object.bytes()?) };
        refuse_no_buffer(buffer, capacity)?;
        let to: &mut [u8] = match capacity.min(MOST_BYTES) {
            0 => &mut [],
            // SAFETY: that many bytes may be written, and are nobody else's during the call.
            len => unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) },
        };
        let read = pool.read(c, o, offset, to)?;
        // SAFETY: this function's contract.
        unsafe { put(len, read) };
        Ok(())
    })
}

/// Where bytes of an object lie that were written, within `len` bytes at `offset`, in order; all
/// else reads as zeros. `count` says how many extents there were, at most `capacity`: if it is
/// that, go on behind the last one.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `capacity` extents at `extents` may be written,
/// and `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_extents(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    offset: u64,
    len: u64,
    extents: *mut Extent,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let (pool, c, o) = unsafe { (pool_of(pool)?, collection.bytes()?, object.bytes()?) };
        refuse_no_buffer(extents, capacity)?;
        let found = pool.extents(c, o, offset..offset.saturating_add(len), capacity)?;
        for (at, range) in found.iter().enumerate() {
            let extent = Extent {
                offset: range.start,
                len: range.end - range.start,
            };
            // SAFETY: there are no more than `capacity`.
            unsafe { extents.add(at).write(extent) };
        }
        // SAFETY: this function's contract.
        unsafe { put(count, found.len()) };
        Ok(())
    })
}

/// The value of an attribute; -ENODATA if there is none. `len` is its length even if the buffer is
/// too short (-ERANGE).
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
/// and `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_get_attribute(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    name: Slice,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        copy_of(pool, (buffer, capacity, len), |pool| {
            Ok(pool.attribute(collection.bytes()?, object.bytes()?, name.bytes()?)?)
        })
    }
}

/// All attributes of an object: names, which are the keys of the list, and values.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `list` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_attributes(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    list: *mut *mut ListHandle,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        list_of(pool, list, |pool| {
            let found = pool.attributes(collection.bytes()?, object.bytes()?)?;
            Ok(ListHandle(found))
        })
    }
}

/// The value of an omap key; -ENODATA if there is none. `len` is its length even if the buffer is
/// too short (-ERANGE).
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
/// and `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_get_omap(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    key: Slice,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        copy_of(pool, (buffer, capacity, len), |pool| {
            let found = pool.omap(collection.bytes()?, object.bytes()?, key.bytes()?)?;
            found.ok_or(Failed::new(libc::ENODATA, "the omap has no such key"))
        })
    }
}

/// The omap's header, empty if there is none. `len` is its length even if the buffer is too short
/// (-ERANGE).
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
/// and `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_get_omap_header(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        copy_of(pool, (buffer, capacity, len), |pool| {
            Ok(pool.omap_header(collection.bytes()?, object.bytes()?)?)
        })
    }
}

/// Keys and values of an omap from `from` on, at most `limit`.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `list` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_omap(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    from: Slice,
    limit: usize,
    list: *mut *mut ListHandle,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        list_of(pool, list, |pool| {
            let (c, o, from) = (collection.bytes()?, object.bytes()?, from.bytes()?);
            Ok(ListHandle(pool.omap_range(c, o, from, limit)?))
        })
    }
}

/// Keys and values of an omap that are before `end`, all if that is empty, from the last one on
/// backwards, at most `limit`. To go on, ask with the last key of the list.
///
/// # Safety
/// `pool` is an open pool; the slices are readable; `list` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_omap_back(
    pool: *const PoolHandle,
    collection: Slice,
    object: Slice,
    end: Slice,
    limit: usize,
    list: *mut *mut ListHandle,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        list_of(pool, list, |pool| {
            let (c, o, end) = (collection.bytes()?, object.bytes()?, end.bytes()?);
            Ok(ListHandle(pool.omap_back(c, o, end, limit)?))
        })
    }
}

/// How many entries a list has.
///
/// # Safety
/// `list` is NULL or a list that was not dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_len(list: *const ListHandle) -> usize {
    // SAFETY: this function's contract.
    unsafe { list.as_ref() }.map_or(0, |list| list.0.len())
}

/// A name or key of a list, no bytes behind its end; it stays until the list is dropped.
///
/// # Safety
/// `list` is NULL or a list that was not dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_key(list: *const ListHandle, index: usize) -> Slice {
    // SAFETY: this function's contract.
    let entry = unsafe { list.as_ref() }.and_then(|list| list.0.get(index));
    entry.map_or(NO_BYTES, |(key, _)| Slice::of(key))
}

/// A value of a list, no bytes behind its end; it stays until the list is dropped.
///
/// # Safety
/// `list` is NULL or a list that was not dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_value(list: *const ListHandle, index: usize) -> Slice {
    // SAFETY: this function's contract.
    let entry = unsafe { list.as_ref() }.and_then(|list| list.0.get(index));
    entry.map_or(NO_BYTES, |(_, value)| Slice::of(value))
}

/// Drops a list. NULL is ignored.
///
/// # Safety
/// `list` is NULL or a list that was not dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_list_drop(list: *mut ListHandle) {
    if !list.is_null() {
        // SAFETY: it came from a box, and this function's contract says that it was not given back.
        drop(unsafe { Box::from_raw(list) });
    }
}
