//! What an OSD of Ceph keeps beside data, for what measures transactions like its own.

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

/// The key of an entry of the log.
pub fn log_key(number: u64) -> Vec<u8> {
    format!("0000000009.{number:020}").into_bytes()
}
