//! `nacre ls`.

use crate::attached::Attached;
use crate::failure::{Result, fs_failure};
use crate::output;
use crate::tree_path::{Location, TreePath, entries, read_link};
use clap::Args;
use nacre_fs::{FileType, Fs, InodeRef, Stat};
use nacre_volume::Access;
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre ls my.pool                  the root folder
  nacre ls -l my.pool:/src          with type, mode, owner, size and time
  nacre ls my.pool:/a other.pool:/b  several, each below its name
  nacre ls -R --json my.pool:/      everything, for programs";

/// List files of a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL or POOL:/PATH, one or more
    #[arg(required = true, value_name = "POOL:/PATH")]
    places: Vec<OsString>,
    /// With type, mode, links, owner, size and time
    #[arg(short)]
    long: bool,
    /// Folders below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified_ns: i64,
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// A line for programs.
#[derive(Serialize)]
struct Row<'l> {
    /// What the path is relative to, if that is a folder: as it was asked for.
    below: &'l str,
    #[serde(flatten)]
    line: &'l Line,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let places = arguments.places.iter();
    let listings = places.map(|place| Ok((place.to_string_lossy(), listing(arguments, place)?)));
    let listings = listings.collect::<Result<Vec<_>>>()?;
    if arguments.json {
        output::json(&listings.iter().flat_map(rows).collect::<Vec<Row>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    for (place, lines) in &listings {
        if listings.len() > 1 {
            output::write(format!("{}:\n", output::harmless(place)).as_bytes())?;
        }
        let show = if arguments.long { long } else { short };
        output::write(lines.iter().map(show).collect::<String>().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rows<'l>((place, lines): &'l (Cow<'_, str>, Vec<Line>)) -> impl Iterator<Item = Row<'l>> {
    lines.iter().map(|line| Row { below: place, line })
}

/// What is at a place, or in the folder there.
fn listing(arguments: &Arguments, asked: &OsStr) -> Result<Vec<Line>> {
    let place = Location::parse_tree(asked);
    let mut lines = Vec::new();
    Attached::with(&place.pool, Access::ReadOnly, |fs| {
        let found = place.find(fs)?;
        if found.file_type != FileType::Directory {
            let name = String::from_utf8_lossy(&place.path).into_owned();
            lines.push(line(fs, found.node, name, &place)?);
            return Ok(());
        }
        list(fs, found.node, &place, "", arguments.recursive, &mut lines)
    })?;
    Ok(lines)
}

fn list(
    fs: &Fs,
    folder: InodeRef,
    place: &TreePath,
    prefix: &str,
    recursive: bool,
    lines: &mut Vec<Line>,
) -> Result<()> {
    for entry in entries(fs, folder, place)? {
        let name = format!("{prefix}{}", String::from_utf8_lossy(&entry.name));
        let below = place.join(&entry.name);
        lines.push(line(fs, entry.node, name.clone(), &below)?);
        if recursive && entry.file_type == FileType::Directory {
            list(fs, entry.node, &below, &format!("{name}/"), true, lines)?;
        }
    }
    Ok(())
}

fn line(fs: &Fs, node: InodeRef, path: String, place: &TreePath) -> Result<Line> {
    let stat: Stat = fs.getattr(node).map_err(fs_failure(place))?;
    let target = match stat.file_type() {
        Some(FileType::Symlink) => Some(read_link(fs, node).map_err(fs_failure(place))?),
        _ => None,
    };
    Ok(Line {
        path,
        kind: kind(stat.file_type()),
        mode: format!("{:04o}", stat.mode & 0o7777),
        links: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        modified_ns: stat.mtime.0,
        inode: stat.ino.0,
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
    })
}

fn kind(file_type: Option<FileType>) -> &'static str {
    match file_type {
        Some(FileType::Fifo) => "fifo",
        Some(FileType::CharDevice) => "character device",
        Some(FileType::Directory) => "directory",
        Some(FileType::BlockDevice) => "block device",
        Some(FileType::Regular) => "file",
        Some(FileType::Symlink) => "link",
        Some(FileType::Socket) => "socket",
        None => "unknown",
    }
}

fn short(line: &Line) -> String {
    format!("{}\n", output::harmless(&line.path))
}

fn long(line: &Line) -> String {
    let arrow = line
        .target
        .as_ref()
        .map(|target| format!(" -> {}", output::harmless(target)));
    format!(
        "{:<9} {} {:>3} {:>5} {:>5} {:>12} {} {}{}\n",
        line.kind,
        line.mode,
        line.links,
        line.uid,
        line.gid,
        line.size,
        utc(line.modified_ns),
        output::harmless(&line.path),
        arrow.unwrap_or_default()
    )
}

/// A time as `2001-02-03 04:05:06`, in UTC.
pub(crate) fn utc(ns: i64) -> String {
    let seconds = ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Days since 0000-03-01, by eras of 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!(
        "{:04}-{month:02}-{date:02} {:02}:{:02}:{:02}",
        era * 400 + year + carry,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates() {
        let at = |seconds: i64| utc(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(981_173_106), "2001-02-03 04:05:06");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(4_102_444_800), "2100-01-01 00:00:00");
    }
}
