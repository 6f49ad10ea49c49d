//! Objects of a pool on a disk.

use std::fs;
use std::path::Path;

use nacre_objects::{Pool, Transaction};
use nacre_testkit::pool::{PoolChoice, PoolFiles, attach};
use nacre_volume::{Access, Caching};

fn opened(path: &Path) -> Pool {
    Pool::of(attach(path, Access::ReadWrite).expect("attach"))
}

/// The copy has what the disk has at that moment, and nothing of what is in memory alone.
#[test]
fn a_transaction_is_on_the_disk_when_it_returns() {
    let files = PoolFiles::make(&PoolChoice {
        base: Path::new(env!("CARGO_TARGET_TMPDIR")),
        bytes: 64 << 20,
        caching: Caching::Always,
        ..PoolChoice::default()
    });
    let pool = opened(&files.path());
    let mut transaction = Transaction::new();
    transaction
        .create_collection(b"c")
        .write(b"c", b"o", 0, b"bytes".as_slice());
    pool.commit(&transaction).expect("commit");

    let copy = files.file("copy");
    fs::copy(files.path(), &copy).expect("copy");
    let found = opened(&copy);
    let mut bytes = [0; 5];
    assert_eq!(found.read(b"c", b"o", 0, &mut bytes).expect("read"), 5);
    assert_eq!(&bytes, b"bytes");
    found.close().expect("close");
    pool.close().expect("close");
}
