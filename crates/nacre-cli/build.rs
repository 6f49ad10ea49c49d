//! Link options of the program: what the dynamic linker does for it at each start.
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// In place of the shared libgcc_s, which would be one more library to load.
const UNWINDER: &str = "INPUT(-lgcc_eh -lgcc)\n";

/// The dynamic linker understands them from glibc 2.36 on.
fn knows_packed_relocations() -> bool {
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let version = version.map_or(Vec::new(), |output| output.stdout);
    let version = String::from_utf8_lossy(&version).trim().to_string();
    let minor = version.strip_prefix("glibc 2.");
    minor
        .and_then(|minor| minor.parse::<u32>().ok())
        .is_some_and(|minor| minor >= 36)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if knows_packed_relocations() {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&folder).join("libgcc_s.so"), UNWINDER).expect("the folder is cargo's");
    println!("cargo:rustc-link-search=native={folder}");
}
