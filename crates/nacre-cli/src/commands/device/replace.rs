//! `nacre device replace`.

use super::rebuild::rebuild;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use clap::Args;
use nacre_types::Uuid;
use nacre_volume::{Access, Volume};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Take a new device into a pool with copies for one that was lost, and rebuild it
///
/// Programs go on meanwhile, and store to the new device, too. Killed, `nacre device rebuild` goes
/// on.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool that is current
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The device that was lost: its path, or its number, as `nacre device list` tells
    #[arg(value_name = "LOST")]
    lost: PathBuf,
    /// The new one; a file is made if it is missing
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Overwrite what the new device holds
    #[arg(long)]
    force: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = Attached::open(&arguments.pool, Access::ReadWrite, None)?;
    let volume = pool.fs.store().volume();
    let done = find(volume, &arguments.lost).and_then(|lost| {
        volume.replace_copy(lost, &arguments.new, arguments.force)?;
        rebuild(&arguments.pool, volume, arguments.json)
    });
    let detached = pool.detach();
    let code = done?;
    detached?;
    Ok(code)
}

/// The device that somebody names.
fn find(volume: &Volume, named: &Path) -> Result<Uuid> {
    let number = named.to_str().and_then(|text| text.parse::<usize>().ok());
    let absolute = std::path::absolute(named).unwrap_or_else(|_| named.to_owned());
    let copies = volume.copies()?;
    let is_named = |path: &Path| path == named || path == absolute;
    let found = copies
        .iter()
        .find(|copy| is_named(&copy.path) || Some(copy.index) == number);
    found.map(|copy| copy.uuid).ok_or_else(|| {
        let named = named.display();
        Failure::Usage(format!(
            "{named}: no device of this pool; see nacre device list"
        ))
    })
}
