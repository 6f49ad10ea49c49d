//! `nacre device list`.

use super::copies;
use crate::commands::info::{DeviceReport, devices};
use crate::failure::Result;
use crate::{output, size};
use clap::Args;
use nacre_volume::{Access, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// List the devices of a pool
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// How data is spread over the devices.
    stripe: String,
    devices: Vec<DeviceReport>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let volume = Volume::open(&arguments.pool, Access::ReadOnly)?;
    if volume.has_copies() {
        copies::list(&volume, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    drop(volume);
    let (stripe, devices) = devices(&arguments.pool)?;
    let report = Report { stripe, devices };
    match arguments.json {
        true => output::json(&report)?,
        false => output::write(describe(&report).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &Report) -> String {
    let mut text = format!(
        "{:>10} {:>10} {:>10} {:<12} {:<10} DEVICE (stripe: {})\n",
        "SIZE", "USED", "SPEED", "GRANULARITY", "STATE", report.stripe
    );
    for device in &report.devices {
        let used = device.used_bytes.map_or("?".into(), size::human);
        let _ = writeln!(
            text,
            "{:>10} {used:>10} {:>10} {:<12} {:<10} {}",
            size::human(device.bytes),
            size::rate(device.mb_s).unwrap_or("?".into()),
            device.granularity,
            device.state,
            device.path.display(),
        );
    }
    text
}
