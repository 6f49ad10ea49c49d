//! `nacre device add`.

use super::named::is_at;
use super::own;
use super::rebuilt::rebuild_after;
use crate::attached::Attached;
use crate::commands::grow;
use crate::failure::{Failure, Result};
use crate::users::at_home;
use clap::Args;
use nacre_volume::{Access, LegState, Stripe, Volume};
use std::process::ExitCode;

/// Add a device to a pool
///
/// New data goes to all devices by their room, so to the new one first. With --behind, what was not
/// used for longest moves there when the others get full. Nobody may use the pool meanwhile.
///
/// In a pool with copies the device becomes one more copy, while programs run. With --copy it
/// becomes the second copy of a pool on one device. Where only metadata is on all disks it gets
/// that, and room for contents. In the last two cases nobody may use the pool when it begins;
/// programs may run from then on.
///
/// If the command is killed, call it again: it goes on.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Arguments {
    #[command(flatten)]
    grow: grow::Added,
    /// How data is spread from now on: a power of two from 4K to 2M, or none
    /// [default: as before; 2M if this is the second device]
    #[arg(long, value_name = "SIZE", conflicts_with = "behind")]
    stripe: Option<Stripe>,
    /// The device is to hold all that the other one holds, instead of more
    #[arg(long, conflicts_with_all = ["stripe", "behind"])]
    copy: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let volume = Volume::open(&arguments.grow.pool, Access::ReadOnly)?;
    if volume.common_units() > 0 {
        drop(volume);
        return own::add(&arguments.grow, arguments.stripe);
    }
    match (volume.has_copies(), arguments.copy) {
        (true, _) if arguments.stripe.is_some() => Err(Failure::Usage(format!(
            "{}: each device holds everything; leave --stripe out",
            arguments.grow.pool.display()
        ))),
        (true, _) if arguments.grow.behind => Err(Failure::Usage(format!(
            "{}: has copies, and no disk behind them yet; leave --behind out",
            arguments.grow.pool.display()
        ))),
        (true, _) => add_copy(&arguments.grow),
        (false, true) => {
            drop(volume);
            begin_copies(&arguments.grow)?;
            add_copy(&arguments.grow)
        }
        (false, false) => {
            drop(volume);
            grow::grow(&arguments.grow, arguments.stripe)
        }
    }
}

/// The pool has two copies, of which one lacks everything.
fn begin_copies(arguments: &grow::Added) -> Result<()> {
    let pool = &arguments.pool;
    let new = (arguments.device.as_path(), arguments.size);
    // The image of a single disk is not that of several.
    at_home(pool, |_| {
        Volume::begin_copies(pool, new, arguments.force)?;
        Ok(())
    })
}

/// The device is one of the copies, and is rebuilt; it may have begun to before.
fn add_copy(arguments: &grow::Added) -> Result<ExitCode> {
    let pool = Attached::open_to_rebuild(&arguments.pool)?;
    rebuild_after(pool, &arguments.pool, false, |volume| {
        come_in(volume, arguments)
    })
}

fn come_in(volume: &Volume, arguments: &grow::Added) -> Result<()> {
    let new = &arguments.device;
    let copies = volume.copies()?;
    let known = copies.iter().find(|copy| is_at(copy, new));
    let refused = |why| Failure::Usage(format!("{}: {why}", new.display()));
    match known {
        None => {
            volume.add_copy(new, arguments.size, arguments.force)?;
            Ok(())
        }
        Some(copy) if copy.state == LegState::Current => Err(refused("is a copy already")),
        Some(copy) if copy.state == LegState::Rebuilding => Ok(()),
        Some(copy) => match volume.return_copy(copy.uuid)? {
            true => Ok(()),
            false => Err(refused("is not what it was; see nacre device replace")),
        },
    }
}
