//! Where operations run.

use nacre_fs::{Fs, InodeRef};

/// A directory of a pool that serves as the root of paths.
#[derive(Clone, Copy)]
pub struct Ground<'f> {
    /// The pool.
    pub fs: &'f Fs,
    /// The directory.
    pub root: InodeRef,
}

impl<'f> Ground<'f> {
    /// A pool with its own root.
    pub fn of(fs: &'f Fs) -> Ground<'f> {
        let root = fs.root();
        Ground { fs, root }
    }
}
