//! Link options of the shared object.
use std::path::Path;
use std::{env, fs};

/// Functions that starting, fork and the first use of a pool execute: patterns of their names, made
/// by tests/programs/start-order.py. Spread over the library they would take a page fault each.
const ORDER: &str = "start-order.txt";

/// Large variables, those that a start writes first. Without them between, the others share a page
/// or two, which are copied where a process starts or forks.
const LARGE: [&str; 7] = [
    "7signals4KEPT",
    "5patch4AREA",
    "7symbols9FUNCTIONS",
    "9instances9INSTANCES",
    "4ring5RINGS",
    "5fault5TABLE",
    "5table8NO_MARKS",
];

/// Adds to the linker's own layout.
fn layout() -> String {
    let order = fs::read_to_string(ORDER).expect("it lies beside the build script");
    let inputs = |patterns: Vec<String>| -> String {
        let lines = patterns.iter().map(|pattern| format!("*({pattern})\n"));
        lines.collect()
    };
    let names = std::iter::once("nacre_entry").chain(order.lines());
    // Also those that the compiler takes for cold.
    let functions = names.map(|name| format!(".text.{name} .text.unlikely.{name}"));
    let variables = LARGE.iter().map(|name| format!(".bss._ZN*{name}17h*"));
    format!(
        "SECTIONS {{ .text.start : {{\n{}}} }} INSERT BEFORE .text;\n\
         SECTIONS {{ .bss.large (NOLOAD) : {{\n{}}} }} INSERT AFTER .bss;\n",
        inputs(functions.collect()),
        inputs(variables.collect())
    )
}

fn main() {
    // Initialised before every other object.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // What Rust's library calls of ours is ours, not what the program has by that name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    if let Some(option) = nacre_link::packed_relocations() {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ORDER}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let script = Path::new(&folder).join("layout.ld");
    fs::write(&script, layout()).expect("the folder is cargo's");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", script.display());
    nacre_link::link_unwinder();
}
