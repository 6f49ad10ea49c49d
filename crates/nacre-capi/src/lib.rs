//! `libnacre.so`: objects and transactions for C.
//!
//! What callers must keep to is said once, in each function's contract: pointers are those that
//! this library gave and that were not given back, slices are readable for the call.

mod errors;
mod read;
mod transaction;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nacre_objects::{OpenOptions, Pool};

use errors::{Failed, guarded};

/// Bytes somewhere in memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    /// The first one; anything if there are none.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}

/// An opened pool.
pub struct PoolHandle(pub(crate) Pool);

/// Open to change nothing.
pub const NACRE_READ_ONLY: u32 = 1;

impl Slice {
    pub(crate) fn of(bytes: &[u8]) -> Slice {
        Slice {
            data: bytes.as_ptr().cast(),
            len: bytes.len(),
        }
    }

    /// The bytes; refused are those that cannot be anywhere.
    ///
    /// # Safety
    /// If `data` is not null, `len` bytes there are readable, and nobody changes them, for `'s`.
    pub(crate) unsafe fn bytes<'s>(self) -> Result<&'s [u8], Failed> {
        match self.len {
            0 => Ok(&[]),
            _ if self.data.is_null() => Err(invalid("a slice is NULL, but has a length")),
            len if len > MOST_BYTES => Err(invalid("a slice is longer than memory can be")),
            // SAFETY: the caller of this function promises it; no bytes need no memory.
            len => Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), len) }),
        }
    }
}

/// More bytes are not in one place.
pub(crate) const MOST_BYTES: usize = isize::MAX as usize;

/// A call that cannot be.
pub(crate) fn invalid(why: &str) -> Failed {
    Failed::new(libc::EINVAL, why)
}

/// The pool behind a handle.
///
/// # Safety
/// `pool` is null or came from `nacre_pool_open` or `nacre_pool_create` and was not closed.
pub(crate) unsafe fn pool_of<'p>(pool: *const PoolHandle) -> Result<&'p Pool, Failed> {
    // SAFETY: not null, and so by this function's contract a live box that is only shared.
    let pool = unsafe { pool.as_ref() };
    pool.map(|pool| &pool.0)
        .ok_or_else(|| invalid("the pool is NULL"))
}

/// A path that C gave.
///
/// # Safety
/// `path` is null or a string that ends with a zero.
unsafe fn path_of<'p>(path: *const c_char) -> Result<&'p Path, Failed> {
    if path.is_null() {
        return Err(invalid("the path is NULL"));
    }
    // SAFETY: not null, and so a string that ends with a zero.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

/// Refuses a result that has no place, before anything is done for it.
fn refuse_nowhere<T>(to: *const T) -> Result<(), Failed> {
    match to.is_null() {
        true => Err(invalid("there is no place for the result")),
        false => Ok(()),
    }
}

/// Gives a handle to the caller.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn hand_out<T>(to: *mut *mut T, handle: T) -> Result<(), Failed> {
    refuse_nowhere(to)?;
    // SAFETY: not null, and so writable.
    unsafe { to.write(Box::into_raw(Box::new(handle))) };
    Ok(())
}

/// The version of the library, as `major * 1000000 + minor * 1000 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// What the last call of this thread that failed had to say, or an empty string; it stays until the
/// next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_error_message() -> *const c_char {
    errors::message()
}

/// Makes a pool of `size` bytes, at least 19 MiB, in a file that does not exist or is empty, and
/// opens it.
///
/// # Safety
/// `path` is a string that ends with a zero; `pool` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pool_create(
    path: *const c_char,
    size: u64,
    pool: *mut *mut PoolHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let path = unsafe { path_of(path) }?;
        refuse_nowhere(pool)?;
        let made = PoolHandle(Pool::create(path, size)?);
        // SAFETY: this function's contract.
        unsafe { hand_out(pool, made) }
    })
}

/// Opens a pool by the path of any of its devices. `flags` is 0 or NACRE_READ_ONLY.
///
/// # Safety
/// `path` is a string that ends with a zero; `pool` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pool_open(
    path: *const c_char,
    flags: u32,
    pool: *mut *mut PoolHandle,
) -> c_int {
    guarded(|| {
        if flags & !NACRE_READ_ONLY != 0 {
            return Err(invalid("flags that do not exist"));
        }
        // SAFETY: this function's contract.
        let path = unsafe { path_of(path) }?;
        refuse_nowhere(pool)?;
        let options = OpenOptions {
            read_only: flags & NACRE_READ_ONLY != 0,
        };
        let opened = PoolHandle(Pool::open(path, options)?);
        // SAFETY: this function's contract.
        unsafe { hand_out(pool, opened) }
    })
}

/// Leaves a pool. NULL is ignored. The handle is gone, whatever the result.
///
/// # Safety
/// `pool` is NULL or a pool that was not closed, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pool_close(pool: *mut PoolHandle) -> c_int {
    guarded(|| {
        if pool.is_null() {
            return Ok(());
        }
        // SAFETY: it came from a box, and this function's contract says that nobody uses it.
        let pool = unsafe { Box::from_raw(pool) };
        Ok(pool.0.close()?)
    })
}

/// How full the pool is, in bytes.
///
/// # Safety
/// `pool` is an open pool; `total` and `free_bytes` may be written or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pool_usage(
    pool: *const PoolHandle,
    total: *mut u64,
    free_bytes: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let usage = unsafe { pool_of(pool) }?.usage();
        // SAFETY: this function's contract: what is not null may be written.
        unsafe {
            put(total, usage.total);
            put(free_bytes, usage.free);
        }
        Ok(())
    })
}

/// Looks at everything in a pool that nobody uses, else -EBUSY: `problems` is a list whose keys are
/// a line for each, empty if all is well.
///
/// # Safety
/// `path` is a string that ends with a zero; `problems` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pool_check(
    path: *const c_char,
    problems: *mut *mut read::ListHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: this function's contract.
        let path = unsafe { path_of(path) }?;
        let found = Pool::check(path)?.into_iter().map(String::into_bytes);
        // SAFETY: this function's contract.
        unsafe { hand_out(problems, read::names(found.collect())) }
    })
}

/// Stores a result if somebody wants it.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and so writable.
        unsafe { to.write(value) };
    }
}
