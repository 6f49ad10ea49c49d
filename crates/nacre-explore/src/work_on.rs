//! Using a recovered pool.

use nacre_fs::{Cred, Fs, WriteAt};

use crate::action::pattern;
use crate::judge::examine;
use crate::visible::Visible;

/// A recovered pool must be good for more than looking at it.
pub fn work_on(fs: &Fs, seen: &Visible) -> Result<(), String> {
    let (cred, root) = (Cred::root(), fs.root());
    let work = || {
        let node = fs.create(&cred, root, b"probe", 0o600)?;
        fs.write(&cred, node, WriteAt::Append, pattern(99, 9000)[..].into())?;
        fs.set_xattr(
            &cred,
            node,
            b"user.p",
            &[7; 2000],
            nacre_fs::XattrFlags::empty(),
        )?;
        fs.rename(
            &cred,
            root,
            b"probe",
            root,
            b"probed",
            nacre_fs::RenameFlags::empty(),
        )?;
        Ok(node)
    };
    let node = work().map_err(|error: nacre_fs::FsError| format!("use: {error}"))?;
    examine(fs).map_err(|why| format!("in use: {why}"))?;
    let gone = fs
        .unlink(&cred, root, b"probed")
        .and_then(|()| fs.unpin(node.ino));
    gone.map_err(|error| format!("use: {error}"))?;
    let mut now = examine(fs).map_err(|why| format!("after use: {why}"))?;
    if now.remove(&b""[..]).is_some() && now.iter().all(|(path, node)| seen.get(path) == Some(node))
    {
        return Ok(());
    }
    Err("use of the recovered pool changed what it did not touch".into())
}
