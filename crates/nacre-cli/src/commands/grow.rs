//! `nacre grow`.

use crate::attached::Attached;
use crate::failure::{Result, store_failure};
use crate::users::take_alone;
use crate::{output, size};
use clap::Args;
use nacre_store::give_all_to_disk;
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, Caching, Checksums, CreateOptions, DeviceSpec, Stripe, Volume};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre grow --size 10G my.pool /mnt/more/second     add a file of 10 GiB
  nacre grow my.pool /dev/dax1.0                     add a whole device
  nacre grow --size 10G /ssd1/a.pool /ssd2/b.pool    a second disk; both are written through memory
  nacre grow --size 20G a.pool                       its file becomes so large; with copies, all do
  nacre grow a.pool                                  the same, of devices that have become larger
  nacre grow --behind --size 1T a.pool cold2.img     a file on a disk, for what is cold";

/// Make a pool larger, while nobody uses it
///
/// By a device that is added, or by what its last device has room for: a disk behind, if there is
/// one. A pool with copies grows by all of its devices, as each holds everything. On a disk there
/// must be room for a second journal, as it moves.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The device to add; none if those that are there have more room
    #[arg(value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// Size of the file, if it is to be made, or of the last one; of each file in a pool of copies
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// The device is to hold what is cold, behind those that are memory
    #[arg(long, requires = "device")]
    behind: bool,
    /// Overwrite a device that holds something; it is lost
    #[arg(long)]
    force: bool,
}

/// A device that is to be added.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Added {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The device to add
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Size of the file, if it is to be made
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// The device is to hold what is cold, behind those that are memory; a disk does in a pool that
    /// has one behind
    #[arg(long)]
    pub behind: bool,
    /// Overwrite a device that holds something; it is lost
    #[arg(long)]
    pub force: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments {
        pool,
        size,
        force,
        behind,
        ..
    } = arguments;
    match &arguments.device {
        Some(device) => grow(
            &Added {
                pool: pool.clone(),
                device: device.clone(),
                size: *size,
                behind: *behind,
                force: *force,
            },
            None,
        ),
        None => grown(pool, |volume| {
            match volume.has_copies() {
                true => Volume::grow_copies(pool, *size).map(drop)?,
                false => Volume::grow_last(pool, *size).map(drop)?,
            }
            Ok(())
        }),
    }
}

/// Adds the device; from now on data is spread as `stripe` says, if it does.
pub fn grow(arguments: &Added, stripe: Option<Stripe>) -> Result<ExitCode> {
    let pool = &arguments.pool;
    grown(pool, |_| {
        let added = DeviceSpec {
            path: arguments.device.clone(),
            size: arguments.size,
        };
        let options = CreateOptions {
            force: arguments.force,
            least: 0,
            caching: Caching::Never,
            granularity: None,
            stripe,
            copies: 1,
            common: None,
            checksums: Checksums::Never,
            behind: usize::from(arguments.behind),
        };
        Volume::grow(&[pool], &added, options)?;
        Ok(())
    })
}

/// Runs something that makes a pool larger, which nobody uses meanwhile, and tells.
fn grown(pool: &Path, work: impl FnOnce(&Volume) -> Result<()>) -> Result<ExitCode> {
    if Volume::open(pool, Access::ReadOnly)?.has_copies() {
        // What a crash has left is repaired as long as all know how large it is.
        let attached = Attached::open(pool, Access::ReadWrite, None)?;
        attached.detach()?;
    }
    let before = {
        let volume = Volume::open(pool, Access::ReadWrite)?;
        let _alone = volume.lock_exclusive()?;
        take_alone(pool, &volume)?;
        // What processes that were killed have left in memory is of the pool as it was.
        give_all_to_disk(&volume).map_err(|error| store_failure(pool, error))?;
        work(&volume)?;
        volume.present_units() * UNIT_SIZE
    };
    // The first attach takes the new space into use.
    let after = Attached::open(pool, Access::ReadWrite, None)?;
    let bytes = after.fs.store().volume().present_units() * UNIT_SIZE;
    after.detach()?;
    let text = format!(
        "{}: grown from {} to {}\n",
        pool.display(),
        size::human(before),
        size::human(bytes)
    );
    output::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
