//! `nacre cat`.

use crate::attached::Attached;
use crate::failure::{Result, fs_failure};
use crate::output;
use crate::tree_path::{Location, TreePath};
use clap::Args;
use nacre_fs::Fs;
use nacre_types::FileOffset;
use nacre_volume::{Access, UserBytesMut};
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre cat my.pool:/notes.txt
  nacre cat my.pool:/backup.tar | tar -tf -";

/// Print files of a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL:/PATH, one or more
    #[arg(required = true, value_name = "POOL:/PATH")]
    places: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for place in &arguments.places {
        let place = Location::parse_tree(place);
        Attached::with(&place.pool, Access::ReadOnly, |fs| print(fs, &place))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(fs: &Fs, place: &TreePath) -> Result<()> {
    let node = place.find(fs)?.node;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let to = UserBytesMut::from(&mut buffer[..]);
        let len = fs
            .read(node, FileOffset(at), to)
            .map_err(fs_failure(place))?;
        if len == 0 {
            return Ok(());
        }
        output::write(&buffer[..len])?;
        at += len as u64;
    }
}
