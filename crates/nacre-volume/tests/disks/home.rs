//! What tells a pool whose disks hold the same from copies of its files (D128).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nacre_types::crc32c;
use nacre_volume::{Access, Volume};

use super::Pool;

/// Where a label has its checksum, and its home.
const CRC: usize = 12;
const HOME: usize = 368;

fn identity(pool: &Pool, name: &str) -> (u64, u64) {
    let volume = Volume::open(&pool.path(name), Access::ReadOnly).unwrap();
    volume.identity().unwrap().numbers()
}

/// The file is another one, of the same bytes.
fn copied(path: &Path) {
    let aside = path.with_extension("new");
    fs::copy(path, &aside).unwrap();
    fs::rename(&aside, path).unwrap();
}

#[test]
fn a_copy_has_another_home_whichever_disk_it_lacks() {
    for lost in [None, Some("a"), Some("b")] {
        let pool = Pool::new();
        let home = identity(&pool, "a");
        let there = if lost == Some("a") { "b" } else { "a" };
        if let Some(lost) = lost {
            fs::remove_file(pool.path(lost)).unwrap();
        }
        assert_eq!(identity(&pool, there), home, "{lost:?}");
        drop(pool.open(there));
        assert_eq!(
            identity(&pool, there),
            home,
            "{lost:?}, and its labels say so"
        );
        let files = ["a", "b"].map(|name| pool.path(name));
        files
            .iter()
            .filter(|it| it.exists())
            .for_each(|it| copied(it));
        let copy = identity(&pool, there);
        assert_ne!(copy, home, "{lost:?}");
        drop(pool.open(there));
        assert_eq!(
            identity(&pool, there),
            copy,
            "{lost:?}, once its labels say so"
        );
    }
}

#[test]
fn one_of_two_that_is_another_file_by_now_changes_no_home() {
    for moved in ["a", "b"] {
        let pool = Pool::new();
        let home = identity(&pool, "a");
        copied(&pool.path(moved));
        assert_eq!(identity(&pool, "a"), home, "{moved}");
        drop(pool.open("a"));
        fs::remove_file(pool.path(if moved == "a" { "b" } else { "a" })).unwrap();
        assert_eq!(identity(&pool, moved), home, "{moved} alone");
    }
}

#[test]
fn a_copy_with_the_number_of_a_disk_that_is_gone_has_another_home() {
    let pool = Pool::new();
    fs::remove_file(pool.path("a")).unwrap();
    let path = pool.path("b");
    copied(&path);
    let mut bytes = fs::read(&path).unwrap();
    let found = fs::metadata(&path).unwrap();
    let home = (found.dev(), found.ino());
    for at in [0, bytes.len() - 4096] {
        let label = &mut bytes[at..at + 4096];
        label[HOME..HOME + 8].copy_from_slice(&home.0.to_le_bytes());
        label[HOME + 8..HOME + 16].copy_from_slice(&home.1.to_le_bytes());
        label[CRC..CRC + 4].fill(0);
        let crc = crc32c(label);
        label[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
    }
    pool.put_back("b", &bytes);
    assert_ne!(identity(&pool, "b"), home);
}
