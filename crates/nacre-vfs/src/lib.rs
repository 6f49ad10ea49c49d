//! nacre-vfs
#![forbid(unsafe_code)]
