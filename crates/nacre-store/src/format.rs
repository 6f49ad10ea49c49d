//! Making a pool on a volume.
use nacre_volume::Volume;

use crate::error::Result;
use crate::store::{Store, WriteMode};

/// What a new pool shall be like.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Default write mode.
    pub mode: WriteMode,
    /// Permissions of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            mode: WriteMode::Direct,
            root_mode: 0o755,
            uid: 0,
            gid: 0,
        }
    }
}

impl Store {
    /// Formats.
    pub fn format(_volume: &Volume, _options: &FormatOptions) -> Result<()> {
        unreachable!()
    }
}
