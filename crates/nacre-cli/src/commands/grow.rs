//! `nacre grow`.

use crate::attached::Attached;
use crate::failure::{Result, store_failure};
use crate::users::take_alone;
use crate::{output, size};
use clap::Args;
use nacre_store::give_all_to_disk;
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, Caching, CreateOptions, DeviceSpec, Stripe, Volume};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre grow --size 10G my.pool /mnt/more/second     add a file of 10 GiB
  nacre grow my.pool /dev/dax1.0                     add a whole device
  nacre grow --size 10G /ssd1/a.pool /ssd2/b.pool    a second disk; both are written through memory";

/// Add a device to a pool that nobody uses at the moment
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The device to add
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Size of the file, if it is to be made
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Overwrite a device that holds something; it is lost
    #[arg(long)]
    pub force: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    grow(arguments, None)
}

/// Adds the device; from now on data is spread as `stripe` says, if it does.
pub fn grow(arguments: &Arguments, stripe: Option<Stripe>) -> Result<ExitCode> {
    let pool = &arguments.pool;
    let before = {
        let volume = Volume::open(pool, Access::ReadWrite)?;
        let _alone = volume.lock_exclusive()?;
        take_alone(pool, &volume)?;
        // What processes that were killed have left in memory is of the pool as it was.
        give_all_to_disk(&volume).map_err(|error| store_failure(pool, error))?;
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
            behind: 0,
        };
        Volume::grow(&[pool], &added, options)?;
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
