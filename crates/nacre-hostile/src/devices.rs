//! Labels and lengths of the files behind pools: damaged, forged, exchanged, cut, missing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_explore::action::pattern;
use nacre_explore::visible::{Visible, look};
use nacre_fs::{Cred, Fs, WriteAt};
use nacre_store::check::check;
use nacre_store::{FormatOptions, Store, StoreError};
use nacre_testkit::pool::{FORCE, PRIVATE};
use nacre_testkit::random::Random;
use nacre_types::{BLOCK_SIZE, UNIT_SIZE, crc32c};
use nacre_volume::{Access, DeviceSpec, Volume};

use crate::place::names_place;
use crate::tally::Tally;

const LABEL: u64 = UNIT_SIZE;
const SIZE: u64 = (2 << 20) + 4 * BLOCK_SIZE + LABEL;
/// Two devices of one pool, one of another.
const NAMES: [&str; 3] = ["a0", "a1", "b0"];
const COPIES: [u64; 2] = [0, SIZE - LABEL];
/// Where a label has its checksum (docs/layout.md, nacre-volume's layout).
const CRC: std::ops::Range<usize> = 12..16;
const FILE: usize = 100_000;
/// Folders of processes, which their numbers follow.
const FOLDERS: &str = "/dev/shm/nacre-hostile-";

/// What a file holds beside zeros, unit by unit.
type Contents = Vec<(u64, Vec<u8>)>;

/// Files of two pools in shared memory; removed in the end.
pub struct Devices {
    folder: PathBuf,
    contents: [Contents; 3],
    /// What each pool holds.
    seen: [Visible; 2],
}

/// What was done to the files.
#[derive(Default)]
struct Harm {
    text: String,
    /// One good copy of each label is left, and all else.
    slight: bool,
}

impl Devices {
    /// Makes the pools.
    pub fn new() -> Result<Devices, String> {
        remove_left();
        let folder = PathBuf::from(format!("{FOLDERS}{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let mut devices = Devices {
            folder,
            contents: Default::default(),
            seen: Default::default(),
        };
        devices.seen = [devices.prepare(&[0, 1])?, devices.prepare(&[2])?];
        for index in 0..NAMES.len() {
            devices.contents[index] = devices.keep(index).map_err(|e| e.to_string())?;
        }
        Ok(devices)
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(NAMES[index])
    }

    fn prepare(&self, members: &[usize]) -> Result<Visible, String> {
        let spec = |&index: &usize| DeviceSpec {
            path: self.path(index),
            size: Some(SIZE),
        };
        let specs: Vec<_> = members.iter().map(spec).collect();
        let volume = Volume::create(&specs, FORCE).map_err(|e| e.to_string())?;
        Store::format(&volume, &FormatOptions::default()).map_err(|e| e.to_string())?;
        let store = Store::attach(volume, &PRIVATE).map_err(|e| e.to_string())?;
        let pool = Fs::new(store);
        let fill = || -> nacre_fs::Result<()> {
            let (cred, root) = (Cred::root(), pool.root());
            let made = pool.create(&cred, root, b"file", 0o600)?;
            let bytes = pattern(members.len() as u64, FILE as u64);
            pool.write(&cred, made, WriteAt::Append, bytes[..].into())?;
            pool.mkdir(&cred, root, b"folder", 0o700)?;
            pool.unpin(made.ino)
        };
        fill().map_err(|e| e.to_string())?;
        let seen = look(&pool)?;
        pool.into_store().detach().map_err(|e| e.to_string())?;
        Ok(seen)
    }

    fn keep(&self, index: usize) -> io::Result<Contents> {
        let bytes = fs::read(self.path(index))?;
        let units = (0..).step_by(UNIT_SIZE as usize);
        let units = units.zip(bytes.chunks(UNIT_SIZE as usize));
        Ok(units
            .filter(|(_, unit)| unit.iter().any(|&byte| byte != 0))
            .map(|(at, unit)| (at, unit.to_vec()))
            .collect())
    }

    fn lay_out(&self) -> io::Result<()> {
        for (index, contents) in self.contents.iter().enumerate() {
            let file = File::create(self.path(index))?;
            file.set_len(SIZE)?;
            for (at, unit) in contents {
                file.write_all_at(unit, *at)?;
            }
        }
        Ok(())
    }

    /// Damages the files, then opens, checks and reads. An error is a finding.
    pub fn run(&self, random: &mut Random, tally: &mut Tally) -> Result<(), String> {
        tally.cases += 1;
        self.lay_out().map_err(|e| e.to_string())?;
        let mut harm = Harm {
            slight: true,
            ..Harm::default()
        };
        for _ in 0..=random.below(3) / 2 {
            // The first harm may have taken away what the second one wants.
            let done = self.inflict(random, &mut harm).or_else(not_there);
            done.map_err(|e| format!("damaging devices: {e}"))?;
        }
        self.open(&harm, random, tally)
            .map_err(|why| format!("{why}\n    damage: {}", harm.text))
    }

    fn inflict(&self, random: &mut Random, harm: &mut Harm) -> io::Result<()> {
        let device = random.below(2) as usize;
        let other = random.below(NAMES.len() as u64) as usize;
        let kind = random.below(9);
        harm.text.push_str(&format!(
            "kind {kind} of {} and {}; ",
            NAMES[device], NAMES[other]
        ));
        // More than one kind can reach both copies of a label.
        harm.slight &= kind < 2 && harm.text.matches(';').count() == 1;
        match kind {
            0 | 1 => self.damage_label(device, &COPIES[kind as usize..][..1], random),
            2 => self.damage_label(device, &COPIES, random),
            3 => self.forge_label(device, &COPIES[..1], random),
            4 => self.forge_label(device, &COPIES, random),
            5 => COPIES.iter().try_for_each(|&at| {
                let label = self.read(other, at)?;
                self.write(device, at, &label)
            }),
            6 => {
                let aside = self.folder.join("aside");
                fs::rename(self.path(device), &aside)?;
                fs::rename(self.path(other), self.path(device)).or_else(not_there)?;
                fs::rename(aside, self.path(other))
            }
            7 => self.cut(device, random),
            _ if device != other => fs::copy(self.path(other), self.path(device)).map(drop),
            _ => fs::remove_file(self.path(device)),
        }
    }

    fn cut(&self, device: usize, random: &mut Random) -> io::Result<()> {
        let lengths = [
            0,
            1,
            LABEL,
            2 << 20,
            (2 << 20) + BLOCK_SIZE + 17,
            SIZE / 2,
            SIZE - BLOCK_SIZE,
            SIZE - LABEL,
            SIZE - 1,
            SIZE + 1,
            SIZE + LABEL,
            2 * SIZE,
        ];
        let len = lengths[random.below(lengths.len() as u64) as usize];
        let path = self.path(device);
        File::options().write(true).open(path)?.set_len(len)
    }

    fn read(&self, device: usize, at: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; LABEL as usize];
        let file = File::open(self.path(device))?;
        // What a device that was cut lacks is zeros.
        let _ = file.read_exact_at(&mut bytes, at);
        Ok(bytes)
    }

    fn write(&self, device: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = File::options().write(true).open(self.path(device))?;
        file.write_all_at(bytes, at)
    }

    fn damage_label(&self, device: usize, copies: &[u64], random: &mut Random) -> io::Result<()> {
        for &at in copies {
            let mut label = self.read(device, at)?;
            match random.below(3) {
                0 => label.fill(0),
                1 => label[random.below(LABEL) as usize..].fill(0xff),
                _ => label[random.below(LABEL / 2) as usize] ^= 1 << random.below(8),
            }
            self.write(device, at, &label)?;
        }
        Ok(())
    }

    /// Sets a field to one of the worst numbers, with a right checksum.
    fn forge_label(&self, device: usize, copies: &[u64], random: &mut Random) -> io::Result<()> {
        let width = 1 << random.below(4);
        let reach = [72, 384 + 2 * 232, LABEL][random.below(3) as usize];
        let at_field = (random.below(reach / width) * width) as usize;
        let worst = [
            0,
            1,
            2,
            15,
            16,
            17,
            0xffff,
            u64::MAX,
            u64::MAX >> 1,
            SIZE,
            SIZE - 1,
            1 << 40,
        ];
        let value = worst[random.below(worst.len() as u64) as usize];
        for &at in copies {
            let mut label = self.read(device, at)?;
            let field = &mut label[at_field..at_field + width as usize];
            field.copy_from_slice(&value.to_le_bytes()[..width as usize]);
            label[CRC].fill(0);
            let crc = crc32c(&label);
            label[CRC].copy_from_slice(&crc.to_le_bytes());
            self.write(device, at, &label)?;
        }
        Ok(())
    }

    fn open(&self, harm: &Harm, random: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let access = match random.below(3) {
            0 => Access::ReadOnly,
            _ => Access::ReadWrite,
        };
        let first = random.below(2) as usize;
        let (one, both) = (self.path(first), [self.path(0), self.path(1)]);
        let volume = match random.below(3) {
            0 => Volume::open_with(&[&both[0], &both[1]], access),
            _ => Volume::open(&one, access),
        };
        let volume = match volume {
            Ok(volume) => volume,
            Err(error) => {
                let text = error.to_string();
                let said = match text.contains(&*self.folder.to_string_lossy()) {
                    true => Ok(()),
                    false => Err("an error does not say which file it is about".into()),
                };
                return refused(harm, &text, said, tally);
            }
        };
        let store = match Store::attach(volume, &PRIVATE) {
            Ok(store) => store,
            Err(StoreError::NeedsRecovery) if access == Access::ReadOnly => return Ok(()),
            Err(error) => return refused(harm, &error.to_string(), names_place(&error), tally),
        };
        let pool = Fs::new(store);
        let report = check(pool.store(), &mut |_| {});
        let found = report.problems.len() + pool.store().report().problems;
        tally.problems += found as u64;
        let seen = look(&pool);
        pool.into_store()
            .detach()
            .map_err(|e| format!("detach: {e}"))?;
        match seen {
            Ok(seen) if self.seen.contains(&seen) => Ok(()),
            _ if found > 0 && !harm.slight => Ok(()),
            Ok(_) => Err("a pool is taken for what it is not".into()),
            Err(why) => Err(why),
        }
    }
}

/// Refusing is fine if one good copy of a label would not have done, and if it was `said` what it
/// is about.
fn refused(
    harm: &Harm,
    error: &str,
    said: Result<(), String>,
    tally: &mut Tally,
) -> Result<(), String> {
    tally.refused += 1;
    match harm.slight {
        true => Err(format!("one copy of each label is not enough: {error}")),
        false => said.map_err(|why| format!("{why}: {error}")),
    }
}

/// Removes what workers left that were ended.
fn remove_left() {
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let path = entry.path();
        let text = path.to_string_lossy().into_owned();
        let owner = text
            .strip_prefix(FOLDERS)
            .and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another one may be doing the same.
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn not_there(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // What cannot be removed is left behind.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use nacre_testkit::random::Random;

    use super::Devices;
    use crate::tally::Tally;

    #[test]
    fn canary_a_byte_that_changed_in_silence_is_a_finding() {
        let mut devices = Devices::new().unwrap();
        for (_, unit) in devices.contents.iter_mut().flatten() {
            // The contents of the file, wherever they lie.
            if unit.iter().all(|&byte| byte != 0) {
                unit[77] ^= 1;
            }
        }
        let found = (0..40).any(|case| {
            let mut tally = Tally::default();
            devices.run(&mut Random::new(3, case), &mut tally).is_err()
        });
        assert!(found);
    }
}
