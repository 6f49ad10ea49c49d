//! The settings of this process, as they came in its environment.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// What is kept of the environment.
#[derive(Debug, Default)]
pub struct Environment {
    /// All `NACRE_...=value` texts, to be given to every new program.
    pub settings: Vec<Vec<u8>>,
    /// Path of this library.
    pub library: Vec<u8>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<Vec<u8>>,
    /// Path of the pool's program that was executed to get here.
    pub executable: Option<Vec<u8>>,
}

static KEPT: OnceLock<Environment> = OnceLock::new();

/// The settings of this process.
pub fn get() -> &'static Environment {
    KEPT.get_or_init(Environment::default)
}

impl Environment {
    /// Passes the path of the executed program; removed from what the program sees.
    pub const EXECUTABLE: &'static [u8] = b"NACRE_EXECUTABLE=";

    /// Reads the environment at `entries`, and removes what is only for us.
    ///
    /// # Safety
    /// `entries` is a NULL-terminated array of strings that nobody else uses meanwhile.
    pub unsafe fn start(entries: *mut *const c_char) -> &'static Environment {
        let mut found = Environment::default();
        let (mut from, mut to) = (entries, entries);
        // SAFETY: `from` and `to` stay within the array: `to` never passes `from`, which ends at NULL.
        unsafe {
            while !from.read().is_null() {
                let text = CStr::from_ptr(from.read()).to_bytes();
                if !found.take(text) {
                    to.write(from.read());
                    to = to.add(1);
                }
                from = from.add(1);
            }
            to.write(core::ptr::null());
        }
        KEPT.get_or_init(|| found)
    }

    /// Keeps what is of interest. True if the program must not see it.
    fn take(&mut self, text: &[u8]) -> bool {
        if let Some(path) = text.strip_prefix(Self::EXECUTABLE) {
            self.executable = Some(path.to_vec());
            return true;
        }
        if let Some(list) = text.strip_prefix(b"LD_PRELOAD=") {
            let ours = |one: &&[u8]| one.ends_with(b"libnacre_preload.so");
            let mut all = list.split(|&b| b == b':' || b == b' ');
            self.library = all.find(ours).unwrap_or_default().to_vec();
        } else if let Some(home) = text.strip_prefix(b"XDG_CACHE_HOME=") {
            self.cache_home = home.starts_with(b"/").then(|| home.to_vec());
        } else if text.starts_with(b"NACRE_") {
            self.settings.push(text.to_vec());
        }
        false
    }

    /// Value of the setting `name`.
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        self.settings
            .iter()
            .find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// Whether a list of libraries to preload holds this one.
    pub fn is_in(&self, list: &[u8]) -> bool {
        list.split(|&b| b == b':' || b == b' ')
            .any(|one| one == self.library)
    }
}
