//! `nacre export`: a tree of a pool as a tar archive.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::output;
use crate::tree_path::{Location, TreePath, caller, entries, read_link};
use clap::Args;
use nacre_fs::{FileType, Found, Fs, FsError, InodeRef, Stat};
use nacre_types::FileOffset;
use nacre_volume::{Access, UserBytesMut};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tar::{Builder, EntryType, Header};

const EXAMPLES: &str = "\
Examples:
  nacre export my.pool | zstd >backup.tar.zst
  nacre export my.pool:/src | tar -tvf -
  nacre export -o backup.tar my.pool
  nacre export old.pool | nacre import new.pool          into a pool of another size or format

Owners, modes, times, links, fifos, devices and extended attributes are kept; sockets are left out.";

/// Write files of a pool as a tar archive
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL or POOL:/PATH
    #[arg(value_name = "POOL:/PATH")]
    place: OsString,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let place = Location::parse_tree(&arguments.place);
    if arguments.output.is_none() && io::stdout().is_terminal() {
        let why = "an archive is nothing for a terminal; name a file with -o, or pipe it into another program";
        return Err(Failure::Usage(why.to_string()));
    }
    Attached::with(&place.pool, Access::ReadOnly, |fs| {
        // An older archive is not given up for a place that is not there.
        let found = place.find(fs)?;
        let target: Box<dyn Write> = match &arguments.output {
            Some(path) => Box::new(output::create(path)?),
            None => Box::new(io::stdout().lock()),
        };
        let mut export = Export {
            fs,
            archive: Builder::new(BufWriter::with_capacity(1 << 20, target)),
            links: HashMap::new(),
        };
        if let Err(failure) = export.all(&place, found) {
            // Dropped, it would write what says that the archive is whole.
            std::mem::forget(export.archive);
            return Err(failure);
        }
        let ended = export.archive.into_inner().and_then(|mut out| out.flush());
        ended.map_err(|error| Failure::io("the archive", error))
    })?;
    Ok(ExitCode::SUCCESS)
}

struct Export<'a, W: Write> {
    fs: &'a Fs,
    archive: Builder<W>,
    /// The first name of each file that has several.
    links: HashMap<u64, PathBuf>,
}

impl<W: Write> Export<'_, W> {
    fn all(&mut self, place: &TreePath, found: Found) -> Result<()> {
        if found.file_type == FileType::Directory {
            return self.below(found.node, place, Path::new(""));
        }
        let name = place.split().map(|(_, name)| name).unwrap_or_default();
        let name = Path::new(OsStr::from_bytes(&name));
        self.one(found.node, found.file_type, place, name)
    }

    fn below(&mut self, folder: InodeRef, place: &TreePath, name: &Path) -> Result<()> {
        for entry in entries(self.fs, folder, place)? {
            let name = name.join(OsStr::from_bytes(&entry.name));
            self.one(entry.node, entry.file_type, &place.join(&entry.name), &name)?;
        }
        Ok(())
    }

    fn one(&mut self, node: InodeRef, kind: FileType, place: &TreePath, name: &Path) -> Result<()> {
        let stat = self.fs.getattr(node).map_err(fs_failure(place))?;
        let mut header = header_of(&stat);
        if kind != FileType::Directory && stat.nlink > 1 {
            if let Some(first) = self.links.get(&stat.ino.0) {
                header.set_entry_type(EntryType::Link);
                header.set_size(0);
                let added = self.archive.append_link(&mut header, name, first);
                return added.map_err(|error| failed_at(place, error));
            }
            self.links.insert(stat.ino.0, name.to_owned());
        }
        if kind == FileType::Socket {
            eprintln!("nacre: {place}: left out: a socket");
            return Ok(());
        }
        self.extensions(node, &stat, place)?;
        self.contents(node, kind, &stat, header, place, name)?;
        if kind == FileType::Directory {
            self.below(node, place, name)?;
        }
        Ok(())
    }

    fn contents(
        &mut self,
        node: InodeRef,
        kind: FileType,
        stat: &Stat,
        mut header: Header,
        place: &TreePath,
        name: &Path,
    ) -> Result<()> {
        let (entry_type, size) = match kind {
            FileType::Directory => (EntryType::Directory, 0),
            FileType::Symlink => (EntryType::Symlink, 0),
            FileType::Fifo => (EntryType::Fifo, 0),
            FileType::CharDevice => (EntryType::Char, 0),
            FileType::BlockDevice => (EntryType::Block, 0),
            FileType::Regular | FileType::Socket => (EntryType::Regular, stat.size),
        };
        header.set_entry_type(entry_type);
        header.set_size(size);
        let added = match kind {
            FileType::Symlink => {
                let target = read_link(self.fs, node).map_err(fs_failure(place))?;
                let target = OsStr::from_bytes(&target);
                self.archive.append_link(&mut header, name, target)
            }
            FileType::Regular => {
                let contents = Contents {
                    fs: self.fs,
                    node,
                    at: 0,
                };
                self.archive
                    .append_data(&mut header, name, contents.take(size))
            }
            _ => self.archive.append_data(&mut header, name, io::empty()),
        };
        added.map_err(|error| failed_at(place, error))
    }

    /// Extended attributes and the part of the time that a header has no room for.
    fn extensions(&mut self, node: InodeRef, stat: &Stat, place: &TreePath) -> Result<()> {
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        let nanoseconds = stat.mtime.nanoseconds();
        if nanoseconds != 0 {
            let text = format!("{}.{nanoseconds:09}", stat.mtime.seconds());
            all.push(("mtime".to_string(), text.into_bytes()));
        }
        let failed = |error: FsError| fs_failure(place)(error);
        let mut names = vec![0; 64 << 10];
        let len = self
            .fs
            .list_xattr(&caller(), node, &mut names)
            .map_err(failed)?;
        for name in names[..len]
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            let mut value = vec![0; 64 << 10];
            let len = self
                .fs
                .get_xattr(&caller(), node, name, &mut value)
                .map_err(failed)?;
            value.truncate(len);
            all.push((
                format!("SCHILY.xattr.{}", String::from_utf8_lossy(name)),
                value,
            ));
        }
        let all = all
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()));
        let added = self.archive.append_pax_extensions(all);
        added.map_err(|error| failed_at(place, error))
    }
}

/// The system's errors are of what the archive goes to; what comes out of the pool has none.
fn failed_at(place: &TreePath, error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(_) => Failure::io("the archive", error),
        None => Failure::io(place, error),
    }
}

fn header_of(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(stat.mode & 0o7777);
    header.set_uid(u64::from(stat.uid));
    header.set_gid(u64::from(stat.gid));
    header.set_mtime(stat.mtime.seconds().max(0) as u64);
    let (major, minor) = (rustix::fs::major(stat.rdev), rustix::fs::minor(stat.rdev));
    // Only wrong for headers that have no such fields.
    let _ = header
        .set_device_major(major)
        .and(header.set_device_minor(minor));
    header
}

/// A file of a pool; what was cut off meanwhile reads as zeros, so that the archive stays whole.
struct Contents<'a> {
    fs: &'a Fs,
    node: InodeRef,
    at: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let to = UserBytesMut::from(&mut *buffer);
        let read = self.fs.read(self.node, FileOffset(self.at), to);
        let mut len = read.map_err(|error| io::Error::other(error.to_string()))?;
        if len == 0 {
            buffer.fill(0);
            len = buffer.len();
        }
        self.at += len as u64;
        Ok(len)
    }
}
