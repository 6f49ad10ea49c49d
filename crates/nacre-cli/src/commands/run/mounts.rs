//! Which pool appears where, and how the preload library is told.

use crate::attached::Attached;
use crate::failure::{Failure, Result};
use crate::mode::Mode;
use crate::tree_path::absolute;
use nacre_fuse::mounted_at;
use nacre_runtime::one_user;
use nacre_store::WriteMode;
use nacre_types::mount_table::{self, KernelMount};
use nacre_volume::{Owner, Policy, Volume};
use rustix::fs::getxattr;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const DEFAULT_MOUNT: &str = "/nacre";
const VARIABLE: &str = "NACRE_MOUNTS";
/// Bytes that the variable uses between its parts.
const SEPARATORS: &[u8] = b";,=\n";

/// A pool and the folder as which it appears; both absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub folder: PathBuf,
    pub pool: PathBuf,
}

impl Mount {
    /// The kernel's mount of the same pool there, if root, the pool's owner or the caller made it.
    pub fn by_kernel(&self) -> Option<KernelMount> {
        let (folder, found) = self.there()?;
        let owner = fs::metadata(&self.pool).ok()?.uid();
        let trusted = [0, owner].contains(&found.user) || one_user() == Some(found.user);
        (trusted && shows(&folder, &identity_of(&self.pool).ok()?)).then_some(found)
    }

    /// What the kernel shows there instead of the pool.
    pub fn taken(&self) -> Option<KernelMount> {
        match self.by_kernel() {
            Some(_) => None,
            None => self.there().map(|(_, found)| found),
        }
    }

    /// The folder without links, and the pool that the kernel shows there.
    fn there(&self) -> Option<(PathBuf, KernelMount)> {
        let folder = fs::canonicalize(&self.folder).ok()?;
        let table = fs::read("/proc/self/mountinfo").ok()?;
        let found = mount_table::find(&table, folder.as_os_str().as_bytes())?;
        Some((folder, found))
    }
}

/// Which file is at a path: [`mount_table::identity`].
pub fn identity_of(pool: &Path) -> io::Result<String> {
    let found = fs::metadata(pool)?;
    Ok(mount_table::identity(found.dev(), found.ino()))
}

/// Whether the mount there is of this file.
fn shows(folder: &Path, identity: &str) -> bool {
    let mut room = [0; 64];
    let len = getxattr(folder, mount_table::IDENTITY, &mut room[..]);
    len.is_ok_and(|len| room.get(..len) == Some(identity.as_bytes()))
}

/// What was asked for instead of the pools' own settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    pub mode: Option<WriteMode>,
    pub granularity: Option<Policy>,
    pub read_only: bool,
}

/// Pairs pools with folders in the order of the command line.
pub fn pair(pools: &[PathBuf], folders: &[PathBuf]) -> Result<Vec<Mount>> {
    let default = [PathBuf::from(DEFAULT_MOUNT)];
    let folders = match (pools.len(), folders.len()) {
        (1, 0) => &default[..],
        (pools, folders_given) if pools == folders_given => folders,
        (pools, folders_given) => {
            return Err(Failure::Usage(format!(
                "{pools} pools but {folders_given} folders; give one --mount DIR for each --pool"
            )));
        }
    };
    let mut mounts: Vec<Mount> = Vec::new();
    for (pool, folder) in pools.iter().zip(folders) {
        let mount = Mount {
            folder: mount_folder(folder)?,
            pool: absolute(pool)?,
        };
        refuse_separators(&mount.pool)?;
        if mounts.iter().any(|other| other.folder == mount.folder) {
            let folder = mount.folder.display();
            return Err(Failure::Usage(format!(
                "{folder}: two pools cannot appear there; choose another folder for one"
            )));
        }
        mounts.push(mount);
    }
    Ok(mounts)
}

/// Refuses mount points with files of the host below them. A pool that the kernel shows there, or a
/// surrounding `nacre run`, is none of the host's.
pub fn refuse_covering(mounts: &[Mount]) -> Result<()> {
    let covers = |folder: &Path| match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => folder.symlink_metadata().is_ok(),
    };
    let covering = |mount: &&Mount| {
        !is_outer(&mount.folder) && covers(&mount.folder) && !shows_a_pool(&mount.folder)
    };
    let Some(mount) = mounts.iter().find(covering) else {
        return Ok(());
    };
    let folder = mount.folder.display();
    Err(Failure::Usage(format!(
        "{folder} exists and is not empty; the pool would cover what is there. Choose another --mount DIR, which need \
         not exist, or add --cover"
    )))
}

fn shows_a_pool(folder: &Path) -> bool {
    let shown = fs::canonicalize(folder).and_then(|folder| mounted_at(&folder));
    shown.is_ok_and(|pool| pool.is_some())
}

/// Whether a surrounding `nacre run` has a pool there.
pub fn is_outer(folder: &Path) -> bool {
    let outer = env::var_os(VARIABLE).unwrap_or_default();
    names_folder(outer.as_bytes(), folder)
}

/// The value, if a `NAME=value` text is the variable of mounts.
pub fn of_setting(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=")
}

/// Whether a value of the variable has a pool at a folder.
pub fn names_folder(mounts: &[u8], folder: &Path) -> bool {
    entries_at(mounts, folder).next().is_some()
}

/// Whether a value of the variable has this pool at a folder.
pub fn names(mounts: &[u8], folder: &Path, identity: &str) -> bool {
    let mut pools = entries_at(mounts, folder).filter_map(pool_of);
    pools.any(|pool| identity_of(pool).is_ok_and(|found| found == identity))
}

fn entries_at<'m>(mounts: &'m [u8], folder: &Path) -> impl Iterator<Item = &'m [u8]> {
    let folder = folder.as_os_str().as_bytes();
    let entries = mounts.split(|&byte| byte == b';');
    entries.filter(move |entry| folder_of(entry) == folder)
}

/// An absolute folder without `.` and `..`, which is not the root.
fn mount_folder(folder: &Path) -> Result<PathBuf> {
    let folder = absolute(folder)?;
    refuse_separators(&folder)?;
    if folder.components().any(|part| part == Component::ParentDir) || folder.parent().is_none() {
        let folder = folder.display();
        return Err(Failure::Usage(format!(
            "{folder}: a pool cannot appear there; choose a folder like /nacre"
        )));
    }
    // `absolute` keeps a slash at the end.
    Ok(folder.components().collect())
}

fn refuse_separators(path: &Path) -> Result<()> {
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| SEPARATORS.contains(byte))
    {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "{path}: paths with `;`, `,`, `=` or line breaks cannot be used; make a link to it"
        )));
    }
    Ok(())
}

/// The variable that the preload library reads. Of pools that are attached it says which ones they
/// are: programs take no others that have their names by then (D88). Pools of a surrounding
/// `nacre run` stay visible, unless one of ours takes their place.
pub fn environment(mounts: &[Mount], attached: &[Attached], choice: &Choice) -> OsString {
    let outer = env::var_os(VARIABLE).unwrap_or_default();
    let entry_of = |(at, mount): (usize, &Mount)| match attached.get(at) {
        Some(pool) => add_known(entry(mount, choice), &mount.pool, pool.fs.store().volume()),
        None => entry(mount, choice),
    };
    let mut entries: Vec<Vec<u8>> = mounts.iter().enumerate().map(entry_of).collect();
    let outer = outer.as_bytes().split(|&byte| byte == b';');
    entries.extend(
        outer
            .filter(|entry| !entry.is_empty() && !is_taken(entry, mounts))
            .map(<[u8]>::to_vec),
    );
    OsString::from_vec(entries.join(&b';'))
}

fn is_taken(entry: &[u8], mounts: &[Mount]) -> bool {
    mounts
        .iter()
        .any(|mount| mount.folder.as_os_str().as_bytes() == folder_of(entry))
}

fn folder_of(entry: &[u8]) -> &[u8] {
    entry.split(|&byte| byte == b'=').next().unwrap_or(entry)
}

fn pool_of(entry: &[u8]) -> Option<&Path> {
    let mut parts = entry.splitn(2, |&byte| byte == b'=').skip(1);
    let pool = parts.next()?.split(|&byte| byte == b',').next()?;
    Some(Path::new(OsStr::from_bytes(pool)))
}

/// Other devices that hold the same, by which programs find the pool when the first is lost, and
/// whose they must be. The first may have gone as this process came.
fn copies_of(pool: &Path, volume: &Volume) -> Option<(Owner, Vec<PathBuf>)> {
    let copies = volume.copies().ok().filter(|copies| !copies.is_empty())?;
    let others = copies.into_iter().map(|copy| copy.path);
    let others = others.filter(|path| path != pool);
    let others = others.filter(|path| path.is_absolute() && refuse_separators(path).is_ok());
    Some((volume.owner(), others.collect()))
}

fn entry(mount: &Mount, choice: &Choice) -> Vec<u8> {
    let mut entry = mount.folder.as_os_str().as_bytes().to_vec();
    entry.push(b'=');
    entry.extend_from_slice(mount.pool.as_os_str().as_bytes());
    if let Some(mode) = choice.mode {
        entry.extend_from_slice(b",mode=");
        entry.extend_from_slice(Mode::name(mode).as_bytes());
    }
    if let Some(policy) = choice.granularity {
        entry.extend_from_slice(format!(",granularity={policy}").as_bytes());
    }
    if choice.read_only {
        entry.extend_from_slice(b",ro");
    }
    entry
}

/// Adds by what programs know the pool again. One with copies may lose its first device meanwhile:
/// they find it by the others.
fn add_known(mut entry: Vec<u8>, pool: &Path, volume: &Volume) -> Vec<u8> {
    entry.extend_from_slice(format!(",pool={}", volume.uuid()).as_bytes());
    // The labels are read once more only where they say more than the volume.
    let copies = volume.has_copies().then(|| copies_of(pool, volume));
    let file = match copies.flatten() {
        Some((owner, copies)) => {
            entry.extend_from_slice(format!(",owner={owner}").as_bytes());
            for copy in copies {
                entry.extend_from_slice(b",copy=");
                entry.extend_from_slice(copy.as_os_str().as_bytes());
            }
            identity_of(pool).ok()
        }
        None => volume.identity_text(),
    };
    if let Some(file) = file {
        entry.extend_from_slice(format!(",file={file}").as_bytes());
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::{Choice, Mount, entry, is_taken, pair};
    use nacre_store::WriteMode;
    use nacre_volume::Policy;
    use std::path::PathBuf;

    fn paths(list: &[&str]) -> Vec<PathBuf> {
        list.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn one_pool_appears_at_nacre() {
        let mounts = pair(&paths(&["/p"]), &[]).expect("a pair");
        assert_eq!(
            mounts,
            [Mount {
                folder: "/nacre".into(),
                pool: "/p".into()
            }]
        );
    }

    #[test]
    fn several_pools_need_as_many_folders() {
        assert!(pair(&paths(&["/p", "/q"]), &paths(&["/a"])).is_err());
        assert!(pair(&paths(&["/p", "/q"]), &[]).is_err());
        assert!(pair(&paths(&["/p", "/q"]), &paths(&["/a", "/a/"])).is_err());
        assert!(pair(&paths(&["/p", "/q"]), &paths(&["/a", "/b"])).is_ok());
    }

    #[test]
    fn impossible_folders_are_refused() {
        for folder in ["/", "/a/..", "/a;b", "/a=b"] {
            assert!(
                pair(&paths(&["/p"]), &paths(&[folder])).is_err(),
                "{folder}"
            );
        }
        assert!(pair(&paths(&["/p,x"]), &paths(&["/a"])).is_err());
    }

    #[test]
    fn entries_carry_their_options() {
        let mount = Mount {
            folder: "/nacre".into(),
            pool: "/p".into(),
        };
        let choice = Choice {
            mode: Some(WriteMode::Atomic),
            granularity: Some(Policy::Optane { modules: 2 }),
            read_only: true,
        };
        assert_eq!(entry(&mount, &Choice::default()), b"/nacre=/p");
        assert_eq!(
            entry(&mount, &choice),
            b"/nacre=/p,mode=atomic,granularity=optane:2,ro"
        );
        assert!(is_taken(b"/nacre=/other", std::slice::from_ref(&mount)));
        assert!(!is_taken(b"/nacre2=/other", &[mount]));
    }
}
