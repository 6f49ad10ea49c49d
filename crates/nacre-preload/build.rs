//! Link options of the shared object.
use std::path::Path;
use std::{env, fs};

/// In place of the shared libgcc_s: every program would load it, and its start asks the processor for
/// features, each of which takes microseconds under a hypervisor.
const UNWINDER: &str = "INPUT(-lgcc_eh -lgcc)\n";

fn main() {
    // Initialised before every other object.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&folder).join("libgcc_s.so"), UNWINDER).expect("the folder is cargo's");
    println!("cargo:rustc-link-search=native={folder}");
}
