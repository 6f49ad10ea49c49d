//! Pools under emulation: making, joining and ending it.

use crate::failure::{Failure, Result};
use crate::tree_path::absolute;
use crate::users::refuse_if_used;
use nacre_emulator::{CounterPlace, Emulation, FILE_NAME, Pool, Profile, Settings};
use nacre_store::runtime;
use nacre_volume::{Access, Volume};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the counters of a pool are, or would be; `None` if the pool has no run-time folder.
fn place(volume: &Volume) -> Result<Option<CounterPlace>> {
    let folder = runtime::folder(volume)?;
    Ok(folder.map(|folder| CounterPlace::below(folder, FILE_NAME)))
}

/// The counters of a pool.
pub fn open(volume: &Volume) -> Result<Option<Emulation>> {
    match place(volume)? {
        Some(place) => Ok(Emulation::open(place, volume.uuid(), volume.owner())?),
        None => Ok(None),
    }
}

/// How a label names a profile, which must be there and sound: by its name, or its absolute path.
pub fn name_of(profile: &str) -> Result<String> {
    Profile::load(profile)?;
    if Profile::text(profile).is_some() {
        return Ok(profile.to_owned());
    }
    let path = absolute(Path::new(profile))?;
    Ok(path.to_string_lossy().into_owned())
}

/// The profile that a pool says it emulates.
fn of_label(pool: &Path) -> Result<Option<Profile>> {
    let name = Volume::inspect(pool)?.emulates;
    if name.is_empty() {
        return Ok(None);
    }
    Ok(Some(Profile::load(&name)?))
}

/// The counters of a pool, or those that were kept in a file, of which changes are lost.
pub fn open_or_kept(volume: &Volume, kept: &Path) -> Result<Option<Emulation>> {
    match open(volume)? {
        Some(counters) => Ok(Some(counters)),
        None => Ok(Emulation::open(kept, volume.uuid(), volume.owner())?),
    }
}

/// Removes what was counted, kept or not, readable or not.
pub fn forget(volume: &Volume, kept: &Path) -> Result<()> {
    for place in place(volume)?.into_iter().chain([kept.into()]) {
        match place.remove() {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Failure::io(place.path().display(), errno)),
        }
    }
    Ok(())
}

/// Where the counters of a pool are kept.
pub fn kept_beside(pool: &Path) -> PathBuf {
    let mut name = pool.as_os_str().to_owned();
    name.push(".wear");
    PathBuf::from(name)
}

/// Devices to emulate, as `nacre run` was told.
#[derive(Default)]
pub struct Asked {
    /// Instead of the one that the pool names.
    all: Option<Profile>,
    /// Emulate none but what is named for single devices, whatever the pool says.
    plain: bool,
    /// Devices of pools, and what is emulated on each.
    single: Vec<(PathBuf, Profile)>,
}

impl Asked {
    /// `PROFILE`, `none`, or `DEVICE=PROFILE` each.
    pub fn parse(words: &[String]) -> Result<Asked> {
        let mut asked = Asked::default();
        for word in words {
            match word.rsplit_once('=') {
                Some((device, profile)) if Path::new(device).exists() => {
                    let found = fs::canonicalize(device);
                    let found = found.map_err(|error| Failure::io(device, error))?;
                    asked.single.push((found, Profile::load(profile)?));
                }
                Some((device, _)) if !Path::new(word).exists() => {
                    let text = format!(
                        "--emulate {word}: there is no {device}; give the path of a device of the pool"
                    );
                    return Err(Failure::Usage(text));
                }
                _ if asked.plain || asked.all.is_some() => {
                    let text = format!("--emulate {word}: one for all devices is enough");
                    return Err(Failure::Usage(text));
                }
                _ if word == "none" => asked.plain = true,
                _ => asked.all = Some(Profile::load(word)?),
            }
        }
        Ok(asked)
    }

    /// Whatever is named must be a device of one of the pools.
    pub fn refuse_strangers(&self, pools: &[&Path]) -> Result<()> {
        let mut known = Vec::new();
        for pool in pools.iter().filter(|_| !self.single.is_empty()) {
            known.extend(real_devices(&Volume::open(pool, Access::ReadOnly)?));
        }
        let stranger = self
            .single
            .iter()
            .find(|(device, _)| !known.contains(device));
        stranger.map_or(Ok(()), |(device, _)| {
            let device = device.display();
            let text = format!("--emulate {device}=...: no device of a pool that is used");
            Err(Failure::Usage(text))
        })
    }

    fn profile(&self, pool: &Path) -> Result<Option<Profile>> {
        match &self.all {
            Some(profile) => Ok(Some(profile.clone())),
            None if self.plain => Ok(None),
            None => of_label(pool),
        }
    }

    /// The profile of each device of a pool, if one of them is named.
    fn each<'p>(&'p self, volume: &Volume, other: &'p Profile) -> Vec<&'p Profile> {
        let named = |device: &PathBuf| self.single.iter().find(|(named, _)| named == device);
        let devices = real_devices(volume);
        let found = devices.iter().map(named);
        found
            .map(|one| one.map_or(other, |(_, profile)| profile))
            .collect()
    }

    fn names_one_of(&self, volume: &Volume) -> bool {
        let devices = real_devices(volume);
        self.single
            .iter()
            .any(|(device, _)| devices.contains(device))
    }
}

/// The paths of a pool's devices, without links.
fn real_devices(volume: &Volume) -> Vec<PathBuf> {
    let real = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path);
    let devices = volume.devices().into_iter();
    devices.map(|device| real(device.path)).collect()
}

/// What `nacre run` was asked for.
pub struct Wish {
    /// What is emulated.
    pub asked: Asked,
    /// Count by granules of so many bytes.
    pub wear: Option<u64>,
    /// Go on from the counts that were kept.
    pub keep: bool,
}

impl Wish {
    /// Switches the emulation of a pool on, before it is attached. `None` if nothing was wished;
    /// then one that was left on by a supervisor that died is switched off, unless the pool is in
    /// use.
    pub fn grant(&self, pool: &Path) -> Result<Option<Emulation>> {
        let volume = Volume::open(pool, Access::ReadOnly)?;
        let uuid = volume.uuid();
        let profile = self.asked.profile(pool)?;
        let delays = profile.is_some() || self.asked.names_one_of(&volume);
        if !delays && self.wear.is_none() {
            if let Some(left) = open(&volume)?
                && crate::users::users(&volume).is_empty()
            {
                left.end_use();
            }
            return Ok(None);
        }
        refuse_if_used(pool, &volume)?;
        let plain = Profile::plain();
        let other = profile.as_ref().unwrap_or(&plain);
        let settings = Settings {
            profile: other,
            delays,
            wear: self.wear,
        };
        let devices = volume.devices();
        let known = Pool {
            uuid,
            devices: devices.iter().map(|device| device.size).collect(),
            owner: volume.owner(),
        };
        // Held so that nobody who goes out removes the folder meanwhile.
        let _lock = volume.lock_exclusive()?;
        let place = CounterPlace::below(runtime::make_folder(&volume)?, FILE_NAME);
        let emulation = if self.keep {
            Emulation::go_on(place, &kept_beside(pool), &settings, &known)?
        } else {
            Emulation::create(place, &settings, &known)?
        };
        emulation.set_devices(&self.asked.each(&volume, other))?;
        emulation.begin_use();
        Ok(Some(emulation))
    }
}

/// What becomes of an emulation that was switched off at the end of its program; without counters
/// nothing of it is left.
pub fn end(emulation: Emulation, wear: bool, kept: Option<PathBuf>) -> Result<()> {
    if let Some(kept) = kept {
        emulation.keep(&kept)?;
    }
    if !wear {
        emulation.remove().map_err(Failure::from)?;
    }
    Ok(())
}
