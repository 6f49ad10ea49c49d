//! The examples, and programs of the tests, are compiled as a user would and do what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The archive that cargo made with this test: its name has a hash, older ones may lie beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let paths = beside.map(|entry| entry.unwrap().path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libnacre_capi") && name.ends_with(".a")
    };
    let archives = paths.filter(is_archive);
    let written = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    archives.max_by_key(written).unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// As [`program`], of an example.
fn example(name: &str) -> String {
    program(&format!("examples/{name}.c"))
}

/// As [`compiled`], of a file of this crate.
fn program(source: &str) -> String {
    compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
}

/// Compiles a program against an installed library and runs it on a pool that does not exist yet.
fn compiled(source: &Path) -> String {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    on(folder.path(), source)
}

/// As [`compiled`], with the pool in this folder.
fn on(pools: &Path, source: &Path) -> String {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let prefix = folder.path();
    run(Command::new(crate_dir.join("install.sh"))
        .arg(library())
        .arg(prefix));
    let config = std::fs::read_to_string(prefix.join("lib/pkgconfig/nacre.pc")).unwrap();
    assert!(config.contains("-lnacre"));
    let program = prefix.join("program");
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
        .arg(source)
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
        .arg(pools.join("my.pool")))
}

/// What docs/objects.md prints is a program but for its frame. It has a pool of its own. Large
/// programs include a header more than once.
#[test]
fn the_ten_lines_of_the_manual_are_compiled_as_printed() {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/objects.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let (_, printed) = manual.split_once("```c\n").unwrap();
    let (printed, _) = printed.split_once("```").unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = folder.path().join("my.pool");
    assert!(printed.contains("/dev/shm/my.pool"));
    let printed = printed.replace("/dev/shm/my.pool", pool.to_str().unwrap());
    let source = folder.path().join("printed.c");
    let frame = format!(
        "#include <nacre.h>\n#include <nacre.h>\n#include <stdio.h>\nint main(void) {{\n{printed}return 0;\n}}\n"
    );
    std::fs::write(&source, frame).unwrap();
    compiled(&source);
    let pool = nacre_objects::Pool::open(pool, nacre_objects::OpenOptions::default()).unwrap();
    assert!(pool.exists(b"accounts", b"ben").unwrap());
    pool.close().unwrap();
}

const VERSIONS: [&str; 3] = ["NACRE_1", "NACRE_2", "NACRE_3"];

fn is_versioned(name: &str) -> bool {
    let parts = name.split_once("@@");
    parts.is_some_and(|(name, version)| name.starts_with("nacre_") && VERSIONS.contains(&version))
}

#[test]
fn all_symbols_have_a_version_and_nothing_else_is_exported() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    run(Command::new(crate_dir.join("install.sh"))
        .arg(library())
        .arg(folder.path()));
    let listed = run(Command::new("nm")
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(folder.path().join("lib/libnacre.so.0")));
    let names = listed.lines().filter_map(|line| line.split(' ').nth(2));
    let (ours, others): (Vec<_>, Vec<_>) = names
        .filter(|name| !VERSIONS.contains(name))
        .partition(|name| is_versioned(name));
    assert!(ours.len() > 40, "{ours:?}");
    assert_eq!(others, Vec::<&str>::new());
    assert!(folder.path().join("share/man/man3/nacre.3").exists());
}

#[test]
fn ten_lines() {
    assert_eq!(example("ten_lines"), "");
}

#[test]
fn objects() {
    assert_eq!(example("objects"), "all as it must be\n");
}

#[test]
fn what_cannot_be_is_refused_and_nothing_ends_the_program() {
    assert_eq!(program("tests/c/refused.c"), "all refused\n");
}

#[test]
fn a_device_that_fails_gives_errors_and_does_not_end_the_program() {
    assert_eq!(program("tests/c/failing.c"), "told\n");
}

#[test]
fn a_disk_that_fails_gives_errors_until_it_takes_bytes_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/disk.c");
    assert_eq!(on(folder.path(), &source), "told\n");
}

#[test]
fn a_child_leaves_its_parents_pool_alone() {
    assert_eq!(program("tests/c/forked.c"), "parent and child\n");
}

#[test]
fn the_library_works_where_threads_and_the_program_end() {
    assert_eq!(program("tests/c/ending.c"), "closed\n");
}
