//! What a volume holds, as a value.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Arrangement, Unfenced, Volume};

use crate::medium::{Difference, LINE, Line};

const UNIT: usize = 4096;
const LINES_PER_UNIT: u64 = (UNIT / LINE) as u64;

/// All bytes of a volume; a copy shares what does not differ.
#[derive(Clone)]
pub struct Image {
    len: u64,
    /// Those that are not all zeros.
    units: BTreeMap<u64, Arc<[u8; UNIT]>>,
}

impl Image {
    /// What a volume holds now.
    pub fn of(volume: &Volume) -> Image {
        let read = |unit| volume.read_array(VolumeOffset(unit * UNIT as u64));
        let units = (0..volume.units()).map(|unit| (unit, read(unit)));
        Image {
            len: volume.len(),
            units: units
                .filter(|(_, bytes)| *bytes != [0; UNIT])
                .map(|(unit, bytes)| (unit, Arc::new(bytes)))
                .collect(),
        }
    }

    /// One line.
    pub fn line(&self, number: u64) -> Line {
        let Some(unit) = self.units.get(&(number / LINES_PER_UNIT)) else {
            return [0; LINE];
        };
        let start = (number % LINES_PER_UNIT) as usize * LINE;
        let line = unit[start..start + LINE].try_into();
        line.expect("a whole line")
    }

    /// The same, apart from the lines that differ.
    pub fn with(mut self, difference: &Difference) -> Image {
        for (number, line) in difference {
            self.put(number * LINE as u64, line);
        }
        self
    }

    /// Changes bytes, all of one unit.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let unit = self.units.entry(at / UNIT as u64);
        let unit = Arc::make_mut(unit.or_insert_with(|| Arc::new([0; UNIT])));
        let start = at as usize % UNIT;
        unit[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// A volume in memory that holds this.
    pub fn volume(&self) -> Volume {
        let units = self.units.iter();
        let units = units.map(|(&unit, bytes)| (unit, &bytes[..]));
        volume_of_units((&[self.len], Arrangement::default()), units)
    }
}

/// A volume in memory with these contents.
pub fn volume_of(contents: &[u8]) -> Volume {
    volume_with_behind(contents, 0)
}

/// As [`volume_of`], whose last bytes are a device behind the others.
pub fn volume_with_behind(contents: &[u8], behind: u64) -> Volume {
    let arrangement = Arrangement {
        behind: usize::from(behind > 0),
        ..Arrangement::default()
    };
    volume_arranged(contents, behind, arrangement)
}

/// As [`volume_of`], whose last bytes are a device of their own.
pub fn volume_arranged(contents: &[u8], second: u64, arrangement: Arrangement) -> Volume {
    let units = (0..).zip(contents.chunks(UNIT));
    let written = units.filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0));
    let lens = [contents.len() as u64 - second, second];
    let lens = &lens[..if second > 0 { 2 } else { 1 }];
    volume_of_units((lens, arrangement), written)
}

fn volume_of_units<'a>(
    (lens, arrangement): (&[u64], Arrangement),
    units: impl Iterator<Item = (u64, &'a [u8])>,
) -> Volume {
    let volume = Volume::memories(lens, arrangement).expect("memory");
    let mut stores = Unfenced::nothing();
    for (unit, bytes) in units {
        let at = VolumeOffset(unit * UNIT as u64);
        stores = stores.and(volume.write(at, bytes, StoreKind::Data));
    }
    volume.fence(stores).expect("memory does not fail");
    volume
}
