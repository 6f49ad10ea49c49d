//! nacre-preload
