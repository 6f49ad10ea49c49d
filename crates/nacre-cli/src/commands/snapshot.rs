//! `nacre snapshot`.

use crate::attached::Attached;
use crate::commands::clone::Report;
use crate::commands::ls::utc;
use crate::failure::{Failure, Result, fs_failure};
use crate::tree_path::{Location, TreePath, caller};
use crate::{output, size};
use clap::{Args, Subcommand};
use nacre_fs::{Fs, InodeRef, Snapshot};
use nacre_volume::Access;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre snapshot my.pool:/home monday              all of /home as it is now
  nacre snapshot list my.pool:/home                which there are, and what they take
  nacre cp -rp my.pool:/home/.snapshots/monday/x . one file out of it
  nacre snapshot restore my.pool:/home monday      /home is again as it was
  nacre snapshot delete my.pool:/home monday

A snapshot is a read-only folder in `.snapshots` of its folder. It shares what is stored and takes \
room only for what changes later. Programs may go on working meanwhile; what they have open when a \
folder is restored they keep, without a name.";

/// Take a snapshot of a folder in milliseconds; list, restore, delete snapshots
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// The folder
    #[arg(value_name = "POOL:/FOLDER", required = true)]
    folder: Option<OsString>,
    /// What the snapshot is called
    #[arg(value_name = "NAME", required = true)]
    name: Option<OsString>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the snapshots of a folder, and how much only they hold
    List(ListArguments),
    /// Remove a snapshot
    Delete(NameArguments),
    /// Make a folder what it was when the snapshot was made
    Restore(NameArguments),
}

#[derive(Debug, Args)]
struct ListArguments {
    /// The folder
    #[arg(value_name = "POOL:/FOLDER")]
    folder: OsString,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct NameArguments {
    /// The folder
    #[arg(value_name = "POOL:/FOLDER")]
    folder: OsString,
    /// The snapshot
    #[arg(value_name = "NAME")]
    name: OsString,
}

#[derive(Serialize)]
struct SnapshotReport {
    name: String,
    /// Nanoseconds since 1970.
    made: i64,
    used_bytes: u64,
    exclusive_bytes: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match (&arguments.action, &arguments.folder, &arguments.name) {
        (Some(Action::List(list)), ..) => run_list(list)?,
        (Some(Action::Delete(named)), ..) => with(&named.folder, |fs, folder, place| {
            let done = fs.delete_snapshot(&caller(), folder, named.name.as_bytes());
            done.map_err(fs_failure(of(place, &named.name)))
        })?,
        (Some(Action::Restore(named)), ..) => with(&named.folder, |fs, folder, place| {
            let done = fs.restore_snapshot(&caller(), folder, named.name.as_bytes());
            let done = done.map_err(fs_failure(of(place, &named.name)))?;
            Report::of(done).tell(&place.to_string(), false)
        })?,
        (None, Some(_), Some(name)) if !is_name(name) => {
            return Err(Failure::Usage(format!(
                "{name:?} is no name for a snapshot; take one as of a file, without `/`"
            )));
        }
        (None, Some(folder), Some(name)) => with(folder, |fs, folder, place| {
            let made = fs.snapshot(&caller(), folder, name.as_bytes());
            let made = made.map_err(fs_failure(of(place, name)))?;
            Report::of(made).tell(&of(place, name), arguments.json)
        })?,
        _ => return Err(Failure::Usage("name a folder and a snapshot".into())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a folder may have such a name.
fn is_name(name: &OsString) -> bool {
    let name = name.as_bytes();
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/')
}

/// Where a snapshot is, for messages.
fn of(folder: &TreePath, name: &OsString) -> String {
    let shelf = folder.join(nacre_fs::SNAPSHOTS);
    shelf.join(name.as_bytes()).to_string()
}

fn with(
    folder: &OsString,
    work: impl FnOnce(&Fs, InodeRef, &TreePath) -> Result<()>,
) -> Result<()> {
    let place = Location::parse_tree(folder);
    Attached::with(&place.pool, Access::ReadWrite, |fs| {
        work(fs, place.find(fs)?.node, &place)
    })
}

fn run_list(arguments: &ListArguments) -> Result<()> {
    with(&arguments.folder, |fs, folder, place| {
        let found = fs.snapshots(&caller(), folder);
        let found = found.map_err(fs_failure(place))?;
        match arguments.json {
            true => output::json(&found.iter().map(report).collect::<Vec<_>>()),
            false => output::write(table(&found).as_bytes()),
        }
    })
}

fn report(snapshot: &Snapshot) -> SnapshotReport {
    SnapshotReport {
        name: String::from_utf8_lossy(&snapshot.name).into_owned(),
        made: snapshot.made.0,
        used_bytes: snapshot.space.used,
        exclusive_bytes: snapshot.space.exclusive,
    }
}

fn table(found: &[Snapshot]) -> String {
    let lines = found.iter().map(|snapshot| {
        format!(
            "{:<24} {}  holds {}, of that {} alone\n",
            output::harmless_name(&snapshot.name),
            utc(snapshot.made.0),
            size::human(snapshot.space.used),
            size::human(snapshot.space.exclusive)
        )
    });
    match found {
        [] => "no snapshots of this folder\n".into(),
        _ => lines.collect(),
    }
}
