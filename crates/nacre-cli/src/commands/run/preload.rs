//! Finding the libraries that are loaded into programs.

use crate::failure::{Failure, Result};
use crate::tree_path::absolute;
use nacre_runtime::setting;
use rustix::fs::MemfdFlags;
use std::env;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A library, and the variable that may name another place for it.
pub struct Library {
    name: &'static str,
    variable: &'static str,
}

/// Shows pools to programs.
pub const POOLS: Library = Library {
    name: "libnacre_preload.so",
    variable: "NACRE_PRELOAD",
};

/// Emulates devices for programs that use libpmem.
pub const PMEM: Library = Library {
    name: "libnacre_pmem.so",
    variable: "NACRE_PMEM",
};

impl Library {
    /// Where its variable says, else beside this program, else in ../lib/nacre.
    pub fn find(&self) -> Result<PathBuf> {
        let missing = |place| Failure::NoPreload {
            name: self.name,
            variable: self.variable,
            place,
        };
        if let Some(named) = setting(self.variable) {
            let named = absolute(Path::new(&named))?;
            if named.is_file() {
                return Ok(named);
            }
            return Err(missing(format!(
                "at {} ({})",
                named.display(),
                self.variable
            )));
        }
        let program = env::current_exe().map_err(|error| Failure::io("/proc/self/exe", error))?;
        let places = self.candidates(&program);
        let found = places.iter().find(|place| place.is_file());
        found.cloned().ok_or_else(|| {
            let folder = program.parent().unwrap_or(&program);
            missing(format!("in {0} nor in {0}/../lib/nacre", folder.display()))
        })
    }

    fn candidates(&self, program: &Path) -> Vec<PathBuf> {
        let Some(folder) = program.parent() else {
            return Vec::new();
        };
        let beside = folder.join(self.name);
        let installed = folder
            .parent()
            .map(|prefix| prefix.join("lib/nacre").join(self.name));
        std::iter::once(beside).chain(installed).collect()
    }
}

/// LD_PRELOAD with the library first, before what is there already.
pub fn environment(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    for other in
        env::split_paths(&before).filter(|other| other != library && !other.as_os_str().is_empty())
    {
        value.push(":");
        value.push(other);
    }
    value
}

/// `ASAN_OPTIONS` with which programs that are linked with the shared library of AddressSanitizer
/// start, although ours comes first: the last of several settings counts.
pub fn sanitizer_options() -> OsString {
    let mut options = env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

/// A file in memory in which the first process hands on how the C library is to be patched, and its
/// name; both are good as long as this process holds the file. Without it programs start a little
/// later.
pub fn plans() -> Option<(String, OwnedFd)> {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("nacre-plans", flags).ok()?;
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Some((name, file))
}

#[cfg(test)]
mod tests {
    use super::POOLS;
    use std::path::{Path, PathBuf};

    #[test]
    fn beside_the_program_comes_first() {
        let found = POOLS.candidates(Path::new("/opt/bin/nacre"));
        let expected = [
            "/opt/bin/libnacre_preload.so",
            "/opt/lib/nacre/libnacre_preload.so",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
