//! From a path to an inode: where it starts, the walk, the working directory, what a call is about.

pub(crate) mod cwd;
pub(crate) mod origin;
pub(crate) mod subject;
pub(crate) mod walk;
