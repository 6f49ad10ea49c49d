//! `nacre check` on a damaged pool: report, dry run, repair.

mod commands;

use std::fs::{File, write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use commands::{nacre, text};
use nacre_testkit::pool::{PoolFiles, own_format};

/// Device offset of the volume.
const DATA: u64 = 2 << 20;

fn damage(pool: &Path, at: u64) {
    let device = File::options().read(true).write(true).open(pool).unwrap();
    let mut byte = [0];
    device.read_exact_at(&mut byte, at).unwrap();
    device.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
}

#[test]
fn damage_is_reported_then_foreseen_then_repaired() {
    let files = PoolFiles::with(&["p.pool"], 64 << 20, &own_format());
    let (folder, pool) = (files.folder(), files.file("p.pool"));
    write(folder.join("file"), b"contents".repeat(5000)).unwrap();
    let copied = nacre(folder, &["cp", "file", "p.pool:/file"]);
    assert!(copied.status.success(), "{}", text(&copied));
    damage(&pool, 100);
    damage(&pool, DATA + 100);
    let checked = nacre(folder, &["check", "p.pool"]);
    assert_eq!(checked.status.code(), Some(1), "{}", text(&checked));
    assert!(text(&checked).contains("superblock copy is damaged"));
    // Of the first label, and of the superblock once more: the check above wrote the label again.
    damage(&pool, 100);
    let before = std::fs::read(&pool).unwrap();
    let foreseen = nacre(folder, &["check", "--repair", "--dry-run", "p.pool"]);
    assert!(before == std::fs::read(&pool).unwrap(), "a dry run writes");
    assert!(
        text(&foreseen).contains("would do: label"),
        "{}",
        text(&foreseen)
    );
    assert!(
        text(&foreseen).contains("would do: superblock copy"),
        "{}",
        text(&foreseen)
    );
    let again = nacre(folder, &["check", "p.pool"]);
    assert_eq!(again.status.code(), Some(1), "a dry run changed something");
    let repaired = nacre(folder, &["check", "--repair", "--json", "p.pool"]);
    assert!(repaired.status.success(), "{}", text(&repaired));
    assert!(text(&repaired).contains("superblock copy rewritten"));
    let clean = nacre(folder, &["check", "p.pool"]);
    assert!(clean.status.success(), "{}", text(&clean));
    let read = nacre(folder, &["cat", "p.pool:/file"]);
    assert_eq!(read.stdout, b"contents".repeat(5000));
}

#[test]
fn what_one_of_two_disks_has_right_is_taken_from_there() {
    for damaged in ["a", "b"] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let does = |arguments: &[&str]| {
            let output = nacre(folder.path(), arguments);
            assert!(output.status.success(), "{arguments:?}: {}", text(&output));
            text(&output)
        };
        let how = ["--copies", "2", "--mode", "cached", "--size", "64M"];
        does(&[&["create"][..], &how, &["a", "b"]].concat());
        let source = folder.path().join("folder");
        std::fs::create_dir(&source).unwrap();
        for number in 0..300 {
            write(source.join(format!("a long name of a file {number}")), "x").unwrap();
        }
        does(&["cp", "-r", "folder", "a:/"]);
        let path = folder.path().join(damaged);
        let bytes = std::fs::read(&path).unwrap();
        let windows = bytes.windows(7).enumerate();
        let names = windows.filter(|(at, it)| *at as u64 > DATA && *it == b"a long ");
        let places: Vec<u64> = names.map(|(at, _)| at as u64).collect();
        assert!(places.len() > 300, "{}", places.len());
        places.iter().for_each(|at| damage(&path, *at));
        let repaired = does(&["check", "--repair", "a"]);
        assert!(repaired.contains("(by contents)"), "{repaired}");
        assert!(does(&["check", "a"]).contains("clean"));
        assert_eq!(does(&["ls", "a:/folder"]).lines().count(), 300);
        assert_eq!(does(&["ls", "a:/"]), "folder\n");
        does(&["delete", "--force", "a"]);
    }
}
