//! The functions of libpmem that make something durable, under their own names.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;

use crate::persist::persist;
use crate::symbols::Symbol;

/// The caller flushes later, by another call.
const PMEM_F_MEM_NOFLUSH: c_uint = 1 << 5;

type Flush = unsafe extern "C" fn(*const c_void, usize);
type Sync = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type CopyWith = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_uint) -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type SetWith = unsafe extern "C" fn(*mut c_void, c_int, usize, c_uint) -> *mut c_void;

/// How many of `len` bytes a call with these flags makes durable.
fn flushed(len: usize, flags: c_uint) -> usize {
    if flags & PMEM_F_MEM_NOFLUSH == 0 {
        len
    } else {
        0
    }
}

/// Defines a function that has the name, arguments and result of libpmem's, calls it, and tells of
/// `$at` and `$len`.
macro_rules! interpose {
    ($name:ident: $kind:ty, ($($argument:ident: $type:ty),*) -> $result:ty, $at:expr, $len:expr) => {
        /// As in libpmem.
        ///
        /// # Safety
        /// As libpmem's.
        // SAFETY: the name is meant to stand before libpmem's, and arguments and result are as
        // there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static REAL: Symbol = Symbol::new(
                // A name without zeros and one zero behind it.
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            // SAFETY: libpmem's function of this name has this type, by its header.
            let real: $kind = unsafe { transmute(REAL.of_libpmem()) };
            persist($at as usize, $len, || {
                // SAFETY: our caller's arguments, and its promises.
                unsafe { real($($argument),*) }
            })
        }
    };
}

interpose!(pmem_flush: Flush, (at: *const c_void, len: usize) -> (), at, len);
interpose!(pmem_persist: Flush, (at: *const c_void, len: usize) -> (), at, len);
interpose!(pmem_deep_flush: Flush, (at: *const c_void, len: usize) -> (), at, len);
interpose!(pmem_deep_persist: Sync, (at: *const c_void, len: usize) -> c_int, at, len);
interpose!(pmem_msync: Sync, (at: *const c_void, len: usize) -> c_int, at, len);
interpose!(pmem_memcpy_persist: Copy, (to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memcpy_nodrain: Copy, (to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memmove_persist: Copy, (to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memmove_nodrain: Copy, (to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memset_persist: Set, (to: *mut c_void, byte: c_int, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memset_nodrain: Set, (to: *mut c_void, byte: c_int, len: usize) -> *mut c_void, to, len);
interpose!(pmem_memcpy: CopyWith, (to: *mut c_void, from: *const c_void, len: usize, flags: c_uint) -> *mut c_void, to, flushed(len, flags));
interpose!(pmem_memmove: CopyWith, (to: *mut c_void, from: *const c_void, len: usize, flags: c_uint) -> *mut c_void, to, flushed(len, flags));
interpose!(pmem_memset: SetWith, (to: *mut c_void, byte: c_int, len: usize, flags: c_uint) -> *mut c_void, to, flushed(len, flags));
