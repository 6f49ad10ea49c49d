//! `nacre device list` of a pool with copies.

use crate::failure::Result;
use crate::{output, size};
use nacre_volume::{CopyInfo, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Serialize)]
struct Report {
    /// How data is spread over the devices: each has all.
    stripe: &'static str,
    devices: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    index: usize,
    path: PathBuf,
    uuid: String,
    bytes: u64,
    /// Current, missing, failed or rebuilding.
    state: &'static str,
    present: bool,
}

/// Lists copies, those that are lost too.
pub fn list(volume: &Volume, json: bool) -> Result<()> {
    let devices: Vec<Listed> = volume.copies()?.into_iter().map(listed).collect();
    match json {
        true => output::json(&Report {
            stripe: "none",
            devices,
        }),
        false => output::write(describe(&devices).as_bytes()),
    }
}

fn listed(copy: CopyInfo) -> Listed {
    Listed {
        index: copy.index,
        path: copy.path,
        uuid: copy.uuid.to_string(),
        bytes: copy.size,
        state: copy.state.name(),
        present: copy.present,
    }
}

fn describe(devices: &[Listed]) -> String {
    let mut text = format!("NUMBER {:>10} {:<12} COPY\n", "SIZE", "STATE");
    for device in devices {
        let (size, path) = (size::human(device.bytes), device.path.display());
        let _ = writeln!(
            text,
            "{:>6} {size:>10} {:<12} {path}",
            device.index, device.state
        );
    }
    text
}
