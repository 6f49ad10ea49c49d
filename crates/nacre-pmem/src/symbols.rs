//! The functions that stand behind ours.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

/// A function of libpmem, found at its first call.
pub struct Symbol {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Symbol {
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    /// Its address in libpmem. Ends the process if there is none: whoever called us was linked with
    /// it.
    pub fn of_libpmem(&self) -> *mut c_void {
        self.address(|| {
            // SAFETY: the name ends with a zero. Asking libpmem itself, not the next library in the
            // order of search: a plugin that was loaded for itself alone has brought it in where
            // that order does not lead.
            unsafe { libc::dlopen(c"libpmem.so.1".as_ptr(), libc::RTLD_LAZY) }
        })
    }

    /// Its address in the libraries behind this one.
    pub fn of_next(&self) -> *mut c_void {
        self.address(|| libc::RTLD_NEXT)
    }

    fn address(&self, library: impl FnOnce() -> *mut c_void) -> *mut c_void {
        let known = self.found.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let library = library();
        let found = if library.is_null() {
            null_mut()
        } else {
            // SAFETY: a handle of dlopen or one that the system defines, and a name that ends with
            // a zero.
            unsafe { libc::dlsym(library, self.name.as_ptr()) }
        };
        if found.is_null() {
            eprintln!("nacre: the libpmem of this program has no {:?}", self.name);
            std::process::abort();
        }
        self.found.store(found, Relaxed);
        found
    }
}
