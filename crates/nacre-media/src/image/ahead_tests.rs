//! What is read ahead is used, and not if it may be old.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nacre_types::{DeviceOffset, UNIT_SIZE};

use super::tests::{Stage, byte_of, first_byte, stage_of, stage_on};
use super::{DiskFds, DiskLegs, Image, REGION};

const REGIONS: u64 = 6;
/// What the disk gets meanwhile.
pub(super) const NEW: u8 = 255;

pub(super) fn open_direct(path: &Path) -> OwnedFd {
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

pub(super) fn read_unit(image: &Image, unit: u64) -> u8 {
    let at = DeviceOffset(unit * UNIT_SIZE);
    image.read(at, UNIT_SIZE, first_byte).unwrap()
}

fn units_of(region: u64) -> Range<u64> {
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

pub(super) fn set_disk(stage: &Stage, region: u64) {
    set_file(stage.image.direct.as_ref().unwrap(), region);
}

fn set_file(direct: &OwnedFd, region: u64) {
    let file = File::from(direct.try_clone().unwrap());
    let bytes = vec![NEW; REGION as usize + 4096];
    let skip = bytes.as_ptr().align_offset(4096);
    file.write_all_at(&bytes[skip..][..REGION as usize], region * REGION)
        .unwrap();
}

/// A region of a stage that has been read ahead of its reader, if the kernel does that here.
fn stage_with_one_ahead() -> Option<(Stage, u64)> {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    let region = read_until_one_is_asked_for(&stage)?;
    stage.image.fetched.lock().unwrap().let_all_come();
    Some((stage, region))
}

#[test]
fn what_was_asked_for_is_used() {
    let Some((stage, region)) = stage_with_one_ahead() else {
        return;
    };
    // Nobody may do this: it tells that the disk is not read again.
    set_disk(&stage, region);
    for unit in units_of(region) {
        assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
    }
}

#[test]
fn what_was_there_meanwhile_is_read_again() {
    let Some((stage, region)) = stage_with_one_ahead() else {
        return;
    };
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

#[test]
fn what_is_made_right_meanwhile_is_read_again() {
    let Some((stage, region)) = stage_with_one_ahead() else {
        return;
    };
    let unit = units_of(region).start + 7;
    set_disk(&stage, region);
    let (wrong, right) = ([byte_of(unit); 4096], [NEW; 4096]);
    stage.image.correct(unit * UNIT_SIZE, &wrong, &right);
    for unit in units_of(region) {
        assert_eq!(read_unit(&stage.image, unit), NEW);
    }
}

/// Two disks that hold each one half.
struct Halves {
    disks: [OwnedFd; 2],
    half: u64,
}

impl DiskLegs for Halves {
    fn read(&self, at: u64, read: &mut dyn FnMut(DiskFds<'_>) -> io::Result<()>) -> io::Result<()> {
        let second = at >= self.half;
        let disk = self.disks[usize::from(second)].as_fd();
        read(DiskFds {
            plain: disk,
            direct: Some(disk),
            back: if second { self.half } else { 0 },
        })
    }

    fn has_place(&self, _: u64) -> bool {
        true
    }

    fn are_whole(&self) -> bool {
        true
    }
}

/// Two disks of so many regions each.
fn halves(regions: u64) -> (Stage, Arc<Halves>) {
    let (half, units) = (regions * REGION, regions * REGION / UNIT_SIZE);
    let disk = |first: u64| {
        let bytes = (first..first + units).flat_map(|unit| [byte_of(unit); UNIT_SIZE as usize]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes.collect::<Vec<u8>>()).unwrap();
        open_direct(file.path())
    };
    let disks = [disk(0), disk(units)];
    let halves = Arc::new(Halves { disks, half });
    let legs = Arc::clone(&halves) as Arc<dyn DiskLegs>;
    (stage_on(2 * half, None, Some(legs)), halves)
}

#[test]
fn who_goes_round_disks_has_the_next_of_each_on_its_way() {
    const EACH: u64 = 10;
    let (stage, halves) = halves(EACH);
    // Stripes of two regions, as usual.
    let order = |stripe: u64| [0, EACH].map(|first| [first + 2 * stripe, first + 2 * stripe + 1]);
    for region in (0..4).flat_map(order).flatten() {
        for unit in units_of(region) {
            assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
        }
    }
    let mut kept = stage.image.fetched.lock().unwrap();
    if kept.asked().is_none() {
        // The kernel does not read by itself here.
        return;
    }
    let next = [8, EACH + 8];
    assert_eq!(
        kept.all(),
        next.map(|region| region * REGION..(region + 1) * REGION)
    );
    kept.let_all_come();
    drop(kept);
    // Nobody may do this: it tells that the disks are not read again.
    halves.disks.iter().for_each(|disk| set_file(disk, 8));
    for unit in next.into_iter().flat_map(units_of) {
        assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
    }
}

#[test]
fn more_readers_than_there_is_memory_for_get_what_is_right() {
    const EACH: u64 = 4;
    const READERS: u64 = 7;
    let stage = stage_of(EACH * READERS * REGION, Some(open_direct));
    for region in 0..EACH {
        for reader in 0..READERS {
            for unit in units_of(reader * EACH + region) {
                assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
            }
        }
    }
}

/// Reads two units each so often and so far apart, and what is on its way then has come. `None`:
/// the kernel does not read by itself here.
fn stride_until_some_come(stage: &Stage, first: u64, stride: i64) -> Option<Vec<Range<u64>>> {
    for step in 0..6 {
        let unit = first.wrapping_add_signed(step * stride);
        read_two_units(&stage.image, unit);
    }
    let mut kept = stage.image.fetched.lock().unwrap();
    kept.asked()?;
    kept.let_all_come();
    Some(kept.all())
}

fn read_two_units(image: &Image, unit: u64) -> u8 {
    let at = DeviceOffset(unit * UNIT_SIZE);
    image.read(at, 2 * UNIT_SIZE, first_byte).unwrap()
}

#[test]
fn who_reads_in_strides_has_the_next_ones_on_their_way() {
    for (first, stride) in [(3, 20), (900, -35)] {
        let stage = stage_of(REGIONS * REGION, Some(open_direct));
        let Some(mut all) = stride_until_some_come(&stage, first, stride) else {
            return;
        };
        let next = [6, 7, 8, 9].map(|step| first.wrapping_add_signed(step * stride));
        let ranges = next.map(|unit| unit * UNIT_SIZE..(unit + 2) * UNIT_SIZE);
        all.sort_by_key(|range| range.start.abs_diff(first * UNIT_SIZE));
        assert_eq!(all, ranges);
        // Nobody may do this: it tells that the disk is not read again.
        (0..REGIONS).for_each(|region| set_disk(&stage, region));
        for unit in next {
            assert_eq!(read_two_units(&stage.image, unit), byte_of(unit));
        }
    }
}

#[test]
fn what_came_for_a_stride_and_went_is_read_again() {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    if stride_until_some_come(&stage, 3, 20).is_none() {
        return;
    }
    let unit = 3 + 6 * 20;
    assert_eq!(read_unit(&stage.image, unit + 1), byte_of(unit + 1));
    set_disk(&stage, 0);
    stage.image.drop_all();
    assert_eq!(read_two_units(&stage.image, unit), NEW);
}

#[test]
fn who_reads_anywhere_has_nothing_on_its_way() {
    let stage = stage_of(REGIONS * REGION, Some(open_direct));
    for unit in [700, 3, 400, 90, 1200, 44, 801, 1000] {
        assert_eq!(read_two_units(&stage.image, unit), byte_of(unit));
    }
    assert_eq!(stage.image.fetched.lock().unwrap().asked(), None);
}
