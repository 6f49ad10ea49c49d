//! What cases came to, and what files of a pool hold.

use nacre_fs::{Cred, FileType, Fs, InodeRef};
use nacre_types::FileOffset;

/// What cases came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Damaged pools.
    pub cases: u64,
    /// That were refused as a whole.
    pub refused: u64,
    /// That were served read-only.
    pub quarantined: u64,
    /// In which nobody noticed anything.
    pub unnoticed: u64,
    /// Problems that checks reported.
    pub problems: u64,
    /// Errors that operations returned.
    pub errors: u64,
    /// Undamaged files compared byte by byte.
    pub compared: u64,
    /// Pools repaired.
    pub repaired: u64,
    /// Changes that repairs made.
    pub fixes: u64,
    /// Pools that cannot be repaired.
    pub hopeless: u64,
    /// Images of crashes of a repair, repaired.
    pub images: u64,
}

/// The file that a path leads to.
pub fn find(fs: &Fs, path: &[u8]) -> nacre_fs::Result<InodeRef> {
    let mut node = fs.root();
    for name in path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
    {
        node = fs.lookup(&Cred::root(), node, name)?.node;
    }
    Ok(node)
}

/// Contents of a file, target of a link.
pub fn see(fs: &Fs, path: &[u8]) -> nacre_fs::Result<Vec<u8>> {
    let node = find(fs, path)?;
    let stat = fs.getattr(node)?;
    let mut bytes = vec![0; (stat.size as usize).min(1 << 23)];
    let len = match stat.file_type() {
        Some(FileType::Regular) => {
            fs.read_noatime(node, FileOffset(0), bytes[..].as_mut().into())?
        }
        Some(FileType::Symlink) => fs.readlink(node, &mut bytes)?,
        _ => 0,
    };
    bytes.truncate(len);
    Ok(bytes)
}
