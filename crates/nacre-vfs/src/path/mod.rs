//! Paths as text and what is known of them: mount points, owners, links of /proc, the path cache.

pub(crate) mod mount;
pub(crate) mod owner;
pub(crate) mod path_cache;
pub(crate) mod procfs;
