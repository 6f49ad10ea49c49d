//! `nacre sync`.

use crate::attached::Attached;
use crate::failure::{Result, fs_failure};
use clap::Args;
use nacre_volume::Access;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre sync my.pool      while programs run, or after they were killed";

/// Give the disks of pools all that their caches in memory hold
///
/// Returns when everything that was done before is durable. Pools without a cache are so already.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of each pool
    #[arg(required = true, value_name = "POOL")]
    pools: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for pool in &arguments.pools {
        Attached::with(pool, Access::ReadWrite, |fs| {
            fs.sync_all_mapped().map_err(fs_failure(pool.display()))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
