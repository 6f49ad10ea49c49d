//! Transactions.

use std::ffi::c_int;

use nacre_objects::{HashBits, Transaction};

use crate::errors::{Failed, guarded};
use crate::{PoolHandle, Slice, pool_of};

/// Operations that shall happen together.
pub struct TransactionHandle(Transaction<'static>);

/// Adds to a transaction what `operation` makes of slices.
///
/// # Safety
/// `tx` is null or a transaction that was neither committed nor dropped, and that no other thread
/// uses. The slices are readable, and those that the operation keeps until the commit returns.
unsafe fn on<const N: usize>(
    tx: *mut TransactionHandle,
    slices: [Slice; N],
    operation: impl for<'t> FnOnce(
        &'t mut Transaction<'static>,
        [&'static [u8]; N],
    ) -> &'t mut Transaction<'static>,
) -> c_int {
    guarded(|| {
        // SAFETY: not null, and so by this function's contract a live box that nobody else uses.
        let tx = unsafe { tx.as_mut() };
        let tx = tx.ok_or(Failed::new(libc::EINVAL, "the transaction is NULL"))?;
        // SAFETY: this function's contract.
        operation(&mut tx.0, slices.map(|slice| unsafe { slice.bytes() }));
        Ok(())
    })
}

/// A transaction without operations. Give it to nacre_commit() or nacre_tx_drop().
#[unsafe(no_mangle)]
pub extern "C" fn nacre_tx_begin() -> *mut TransactionHandle {
    Box::into_raw(Box::new(TransactionHandle(Transaction::new())))
}

/// Forgets a transaction. NULL is ignored.
///
/// # Safety
/// `tx` is NULL or a transaction that was neither committed nor dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_drop(tx: *mut TransactionHandle) {
    if !tx.is_null() {
        // SAFETY: it came from a box, and this function's contract says that it was not given back.
        drop(unsafe { Box::from_raw(tx) });
    }
}

/// Makes all operations durable, or none. The transaction is gone, whatever the result.
///
/// # Safety
/// `pool` is an open pool; `tx` is NULL or a transaction that was neither committed nor dropped;
/// what was lent to it is still there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_commit(
    pool: *const PoolHandle,
    tx: *mut TransactionHandle,
) -> c_int {
    guarded(|| {
        if tx.is_null() {
            return Err(Failed::new(libc::EINVAL, "the transaction is NULL"));
        }
        // SAFETY: it came from a box, and this function's contract says that it was not given back.
        let tx = unsafe { Box::from_raw(tx) };
        // SAFETY: this function's contract.
        Ok(unsafe { pool_of(pool) }?.commit(&tx.0)?)
    })
}

/// The operation that was added last does nothing if its object does not exist; without this it
/// makes the transaction fail.
///
/// # Safety
/// `tx` is a transaction that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_if_exists(tx: *mut TransactionHandle) -> c_int {
    // SAFETY: this function's contract.
    unsafe { on(tx, [], |t, []| t.if_exists()) }
}

/// Creates a collection that does not exist.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_create_collection(
    tx: *mut TransactionHandle,
    collection: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection], |t, [collection]| {
            t.create_collection(collection)
        })
    }
}

/// Removes an empty collection.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove_collection(
    tx: *mut TransactionHandle,
    collection: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection], |t, [collection]| {
            t.remove_collection(collection)
        })
    }
}

/// Creates an object that does not exist.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_create(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.create(collection, object)
        })
    }
}

/// Creates an object if it does not exist.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_touch(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.touch(collection, object)
        })
    }
}

/// Writes a copy of bytes at `offset`; creates the object if it does not exist.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_write(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    offset: u64,
    data: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, data],
            |t, [collection, object, data]| t.write(collection, object, offset, data.to_vec()),
        )
    }
}

/// As nacre_tx_write(), without a copy: the bytes stay as they are until the commit returns.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable, and `data` until the
/// commit returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_write_lent(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    offset: u64,
    data: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, data],
            |t, [collection, object, data]| t.write(collection, object, offset, data),
        )
    }
}

/// As if `len` zeros were written at `offset`, without room for them.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_zero(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    offset: u64,
    len: u64,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.zero(collection, object, offset, len)
        })
    }
}

/// Sets the size; new bytes are zeros.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_truncate(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    size: u64,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.truncate(collection, object, size)
        })
    }
}

/// Removes an object.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.remove(collection, object)
        })
    }
}

/// Sets an attribute.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_set_attribute(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    name: Slice,
    value: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, name, value],
            |t, [collection, object, name, value]| {
                t.set_attribute(collection, object, name, value.to_vec())
            },
        )
    }
}

/// Removes an attribute if it is there.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove_attribute(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    name: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, name],
            |t, [collection, object, name]| t.remove_attribute(collection, object, name),
        )
    }
}

/// Removes all attributes.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove_attributes(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.remove_attributes(collection, object)
        })
    }
}

/// Makes `to` what `object` is: bytes, attributes, omap and header.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_clone(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    to: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, to],
            |t, [collection, object, to]| t.clone_object(collection, object, to),
        )
    }
}

/// Copies `len` bytes at `offset` of `object` to `to_offset` of `to`, which is created if it does
/// not exist.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_clone_range(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    to: Slice,
    offset: u64,
    len: u64,
    to_offset: u64,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, to],
            |t, [collection, object, to]| {
                t.clone_range(
                    collection,
                    object,
                    offset..offset.saturating_add(len),
                    to,
                    to_offset,
                )
            },
        )
    }
}

/// Sets a key of the omap.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_set_omap(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    key: Slice,
    value: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, key, value],
            |t, [collection, object, key, value]| {
                t.set_omap(collection, object, key, value.to_vec())
            },
        )
    }
}

/// Removes a key of the omap if it is there.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove_omap(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    key: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, key],
            |t, [collection, object, key]| t.remove_omap(collection, object, key),
        )
    }
}

/// Removes the keys of the omap that are not before `from`, but before `to`.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_remove_omap_range(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    from: Slice,
    to: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, from, to],
            |t, [collection, object, from, to]| t.remove_omap_range(collection, object, from, to),
        )
    }
}

/// Removes all keys of the omap, and its header.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_clear_omap(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, object], |t, [collection, object]| {
            t.clear_omap(collection, object)
        })
    }
}

/// Sets the omap's header.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_set_omap_header(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    header: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, header],
            |t, [collection, object, header]| {
                t.set_omap_header(collection, object, header.to_vec())
            },
        )
    }
}

/// Moves an object to another name, in this or another collection, where no object may be.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_rename(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    to_collection: Slice,
    to: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(
            tx,
            [collection, object, to_collection, to],
            |t, [collection, object, to_collection, to]| {
                t.rename((collection, object), (to_collection, to))
            },
        )
    }
}

/// Moves to another collection the objects whose keys have, `offset` bytes from their start, these
/// `bits` bits, at most 64: the upper bit of a byte comes first, `value` is what they are as a
/// number.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_split(
    tx: *mut TransactionHandle,
    collection: Slice,
    to: Slice,
    offset: usize,
    bits: u32,
    value: u64,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, to], |t, [collection, to]| {
            t.split(
                collection,
                to,
                HashBits {
                    offset,
                    bits,
                    value,
                },
            )
        })
    }
}

/// Moves all objects of a collection to another one and removes the collection.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_merge(
    tx: *mut TransactionHandle,
    collection: Slice,
    into: Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        on(tx, [collection, into], |t, [collection, into]| {
            t.merge(collection, into)
        })
    }
}
