//! `nacre bench` as a whole: every row is there, and figures of a worker that is not intercepted
//! are never shown.

#[path = "commands/preload.rs"]
mod preload;

use nacre_testkit::pool::{PoolFiles, own_format};
use preload::preload;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NACRE: &str = env!("CARGO_BIN_EXE_nacre");

/// Every row, or what its name begins with, and how many there are of it.
const ROWS: [(&str, usize); 29] = [
    ("pread 64 B", 1),
    ("pread 256 B", 1),
    ("pread 1 KiB", 1),
    ("pread 4 KiB", 6),
    ("pread 64 KiB", 1),
    ("pread 1 MiB", 1),
    ("pwrite 64 B", 1),
    ("pwrite 4 KiB", 6),
    ("pwrite 1 MiB", 1),
    ("append ", 3),
    ("pwrite+fsync ", 2),
    ("open+close", 1),
    ("stat", 2),
    ("create+close", 6),
    ("rename", 1),
    ("unlink, empty", 1),
    ("unlink, 4 KiB", 1),
    ("mkdir", 1),
    ("rmdir", 1),
    ("open+read 4 KiB+close", 1),
    ("readdir, an entry", 1),
    ("getppid", 1),
    ("fork and exit by sh", 1),
    ("start and end of true", 1),
    ("start and end of cat FILE", 1),
    ("nacre run true", 1),
    ("private memory of a worker", 1),
    ("attach, alone", 1),
    ("detach, alone", 1),
];

/// Some library that intercepts nothing: the C library of this process.
fn harmless_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().last()?;
        path.contains("/libc.so").then(|| PathBuf::from(path))
    });
    path.expect("a C library")
}

fn bench(preload: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(NACRE);
    command.env("NACRE_PRELOAD", preload);
    command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
    command.args(["bench", "--quick", "--rounds", "1", "--milliseconds", "1"]);
    command.args(["--file-size", "2M", "--entries", "50"]);
    command.args(more).output().expect("nacre runs")
}

fn names(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| row["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn a_quick_run_has_every_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let (json, html) = (folder.path().join("j"), folder.path().join("h"));
    let paths = [json.to_str().expect("text"), html.to_str().expect("text")];
    let run = bench(&preload(), &["--json", paths[0], "--html", paths[1]]);
    let errors = String::from_utf8_lossy(&run.stderr);
    let table = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{errors}{table}");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a report")).expect("JSON");
    let names = names(&report);
    for (start, count) in ROWS {
        let found = names.iter().filter(|name| name.starts_with(start)).count();
        assert_eq!(found, count, "{start}");
    }
    for row in report["rows"].as_array().expect("rows") {
        let ours = &row["places"]["nacre"];
        for figure in ["p50", "p99", "mean"] {
            assert!(
                ours[figure].as_f64().is_some_and(|value| value > 0.0),
                "{row}"
            );
        }
        assert!(
            row["failures"]
                .as_object()
                .is_some_and(|failures| failures.is_empty())
        );
    }
    let page = fs::read_to_string(&html).expect("a page");
    assert!(
        names
            .iter()
            .all(|name| table.contains(name) && page.contains(name))
    );
}

#[test]
fn a_pool_of_ones_own_is_left_as_it_was() {
    let pool = PoolFiles::with(&["pool"], 256 << 20, &own_format());
    let path = pool.path();
    let path = path.to_str().expect("text");
    let run = bench(&preload(), &["--pool", path, "stat", "create"]);
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let list = Command::new(NACRE)
        .args(["ls", &format!("{path}:/")])
        .output();
    assert_eq!(list.expect("nacre runs").stdout, b"");
    assert_eq!(fs::read_dir(pool.folder()).expect("a folder").count(), 1);
}

#[test]
fn canary_catches_a_worker_that_is_not_intercepted() {
    let run = bench(&harmless_library(), &["stat"]);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success());
    assert!(errors.contains("not intercepted"), "{errors}");
    assert!(run.stdout.is_empty());
}

#[test]
fn a_word_that_chooses_nothing_is_refused() {
    let run = bench(&harmless_library(), &["no such row"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("no such row"));
}

/// A quick run of `nacre bench --disk`, of rows that contain a word.
fn bench_disk(preload: &Path, folder: &Path, word: &str) -> Output {
    let mut command = Command::new(NACRE);
    command.env("NACRE_PRELOAD", preload);
    command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
    command.args(["bench", "--quick", "--rounds", "1", "--disk"]);
    command.arg(folder).arg(word).output().expect("nacre runs")
}

#[test]
fn a_disk_is_measured_beside_its_file_system_and_nothing_is_left() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let run = bench_disk(&preload(), folder.path(), "write 4 KiB");
    let (table, errors) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{errors}{table}");
    assert_eq!(table.matches("x file system: ").count(), 3, "{table}");
    assert_eq!(table.matches("x bare disk: ").count(), 1, "{table}");
    assert_eq!(table.matches("x one process: ").count(), 1, "{table}");
    let left = fs::read_dir(folder.path()).expect("there").count();
    assert_eq!(left, 0);
}

#[test]
fn cold_reads_are_measured_beside_the_bare_disk() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let run = bench_disk(&preload(), folder.path(), ", cold");
    let (table, errors) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{errors}{table}");
    assert_eq!(table.matches("x bare disk: ").count(), 3, "{table}");
}

#[test]
fn canary_catches_a_disk_worker_that_is_not_intercepted() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let run = bench_disk(&harmless_library(), folder.path(), "create");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(
        !run.status.success() && errors.contains("not intercepted"),
        "{errors}"
    );
}
