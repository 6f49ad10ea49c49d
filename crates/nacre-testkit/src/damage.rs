//! Metadata that is damaged on one of two copies of a pool (D113, D114, D127).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_store::Tree;
use nacre_store::structure_index::{Part, Structure};
use nacre_volume::Caching;

use crate::pool::{PoolChoice, PoolFiles};

/// Where data begins on a device.
pub const DATA_START: u64 = 2 << 20;
/// What lies behind the data that [`are_alike`] compares: labels and what copies do not share.
const END: u64 = 6 << 20;

/// The devices of [`two_copies`].
pub const NAMES: [&str; 2] = ["a", "b"];

/// Whether a structure is of a kind.
pub type Is = fn(Structure) -> bool;

/// The kinds of metadata.
pub const KINDS: [(&str, Is); 6] = [
    ("onodes", |what| what == Structure::Onode),
    ("maps", |what| matches!(what, Structure::MapNode(..))),
    ("entries", |what| {
        matches!(what, Structure::TreeNode(Tree::Entries, _))
    }),
    ("attributes", |what| {
        matches!(what, Structure::TreeNode(Tree::Xattrs, _))
    }),
    ("values", |what| what == Structure::Value),
    ("everything", |what| {
        matches!(
            what,
            Structure::Onode | Structure::MapNode(..) | Structure::TreeNode(..) | Structure::Value
        )
    }),
];

/// A fresh pool whose two devices hold the same.
pub fn two_copies() -> PoolFiles {
    PoolFiles::make(&PoolChoice {
        devices: &NAMES,
        copies: NAMES.len(),
        ..PoolChoice::default()
    })
}

/// As [`two_copies`], of devices that are used as disks are.
pub fn two_disks() -> PoolFiles {
    PoolFiles::make(&PoolChoice {
        devices: &NAMES,
        copies: NAMES.len(),
        caching: Caching::Always,
        bytes: 48 << 20,
        ..PoolChoice::default()
    })
}

/// Inverts what is of some kind on one device; answers how many parts that is.
pub fn wreck(device: &Path, parts: &[Part], is_one: impl Fn(Structure) -> bool) -> usize {
    let file = File::options().read(true).write(true).open(device);
    let file = file.expect("a device");
    let invert = |part: &Part| {
        let (at, mut bytes) = (DATA_START + part.at.0, vec![0; part.len as usize]);
        file.read_exact_at(&mut bytes, at).expect("bytes of a part");
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        file.write_all_at(&bytes, at).expect("room for a part");
    };
    let wrecked = parts.iter().filter(|part| is_one(part.what));
    wrecked.map(invert).count()
}

/// Whether the data of both devices is the same.
pub fn are_alike(files: &PoolFiles) -> bool {
    let [a, b] = NAMES.map(|name| std::fs::read(files.file(name)).expect("a device"));
    let data = DATA_START as usize..a.len() - END as usize;
    a[data.clone()] == b[data]
}
