//! What ThreadSanitizer asks of the libraries that it finds.

use core::ffi::{CStr, c_char};

/// It does not know how this library orders its accesses, and would report them as races.
const SUPPRESSIONS: &CStr = c"called_from_lib:libnacre_preload.so\n";

// SAFETY: libtsan declares it so, and calls it before anything else.
#[unsafe(no_mangle)]
extern "C" fn __tsan_default_suppressions() -> *const c_char {
    SUPPRESSIONS.as_ptr()
}
