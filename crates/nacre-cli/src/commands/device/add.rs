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
/// What is written from then on goes to all devices by their room, the new one first of all. With
/// --behind what is cold moves there when the others get full. Nobody may use the pool at the
/// moment. In a pool with copies the device becomes one more copy, while
/// programs run. Where disks hold metadata together and the rest each alone it gets what all hold
/// while programs run, and room for contents; nobody may use the pool at the moment that it begins.
/// With --copy so does a second device of a pool on one, which nobody may use at the
/// moment that it begins. Killed, it goes on when it is called again.
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
