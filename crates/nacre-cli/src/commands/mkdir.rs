//! `nacre mkdir`.

use crate::attached::Attached;
use crate::failure::{Result, fs_failure};
use crate::tree_path::{Location, TreePath, caller};
use clap::Args;
use nacre_fs::{FileType, Fs, FsError, InodeRef};
use nacre_volume::Access;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre mkdir my.pool:/projects
  nacre mkdir -p my.pool:/a/b/c        with all folders above, and none is an error";

/// Make folders in a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL:/PATH, one or more
    #[arg(required = true, value_name = "POOL:/PATH")]
    places: Vec<OsString>,
    /// Make the folders above, too; one that exists is no error
    #[arg(short, long)]
    parents: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for place in &arguments.places {
        let place = Location::parse_tree(place);
        Attached::with(&place.pool, Access::ReadWrite, |fs| {
            if arguments.parents {
                return make_all(fs, &place).map(|_| ());
            }
            let (parent, name) = place
                .split()
                .ok_or_else(|| fs_failure(&place)(FsError::Exists))?;
            let parent = parent.find(fs)?.node;
            let made = fs.mkdir(&caller(), parent, &name, mode());
            made.map(|_| ()).map_err(fs_failure(&place))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn mode() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    0o777 & !mask.bits()
}

/// Makes a folder and those above it, as far as they are missing.
fn make_all(fs: &Fs, place: &TreePath) -> Result<InodeRef> {
    let Some((parent, name)) = place.split() else {
        return Ok(fs.root());
    };
    let parent = make_all(fs, &parent)?;
    match fs.mkdir(&caller(), parent, &name, mode()) {
        Err(FsError::Exists) => {
            let found = place.find(fs)?;
            match found.file_type {
                FileType::Directory => Ok(found.node),
                _ => Err(fs_failure(place)(FsError::NotDirectory)),
            }
        }
        made => made.map_err(fs_failure(place)),
    }
}
