//! The folder in which all others stand.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat};

use crate::error::RuntimeError;
use crate::identity::{is_known_user, one_user};
use crate::setting::setting;
use crate::trust::{Trust, ignores_checks};

const SYSTEMS: &str = "/dev/shm";
const STICKY: u32 = 0o1000;
const SETGID: u32 = 0o2000;

static BASE: OnceLock<PathBuf> = OnceLock::new();

/// The base: the one of [`use_base`], else `$NACRE_SESSION_DIR`, else `/dev/shm`.
pub fn base() -> &'static Path {
    BASE.get_or_init(|| {
        setting("NACRE_SESSION_DIR").map_or_else(|| PathBuf::from(SYSTEMS), PathBuf::from)
    })
}

/// Names the base for this process, or the usual one, before it is asked for: for who runs before
/// the environment can be read.
pub fn use_base(folder: Option<PathBuf>) {
    BASE.get_or_init(|| folder.unwrap_or_else(|| PathBuf::from(SYSTEMS)));
}

/// Refuses a base of the caller's choice in which others can replace what they did not make.
pub(crate) fn check(trust: &Trust) -> Result<(), RuntimeError> {
    let path = base();
    if path == Path::new(SYSTEMS) || ignores_checks() {
        return Ok(());
    }
    let failed = |action| {
        move |errno| RuntimeError::System {
            action,
            path: path.to_owned(),
            errno,
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd =
        openat(CWD, path, flags, Mode::empty()).map_err(failed("open the folder of sessions"))?;
    let found = fstat(&fd).map_err(failed("examine the folder of sessions"))?;
    match keeps_names(&found, trust) {
        true => Ok(()),
        false => Err(RuntimeError::OpenBase(path.to_owned())),
    }
}

/// Whether nobody but its makers can rename or remove what stands in a folder.
fn keeps_names(folder: &Stat, trust: &Trust) -> bool {
    let trusted = [0, trust.uid].contains(&folder.st_uid) && is_known_user(folder.st_uid);
    let owned = trusted || one_user() == Some(folder.st_uid);
    let shared = trust.mode & folder.st_mode & 0o022 == folder.st_mode & 0o022;
    // There a folder's group would not tell who made it.
    let gives_group = folder.st_mode & SETGID != 0 && trust.mode & 0o020 != 0;
    owned && !gives_group && (shared || folder.st_mode & STICKY != 0)
}
