//! The places that are compared.

use serde::Serialize;

/// Where a row is measured, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Nacre,
    Tmpfs,
    Ext4,
    Raw,
}

impl Backend {
    pub const ALL: [Backend; 4] = [Backend::Nacre, Backend::Tmpfs, Backend::Ext4, Backend::Raw];

    pub fn name(self) -> &'static str {
        match self {
            Backend::Nacre => "nacre",
            Backend::Tmpfs => "tmpfs",
            Backend::Ext4 => "ext4",
            Backend::Raw => "raw",
        }
    }
}
