//! Opening a pool, using it, and leaving it properly.

use crate::failure::{Failure, Result, store_failure};
use crate::size;
use nacre_fs::Fs;
use nacre_runtime::Folder;
use nacre_store::{AttachOptions, Store, WriteMode, runtime};
use nacre_volume::{Access, CopyInfo, LegState, MediaError, Policy, Volume, VolumeError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An attached pool. Call [`Attached::detach`] at the end, so that the last one out saves what
/// makes the next attach fast.
pub struct Attached {
    pub path: PathBuf,
    pub fs: Fs,
    /// How often whoever watches over it commits.
    pub commit_every: Duration,
}

impl Attached {
    /// Attaches the pool that a device belongs to, joining those who use it already.
    pub fn open(path: &Path, access: Access, mode: Option<WriteMode>) -> Result<Attached> {
        Attached::open_as(path, access, mode, None)
    }

    /// As [`Attached::open`], with a policy of granularity instead of the pool's own.
    pub fn open_as(
        path: &Path,
        access: Access,
        mode: Option<WriteMode>,
        granularity: Option<Policy>,
    ) -> Result<Attached> {
        let options = AttachOptions {
            mode,
            granularity,
            ..AttachOptions::default()
        };
        let attached = Attached::attach(path, access, options)?;
        if access == Access::ReadWrite {
            tell_lost_copies(path, attached.fs.store().volume())?;
        }
        Ok(attached)
    }

    /// So much of a disk may be in memory; unless told, what the control group allows.
    pub fn limit_cache(&self, asked: Option<u64>) -> Result<()> {
        let volume = self.fs.store().volume();
        match asked.map_or_else(asked_cache, |bytes| Ok(Some(bytes)))? {
            Some(bytes) => volume.set_room(bytes),
            None => volume.lower_room(),
        }
        Ok(())
    }

    /// As [`Attached::open`], without a word of copies that are not whole: they are about to be.
    pub fn open_to_rebuild(path: &Path) -> Result<Attached> {
        Attached::attach(path, Access::ReadWrite, AttachOptions::default())
    }

    fn attach(path: &Path, access: Access, options: AttachOptions) -> Result<Attached> {
        let volume = Volume::open(path, access)?;
        runtime::join_emulation(&volume)?;
        let options = AttachOptions {
            parallel: true,
            ..options
        };
        let store = Store::attach(volume, &options).map_err(|error| store_failure(path, error))?;
        if let Some(bytes) = asked_cache()? {
            store.volume().set_room(bytes);
        }
        let mode = store.mode();
        let fs = Fs::with_mode(store, mode);
        fs.take_over().map_err(|error| Failure::Fs {
            object: path.display().to_string(),
            error,
        })?;
        let path = path.to_path_buf();
        let commit_every = fs.store().commit_every();
        Ok(Attached {
            path,
            fs,
            commit_every,
        })
    }

    /// As [`Attached::open`], for who changes nothing: without write permission on the pool,
    /// read-only.
    pub fn open_to_read(path: &Path, mode: Option<WriteMode>) -> Result<Attached> {
        as_allowed(|access| Attached::open(path, access, mode))
    }

    /// As [`Attached::open_to_read`], without a word of copies that are not whole: whoever looks
    /// again and again shows them himself.
    pub fn open_to_look(path: &Path) -> Result<Attached> {
        let options = || AttachOptions {
            looks: true,
            ..AttachOptions::default()
        };
        as_allowed(|access| Attached::attach(path, access, options()))
    }

    /// Detaches.
    pub fn detach(self) -> Result<()> {
        let path = self.path;
        let store = self.fs.into_store();
        store.detach().map_err(|error| store_failure(&path, error))
    }

    /// Runs something on the pool and detaches, whatever came of it. With read access, only that is
    /// needed.
    pub fn with<T>(path: &Path, access: Access, work: impl FnOnce(&Fs) -> Result<T>) -> Result<T> {
        let pool = match access {
            Access::ReadWrite => Attached::open(path, access, None)?,
            Access::ReadOnly => Attached::open_to_read(path, None)?,
        };
        let done = work(&pool.fs);
        let detached = pool.detach();
        done.and_then(|value| detached.map(|()| value))
    }
}

/// Opens for writing; without the right to, for reading.
fn as_allowed(open: impl Fn(Access) -> Result<Attached>) -> Result<Attached> {
    match open(Access::ReadWrite) {
        Err(Failure::Volume(VolumeError::Media(
            MediaError::PermissionDenied(_) | MediaError::MountedReadOnly(_),
        ))) => open(Access::ReadOnly),
        other => other,
    }
}

/// Says which copies of a pool are not there or not whole, and which were repaired just now.
fn tell_lost_copies(pool: &Path, volume: &Volume) -> Result<()> {
    for device in volume.repaired_first() {
        eprintln!(
            "nacre: {}: its copy of the pool's header differed and was repaired; see nacre help scrub",
            device.display()
        );
    }
    for copy in volume.copies()? {
        if copy.state != LegState::Current {
            eprintln!(
                "nacre: {}",
                lost_copy(pool, &copy, volume.common_units() > 0)
            );
        }
    }
    Ok(())
}

/// One that failed and `has_own` contents may lack some of them: it does not come back.
fn lost_copy(pool: &Path, copy: &CopyInfo, has_own: bool) -> String {
    let (path, state, pool) = (copy.path.display(), copy.state.name(), pool.display());
    // It is not used before, though it may be there again.
    let rebuild = format!("nacre device rebuild {pool}");
    let help = match copy.state {
        LegState::Missing => format!("once it is back: {rebuild}"),
        LegState::Failed => {
            let back = match has_own {
                true => String::new(),
                false => format!(", or if it is sound: {rebuild}"),
            };
            format!("it is not used any more: nacre device replace {pool} {path} NEW{back}")
        }
        _ => format!("see nacre device list {pool}"),
    };
    format!("{path}: is {state}; {help}")
}

/// Removes the run-time files of pools and processes that are gone, as far as they are ours and
/// nobody uses them. What cannot be removed stays for the next time.
pub fn sweep() {
    for pool in nacre_runtime::sweep().unwrap_or_default() {
        let unused = || !runtime::is_used(&pool.folder);
        // Its pool may have been found again meanwhile.
        if unused() && runtime::remove_image_of_gone(&pool.folder) && pool.is_gone() && unused() {
            pool.folder.clear();
            pool.folder.leave();
        }
    }
    let own = Folder::of_user();
    if let Ok(Some(own)) = own {
        sweep_own(&own);
    }
}

/// Removes what processes that are dead left in the user's own folder.
fn sweep_own(own: &Folder) {
    for name in own.names() {
        let rest = ["program-", "libraries-"]
            .iter()
            .find_map(|start| name.strip_prefix(start));
        let pid = rest.and_then(|rest| rest.split(['-', '.']).next()?.parse().ok());
        let dead = pid.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists());
        if dead && is_old(own, &name) && own.remove(&name).is_err() {
            own.remove_folder(&name);
        }
    }
}

/// Whether something was made long ago. The number of a process in another container says nothing
/// here.
fn is_old(own: &Folder, name: &str) -> bool {
    const LONG: i64 = 3600;
    let Ok(Some(found)) = own.look(name) else {
        return false;
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.is_ok_and(|now| now.as_secs() as i64 - found.st_mtime > LONG)
}

/// How much memory pools on disks may use, as the environment says.
fn asked_cache() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("NACRE_CACHE") else {
        return Ok(None);
    };
    let parsed = size::parse(&text.to_string_lossy());
    let parsed = parsed.map_err(|why| Failure::Usage(format!("NACRE_CACHE: {why}")))?;
    Ok(Some(parsed))
}
