//! `nacre device add`.

use crate::commands::grow;
use crate::failure::Result;
use clap::Args;
use nacre_volume::Stripe;
use std::process::ExitCode;

/// Add a device to a pool that nobody uses at the moment, as `nacre grow`
///
/// What is written from then on goes to all devices by their room, the new one first of all.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Arguments {
    #[command(flatten)]
    grow: grow::Arguments,
    /// How data is spread from now on: a power of two from 4K to 2M, or none
    /// [default: as before; 2M if this is the second device]
    #[arg(long, value_name = "SIZE")]
    stripe: Option<Stripe>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    grow::grow(&arguments.grow, arguments.stripe)
}
