//! Write modes as the command line names them.

use clap::ValueEnum;
use nacre_store::WriteMode;

/// What a write call promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Durable when the call returns
    Direct,
    /// Durable when the call returns, and all or nothing
    Atomic,
    /// Durable after fsync and the like, and after 5 seconds; for disks, and memory that wears
    Cached,
}

impl Mode {
    pub fn write_mode(self) -> WriteMode {
        match self {
            Mode::Direct => WriteMode::Direct,
            Mode::Atomic => WriteMode::Atomic,
            Mode::Cached => WriteMode::Cached,
        }
    }

    pub fn name(mode: WriteMode) -> &'static str {
        match mode {
            WriteMode::Direct => "direct",
            WriteMode::Atomic => "atomic",
            WriteMode::Cached => "cached",
        }
    }
}
