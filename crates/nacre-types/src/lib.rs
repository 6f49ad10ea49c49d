//! nacre-types
#![forbid(unsafe_code)]
