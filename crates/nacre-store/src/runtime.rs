//! Where the run-time files of a pool are: its folder, and the sessions of those who change it and
//! of those who read it.

use std::sync::Arc;

use nacre_media::lifted;
use nacre_runtime::{Folder, PoolKey, RuntimeError, Trust, base};
use nacre_session::{Liveness, Session, SessionError, SessionPlace};
use nacre_types::{Timestamp, Uuid};
use nacre_volume::Volume;
use rustix::fs::{FlockOperation, OFlags, flock};

const SESSION: &str = "session";
/// Name of the file whose time says since when the pool of a folder is gone.
const GONE: &str = "gone";
/// For so long what a pool's disk lacks is kept when the pool is gone.
const GONE_SECONDS: i64 = 3600;
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

/// As [`folder`]; made if it is missing. The caller holds the volume's exclusive lock.
pub fn make_folder(volume: &Volume) -> Result<Folder, RuntimeError> {
    let made = match folder(volume)? {
        // The device that was noted may be lost.
        Some(folder) if volume.has_copies() => folder,
        Some(folder) => return Ok(folder),
        None => Folder::make_of_pool(key(volume), trust(volume))?,
    };
    if let Some(device) = volume.devices().first() {
        let path = std::fs::canonicalize(&device.path);
        made.note_origin(&path.unwrap_or_else(|_| device.path.clone()));
    }
    Ok(made)
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

/// As [`place`], for who makes the session.
pub(crate) fn make_place(volume: &Volume) -> Result<SessionPlace, RuntimeError> {
    let folder = make_folder(volume)?;
    remove_old_names(volume.uuid());
    Ok(place_in(lift(folder), SESSION, volume))
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
