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
    /// Number of the one that goes once this one has everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<usize>,
}

/// Lists copies, those that are lost too.
pub fn list(volume: &Volume, json: bool) -> Result<()> {
    let copies = volume.copies()?;
    let devices: Vec<Listed> = copies.iter().map(|copy| listed(copy, &copies)).collect();
    match json {
        true => output::json(&Report {
            stripe: "none",
            devices,
        }),
        false => output::write(describe(&devices).as_bytes()),
    }
}

fn listed(copy: &CopyInfo, all: &[CopyInfo]) -> Listed {
    let replaced = all.iter().find(|it| Some(it.uuid) == copy.replaces);
    Listed {
        index: copy.index,
        path: copy.path.clone(),
        uuid: copy.uuid.to_string(),
        bytes: copy.size,
        state: copy.state.name(),
        present: copy.present,
        replaces: replaced.map(|it| it.index),
    }
}

fn describe(devices: &[Listed]) -> String {
    let mut text = format!("NUMBER {:>10} {:<12} COPY\n", "SIZE", "STATE");
    for device in devices {
        let (size, path) = (size::human(device.bytes), device.path.display());
        let goes = device.replaces;
        let goes = goes.map_or_else(String::new, |it| format!(" (for number {it}, which goes)"));
        let _ = writeln!(
            text,
            "{:>6} {size:>10} {:<12} {path}{goes}",
            device.index, device.state
        );
    }
    text
}
