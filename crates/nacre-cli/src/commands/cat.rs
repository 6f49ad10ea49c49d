//! `nacre cat`.

use crate::attached::Attached;
use crate::commands::verified::Reader;
use crate::failure::{Failure, Result};
use crate::output;
use crate::tree_path::{Location, TreePath};
use clap::Args;
use nacre_fs::{FileType, Fs};
use nacre_volume::Access;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre cat my.pool:/notes.txt
  nacre cat my.pool:/backup.tar | tar -tf -
  nacre cat --verify my.pool:/ledger    with copies: what the last scrub sealed is compared first";

/// Print files of a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL:/PATH, one or more
    #[arg(required = true, value_name = "POOL:/PATH")]
    places: Vec<OsString>,
    /// Compare contents with their checksums before they are printed, and repair copies that differ
    #[arg(long)]
    verify: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for place in &arguments.places {
        let place = Location::parse_tree(place);
        Attached::with(&place.pool, Access::ReadOnly, |fs| {
            print(fs, &place, arguments.verify)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(fs: &Fs, place: &TreePath, verify: bool) -> Result<()> {
    let reader = Reader::new(fs, &place.pool, verify)?;
    let found = place.find(fs)?;
    if found.file_type == FileType::Directory {
        return Err(Failure::Usage(format!(
            "{place}: is a folder; `nacre ls` lists it, `nacre cp -r` copies it"
        )));
    }
    let node = found.node;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let len = reader.read(node, at, &mut buffer, place)?;
        if len == 0 {
            break;
        }
        output::write(&buffer[..len])?;
        at += len as u64;
    }
    reader.tell_unsealed(place);
    Ok(())
}
