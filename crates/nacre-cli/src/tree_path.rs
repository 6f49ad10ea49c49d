//! `POOL:/PATH`: naming and finding files of a pool from outside.

use crate::failure::{Failure, Result, fs_failure};
use crate::output::harmless;
use nacre_fs::{Cred, Events, FileType, Found, Fs, FsError, InodeRef};
use nacre_volume::{Access, DeviceIdentity, Volume};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// As many links as Linux follows in one path.
const LINKS_MAX: usize = 40;

/// Tells programs that watch an inode, or a folder where it is, what a command did there.
pub fn tell(fs: &Fs, node: InodeRef, events: Events) {
    if fs.is_watched() {
        fs.tell(node, None, events);
    }
}

/// A place in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePath {
    pub pool: PathBuf,
    pub path: Vec<u8>,
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = format!(
            "{}:{}",
            self.pool.display(),
            String::from_utf8_lossy(&self.path)
        );
        f.write_str(&harmless(&place))
    }
}

/// A place on the host or in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Host(PathBuf),
    Tree(TreePath),
}

impl Location {
    /// `POOL:/PATH` is a place in a pool, everything else is on the host.
    pub fn parse(text: &OsStr) -> Location {
        let bytes = text.as_bytes();
        let colon = bytes.windows(2).position(|pair| pair == b":/");
        match colon {
            Some(at) if at > 0 => Location::Tree(TreePath {
                pool: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
                path: bytes[at + 1..].to_vec(),
            }),
            _ => Location::Host(PathBuf::from(text)),
        }
    }

    /// A place in a pool; a pool alone means its root folder.
    pub fn parse_tree(text: &OsStr) -> TreePath {
        match Location::parse(text) {
            Location::Tree(tree) => tree,
            Location::Host(pool) => TreePath {
                path: b"/".to_vec(),
                pool: strip_colon(pool),
            },
        }
    }
}

fn strip_colon(pool: PathBuf) -> PathBuf {
    let bytes = pool.as_os_str().as_bytes();
    match bytes.strip_suffix(b":") {
        Some(stripped) => PathBuf::from(OsStr::from_bytes(stripped)),
        None => pool,
    }
}

impl TreePath {
    /// Whether another place is in the same pool, by whichever of its devices and names.
    pub fn shares_pool(&self, other: &TreePath) -> Result<bool> {
        let devices = |pool| -> Result<Vec<DeviceIdentity>> {
            let devices = Volume::open(pool, Access::ReadOnly)?.devices();
            Ok(devices
                .iter()
                .filter_map(|device| device.identity)
                .collect())
        };
        if self.pool == other.pool {
            return Ok(true);
        }
        let (own, others) = (devices(&self.pool)?, devices(&other.pool)?);
        Ok(own.iter().any(|device| others.contains(device)))
    }

    /// A name below this place.
    pub fn join(&self, name: &[u8]) -> TreePath {
        let mut joined = self.clone();
        if !joined.path.ends_with(b"/") {
            joined.path.push(b'/');
        }
        joined.path.extend_from_slice(name);
        joined
    }

    /// The folder that holds this place, and its name there; none for the root.
    pub fn split(&self) -> Option<(TreePath, Vec<u8>)> {
        let trimmed = trim_slashes(&self.path);
        let at = trimmed.iter().rposition(|&byte| byte == b'/')?;
        let name = trimmed[at + 1..].to_vec();
        let parent = TreePath {
            pool: self.pool.clone(),
            path: trimmed[..=at].to_vec(),
        };
        (!name.is_empty()).then_some((parent, name))
    }

    /// Finds it, following symbolic links also at the end.
    pub fn find(&self, fs: &Fs) -> Result<Found> {
        walk(fs, &caller(), &self.path, true).map_err(fs_failure(self))
    }

    /// Finds it without following a link at the end; `None` if there is nothing.
    pub fn find_link(&self, fs: &Fs) -> Result<Option<Found>> {
        match walk(fs, &caller(), &self.path, false) {
            Err(FsError::NotFound) => Ok(None),
            other => other.map(Some).map_err(fs_failure(self)),
        }
    }
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/');
    end.map_or(&path[..0], |end| &path[..=end])
}

/// The caller, as the file system's permission checks want it.
pub fn caller() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups = groups.iter().map(|gid| gid.as_raw()).collect();
    if geteuid().is_root() {
        return Cred::root();
    }
    Cred::user(geteuid().as_raw(), getegid().as_raw(), groups)
}

/// Walks a path from the root of the pool. Absolute links stay inside the pool.
fn walk(fs: &Fs, cred: &Cred, path: &[u8], follow: bool) -> std::result::Result<Found, FsError> {
    let mut here = Found {
        node: fs.root(),
        file_type: FileType::Directory,
    };
    let mut rest: Vec<Vec<u8>> = parts(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if here.file_type != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        let folder = here.node;
        here = fs.lookup(cred, folder, &name)?;
        if here.file_type == FileType::Symlink && (follow || !rest.is_empty()) {
            links += 1;
            if links > LINKS_MAX {
                return Err(FsError::Invalid);
            }
            let target = read_link(fs, here.node)?;
            rest.extend(parts(&target));
            let node = if target.starts_with(b"/") {
                fs.root()
            } else {
                folder
            };
            here = Found {
                node,
                file_type: FileType::Directory,
            };
        }
    }
    Ok(here)
}

/// The names of a path, last first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/');
    names
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}

/// The target of a symbolic link.
pub fn read_link(fs: &Fs, link: InodeRef) -> std::result::Result<Vec<u8>, FsError> {
    let mut target = vec![0; 4096];
    let len = fs.readlink(link, &mut target)?;
    target.truncate(len);
    Ok(target)
}

/// A name and what it stands for.
pub struct TreeEntry {
    pub name: Vec<u8>,
    pub node: InodeRef,
    pub file_type: FileType,
}

/// All entries of a folder but `.` and `..`, sorted by name.
pub fn entries(fs: &Fs, folder: InodeRef, place: &TreePath) -> Result<Vec<TreeEntry>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    fs.readdir(folder, 0, &mut |group| {
        names.extend(group.iter().map(|entry| entry.name.to_vec()));
        true
    })
    .map_err(fs_failure(place))?;
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        match fs.lookup(&caller(), folder, &name) {
            Ok(Found { node, file_type }) => found.push(TreeEntry {
                name,
                node,
                file_type,
            }),
            // Removed by somebody else since it was listed.
            Err(FsError::NotFound) => {}
            Err(error) => return Err(fs_failure(place.join(&name))(error)),
        }
    }
    Ok(found)
}

/// The absolute form of a host path, for messages and for programs that change folder.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::io(path.display(), error))
}

#[cfg(test)]
mod tests {
    use super::{Location, TreePath, parts};
    use std::ffi::OsStr;
    use std::path::PathBuf;

    fn tree(pool: &str, path: &str) -> TreePath {
        TreePath {
            pool: PathBuf::from(pool),
            path: path.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_colon_before_a_slash_names_a_pool() {
        let parse = |text: &str| Location::parse(OsStr::new(text));
        assert_eq!(
            parse("/dev/shm/a.pool:/x/y"),
            Location::Tree(tree("/dev/shm/a.pool", "/x/y"))
        );
        assert_eq!(parse("a:b"), Location::Host(PathBuf::from("a:b")));
        assert_eq!(parse(":/x"), Location::Host(PathBuf::from(":/x")));
        assert_eq!(
            Location::parse_tree(OsStr::new("a.pool")),
            tree("a.pool", "/")
        );
        assert_eq!(
            Location::parse_tree(OsStr::new("a.pool:")),
            tree("a.pool", "/")
        );
    }

    #[test]
    fn places_split_and_join() {
        let (parent, name) = tree("p", "/a/b/").split().expect("has a parent");
        assert_eq!(
            (parent.path.as_slice(), name.as_slice()),
            (&b"/a/"[..], &b"b"[..])
        );
        assert_eq!(parent.join(b"c"), tree("p", "/a/c"));
        assert!(tree("p", "/").split().is_none());
        assert_eq!(
            tree("p", "/a").split().map(|(p, _)| p.path),
            Some(b"/".to_vec())
        );
    }

    #[test]
    fn parts_come_last_first() {
        assert_eq!(
            parts(b"//a/./b/"),
            [b"b".to_vec(), b".".to_vec(), b"a".to_vec()]
        );
    }
}
