//! `nacre clone`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::tree_path::{Location, TreePath, caller};
use crate::{output, size};
use clap::Args;
use nacre_fs::{FileType, Fs, FsError, Planted};
use nacre_volume::Access;
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre clone my.pool:/golden my.pool:/test-17     a folder with all that is in it
  nacre clone my.pool:/base.img my.pool:/vm7.img   one file

The clone shares what is stored and takes no room for it; what is written later to either side is \
its own. It shows one moment, also while programs write, and comes into being in one step.";

/// Copy a folder or file within a pool in milliseconds, sharing what is stored
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What to clone
    #[arg(value_name = "POOL:/FROM")]
    from: OsString,
    /// The new name; into it if it is a folder
    #[arg(value_name = "POOL:/TO")]
    to: OsString,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// What was made, for programs.
#[derive(Serialize)]
pub struct Report {
    folders: u64,
    files: u64,
    bytes: u64,
}

impl Report {
    pub fn of(planted: Planted) -> Report {
        Report {
            folders: planted.folders,
            files: planted.files,
            bytes: planted.bytes,
        }
    }

    /// As JSON, or as a sentence about `what`.
    pub fn tell(&self, what: &str, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let text = format!(
            "{what}: {}, {}, {}\n",
            counted(self.folders, "folder"),
            counted(self.files, "file"),
            size::human(self.bytes)
        );
        output::write(text.as_bytes())
    }
}

/// `1 file`, `2 files`
fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let from = Location::parse_tree(&arguments.from);
    let to = Location::parse_tree(&arguments.to);
    if !from.shares_pool(&to)? {
        return Err(Failure::Usage(format!(
            "{from} and {to} are not in the same pool; copy with `nacre cp -rp`"
        )));
    }
    Attached::with(&to.pool, Access::ReadWrite, |fs| {
        let to = target(fs, &from, &to)?;
        let busy = || fs_failure(&to)(FsError::Exists);
        let (parent, name) = to.split().ok_or_else(busy)?;
        let dir = parent.find(fs)?.node;
        let made = fs.clone_tree(&caller(), from.find(fs)?, dir, &name);
        let made = made.map_err(fs_failure(format!("{from} to {to}")))?;
        Report::of(made).tell(&to.to_string(), arguments.json)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The name that the clone gets: into a folder that is there it goes under its own.
fn target(fs: &Fs, from: &TreePath, to: &TreePath) -> Result<TreePath> {
    let into = match to.find_link(fs)? {
        Some(_) => to.find(fs)?.file_type == FileType::Directory,
        None => false,
    };
    Ok(match from.split() {
        Some((_, name)) if into => to.join(&name),
        _ => to.clone(),
    })
}
