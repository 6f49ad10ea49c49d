//! nacre-volume
#![forbid(unsafe_code)]
