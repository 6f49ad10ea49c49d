//! Where counters are: a name in a folder whose owner was checked, or a path of the caller's
//! choice.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_runtime::Folder;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

/// The place of a file with counters. Only the descriptor of a checked folder leads there: what
/// becomes of the folder's name does not matter.
#[derive(Clone, Debug)]
pub struct CounterPlace {
    folder: Option<Arc<Folder>>,
    /// Below the folder.
    name: PathBuf,
}

impl From<&Path> for CounterPlace {
    fn from(path: &Path) -> CounterPlace {
        CounterPlace {
            folder: None,
            name: path.to_owned(),
        }
    }
}

impl From<&PathBuf> for CounterPlace {
    fn from(path: &PathBuf) -> CounterPlace {
        path.as_path().into()
    }
}

impl CounterPlace {
    /// A single name in a folder.
    pub fn below(folder: impl Into<Arc<Folder>>, name: &str) -> CounterPlace {
        CounterPlace {
            folder: Some(folder.into()),
            name: name.into(),
        }
    }

    /// A path that leads into the folder of the user that the process is is a name in that folder.
    pub fn in_own_folder(path: &Path) -> CounterPlace {
        let own = Folder::of_user().ok().flatten();
        let name = path.file_name().and_then(|name| name.to_str());
        match (own, name) {
            (Some(own), Some(name)) if path.parent() == Some(own.path()) => Self::below(own, name),
            _ => path.into(),
        }
    }

    /// For messages, and for programs that get a path.
    pub fn path(&self) -> PathBuf {
        match &self.folder {
            Some(folder) => folder.path().join(&self.name),
            None => self.name.clone(),
        }
    }

    fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_ref().map_or(CWD, |folder| folder.fd())
    }

    /// Opens what is there, not through a link.
    pub(crate) fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        openat(self.folder(), &self.name, flags, Mode::empty())
    }

    /// Makes a file beside it, which [`CounterPlace::replace`] then puts there.
    pub(crate) fn make_fresh(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        openat(self.folder(), self.fresh(), flags, mode)
    }

    pub(crate) fn replace(&self) -> Result<(), Errno> {
        renameat(self.folder(), self.fresh(), self.folder(), &self.name)
    }

    fn fresh(&self) -> PathBuf {
        let mut fresh = self.name.clone().into_os_string();
        fresh.push(format!(".{}", std::process::id()));
        fresh.into()
    }

    /// Removes the file; one that is missing is an error.
    pub fn remove(&self) -> Result<(), Errno> {
        unlinkat(self.folder(), &self.name, AtFlags::empty())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nacre_media::Owner;
    use nacre_runtime::{Folder, Trust};
    use nacre_types::Uuid;

    use super::CounterPlace;
    use crate::emulation::{Emulation, FILE_NAME, Pool, Settings};
    use crate::profile::Profile;

    #[test]
    fn counters_are_those_of_the_folder_that_was_checked_whatever_has_its_name() {
        let base = tempfile::tempdir().expect("a folder");
        let [here, away] = ["here", "away"].map(|name| base.path().join(name));
        fs::create_dir(&here).expect("made");
        let trust = Trust::user().expect("one user");
        let folder = || Folder::given(&here, trust).expect("a folder");
        let (makes, joins, other) = (folder(), folder(), folder());
        let owner = Owner {
            uid: trust.uid,
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        };
        let pool = Pool {
            uuid: Uuid([7; 16]),
            devices: vec![1 << 20],
            owner,
        };
        let settings = Settings {
            profile: &Profile::plain(),
            delays: false,
            wear: Some(4096),
        };
        fs::rename(&here, &away).expect("moved");
        fs::create_dir(&here).expect("made");
        fs::write(here.join(FILE_NAME), "of somebody else").expect("written");
        let place = CounterPlace::below(makes, FILE_NAME);
        let made = Emulation::create(place, &settings, &pool).expect("made");
        let place = CounterPlace::below(joins, FILE_NAME);
        let joined = Emulation::join(place, pool.uuid, owner).expect("sound");
        assert!(joined.is_some() && away.join(FILE_NAME).exists());
        made.remove().expect("removed");
        let place = CounterPlace::below(other, FILE_NAME);
        let gone = Emulation::join(place, pool.uuid, owner).expect("nothing");
        assert!(gone.is_none() && here.join(FILE_NAME).exists());
    }
}
