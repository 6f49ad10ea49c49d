//! Damage that knows the layout.

use std::ops::Range;

use nacre_store::layout::{RawSnapshot, RawState, SNAPSHOT_IS_TOLD};
use nacre_store::structure_index::{Part, Structure, reseal};
use nacre_testkit::random::Random;
use nacre_types::{StoreKind, UNIT_SIZE, VolumeOffset, crc32c};
use nacre_volume::Volume;

use crate::fields;
use crate::pool::Prepared;
use crate::site::{Damage, Site};

/// Kinds of structures; each is hit equally often, however many parts it has.
const KINDS: u64 = 12;

/// Damages the pool in one to three places.
pub fn inflict(prepared: &Prepared, volume: &Volume, random: &mut Random) -> Damage {
    let mut site = Site::new(prepared, volume, random);
    let count = match site.random.below(8) {
        0 => 3,
        1 => 2,
        _ => 1,
    };
    while site.damage.ranges.len() < count {
        site.hit();
    }
    // Several changes can hide each other.
    site.damage.must_report &= count == 1;
    site.damage
}

/// Writes chosen bytes to chosen parts: 2 bytes which part, 2 where in it, 1 how many, then what to
/// put there.
pub fn inflict_bytes(
    prepared: &Prepared,
    volume: &Volume,
    random: &mut Random,
    bytes: &[u8],
    sealed: bool,
) -> Damage {
    let mut site = Site::new(prepared, volume, random);
    let mut rest = bytes;
    while let Some(([a, b, c, d, len], after)) = rest.split_first_chunk::<5>() {
        let (chosen, after) = after.split_at(after.len().min(usize::from(*len)));
        rest = after;
        let part = prepared.parts[usize::from(u16::from_le_bytes([*a, *b])) % prepared.parts.len()];
        let at = usize::from(u16::from_le_bytes([*c, *d])) % part.len as usize;
        site.overwrite(&part, at, chosen, sealed);
    }
    site.damage
}

/// Parts that are looked at for one that a kind of damage fits.
const ATTEMPTS: usize = 20_000;

/// Does one kind of damage, called `name` in `fields`, somewhere; none if the pool seems to have no
/// place for it.
pub fn inflict_only(
    prepared: &Prepared,
    volume: &Volume,
    random: &mut Random,
    name: &str,
) -> Damage {
    let mut site = Site::new(prepared, volume, random);
    let mut attempts = 0..ATTEMPTS;
    while site.damage.ranges.is_empty() && attempts.next().is_some() {
        if let Some(part) = site.part_of(|_| true) {
            site.edit_if(&part, Some(name));
        }
    }
    site.damage
}

/// A structure and its neighbours in the list of kinds.
pub fn kind(what: Structure) -> u64 {
    match what {
        Structure::Superblock => 0,
        Structure::State => 1,
        Structure::ListWord => 2,
        Structure::LogTailWord => 3,
        Structure::Record(_) => 4,
        Structure::Onode => 5,
        Structure::MapNode(..) | Structure::PartsNode(..) => 6,
        Structure::TreeNode(_, 0) => 7,
        Structure::TreeNode(..) => 8,
        Structure::Value => 9,
        Structure::Data(_) => 10,
        Structure::Snapshot => 11,
    }
}

impl Site<'_> {
    fn hit(&mut self) {
        let Some(part) = self.part_of(|_| true) else {
            return;
        };
        match self.random.below(10) {
            0 | 1 => self.flip(&part),
            2 => self.replace(&part),
            3 => self.zero(&part),
            4 | 5 => self.set_field(&part),
            _ => self.edit(&part),
        }
    }

    /// A part of a random kind that `wanted` accepts.
    pub fn part_of(&mut self, wanted: impl Fn(&Part) -> bool) -> Option<Part> {
        let of_kind = |number: u64| {
            let parts = self.prepared.parts.iter();
            parts.filter(move |part| kind(part.what) == number)
        };
        let first = self.random.below(KINDS);
        let parts: Vec<&Part> = (0..KINDS)
            .map(|step| {
                of_kind((first + step) % KINDS)
                    .filter(|p| wanted(p))
                    .collect()
            })
            .find(|parts: &Vec<&Part>| !parts.is_empty())?;
        let pick = self.random.below(parts.len() as u64) as usize;
        Some(*parts[pick])
    }

    fn read(&self, part: &Part) -> Vec<u8> {
        let mut bytes = vec![0; part.len as usize];
        self.volume.read(part.at, &mut bytes);
        bytes
    }

    /// Writes changed bytes and notes what was done.
    fn write(&mut self, part: &Part, bytes: &[u8], must_report: bool, text: &str) {
        if self.read(part) == bytes {
            return;
        }
        let stores = self.volume.write(part.at, bytes, StoreKind::Data);
        self.volume
            .fence(stores)
            .expect("a device that does not fail");
        let sealed = !self.is_covered(part, bytes);
        let damage = &mut self.damage;
        damage.ranges.push(part.at.0..part.at.0 + part.len);
        damage.must_report |= must_report;
        damage.forged |= sealed;
        damage.pervasive |= match part.what {
            Structure::ListWord => true,
            Structure::Superblock | Structure::Record(_) => sealed,
            _ => false,
        };
        let object = part
            .object
            .map_or(String::new(), |id| format!(" of object {id}"));
        let what = format!("{text} in {:?}{object} at {:#x}; ", part.what, part.at.0);
        damage.text.push_str(&what);
    }

    /// Whether a check covers what differs from a sound part.
    fn is_covered(&self, part: &Part, bytes: &[u8]) -> bool {
        let mut sealed = bytes.to_vec();
        reseal(part, &mut sealed, self.prepared.salt);
        sealed != bytes
    }

    /// Whether somebody must notice bytes that fail their check.
    fn is_missed(&self, part: &Part, bytes: &[u8]) -> bool {
        let optional = matches!(
            part.what,
            Structure::State | Structure::Record(_) | Structure::Snapshot | Structure::Data(_)
        );
        !optional && self.is_covered(part, bytes)
    }

    fn overwrite(&mut self, part: &Part, at: usize, chosen: &[u8], sealed: bool) {
        let mut bytes = self.read(part);
        let len = chosen.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&chosen[..len]);
        if sealed {
            reseal(part, &mut bytes, self.prepared.salt);
        }
        self.write(part, &bytes, false, "chosen bytes");
    }

    fn flip(&mut self, part: &Part) {
        let mut bytes = self.read(part);
        for _ in 0..=self.random.below(4) {
            let bit = self.random.below(part.len * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let must = self.is_missed(part, &bytes);
        self.write(part, &bytes, must, "flipped bits");
    }

    fn zero(&mut self, part: &Part) {
        let bytes = vec![0; part.len as usize];
        let must = matches!(part.what, Structure::TreeNode(..) | Structure::Superblock);
        self.write(part, &bytes, must, "zeros");
    }

    /// Puts what lies elsewhere into the place of a part, or exchanges both.
    fn replace(&mut self, part: &Part) {
        let same = self.random.below(3) > 0;
        let wanted = |other: &Part| {
            let alike = !same || kind(other.what) == kind(part.what);
            alike && other.len == part.len && other.at != part.at
        };
        let Some(other) = self.part_of(wanted) else {
            return;
        };
        let (mine, theirs) = (self.read(part), self.read(&other));
        let nodes = [part, &other].map(|p| matches!(p.what, Structure::TreeNode(..)));
        self.write(part, &theirs, nodes[0], "foreign bytes");
        if self.random.below(2) == 0 {
            self.write(&other, &mine, nodes[1], "exchanged bytes");
        }
    }

    /// Sets any field to one of the worst values.
    fn set_field(&mut self, part: &Part) {
        let mut bytes = self.read(part);
        let width = 1 << self.random.below(4);
        let reach = match self.random.below(2) {
            0 => part.len.min(64),
            _ => part.len,
        };
        let at = (self.random.below(reach / width) * width) as usize;
        let value = self.worst();
        bytes[at..at + width as usize].copy_from_slice(&value.to_le_bytes()[..width as usize]);
        if self.random.below(4) == 0 {
            let must = self.is_missed(part, &bytes);
            self.write(part, &bytes, must, "a field");
            return;
        }
        reseal(part, &mut bytes, self.prepared.salt);
        let text = format!("resealed field of {width} at {at} = {value:#x}");
        self.write(part, &bytes, false, &text);
    }

    /// Numbers that code gets wrong.
    pub fn worst(&mut self) -> u64 {
        let units = self.volume.units();
        let other =
            self.prepared.parts[self.random.below(self.prepared.parts.len() as u64) as usize];
        match self.random.below(16) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => u64::MAX >> 1,
            4 => u64::MAX >> 16,
            5 => (1 << 40) - 1,
            6 => units,
            7 => units - 1,
            8 => 63,
            9 => UNIT_SIZE,
            10 => UNIT_SIZE + 1,
            11 => 1 << 31,
            12 => 0xffff_ffff,
            13 => 255,
            _ => other.at.unit().0,
        }
    }

    /// Changes a structure by its own rules, with right checks behind it.
    fn edit(&mut self, part: &Part) {
        self.edit_if(part, None);
    }

    fn edit_if(&mut self, part: &Part, name: Option<&str>) {
        let mut bytes = self.read(part);
        let edit = fields::edit(self, part, &mut bytes);
        if name.is_some_and(|name| edit.is_none_or(|(text, _)| text != name)) {
            return;
        }
        let Some((text, must)) = edit else {
            return self.flip(part);
        };
        reseal(part, &mut bytes, self.prepared.salt);
        self.write(part, &bytes, must, text);
        match part.what {
            Structure::Superblock => self.follow(part, &bytes),
            Structure::Snapshot => self.name_snapshot(&bytes),
            _ => {}
        }
    }

    /// States name the allocator snapshot by the checksum of its head: they know the changed one.
    fn name_snapshot(&mut self, snapshot: &[u8]) {
        let crc = SNAPSHOT_IS_TOLD | u64::from(crc32c(&snapshot[..size_of::<RawSnapshot>()]));
        let at = std::mem::offset_of!(RawState, snapshot_crc);
        let states = self.prepared.parts.iter();
        let states: Vec<Part> = states
            .filter(|part| part.what == Structure::State)
            .copied()
            .collect();
        for part in states {
            let mut bytes = self.read(&part);
            bytes[at..at + 8].copy_from_slice(&crc.to_le_bytes());
            reseal(&part, &mut bytes, self.prepared.salt);
            self.write(&part, &bytes, false, "the same");
        }
    }

    /// Gives the second superblock copy the contents of the first.
    fn follow(&mut self, part: &Part, bytes: &[u8]) {
        let mut copies = self.prepared.parts.iter();
        let other = copies.find(|p| p.what == Structure::Superblock && p.at != part.at);
        if let Some(other) = other.copied() {
            self.write(&other, bytes, false, "the same");
        }
    }
}

/// Whether two ranges have a byte in common.
pub fn overlap(a: &Range<u64>, at: VolumeOffset, len: u64) -> bool {
    a.start < at.0 + len && at.0 < a.end
}
