//! Variables of ours in the environment.

use std::env;
use std::ffi::OsString;
use std::fs;

/// `AT_SECURE` of the auxiliary vector.
const SECURE: u64 = 23;
const ENTRY: usize = 16;

/// Whether the program has more rights than who started it (set-user-id, file capabilities). The
/// dynamic linker ignores its own variables then, and we ignore ours.
///
/// Of such a program the kernel shows nothing, so what cannot be read says yes.
pub fn is_secure() -> bool {
    let Ok(vector) = fs::read("/proc/self/auxv") else {
        return true;
    };
    let word = |entry: &[u8], at| {
        let mut word = [0; 8];
        word.copy_from_slice(&entry[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let mut entries = vector.chunks_exact(ENTRY);
    let found = entries.find(|entry| word(entry, 0) == SECURE);
    found.is_none_or(|entry| word(entry, 8) != 0)
}

/// The value of an environment variable, unless [`is_secure`].
pub fn setting(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|_| !is_secure())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_has_the_rights_of_who_started_it() {
        assert!(!super::is_secure());
        assert!(super::setting("PATH").is_some());
    }
}
