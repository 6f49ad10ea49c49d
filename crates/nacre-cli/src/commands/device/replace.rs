//! `nacre device replace`.

use super::named::{find, is_at};
use super::own;
use super::rebuilt::rebuild_after;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use clap::Args;
use nacre_types::Uuid;
use nacre_volume::{Access, CopyInfo, LegState, Volume};
use std::path::PathBuf;
use std::process::ExitCode;

/// Replace a device of a pool with copies by a new one, and rebuild it
///
/// Programs go on meanwhile, and store to the new device, too. A device that was lost leaves at
/// once. One that is there stays a copy until the new one has everything, and leaves then. In
/// memory the device that is read (as a rule the first) stays while programs use the pool, and
/// leaves by itself.
///
/// Where only metadata is on all disks nobody may use the pool when it begins. What an old disk
/// alone holds moves to the others, the new one too. What a lost disk alone held stays lost, and
/// `nacre check` names it.
///
/// If the command is killed, call it again, or `nacre device rebuild`: it goes on.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool that is current
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The device that goes: its path, or its number, as `nacre device list` tells
    #[arg(value_name = "OLD")]
    old: PathBuf,
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
    if own::is_own(volume) {
        let copies = volume.copies();
        pool.detach()?;
        begin_own(&copies?, arguments)?;
        return own::go_on(&arguments.pool, arguments.json);
    }
    rebuild_after(pool, &arguments.pool, arguments.json, |volume| {
        begin(volume, arguments)
    })
}

/// The new one is in the pool, unless the old one is out of it already.
fn begin(volume: &Volume, arguments: &Arguments) -> Result<()> {
    let copies = volume.copies()?;
    begin_as(&copies, arguments, |old| {
        volume.replace_copy(old, &arguments.new, arguments.force)?;
        Ok(())
    })?;
    // Who was killed as he brought it in may have told the labels alone.
    let is_out = |copy: &&CopyInfo| copy.replaces.is_some() && !copy.state.is_stored_to();
    let new = copies.iter().find(|copy| is_at(copy, &arguments.new));
    if let Some(new) = new.filter(is_out) {
        volume.return_copy(new.uuid)?;
    }
    Ok(())
}

/// As [`begin`], where each holds a part alone: nobody may use the pool at the moment.
fn begin_own(copies: &[CopyInfo], arguments: &Arguments) -> Result<()> {
    let new = (arguments.new.as_path(), None, arguments.force);
    begin_as(copies, arguments, |old| {
        own::join(&arguments.pool, new, Some(old))
    })
}

fn begin_as(
    copies: &[CopyInfo],
    arguments: &Arguments,
    replace: impl FnOnce(Uuid) -> Result<()>,
) -> Result<()> {
    let old = find(copies, &arguments.old);
    let new = copies.iter().find(|copy| is_at(copy, &arguments.new));
    match (old, new) {
        (Some(old), Some(new)) if new.replaces == Some(old.uuid) => Ok(()),
        (Some(_), Some(new)) if new.state.is_stored_to() => Err(Failure::Refused(format!(
            "{}: is a device of this pool; name another one that is to come",
            arguments.new.display()
        ))),
        (Some(old), _) => replace(old.uuid),
        // The old one was lost and went at once.
        (None, Some(new)) if new.state == LegState::Rebuilding => Ok(()),
        // A crash may have left its label.
        (None, Some(_)) if forget(arguments)? => Ok(()),
        (None, _) => Err(Failure::Refused(format!(
            "{}: is no device of this pool; see `nacre device list {}`",
            arguments.old.display(),
            arguments.pool.display()
        ))),
    }
}

fn forget(arguments: &Arguments) -> Result<bool> {
    Ok(Volume::forget_removed(&arguments.pool, &arguments.old)?.is_some())
}
