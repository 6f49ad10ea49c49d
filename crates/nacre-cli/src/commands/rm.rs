//! `nacre rm`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::tree_path::{Location, TreePath, caller, entries};
use clap::Args;
use nacre_fs::{FileType, Fs, InodeRef};
use nacre_volume::Access;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre rm my.pool:/notes.txt
  nacre rm -r my.pool:/old my.pool:/older
  nacre rm -f my.pool:/may-not-exist";

/// Remove files of a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL:/PATH, one or more
    #[arg(required = true, value_name = "POOL:/PATH")]
    places: Vec<OsString>,
    /// Folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// What does not exist is no error
    #[arg(short, long)]
    force: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for place in &arguments.places {
        let place = Location::parse_tree(place);
        Attached::with(&place.pool, Access::ReadWrite, |fs| {
            remove(fs, &place, arguments)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(fs: &Fs, place: &TreePath, arguments: &Arguments) -> Result<()> {
    let Some((parent, name)) = place.split() else {
        return Err(Failure::Usage(format!(
            "{place}: the root folder stays; name what is in it, or use `nacre delete`"
        )));
    };
    let found = place.find_link(fs)?;
    let Some(found) = found else {
        return match arguments.force {
            true => Ok(()),
            false => Err(fs_failure(place)(nacre_fs::FsError::NotFound)),
        };
    };
    let parent = parent.find(fs)?.node;
    let folder = found.file_type == FileType::Directory;
    if folder && !arguments.recursive {
        return Err(Failure::Usage(format!(
            "{place}: is a folder; remove folders with -r"
        )));
    }
    if folder {
        refuse_snapshots(fs, found.node, place)?;
        empty(fs, found.node, place)?;
    }
    remove_one(fs, parent, &name, folder, place)
}

/// Snapshots are there to be gone back to: they go when they are named. Nothing is removed before.
fn refuse_snapshots(fs: &Fs, folder: InodeRef, place: &TreePath) -> Result<()> {
    // What cannot have any says so.
    let snapshots = fs.snapshots(&caller(), folder).unwrap_or_default();
    if let Some(first) = snapshots.first() {
        let name = String::from_utf8_lossy(&first.name);
        return Err(Failure::Usage(format!(
            "{place}: has {}, which rm keeps; remove each first: nacre snapshot delete {place} {name}",
            counted(snapshots.len())
        )));
    }
    for entry in entries(fs, folder, place)? {
        if entry.file_type == FileType::Directory {
            refuse_snapshots(fs, entry.node, &place.join(&entry.name))?;
        }
    }
    Ok(())
}

fn counted(snapshots: usize) -> String {
    match snapshots {
        1 => String::from("a snapshot"),
        n => format!("{n} snapshots"),
    }
}

/// Removes all that is in a folder.
fn empty(fs: &Fs, folder: InodeRef, place: &TreePath) -> Result<()> {
    for entry in entries(fs, folder, place)? {
        let below = place.join(&entry.name);
        let is_folder = entry.file_type == FileType::Directory;
        if is_folder {
            empty(fs, entry.node, &below)?;
        }
        remove_one(fs, folder, &entry.name, is_folder, &below)?;
    }
    Ok(())
}

fn remove_one(
    fs: &Fs,
    parent: InodeRef,
    name: &[u8],
    folder: bool,
    place: &TreePath,
) -> Result<()> {
    let removed = match folder {
        true => fs.rmdir(&caller(), parent, name),
        false => fs.unlink(&caller(), parent, name),
    };
    removed.map_err(fs_failure(place))
}
