//! `nacre objects`: what is put is listed, shown, got and removed.

mod commands;

use std::fs::write;
use std::path::Path;
use std::process::{Child, Command};

use commands::{nacre, text};
use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_testkit::pool::{PoolFiles, own_format};

fn objects(folder: &Path, arguments: &[&str]) -> std::process::Output {
    nacre(folder, &[&["objects"], arguments].concat())
}

fn answer(folder: &Path, arguments: &[&str]) -> String {
    let output = objects(folder, arguments);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn objects_are_put_listed_got_and_removed() {
    let pool = PoolFiles::with(&["p.pool"], 64 << 20, &own_format());
    let folder = pool.folder();
    let long = "0123456789".repeat(900_000);
    write(folder.join("long"), &long).unwrap();
    write(folder.join("short"), "90").unwrap();
    answer(folder, &["put", "p.pool", "accounts", "anna", "long"]);
    answer(folder, &["put", "p.pool", "accounts", "b\\x00n", "short"]);
    assert_eq!(answer(folder, &["list", "p.pool"]), "accounts\n");
    let names = answer(folder, &["list", "p.pool", "accounts"]);
    assert_eq!(names, "anna\nb\\x00n\n");
    assert!(answer(folder, &["get", "p.pool", "accounts", "anna"]) == long);
    // Shorter than before: nothing of the old bytes is left.
    answer(folder, &["put", "p.pool", "accounts", "anna", "short"]);
    assert_eq!(answer(folder, &["get", "p.pool", "accounts", "anna"]), "90");
    answer(folder, &["rm", "p.pool", "accounts", "b\\x00n"]);
    assert_eq!(answer(folder, &["list", "p.pool", "accounts"]), "anna\n");
    let missing = objects(folder, &["get", "p.pool", "accounts", "ben"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing).contains("there is no object \"ben\""));
}

/// Set for a process that changes the object until it is killed.
const WRITER: &str = "NACRE_TEST_WRITER";
/// Longer than what was read at once.
const LEN: usize = 5 << 20;

/// Ends with the test, however that ends.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn change_for_ever(path: &str) -> ! {
    let pool = Pool::open(path, OpenOptions::default()).unwrap();
    for mark in (1..=u8::MAX).cycle() {
        let mut t = Transaction::new();
        t.write(b"c", b"o", 0, vec![mark; LEN]);
        pool.commit(&t).unwrap();
    }
    unreachable!()
}

#[test]
fn an_object_that_changes_is_got_as_it_was_at_one_moment() {
    if let Ok(path) = std::env::var(WRITER) {
        change_for_ever(&path);
    }
    let files = PoolFiles::with(&["p.pool"], 256 << 20, &own_format());
    let folder = files.folder();
    write(folder.join("file"), vec![0; LEN]).unwrap();
    answer(folder, &["put", "p.pool", "c", "o", "file"]);
    let name = "an_object_that_changes_is_got_as_it_was_at_one_moment";
    let writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(WRITER, folder.join("p.pool"))
        .env("NACRE_SESSION_DIR", folder)
        .spawn();
    let _writer = Writer(writer.unwrap());
    let mut changed = 0;
    while changed < 5 {
        let output = objects(folder, &["get", "p.pool", "c", "o"]);
        let bytes = &output.stdout;
        assert_eq!(bytes.len(), LEN, "{}", text(&output));
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        changed += u32::from(bytes[0] > 0);
    }
}

#[test]
fn attributes_and_omaps_are_shown() {
    let pool = PoolFiles::with(&["p.pool"], 64 << 20, &own_format());
    let folder = pool.folder();
    // The session lies where the program will look for it.
    let pool = Pool::open(folder.join("p.pool"), OpenOptions::default()).unwrap();
    let mut t = Transaction::new();
    t.create_collection(b"c").touch(b"c", b"o");
    t.set_attribute(b"c", b"o", b"owner", b"anna".as_slice());
    t.set_omap(b"c", b"o", b"one", b"first".as_slice());
    t.set_omap(b"c", b"o", b"two", b"".as_slice());
    pool.commit(&t).unwrap();
    pool.close().unwrap();
    let shown = answer(folder, &["stat", "p.pool", "c", "o"]);
    assert_eq!(shown, "size: 0\nattribute owner: 4 bytes\nomap: yes\n");
    let keys = answer(folder, &["omap", "p.pool", "c", "o"]);
    assert_eq!(keys, "one 5\ntwo 0\n");
    let value = answer(folder, &["omap", "p.pool", "c", "o", "one"]);
    assert_eq!(value, "first");
    let missing = objects(folder, &["omap", "p.pool", "c", "o", "three"]);
    assert!(!missing.status.success(), "{}", text(&missing));
}

#[test]
fn transactions_of_an_osd_are_measured_and_leave_nothing_behind() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().to_str().unwrap();
    let bench = [
        "bench",
        "--sizes",
        "1K,4K",
        "--seconds",
        "1",
        "--depth",
        "3",
    ];
    let options = ["--emulate", "none", "--json", path];
    let printed = answer(folder.path(), &[&bench[..], &options].concat());
    let rows: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let figure = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    for (row, amplification) in [2.0..3.5, 1.2..1.45].iter().enumerate() {
        assert!(figure(row, "transactions_per_second") > 0.0, "{printed}");
        assert!(
            amplification.contains(&figure(row, "amplification")),
            "{printed}"
        );
        assert!((1.9..2.5).contains(&figure(row, "fences")), "{printed}");
        assert!(figure(row, "software_us") > 0.0, "{printed}");
        assert!(rows[row]["software_share"].is_null(), "{printed}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let large = objects(folder.path(), &["bench", "--sizes", "8M", path]);
    assert_eq!(large.status.code(), Some(2), "{}", text(&large));
}
