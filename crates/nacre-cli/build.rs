//! Link options of the program: what the dynamic linker does for it at each start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(option) = nacre_link::packed_relocations() {
        println!("cargo:rustc-link-arg-bins={option}");
    }
    nacre_link::link_unwinder();
}
