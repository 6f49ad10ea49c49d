//! Transactions.

use std::borrow::Cow;
use std::ffi::c_int;

use nacre_objects::{Bytes, HashBits, Operation, Target, Transaction};

use crate::errors::{Failed, guarded};
use crate::{PoolHandle, Slice, invalid, pool_of};

/// Operations that shall happen together.
#[derive(Default)]
pub struct TransactionHandle {
    transaction: Transaction<'static>,
    /// Names and values are not copied, either.
    lent: bool,
    /// Why an operation could not be added: without it the others are not what is wanted.
    failed: Option<Failed>,
}

impl TransactionHandle {
    fn begin(lent: bool) -> *mut TransactionHandle {
        Box::into_raw(Box::new(TransactionHandle {
            lent,
            ..TransactionHandle::default()
        }))
    }

    /// Bytes of slices, copied if nothing is lent. The commit fails, too, if one cannot be.
    ///
    /// # Safety
    /// That of [`Slice::bytes`], until the commit returns if bytes are lent.
    unsafe fn bytes<const N: usize>(
        &mut self,
        slices: [Slice; N],
    ) -> Result<[Bytes<'static>; N], Failed> {
        let mut all = std::array::from_fn(|_| Cow::Borrowed(&[][..]));
        for (to, slice) in all.iter_mut().zip(slices) {
            // SAFETY: this function's contract.
            let bytes = unsafe { slice.bytes() }.map_err(|failed| self.refuse(failed))?;
            *to = match self.lent {
                true => Cow::Borrowed(bytes),
                false => Cow::Owned(copy_of(bytes).map_err(|failed| self.refuse(failed))?),
            };
        }
        Ok(all)
    }

    /// Remembers why the next operation could not be added.
    fn refuse(&mut self, failed: Failed) -> Failed {
        let failed = failed.of_operation(self.transaction.len());
        self.failed.get_or_insert_with(|| failed.clone());
        failed
    }
}

/// A copy, which can be too large for memory: bytes may lie in a mapping of a file without blocks.
fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Failed> {
    let mut copy = Vec::new();
    let room = copy.try_reserve_exact(bytes.len());
    room.map_err(|_| Failed::new(libc::ENOMEM, "there is no memory for a copy of its bytes"))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// The transaction behind a handle.
///
/// # Safety
/// `tx` is null or a transaction that was neither committed nor dropped, and that no other thread
/// uses.
unsafe fn transaction_of<'t>(
    tx: *mut TransactionHandle,
) -> Result<&'t mut TransactionHandle, Failed> {
    // SAFETY: not null, and so by this function's contract a live box that nobody else uses.
    let tx = unsafe { tx.as_mut() };
    tx.ok_or_else(|| invalid("the transaction is NULL"))
}

/// Adds to a transaction what `operation` makes of slices.
///
/// # Safety
/// That of [`transaction_of`]. The slices are readable, and those that the transaction does not
/// copy until the commit returns.
unsafe fn add<const N: usize>(
    tx: *mut TransactionHandle,
    slices: [Slice; N],
    operation: impl FnOnce([Bytes<'static>; N]) -> Operation<'static>,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let tx = unsafe { transaction_of(tx) }?;
        // SAFETY: this function's contract.
        let bytes = unsafe { tx.bytes(slices) }?;
        tx.transaction.push(operation(bytes));
        Ok(())
    })
}

/// As [`add`], of an object.
///
/// # Safety
/// That of [`add`].
unsafe fn add_to<const N: usize>(
    tx: *mut TransactionHandle,
    object: [Slice; 2],
    slices: [Slice; N],
    operation: impl FnOnce(Target<'static>, [Bytes<'static>; N]) -> Operation<'static>,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let tx = unsafe { transaction_of(tx) }?;
        // SAFETY: this function's contract.
        let ([collection, object], bytes) = unsafe { (tx.bytes(object)?, tx.bytes(slices)?) };
        let target = Target { collection, object };
        tx.transaction.push(operation(target, bytes));
        Ok(())
    })
}

/// A transaction without operations. Give it to nacre_commit() or nacre_tx_drop().
#[unsafe(no_mangle)]
pub extern "C" fn nacre_tx_begin() -> *mut TransactionHandle {
    TransactionHandle::begin(false)
}

/// As nacre_tx_begin(), of a transaction that copies nothing: names, keys and values stay as they
/// are until the commit returns.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_tx_begin_lent() -> *mut TransactionHandle {
    TransactionHandle::begin(true)
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
            return Err(invalid("the transaction is NULL"));
        }
        // SAFETY: it came from a box, and this function's contract says that it was not given back.
        let tx = unsafe { Box::from_raw(tx) };
        // SAFETY: this function's contract.
        let pool = unsafe { pool_of(pool) }?;
        match tx.failed {
            Some(failed) => Err(failed),
            None => Ok(pool.commit(&tx.transaction)?),
        }
    })
}

/// The operation that was added last does nothing if its object does not exist; without this it
/// makes the transaction fail, or the object.
///
/// # Safety
/// `tx` is a transaction that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_if_exists(tx: *mut TransactionHandle) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let transaction = &mut unsafe { transaction_of(tx) }?.transaction;
        if transaction.is_empty() {
            return Err(invalid("the transaction has no operation yet"));
        }
        transaction.if_exists();
        Ok(())
    })
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
    unsafe { add(tx, [collection], |[name]| Operation::CreateCollection(name)) }
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
    unsafe { add(tx, [collection], |[name]| Operation::RemoveCollection(name)) }
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
    unsafe { add_to(tx, [collection, object], [], |at, []| Operation::Create(at)) }
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
    unsafe { add_to(tx, [collection, object], [], |at, []| Operation::Touch(at)) }
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
        add_to(tx, [collection, object], [data], |at, [data]| {
            Operation::Write(at, offset, data)
        })
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
    guarded(|| {
        // SAFETY: this function's contract.
        let tx = unsafe { transaction_of(tx) }?;
        // SAFETY: this function's contract.
        let [collection, object] = unsafe { tx.bytes([collection, object]) }?;
        // SAFETY: this function's contract: these stay until the commit, whatever else is copied.
        let data = unsafe { data.bytes() }.map_err(|failed| tx.refuse(failed))?;
        let target = Target { collection, object };
        let write = Operation::Write(target, offset, Cow::Borrowed(data));
        tx.transaction.push(write);
        Ok(())
    })
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
        add_to(tx, [collection, object], [], |at, []| {
            Operation::Zero(at, offset, len)
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
        add_to(tx, [collection, object], [], |at, []| {
            Operation::Truncate(at, size)
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
    unsafe { add_to(tx, [collection, object], [], |at, []| Operation::Remove(at)) }
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
        add_to(
            tx,
            [collection, object],
            [name, value],
            |at, [name, value]| Operation::SetAttribute(at, name, value),
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
        add_to(tx, [collection, object], [name], |at, [name]| {
            Operation::RemoveAttribute(at, name)
        })
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
        add_to(tx, [collection, object], [], |at, []| {
            Operation::RemoveAttributes(at)
        })
    }
}

/// Makes `to`, whatever it was, what `object` is: bytes, attributes, omap and header.
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
        add_to(tx, [collection, object], [to], |at, [to]| {
            Operation::Clone(at, to)
        })
    }
}

/// Copies `len` bytes at `offset` of `object`, as far as it has them, to `to_offset` of `to`, which
/// is created if it does not exist.
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
        add_to(tx, [collection, object], [to], |at, [to]| {
            let range = offset..offset.saturating_add(len);
            Operation::CloneRange(at, to, range, to_offset)
        })
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
        add_to(
            tx,
            [collection, object],
            [key, value],
            |at, [key, value]| Operation::SetOmap(at, key, value),
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
        add_to(tx, [collection, object], [key], |at, [key]| {
            Operation::RemoveOmap(at, key)
        })
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
        add_to(tx, [collection, object], [from, to], |at, [from, to]| {
            Operation::RemoveOmapRange(at, from, to)
        })
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
        add_to(tx, [collection, object], [], |at, []| {
            Operation::ClearOmap(at)
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
        add_to(tx, [collection, object], [header], |at, [header]| {
            Operation::SetOmapHeader(at, header)
        })
    }
}

/// Makes the commit fail with -ECANCELED unless an attribute has this value then, or is not there
/// if `value` is NULL. An object that does not exist has no attributes.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable, and `value` if it is
/// not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_expect_attribute(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    name: Slice,
    value: *const Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        expect(
            tx,
            [collection, object],
            name,
            value,
            Operation::ExpectAttribute,
        )
    }
}

/// Makes the commit fail with -ECANCELED unless a key of the omap has this value then, or is not
/// there if `value` is NULL. An object that does not exist has no keys.
///
/// # Safety
/// `tx` is a transaction that no other thread uses; the slices are readable, and `value` if it is
/// not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_tx_expect_omap(
    tx: *mut TransactionHandle,
    collection: Slice,
    object: Slice,
    key: Slice,
    value: *const Slice,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { expect(tx, [collection, object], key, value, Operation::ExpectOmap) }
}

/// Adds an expectation of a value, or of none if `value` is null.
///
/// # Safety
/// That of [`add_to`]; `value` may be read if it is not null.
unsafe fn expect(
    tx: *mut TransactionHandle,
    object: [Slice; 2],
    name: Slice,
    value: *const Slice,
    operation: fn(Target<'static>, Bytes<'static>, Option<Bytes<'static>>) -> Operation<'static>,
) -> c_int {
    // SAFETY: not null, and so readable by this function's contract.
    match unsafe { value.as_ref() } {
        // SAFETY: this function's contract.
        Some(&value) => unsafe {
            add_to(tx, object, [name, value], |at, [name, value]| {
                operation(at, name, Some(value))
            })
        },
        // SAFETY: this function's contract.
        None => unsafe { add_to(tx, object, [name], |at, [name]| operation(at, name, None)) },
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
        add_to(
            tx,
            [collection, object],
            [to_collection, to],
            |from, [collection, object]| Operation::Rename(from, Target { collection, object }),
        )
    }
}

/// Moves to another collection, which exists, the objects whose names have, `offset` bytes from
/// their start, these `bits` bits, at most 64: the upper bit of a byte comes first, `value` is what
/// they are as a number.
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
        add(tx, [collection, to], |[from, to]| {
            let which = HashBits {
                offset,
                bits,
                value,
            };
            Operation::Split(from, to, which)
        })
    }
}

/// Moves all objects of a collection to another one, which exists, and removes the collection.
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
        add(tx, [collection, into], |[from, into]| {
            Operation::Merge(from, into)
        })
    }
}
