//! `nacre.h` is what cbindgen makes of the source.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(crate_dir.join("src/lib.rs"))
        .with_src(crate_dir.join("src/transaction.rs"))
        .with_src(crate_dir.join("src/read.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let path = crate_dir.join("include/nacre.h");
    if std::env::var_os("NACRE_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "include/nacre.h is not current: NACRE_UPDATE=1 cargo test -p nacre-capi --test header"
    );
}
