//! Where the run-time files of a pool are: its folder, and the sessions of those who change it and
//! of those who read it.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_emulator::{CounterPlace, Emulation, EmulationError, FILE_NAME};
use nacre_media::lifted;
use nacre_runtime::{Folder, PoolKey, RuntimeError, Trust, base};
use nacre_session::{Geometry, Liveness, Session, SessionError, SessionPlace};
use nacre_types::{Timestamp, Uuid};
use nacre_volume::{Observer, Volume};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, readlink};

const SESSION: &str = "session";
/// Name of the file whose time says since when the pool of a folder is gone.
const GONE: &str = "gone";
/// For so long what a pool's disk lacks is kept when the pool is gone.
const GONE_SECONDS: i64 = 3600;
/// How often a folder that is swept away is made again.
const TRIES: usize = 10;
/// Name of the image of a disk.
pub(crate) const IMAGE: &str = "image";
/// Name of what processes share about the copies of a pool.
pub(crate) const COPIES: &str = "copies";

fn key(volume: &Volume) -> PoolKey {
    PoolKey {
        uuid: volume.uuid(),
        device: volume.identity().map_or((0, 0), |id| id.numbers()),
    }
}

fn trust(volume: &Volume) -> Trust {
    let owner = volume.owner();
    Trust {
        uid: owner.uid,
        gid: owner.gid,
        mode: owner.mode,
    }
}

/// The folder of a pool's run-time files, if there is one that only those can have made who may
/// write the pool.
pub fn folder(volume: &Volume) -> Result<Option<Folder>, RuntimeError> {
    Folder::of_pool(key(volume), trust(volume))
}

/// As [`folder`], among the numbers that programs do not expect to be theirs.
pub fn lifted_folder(volume: &Volume) -> Result<Option<Arc<Folder>>, RuntimeError> {
    Ok(folder(volume)?.map(lift))
}

fn lift(folder: Folder) -> Arc<Folder> {
    Arc::new(folder.moved(lifted))
}

/// Makes the volume's stores known to the pool's emulation, if it is on.
pub fn join_emulation(volume: &Volume) -> Result<(), EmulationError> {
    match folder(volume)? {
        Some(folder) => join_emulation_in(volume, folder),
        None => Ok(()),
    }
}

/// As [`join_emulation`], for who has found the pool's folder.
pub fn join_emulation_in(
    volume: &Volume,
    folder: impl Into<Arc<Folder>>,
) -> Result<(), EmulationError> {
    let place = CounterPlace::below(folder, FILE_NAME);
    if let Some(emulation) = Emulation::join(place, volume.uuid(), volume.owner())? {
        let observer: Arc<dyn Observer> = Arc::new(emulation);
        volume.set_observer(&observer);
    }
    Ok(())
}

/// As [`folder`]; made if it is missing. The caller holds the volume's exclusive lock.
pub fn make_folder(volume: &Volume) -> Result<Folder, RuntimeError> {
    let made = match folder(volume)? {
        // The pool may have been moved, or have lost the device that was noted.
        Some(folder) => folder,
        None => Folder::make_of_pool(key(volume), trust(volume))?,
    };
    if let Some(device) = volume.devices().first() {
        let path = without_links(&device.path);
        made.note_origin(&path.unwrap_or_else(|| device.path.clone()));
    }
    Ok(made)
}

/// As `std::fs::canonicalize`, which takes memory of the C library: a thread that is about to fork
/// may hold the lock of that, and wait for this one.
fn without_links(path: &Path) -> Option<PathBuf> {
    let fd = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let link = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).ok()?;
    Some(OsString::from_vec(link.into_bytes()).into())
}

/// Uses the folder of a pool; made if it is missing. The caller holds the volume's exclusive lock.
///
/// Who sweeps up after pools that are gone may remove the folder of one that was moved until its
/// new place is noted: then it is made again.
pub(crate) fn in_folder<T, E: From<RuntimeError>>(
    volume: &Volume,
    mut used: impl FnMut(&Arc<Folder>) -> Result<T, E>,
) -> Result<T, E> {
    for _ in 0..TRIES {
        let folder = lift(make_folder(volume)?);
        match used(&folder) {
            Err(_) if !folder.stands() => {}
            done => return done,
        }
    }
    used(&lift(make_folder(volume)?))
}

/// The session of those who change the pool, whether anybody is in it or not.
pub fn session(volume: &Volume) -> Result<Session, SessionError> {
    match place(volume, None)? {
        Some(place) => Session::open(&place),
        None => Err(SessionError::Missing(base().join(key(volume).to_string()))),
    }
}

/// The session keeps the folder open.
fn place_in(folder: Arc<Folder>, name: &str, volume: &Volume) -> SessionPlace {
    SessionPlace::new(folder, name, volume.identities())
}

/// Where the session of those who change the pool is, if the pool has a folder. One that was found
/// `before` is not looked for again while it stands.
pub(crate) fn place(
    volume: &Volume,
    before: Option<&Arc<Folder>>,
) -> Result<Option<SessionPlace>, RuntimeError> {
    let folder = match before.filter(|folder| folder.stands()) {
        Some(folder) => Some(Arc::clone(folder)),
        None => lifted_folder(volume)?,
    };
    Ok(folder.map(|folder| place_in(folder, SESSION, volume)))
}

/// Makes the session of those who change the pool. The caller holds the volume's exclusive lock.
pub(crate) fn make_session(
    volume: &Volume,
    geometry: Geometry,
    stamp: u64,
) -> Result<(SessionPlace, Session), SessionError> {
    remove_old_names(volume.uuid());
    in_folder(volume, |folder| {
        let place = place_in(Arc::clone(folder), SESSION, volume);
        let session = Session::create(&place, geometry, stamp)?;
        Ok((place, session))
    })
}

/// The place of the session of those who may only read a pool that nobody changes: one for each
/// user, in the user's own folder, as who may only read cannot make one for all.
pub(crate) fn readers_place(
    volume: &Volume,
    make: bool,
) -> Result<Option<SessionPlace>, RuntimeError> {
    let folder = match make {
        true => Some(Folder::make_of_user()?),
        false => Folder::of_user()?,
    };
    let name = format!("readers-of-{}", key(volume));
    Ok(folder.map(|folder| place_in(lift(folder), &name, volume)))
}

/// Removes what earlier versions left of a pool that nobody uses now.
fn remove_old_names(pool: Uuid) {
    let name = base().join(format!("nacre-{pool}"));
    let with = |end: &str| {
        let mut name = name.clone().into_os_string();
        name.push(end);
        name
    };
    // What is somebody else's stays, and does no harm: these names are not looked at any more.
    for end in ["", ".new"] {
        let _ = std::fs::remove_file(with(end));
    }
    for end in [".fd", ".d"] {
        let _ = std::fs::remove_dir(with(end));
    }
}

/// The session in a pool's folder, whatever the pool's devices are: to tell about it.
pub fn session_in(folder: &Arc<Folder>) -> Result<Session, SessionError> {
    Session::open(&SessionPlace::of_any_devices(Arc::clone(folder), SESSION))
}

/// Removes the image of a pool that is gone, if it was gone an hour ago, too, and nobody uses it.
/// Answers whether there is none now. A pool that was only moved keeps what its disk lacks for so
/// long, until somebody uses it at its new place.
pub fn remove_image_of_gone(folder: &Folder) -> bool {
    match folder.look(IMAGE) {
        Ok(None) => true,
        Ok(Some(_)) => gone_for_long(folder) && remove_unused_image(folder),
        Err(_) => false,
    }
}

fn gone_for_long(folder: &Folder) -> bool {
    match folder.look(GONE) {
        Ok(Some(mark)) => {
            let now = Timestamp::now().0 / 1_000_000_000;
            now.saturating_sub(mark.st_mtime) >= GONE_SECONDS
        }
        Ok(None) => {
            // Without the mark it stays.
            let _ = folder.make_file(GONE);
            false
        }
        Err(_) => false,
    }
}

/// Whoever is about to use it meanwhile waits for the lock, and sees then that it has no name.
fn remove_unused_image(folder: &Folder) -> bool {
    let Ok(Some(image)) = folder.open_file(IMAGE, OFlags::RDWR) else {
        return false;
    };
    flock(&image, FlockOperation::NonBlockingLockExclusive).is_ok() && folder.remove(IMAGE).is_ok()
}

/// Somebody uses the pool of a folder: it is not gone.
pub(crate) fn is_there(folder: &Folder) -> Result<(), RuntimeError> {
    folder.remove(GONE)
}

/// Whether a living process is in the session of a folder; a session that cannot be read counts as
/// used.
pub fn is_used(folder: &Arc<Folder>) -> bool {
    match session_in(folder) {
        Ok(session) => {
            let alive = |slot| session.liveness(slot) == Liveness::Alive;
            session.current_slots().any(alive)
        }
        Err(SessionError::Missing(_) | SessionError::Stale(_)) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nacre_runtime::{RuntimeError, pool_folders};
    use nacre_testkit::pool::{Devices, FORCE};
    use nacre_volume::{Access, Volume};

    use super::{in_folder, key, make_folder};
    use crate::{AttachOptions, Store};

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_folder_that_is_swept_away_is_made_again() {
        let devices = Devices::below(Path::new("/dev/shm"));
        let volume = devices.volume(&["pool"], 32 * MIB, FORCE);
        let _lock = volume.lock_exclusive().unwrap();
        let mut tries = 0;
        let made = in_folder(&volume, |folder| -> Result<_, RuntimeError> {
            tries += 1;
            if tries == 1 {
                folder.clear();
                folder.leave();
            }
            folder.make_file("first")?;
            Ok(folder.clone())
        });
        let made = made.unwrap();
        assert!(tries == 2 && made.stands());
        made.clear();
        made.leave();
    }

    #[test]
    fn the_folder_of_a_moved_pool_is_that_of_no_pool_that_is_gone() {
        let devices = Devices::below(Path::new("/dev/shm"));
        let options = AttachOptions::default();
        let attach = |volume| Store::attach(volume, &options).unwrap();
        let volume = devices.volume(&["pool"], 32 * MIB, FORCE);
        Store::format(&volume, &Default::default()).unwrap();
        let of_pool = key(&volume);
        let is_gone = || {
            let mut folders = pool_folders().unwrap().into_iter();
            folders
                .find(|one| one.key == of_pool)
                .map(|one| one.is_gone())
        };
        // It is left as by somebody who was killed before anything was in it.
        make_folder(&volume).unwrap();
        drop(volume);
        let moved = devices.file("moved");
        std::fs::rename(devices.file("pool"), &moved).unwrap();
        assert_eq!(is_gone(), Some(true));
        let store = attach(Volume::open(&moved, Access::ReadWrite).unwrap());
        assert_eq!(is_gone(), Some(false));
        store.detach().unwrap();
    }
}
