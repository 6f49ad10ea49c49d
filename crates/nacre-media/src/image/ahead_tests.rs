//! What is read ahead is used, and not if it may be old.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nacre_types::{DeviceOffset, UNIT_SIZE};

use super::tests::{Stage, byte_of, first_byte, stage_of};
use super::{Image, REGION};

const REGIONS: u64 = 6;
/// What the disk gets meanwhile.
const NEW: u8 = 255;

fn open_direct(path: &Path) -> OwnedFd {
    let direct = |flags| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
    };
    direct(libc::O_DIRECT)
        .or_else(|_| direct(0))
        .unwrap()
        .into()
}

fn read_unit(image: &Image, unit: u64) -> u8 {
    let at = DeviceOffset(unit * UNIT_SIZE);
    image.read(at, UNIT_SIZE, first_byte).unwrap()
}

fn units_of(region: u64) -> std::ops::Range<u64> {
    let each = REGION / UNIT_SIZE;
    region * each..(region + 1) * each
}

/// A reader goes on until the region behind what has come is on its way; answers that, if the
/// kernel reads by itself here.
fn read_until_one_is_asked_for(stage: &Stage) -> Option<u64> {
    for region in 0..REGIONS {
        for unit in units_of(region) {
            assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
        }
        let asked = stage.image.fetched.lock().unwrap().asked();
        if let Some(asked) = asked {
            assert_eq!(asked, (region + 1) * REGION..(region + 2) * REGION);
            return Some(region + 1);
        }
    }
    None
}

fn set_disk(stage: &Stage, region: u64) {
    let direct = stage.image.direct.as_ref().unwrap();
    let file = File::from(direct.try_clone().unwrap());
    let bytes = vec![NEW; REGION as usize + 4096];
    let skip = bytes.as_ptr().align_offset(4096);
    file.write_all_at(&bytes[skip..][..REGION as usize], region * REGION)
        .unwrap();
}

fn wait_for_what_is_asked(stage: &Stage) {
    stage.image.fetched.lock().unwrap().let_it_come();
}

#[test]
fn what_was_asked_for_is_used() {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    let Some(region) = read_until_one_is_asked_for(&stage) else {
        return;
    };
    wait_for_what_is_asked(&stage);
    // Nobody may do this: it tells that the disk is not read again.
    set_disk(&stage, region);
    for unit in units_of(region) {
        assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
    }
}

#[test]
fn what_was_there_meanwhile_is_read_again() {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    let Some(region) = read_until_one_is_asked_for(&stage) else {
        return;
    };
    wait_for_what_is_asked(&stage);
    let middle = units_of(region).start + 100;
    assert_eq!(read_unit(&stage.image, middle), byte_of(middle));
    // As if it had been stored to and had gone home.
    set_disk(&stage, region);
    stage.image.drop_all();
    assert!(!stage.image.present.has(middle));
    for unit in units_of(region) {
        assert_eq!(read_unit(&stage.image, unit), NEW);
    }
}

#[test]
fn who_reads_elsewhere_gets_that() {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    let Some(region) = read_until_one_is_asked_for(&stage) else {
        return;
    };
    for region in [region + 1, region, 5] {
        for unit in units_of(region) {
            assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
        }
    }
}
