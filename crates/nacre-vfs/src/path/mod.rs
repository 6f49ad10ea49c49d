//! From a path to an inode: mount points, the walk, the working directory, whose a path is.

pub(crate) mod cwd;
pub(crate) mod mount;
pub(crate) mod origin;
pub(crate) mod path_cache;
pub(crate) mod procfs;
pub(crate) mod walk;
