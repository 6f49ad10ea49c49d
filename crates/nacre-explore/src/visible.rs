//! Everything that a program can see of a file system, times and placement aside.

use std::collections::BTreeMap;

use nacre_fs::{Cred, FileType, Fs, FsError, InodeRef};
use nacre_types::{FileOffset, Timestamp};

use crate::ground::Ground;
use nacre_testkit::random::hash;

const MAX_DEPTH: usize = 16;
const MAX_ENTRIES: usize = 1000;
const MAX_SIZE: u64 = 1 << 22;

/// What is seen by path; the root is the empty path.
pub type Visible = BTreeMap<Vec<u8>, Seen>;

/// One inode.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// Inode number.
    pub ino: u64,
    /// Generation, type and permissions, number of names, owner, group.
    pub attributes: [u32; 5],
    /// Bytes.
    pub size: u64,
    /// Contents of files, targets of links.
    pub bytes: Vec<u8>,
    /// Attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What may lag.
    pub lazy: Lazy,
}

/// What may lag behind until it is asked for: two of them are always equal.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Lazy {
    /// Space in 512-byte blocks.
    pub blocks: u64,
    /// Times of last change of contents and inode.
    pub times: [Timestamp; 2],
}

impl PartialEq for Lazy {
    fn eq(&self, _: &Lazy) -> bool {
        true
    }
}

/// Looks at everything.
pub fn look(fs: &Fs) -> Result<Visible, String> {
    look_below(Ground::of(fs))
}

/// Looks at everything below a directory, which is the empty path.
pub fn look_below(ground: Ground<'_>) -> Result<Visible, String> {
    let mut visible = Visible::new();
    walk(ground.fs, ground.root, &mut Vec::new(), 0, &mut visible)?;
    Ok(visible)
}

/// What is seen below a directory of what is seen: as `look_below` of that directory.
pub fn part(visible: &Visible, directory: &str) -> Visible {
    let inside = visible
        .range(directory.as_bytes().to_vec()..)
        .map_while(|(path, seen)| {
            let rest = path.strip_prefix(directory.as_bytes())?;
            Some((rest, seen))
        });
    let below = |rest: &[u8]| rest.is_empty() || rest[0] == b'/';
    inside
        .filter(|(rest, _)| below(rest))
        .map(|(rest, seen)| (rest.get(1..).unwrap_or_default().to_vec(), seen.clone()))
        .collect()
}

/// A hash of what is seen.
pub fn fingerprint(visible: &Visible) -> u64 {
    visible.iter().fold(1, |sum, (path, seen)| {
        let mut sum = hash(hash(sum, path), &seen.bytes);
        for number in seen.attributes {
            sum = hash(sum, &number.to_le_bytes());
        }
        for (name, value) in &seen.xattrs {
            sum = hash(hash(sum, name), value);
        }
        hash(sum, &(seen.size ^ seen.ino << 40).to_le_bytes())
    })
}

fn walk(
    fs: &Fs,
    node: InodeRef,
    path: &mut Vec<u8>,
    depth: usize,
    visible: &mut Visible,
) -> Result<(), String> {
    let at = |what: &str, path: &[u8], error: FsError| {
        format!("{what} {:?}: {error}", String::from_utf8_lossy(path))
    };
    let seen = see(fs, node).map_err(|error| at("look at", path, error))?;
    let directory = FileType::from_mode(seen.attributes[1]) == Some(FileType::Directory);
    visible.insert(path.clone(), seen);
    if visible.len() > MAX_ENTRIES || depth > MAX_DEPTH {
        return Err("there are more entries than were ever made".into());
    }
    if !directory {
        return Ok(());
    }
    let mut entries = Vec::new();
    fs.readdir(node, 0, &mut |group| {
        let named = group.iter().map(|e| (e.name.to_vec(), e.ino, e.file_type));
        entries.extend(named.filter(|(name, ..)| name != b"." && name != b".."));
        entries.len() < MAX_ENTRIES
    })
    .map_err(|error| at("list", path, error))?;
    for (name, ino, file_type) in entries {
        let len = path.len();
        if len > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let found = fs.lookup(&Cred::root(), node, &name);
        let found = found.map_err(|error| at("look up", path, error))?;
        if found.node.ino != ino || found.file_type != file_type {
            return Err(format!("listing and lookup differ at {path:?}"));
        }
        walk(fs, found.node, path, depth + 1, visible)?;
        path.truncate(len);
    }
    Ok(())
}

fn see(fs: &Fs, node: InodeRef) -> nacre_fs::Result<Seen> {
    let stat = fs.getattr(node)?;
    if stat.size > MAX_SIZE {
        return Err(FsError::FileTooBig);
    }
    let mut bytes = vec![0; stat.size as usize];
    match stat.file_type() {
        Some(FileType::Regular) => {
            let read = fs.read_noatime(node, FileOffset(0), bytes.as_mut_slice().into())?;
            bytes.truncate(read);
        }
        Some(FileType::Symlink) => {
            let read = fs.readlink(node, &mut bytes)?;
            bytes.truncate(read);
        }
        _ => bytes.clear(),
    }
    Ok(Seen {
        ino: stat.ino.0,
        attributes: [stat.generation, stat.mode, stat.nlink, stat.uid, stat.gid],
        size: stat.size,
        bytes,
        xattrs: xattrs(fs, node)?,
        lazy: Lazy {
            blocks: stat.blocks,
            times: [stat.mtime, stat.ctime],
        },
    })
}

fn xattrs(fs: &Fs, node: InodeRef) -> nacre_fs::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let cred = &Cred::root();
    let mut all = BTreeMap::new();
    let len = fs.list_xattr(cred, node, &mut [])?;
    if len == 0 {
        return Ok(all);
    }
    let mut names = vec![0; len];
    fs.list_xattr(cred, node, &mut names)?;
    for name in names.split(|&byte| byte == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; fs.get_xattr(cred, node, name, &mut [])?];
        fs.get_xattr(cred, node, name, &mut value)?;
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}
