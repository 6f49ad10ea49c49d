//! The examples are compiled as a user would and do what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let beside = deps.join("libnacre_capi.so");
    match beside.exists() {
        true => beside,
        false => deps.with_file_name("libnacre_capi.so"),
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles an example against an installed library and runs it on a pool that does not exist yet.
fn example(name: &str) -> String {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let prefix = folder.path();
    run(Command::new(crate_dir.join("install.sh"))
        .arg(library())
        .arg(prefix));
    let config = std::fs::read_to_string(prefix.join("lib/pkgconfig/nacre.pc")).unwrap();
    assert!(config.contains("-lnacre"));
    let program = prefix.join(name);
    run(Command::new("gcc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-pthread",
        ])
        .arg(crate_dir.join("examples").join(name).with_extension("c"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(format!("-L{}", prefix.join("lib").display()))
        .arg("-lnacre"));
    let needed = run(Command::new("readelf").arg("-d").arg(&program));
    assert!(needed.contains("libnacre.so.0"), "{needed}");
    run(Command::new(&program)
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .env("NACRE_SESSION_DIR", prefix)
        .arg(prefix.join("my.pool")))
}

#[test]
fn ten_lines() {
    assert_eq!(example("ten_lines"), "");
}

#[test]
fn objects() {
    assert_eq!(example("objects"), "all as it must be\n");
}
