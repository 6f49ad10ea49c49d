//! What an OSD of Ceph queues, for what measures transactions like its own.

use crate::Transaction;

/// Object of a collection whose omap has its log.
const META: &[u8] = b"meta";
/// What lies beside the log of a placement group, in keys behind those of its entries, with the
/// bytes of each value.
pub const BESIDE_LOG: [(&str, usize); 6] = [
    ("_biginfo", 46),
    ("_epoch", 4),
    ("_fastinfo", 186),
    ("_info", 1003),
    ("_infover", 1),
    ("may_include_deletes_in_missing", 0),
];
/// Entries of a log before the oldest one goes.
pub const LOG: u64 = 300;

/// A client's write of a part of an image, with what an OSD keeps beside it.
#[derive(Clone, Copy, Debug)]
pub struct ImageWrite<'n, 'w> {
    /// The placement group's collection.
    pub collection: &'n [u8],
    /// The part of the image.
    pub object: &'n [u8],
    /// Where in it.
    pub at: u64,
    /// What the client writes.
    pub bytes: &'w [u8],
    /// Number of its entry in the log.
    pub entry: u64,
    /// What attributes and entries are made of, 293 bytes at least.
    pub beside: &'w [u8],
}

impl<'w> ImageWrite<'_, 'w> {
    /// The data, two attributes, an entry of the log, the state of the group. The entry that is too
    /// old goes.
    pub fn transaction(&self) -> Transaction<'w> {
        let Self {
            collection,
            object,
            beside,
            ..
        } = *self;
        let mut t = Transaction::new();
        t.write(collection, object, self.at, self.bytes)
            .set_attribute(collection, object, b"_", &beside[..293])
            .set_attribute(collection, object, b"snapset", &beside[..35])
            .set_omap(collection, META, &log_key(self.entry), &beside[..234])
            .set_omap(collection, META, b"_fastinfo", &beside[..186]);
        if let Some(oldest) = self.entry.checked_sub(LOG) {
            t.remove_omap(collection, META, &log_key(oldest));
        }
        t
    }
}

/// Makes a collection whose log is empty.
pub fn new_collection(collection: &[u8]) -> Transaction<'static> {
    let mut t = Transaction::new();
    t.create_collection(collection).touch(collection, META);
    for (key, len) in BESIDE_LOG {
        t.set_omap(collection, META, key.as_bytes(), vec![1; len]);
    }
    t
}

fn log_key(number: u64) -> Vec<u8> {
    format!("0000000009.{number:020}").into_bytes()
}
