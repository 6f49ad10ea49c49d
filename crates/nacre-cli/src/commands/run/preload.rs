//! Finding the library that is loaded into programs.

use crate::failure::{Failure, Result};
use crate::tree_path::absolute;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libnacre_preload.so";
const VARIABLE: &str = "NACRE_PRELOAD";

/// $NACRE_PRELOAD, else beside this program, else in ../lib/nacre.
pub fn find() -> Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        let named = absolute(Path::new(&named))?;
        if named.is_file() {
            return Ok(named);
        }
        return Err(Failure::NoPreload(format!(
            "at {} (NACRE_PRELOAD)",
            named.display()
        )));
    }
    let program = env::current_exe().map_err(|error| Failure::io("/proc/self/exe", error))?;
    let places = candidates(&program);
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        let folder = program.parent().unwrap_or(&program);
        Failure::NoPreload(format!("in {0} nor in {0}/../lib/nacre", folder.display()))
    })
}

fn candidates(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else {
        return Vec::new();
    };
    let beside = folder.join(LIBRARY);
    let installed = folder
        .parent()
        .map(|prefix| prefix.join("lib/nacre").join(LIBRARY));
    std::iter::once(beside).chain(installed).collect()
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

#[cfg(test)]
mod tests {
    use super::candidates;
    use std::path::{Path, PathBuf};

    #[test]
    fn beside_the_program_comes_first() {
        let found = candidates(Path::new("/opt/bin/nacre"));
        let expected = [
            "/opt/bin/libnacre_preload.so",
            "/opt/lib/nacre/libnacre_preload.so",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
