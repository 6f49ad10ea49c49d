//! `nacre device rebuild`.

use super::own;
use super::rebuilt::rebuild_after;
use crate::attached::Attached;
use crate::failure::Result;
use clap::Args;
use nacre_volume::{Access, CopyInfo, Volume};
use std::path::PathBuf;
use std::process::ExitCode;

/// Bring copies up to date that were missing, or whose rebuild was interrupted
///
/// Programs go on meanwhile. A copy that was missing gets what was stored since; one that failed
/// gets everything. A device for which another one has come (nacre device replace) goes when that
/// one has everything. Killed, it goes on where it was when it is called again.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool that is current
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = Attached::open(&arguments.pool, Access::ReadWrite, None)?;
    if own::is_own(pool.fs.store().volume()) {
        let back = bring_back(pool.fs.store().volume());
        pool.detach()?;
        back?;
        return own::go_on(&arguments.pool, arguments.json);
    }
    rebuild_after(pool, &arguments.pool, arguments.json, bring_back)
}

/// Takes copies back that are there again.
fn bring_back(volume: &Volume) -> Result<()> {
    let copies = volume.copies()?;
    let is_replaced = |copy: &CopyInfo| copies.iter().any(|it| it.replaces == Some(copy.uuid));
    for copy in copies.iter().filter(|copy| !is_replaced(copy)) {
        if !copy.state.is_stored_to() && !volume.return_copy(copy.uuid)? {
            let path = copy.path.display();
            eprintln!("nacre: {path}: {}", not_back(volume));
        }
    }
    Ok(())
}

/// Why a copy does not come back.
fn not_back(volume: &Volume) -> &'static str {
    match volume.common_units() {
        0 => "is not there, or not what it was; see nacre device replace",
        _ => "is not there, or lacks what it alone should have; see nacre device replace",
    }
}
