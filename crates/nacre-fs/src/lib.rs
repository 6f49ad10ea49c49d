//! nacre-fs
#![forbid(unsafe_code)]
