//! `nacre mv`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::tree_path::{Location, TreePath, caller};
use clap::Args;
use nacre_fs::{FileType, Fs, FsError, RenameFlags};
use nacre_volume::Access;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre mv my.pool:/draft my.pool:/final
  nacre mv my.pool:/a my.pool:/b my.pool:/folder

Between pools, or a pool and the host: `nacre cp -rp`, then `nacre rm -r`.";

/// Rename or move files within a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What to move; one or more
    #[arg(required = true, value_name = "POOL:/FROM")]
    from: Vec<OsString>,
    /// The new name; a folder if it exists
    #[arg(value_name = "POOL:/TO")]
    to: OsString,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let to = Location::parse_tree(&arguments.to);
    let from: Vec<TreePath> = arguments
        .from
        .iter()
        .map(|from| Location::parse_tree(from))
        .collect();
    for from in &from {
        refuse_other_pool(from, &to)?;
    }
    Attached::with(&to.pool, Access::ReadWrite, |fs| {
        let into = match to.find_link(fs)? {
            Some(_) => to.find(fs)?.file_type == FileType::Directory,
            None => false,
        };
        if from.len() > 1 && !into {
            return Err(Failure::Usage(format!(
                "{to}: is no folder; several files can only be moved into one"
            )));
        }
        from.iter().try_for_each(|from| rename(fs, from, &to, into))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_other_pool(from: &TreePath, to: &TreePath) -> Result<()> {
    match from.shares_pool(to)? {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{from} and {to} are not in the same pool; copy with `nacre cp -rp`, then remove with `nacre rm -r`"
        ))),
    }
}

fn rename(fs: &Fs, from: &TreePath, to: &TreePath, into: bool) -> Result<()> {
    let root = |place: &TreePath| fs_failure(place)(FsError::Busy);
    let (from_parent, from_name) = from.split().ok_or_else(|| root(from))?;
    let to = match into {
        true => to.join(&from_name),
        false => to.clone(),
    };
    let (to_parent, to_name) = to.split().ok_or_else(|| root(&to))?;
    let (from_dir, to_dir) = (from_parent.find(fs)?.node, to_parent.find(fs)?.node);
    let flags = RenameFlags::empty();
    let renamed = fs.rename(&caller(), from_dir, &from_name, to_dir, &to_name, flags);
    renamed.map_err(fs_failure(format!("{from} to {to}")))
}
