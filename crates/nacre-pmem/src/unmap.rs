//! Addresses that change their meaning: what is unmapped, moved or mapped over. Libpmem and
//! libpmemobj unmap by these functions, too; what libc does inside itself never concerns a file.

use std::ffi::{c_int, c_void};
use std::mem::transmute;

use crate::regions::changed;
use crate::symbols::Symbol;

type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Remap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;

/// As in libc.
///
/// # Safety
/// As libc's.
// SAFETY: the name is meant to stand before libc's, and arguments and result are as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    static REAL: Symbol = Symbol::new(c"munmap");
    // SAFETY: libc's function of this name has this type.
    let real: Unmap = unsafe { transmute(REAL.of_next()) };
    // SAFETY: our caller's arguments, and its promises.
    let result = unsafe { real(at, len) };
    changed(at as usize, len);
    result
}

/// As in libc.
///
/// # Safety
/// As libc's.
// SAFETY: the name is meant to stand before libc's, and arguments and result are as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    static REAL: Symbol = Symbol::new(c"mmap");
    // SAFETY: libc's function of this name has this type.
    let real: Map = unsafe { transmute(REAL.of_next()) };
    // SAFETY: our caller's arguments, and its promises.
    let result = unsafe { real(at, len, access, flags, fd, offset) };
    if flags & libc::MAP_FIXED != 0 {
        changed(at as usize, len);
    }
    result
}

/// As in libc, where the last argument may be left out; it is passed on as it was found then, and
/// not looked at.
///
/// # Safety
/// As libc's.
// SAFETY: the name is meant to stand before libc's, and arguments and result are as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    static REAL: Symbol = Symbol::new(c"mremap");
    // SAFETY: libc's function of this name takes these, the last one by the same register.
    let real: Remap = unsafe { transmute(REAL.of_next()) };
    // SAFETY: our caller's arguments, and its promises.
    let result = unsafe { real(at, old, new, flags, to) };
    changed(at as usize, old.max(new));
    changed(
        to as usize,
        if flags & libc::MREMAP_FIXED != 0 {
            new
        } else {
            0
        },
    );
    result
}
