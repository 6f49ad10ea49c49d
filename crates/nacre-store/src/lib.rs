//! nacre-store
#![forbid(unsafe_code)]
