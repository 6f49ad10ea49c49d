//! What a copy says that left its pool while programs had it open: it is nobody's, and where the
//! others are (D81).

use std::path::PathBuf;
use std::sync::Arc;

use nacre_media::Device;
use nacre_types::DeviceOffset;
use zerocopy::IntoBytes;

use super::{Copy, LabelInfo, decode, encode, put_copies, window};
use crate::error::VolumeError;
use crate::layout::{LABEL_SIZE, MAGIC};
use crate::member::places;

/// In the place of [`MAGIC`]: to everybody else the device has no label.
const LEFT: [u8; 8] = *b"NACRElft";

/// As [`super::erase`]; whoever knows the device learns from it which table came next.
pub(crate) fn leave(
    device: &Arc<Device>,
    size: u64,
    table: &LabelInfo,
) -> Result<(), VolumeError> {
    let first = LabelInfo {
        index: 0,
        ..table.clone()
    };
    let mut label = encode(&first);
    label.magic = LEFT;
    put_copies(device, size, label.as_bytes())
}

/// The table of the pool when the device left; `None`: it left none.
pub(crate) fn read(device: &Arc<Device>) -> Option<LabelInfo> {
    let mut bytes: [u8; LABEL_SIZE as usize] = window(device, 0).ok()?.read_array(DeviceOffset(0));
    if !is_left(&bytes) {
        return None;
    }
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    match decode(&bytes) {
        Copy::Good(table) => Some(*table),
        _ => None,
    }
}

/// Whether the bytes of a label are those of a device that left.
pub(super) fn is_left(bytes: &[u8]) -> bool {
    bytes.starts_with(&LEFT)
}

/// Where the copies of its pool are that a device left.
pub(crate) fn others(device: &Arc<Device>) -> Vec<PathBuf> {
    let folder = device.real_path();
    let table = read(device);
    let entries = table.iter().flat_map(LabelInfo::copies);
    let paths = entries.flat_map(|(_, entry)| places(entry, folder.parent()));
    paths.collect()
}
