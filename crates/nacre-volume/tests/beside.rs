//! What goes home beside a record stays there until the next one is durable.

use std::fs;
use std::path::Path;

use nacre_testkit::pool::{CAREFUL, Devices, commit_image, memory_file};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Caching, CreateOptions, Volume};

const MIB: u64 = 1 << 20;
const LEN: u64 = 32 * MIB;
const DATA: u64 = 2 * MIB;
const PLACE: VolumeOffset = VolumeOffset(8 * MIB);
/// Enough to go home beside a record.
const BYTES: usize = 128 << 10;

fn store_new(volume: &Volume, byte: u8) {
    volume.note_taken(PLACE, BYTES as u64);
    let stored = volume.write(PLACE, &[byte; BYTES], StoreKind::Data);
    volume.fence(stored).unwrap();
}

#[test]
fn what_is_freed_before_the_version_that_has_it_is_not_written_over_behind_that() {
    // A file of a disk, not of memory.
    let devices = Devices::below(Path::new(env!("CARGO_MANIFEST_DIR")));
    let options = CreateOptions {
        caching: Caching::Always,
        ..CAREFUL
    };
    let volume = devices.volume(&["a"], LEN, options);
    volume.make_image(memory_file()).unwrap();
    commit_image(&volume);
    let on_disk = || {
        let bytes = fs::read(devices.file("a")).unwrap();
        let start = (DATA + PLACE.0) as usize;
        bytes[start..start + BYTES].to_vec()
    };
    store_new(&volume, 1);
    volume.note_freed(PLACE, BYTES as u64);
    commit_image(&volume);
    assert!(on_disk() == [1; BYTES], "it went home");
    assert!(volume.is_spent(PLACE, BYTES as u64));
    store_new(&volume, 2);
    commit_image(&volume);
    assert!(on_disk() == [1; BYTES], "the record before has sums of it");
    volume.checkpoint().unwrap();
    assert!(on_disk() == [2; BYTES]);
}
