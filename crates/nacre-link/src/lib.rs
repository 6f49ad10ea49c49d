//! Link options that build scripts share: what the dynamic linker does at each start.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// In place of the shared libgcc_s: every program would load it, and its start asks the processor
/// for features, each of which takes microseconds under a hypervisor.
const UNWINDER: &str = "INPUT(-lgcc_eh -lgcc)\n";

/// The option for packed relocations. `None` before glibc 2.36, whose dynamic linker does not
/// understand them; what has them asks for no older one.
pub fn packed_relocations() -> Option<&'static str> {
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let version = version.map_or(Vec::new(), |output| output.stdout);
    let knows = knows_packed_relocations(&String::from_utf8_lossy(&version));
    knows.then_some("-Wl,-z,pack-relative-relocs")
}

fn knows_packed_relocations(version: &str) -> bool {
    let minor = version.trim().strip_prefix("glibc 2.");
    minor
        .and_then(|minor| minor.parse::<u32>().ok())
        .is_some_and(|minor| minor >= 36)
}

/// Links the unwinder into what is built.
pub fn link_unwinder() {
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&folder).join("libgcc_s.so"), UNWINDER).expect("the folder is cargo's");
    println!("cargo:rustc-link-search=native={folder}");
}

#[cfg(test)]
mod tests {
    use super::knows_packed_relocations;

    #[test]
    fn relocations_are_packed_from_glibc_2_36_on() {
        let known = ["glibc 2.36\n", "glibc 2.41\n", "glibc 2.100\n"];
        assert!(known.iter().all(|it| knows_packed_relocations(it)));
        let unknown = ["glibc 2.35\n", "glibc 2.4\n", "musl 1.2\n", ""];
        assert!(!unknown.iter().any(|it| knows_packed_relocations(it)));
    }
}
