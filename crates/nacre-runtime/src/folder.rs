//! A folder whose owner was checked, and what is done in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, mkdirat, openat,
    readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::error::RuntimeError;
use crate::trust::{Trust, ignores_checks};

type Outcome<T> = Result<T, RuntimeError>;

/// What is expected behind a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
}

/// A folder that only those who are trusted can change, held by its descriptor.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    trust: Trust,
}

const FOLDER_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Everybody makes names, nobody removes those of others.
const SHARED_MODE: u32 = 0o1777;

impl Folder {
    /// The folder at a path if it is one and trusted, `None` if it is missing or anything else.
    pub(crate) fn accepted(path: &Path, trust: Trust) -> Outcome<Seen> {
        let opened = openat(CWD, path, FOLDER_FLAGS, Mode::empty());
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Seen::Missing),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM) => {
                return Ok(Seen::Foreign);
            }
            Err(errno) => return Err(system("open", path, errno)),
        };
        let found = fstat(&fd).map_err(|errno| system("examine", path, errno))?;
        Ok(match trust.accepts(&found) {
            true => Seen::Ours(Folder {
                fd,
                path: path.to_owned(),
                trust,
            }),
            false => Seen::Foreign,
        })
    }

    /// The folder at a path, for those who made it. `None` if it is not one that the caller may
    /// look into.
    pub(crate) fn of_its_maker(path: &Path) -> Outcome<Option<Folder>> {
        let Ok(fd) = openat(CWD, path, FOLDER_FLAGS, Mode::empty()) else {
            return Ok(None);
        };
        let found = fstat(&fd).map_err(|errno| system("examine", path, errno))?;
        let trust = Trust {
            uid: found.st_uid,
            gid: found.st_gid,
            mode: found.st_mode & 0o777,
        };
        Ok(Some(Folder {
            fd,
            path: path.to_owned(),
            trust,
        }))
    }

    /// Makes the folder at a path, which must not be there. `None` if it is by now.
    pub(crate) fn made(path: &Path, trust: Trust) -> Outcome<Option<Folder>> {
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(system("make", path, errno)),
        }
        let fd = openat(CWD, path, FOLDER_FLAGS, Mode::empty())
            .map_err(|errno| system("open", path, errno))?;
        give(&fd, trust, trust.folder_mode()).map_err(|errno| system("give away", path, errno))?;
        Ok(Some(Folder {
            fd,
            path: path.to_owned(),
            trust,
        }))
    }

    /// A folder of the caller's choice, for tests; its owner is not looked at.
    pub fn given(path: &Path, trust: Trust) -> Outcome<Folder> {
        let flags = FOLDER_FLAGS.difference(OFlags::NOFOLLOW);
        let fd =
            openat(CWD, path, flags, Mode::empty()).map_err(|errno| system("open", path, errno))?;
        Ok(Folder {
            fd,
            path: path.to_owned(),
            trust,
        })
    }

    /// The same folder, by the descriptor that `lift` makes of its own.
    pub fn moved(self, lift: fn(OwnedFd) -> OwnedFd) -> Folder {
        let fd = lift(self.fd);
        Folder { fd, ..self }
    }

    /// Whether it still is the folder that was found: not removed, and as trusted as then.
    pub fn stands(&self) -> bool {
        fstat(&self.fd).is_ok_and(|found| found.st_nlink > 0 && self.trust.accepts(&found))
    }

    /// Where it is, for messages and for programs that get a path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whom it belongs to.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a regular file. `None` if it is missing.
    ///
    /// Refuses what is no regular file, and what was not made by those who are trusted. Never
    /// waits, follows no link.
    pub fn open_file(&self, name: &str, flags: OFlags) -> Outcome<Option<OwnedFd>> {
        let opened = self.open_and_look(name, flags)?;
        Ok(opened.map(|(fd, _)| fd))
    }

    /// As [`Folder::open_file`], with what was looked at to check it.
    pub fn open_and_look(&self, name: &str, flags: OFlags) -> Outcome<Option<(OwnedFd, Stat)>> {
        let path = self.place(name)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => {
                return Err(RuntimeError::Foreign(path));
            }
            Err(errno) => return Err(system("open", &path, errno)),
        };
        let found = self.check(&fd, Kind::File, &path)?;
        Ok(Some((fd, found)))
    }

    /// Makes a file that is not there, for those who are trusted.
    pub fn make_file(&self, name: &str) -> Outcome<OwnedFd> {
        let path = self.place(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| system("make", &path, errno))?;
        give(&fd, self.trust, self.trust.file_mode())
            .map_err(|errno| system("give away", &path, errno))?;
        Ok(fd)
    }

    /// Makes a link that is not there.
    pub fn make_link(&self, name: &str, to: &str) -> Outcome<()> {
        let path = self.place(name)?;
        symlinkat(to, &self.fd, name).map_err(|errno| system("make", &path, errno))
    }

    /// Where a link leads. `None` if it is none.
    pub fn link(&self, name: &str) -> Option<String> {
        let to = readlinkat(&self.fd, name, Vec::new()).ok()?;
        to.into_string().ok()
    }

    /// The folder of a name in this one; made if it is missing and `make` is set.
    pub fn folder(&self, name: &str, make: bool) -> Outcome<Option<Folder>> {
        let path = self.place(name)?;
        let made = make && self.make_folder(name, &path)?;
        let Some(fd) = self.open_folder(name, &path)? else {
            return Ok(None);
        };
        if made {
            give(&fd, self.trust, self.trust.folder_mode())
                .map_err(|errno| system("give away", &path, errno))?;
        }
        self.check(&fd, Kind::Folder, &path)?;
        Ok(Some(Folder {
            fd,
            path,
            trust: self.trust,
        }))
    }

    /// As [`Folder::folder`] with `make`, open to whoever holds its descriptor: a process that has
    /// given up its rights goes on to use it. Only who can enter this folder gets such a
    /// descriptor.
    pub fn shared_folder(&self, name: &str) -> Outcome<Folder> {
        let path = self.place(name)?;
        let made = self.make_folder(name, &path)?;
        let folder = self.found_shared_folder(name)?;
        let folder = folder.ok_or_else(|| system("open", &path, Errno::NOENT))?;
        if made {
            give(&folder.fd, self.trust, SHARED_MODE)
                .map_err(|errno| system("give away", &path, errno))?;
        }
        Ok(folder)
    }

    /// As [`Folder::shared_folder`]; `None` if it is missing.
    pub fn found_shared_folder(&self, name: &str) -> Outcome<Option<Folder>> {
        let path = self.place(name)?;
        let Some(fd) = self.open_folder(name, &path)? else {
            return Ok(None);
        };
        let found = fstat(&fd).map_err(|errno| system("examine", &path, errno))?;
        match self.trust.made(&found) {
            true => Ok(Some(Folder {
                fd,
                path,
                trust: self.trust,
            })),
            false => Err(RuntimeError::Foreign(path)),
        }
    }

    /// `None` if it is missing. Its owner is not looked at.
    fn open_folder(&self, name: &str, path: &Path) -> Outcome<Option<OwnedFd>> {
        match openat(&self.fd, name, FOLDER_FLAGS, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(RuntimeError::Foreign(path.to_owned())),
            Err(errno) => Err(system("open", path, errno)),
        }
    }

    fn make_folder(&self, name: &str, path: &Path) -> Outcome<bool> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(system("make", path, errno)),
        }
    }

    /// An empty folder of a name in this one; what one of that name held is removed.
    pub fn fresh_folder(&self, name: &str) -> Outcome<Folder> {
        let folder = self.folder(name, true)?;
        let folder = folder.ok_or_else(|| RuntimeError::Foreign(self.path.join(name)))?;
        folder.clear();
        Ok(folder)
    }

    /// Renames a file within the folder.
    pub fn rename(&self, from: &str, to: &str) -> Outcome<()> {
        let path = self.place(to)?;
        self.place(from)?;
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| system("name", &path, errno))
    }

    /// Removes a file; what is missing is no error.
    pub fn remove(&self, name: &str) -> Outcome<()> {
        let path = self.place(name)?;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(system("remove", &path, errno)),
        }
    }

    /// What a name stands for, not following a link. `None` if it is missing.
    pub fn look(&self, name: &str) -> Outcome<Option<Stat>> {
        let path = self.place(name)?;
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(system("examine", &path, errno)),
        }
    }

    /// Removes the folder of a name in this one with all that is in it, as far as it can be.
    pub fn remove_folder(&self, name: &str) {
        if let Ok(fd) = openat(&self.fd, name, FOLDER_FLAGS, Mode::empty()) {
            let path = self.path.join(name);
            let trust = self.trust;
            Folder { fd, path, trust }.clear();
        }
        let _left = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Removes all that is in the folder, as far as it can be.
    pub fn clear(&self) {
        for name in self.names() {
            if self.remove(&name).is_err() {
                self.remove_folder(&name);
            }
        }
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.fd) else {
            return Vec::new();
        };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.into()));
        names
            .filter(|name: &String| name != "." && name != "..")
            .collect()
    }

    /// Removes the folder itself if it is empty, and its name still leads to it.
    pub fn leave(&self) {
        let here = fstat(&self.fd).map(|stat| (stat.st_dev, stat.st_ino));
        let there = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        if here == there.map(|stat| (stat.st_dev, stat.st_ino)) {
            let _in_use_still = unlinkat(CWD, &self.path, AtFlags::REMOVEDIR);
        }
    }

    /// Refuses what is of another kind or was not made by those who are trusted.
    fn check(&self, fd: &OwnedFd, kind: Kind, path: &Path) -> Outcome<Stat> {
        let found = fstat(fd).map_err(|errno| system("examine", path, errno))?;
        let wanted = match kind {
            Kind::File => FileType::RegularFile,
            Kind::Folder => FileType::Directory,
        };
        let right = FileType::from_raw_mode(found.st_mode) == wanted;
        match right && self.trust.accepts(&found) || ignores_checks() && kind == Kind::File {
            true => Ok(found),
            false => Err(RuntimeError::Foreign(path.to_owned())),
        }
    }

    /// The path of a single name.
    fn place(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.path.join(name);
        match name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            true => Err(RuntimeError::Name(path)),
            false => Ok(path),
        }
    }
}

/// What stands under a name.
pub(crate) enum Seen {
    Missing,
    Foreign,
    Ours(Folder),
}

/// Gives what was just made to those who are trusted. Whoever may not give files away keeps the
/// file; the group shows then that a member made it.
fn give(fd: &OwnedFd, trust: Trust, mode: u32) -> Result<(), Errno> {
    let group = (trust.gid != u32::MAX).then(|| Gid::from_raw(trust.gid));
    let mut mode = mode;
    if trust.uid != fstat(fd)?.st_uid || group.is_some() {
        let whole = fchown(fd, Some(Uid::from_raw(trust.uid)), group);
        match whole.or_else(|_| fchown(fd, None, group)) {
            Ok(()) => {}
            // Not of the group: what is written for it must not be for another one.
            Err(Errno::PERM) => mode &= !0o070,
            Err(errno) => return Err(errno),
        }
    }
    fchmod(fd, Mode::from_raw_mode(mode))
}

pub(crate) fn system(action: &'static str, path: &Path, errno: Errno) -> RuntimeError {
    RuntimeError::System {
        action,
        path: path.to_owned(),
        errno,
    }
}
