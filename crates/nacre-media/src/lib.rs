//! nacre-media
