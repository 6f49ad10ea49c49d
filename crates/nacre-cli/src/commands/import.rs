//! `nacre import`: a tar archive into a pool.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::output::harmless_name;
use crate::tree_path::{Location, TreePath, caller, tell};
use clap::Args;
use nacre_fs::{
    Cred, Events, FileType, Found, Fs, FsError, InodeRef, SetTime, WriteAt, XattrFlags,
};
use nacre_types::{FileOffset, Timestamp};
use nacre_volume::{Access, UserBytes};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use tar::{Archive, Entry, EntryType};

const EXAMPLES: &str = "\
Examples:
  zstd -dc backup.tar.zst | nacre import my.pool
  nacre import -i src.tar my.pool:/src
  tar -cf - src | nacre import my.pool

What is there already is replaced, folders are filled. Owners are kept by root only. Names with `..`, and names that
lead through a link, are refused.";

/// Unpack a tar archive into a pool
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// POOL or POOL:/FOLDER
    #[arg(value_name = "POOL:/FOLDER")]
    place: OsString,
    /// Read FILE instead of standard input
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let place = Location::parse_tree(&arguments.place);
    let (source, shown): (Box<dyn Read>, String) = match &arguments.input {
        Some(path) => {
            let file = File::open(path).map_err(|error| Failure::io(path.display(), error))?;
            (Box::new(file), path.display().to_string())
        }
        None if io::stdin().is_terminal() => {
            let why =
                "an archive is expected on standard input; name a file with -i, or pipe one in";
            return Err(Failure::Usage(why.to_string()));
        }
        None => (Box::new(io::stdin().lock()), "standard input".to_string()),
    };
    Attached::with(&place.pool, Access::ReadWrite, |fs| {
        let found = place.find(fs)?;
        if found.file_type != FileType::Directory {
            return Err(fs_failure(&place)(FsError::NotDirectory));
        }
        let mut import = Import {
            fs,
            cred: caller(),
            root: found.node,
            place: &place,
            folders: HashMap::new(),
        };
        let mut archive = Archive::new(BufReader::with_capacity(1 << 20, source));
        let broken =
            |error| Failure::io(format!("{shown}: no tar archive, or a broken one"), error);
        for entry in archive.entries().map_err(broken)? {
            import.one(&mut entry.map_err(broken)?)?;
        }
        import.finish()
    })?;
    Ok(ExitCode::SUCCESS)
}

struct Import<'a> {
    fs: &'a Fs,
    cred: Cred,
    root: InodeRef,
    place: &'a TreePath,
    /// Folders and what they get at the end, as filling them changes their times and may need their
    /// rights.
    folders: HashMap<PathBuf, (InodeRef, Attributes)>,
}

/// What of an entry is not its contents.
#[derive(Clone, Debug)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    modified: Timestamp,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Import<'_> {
    fn one(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<()> {
        let path = entry
            .path()
            .map_err(|error| self.broken(error))?
            .into_owned();
        let names = names_of(&path).ok_or_else(|| {
            Failure::Usage(format!(
                "{}: a name with `..` is not unpacked",
                harmless_name(path.as_os_str().as_bytes())
            ))
        })?;
        let attributes = self.attributes(entry)?;
        let place = names
            .iter()
            .fold(self.place.clone(), |place, name| place.join(name));
        let Some((name, above)) = names.split_last() else {
            return self.attributes_later(PathBuf::new(), self.root, attributes);
        };
        let parent = self.folder(above, &place)?;
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            let node = self.make_folder(parent, name, &place)?;
            return self.attributes_later(names_path(&names), node, attributes);
        }
        if let Some(node) = self.make(entry, kind, parent, name, &place)? {
            self.give(node, kind == EntryType::Symlink, &attributes, &place)?;
        }
        Ok(())
    }

    /// The folder of these names, made as far as it is missing; no link is followed.
    fn folder(&self, names: &[Vec<u8>], place: &TreePath) -> Result<InodeRef> {
        names.iter().try_fold(self.root, |folder, name| {
            self.make_folder(folder, name, place)
        })
    }

    fn make_folder(&self, parent: InodeRef, name: &[u8], place: &TreePath) -> Result<InodeRef> {
        match self.fs.mkdir(&self.cred, parent, name, 0o755) {
            Err(FsError::Exists) => match self.fs.lookup(&self.cred, parent, name) {
                Ok(Found {
                    node,
                    file_type: FileType::Directory,
                }) => Ok(node),
                Ok(_) => Err(fs_failure(place)(FsError::NotDirectory)),
                Err(error) => Err(fs_failure(place)(error)),
            },
            made => made.map_err(fs_failure(place)),
        }
    }

    /// Makes what is no folder; nothing for a further name of a file, and for what is unknown.
    fn make(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        kind: EntryType,
        parent: InodeRef,
        name: &[u8],
        place: &TreePath,
    ) -> Result<Option<InodeRef>> {
        let target = entry.link_name_bytes().map(|name| name.into_owned());
        if kind == EntryType::Link {
            self.link(&target.unwrap_or_default(), parent, name, place)?;
            return Ok(None);
        }
        let device = || {
            let number = |part: io::Result<Option<u32>>| part.ok().flatten().unwrap_or(0);
            let header = entry.header();
            rustix::fs::makedev(number(header.device_major()), number(header.device_minor()))
        };
        let (mode, number) = match kind {
            EntryType::Fifo => (0o010_600, 0),
            EntryType::Char => (0o020_600, device()),
            EntryType::Block => (0o060_600, device()),
            EntryType::Symlink => (0, 0),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => (0o100_600, 0),
            _ => {
                eprintln!("nacre: {place}: left out: an entry of unknown type");
                return Ok(None);
            }
        };
        self.remove_old(parent, name, place)?;
        let made = match kind {
            EntryType::Symlink => {
                let target = target.unwrap_or_default();
                self.fs.symlink(&self.cred, parent, name, &target)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                return self.file(entry, parent, name, place).map(Some);
            }
            _ => self.fs.mknod(&self.cred, parent, name, mode, number),
        };
        made.map(Some).map_err(fs_failure(place))
    }

    fn file(
        &self,
        from: &mut impl Read,
        parent: InodeRef,
        name: &[u8],
        place: &TreePath,
    ) -> Result<InodeRef> {
        let node = self
            .fs
            .create(&self.cred, parent, name, 0o600)
            .map_err(fs_failure(place))?;
        tell(self.fs, node, Events::OPEN);
        let filled = self.fill(from, node, place);
        tell(self.fs, node, Events::CLOSE_WRITE);
        let unpinned = self.fs.unpin(node.ino).map_err(fs_failure(place));
        filled.and(unpinned)?;
        Ok(node)
    }

    /// Writes contents; runs of zeros become holes.
    fn fill(&self, from: &mut impl Read, node: InodeRef, place: &TreePath) -> Result<()> {
        let mut buffer = vec![0; 256 << 10];
        let mut end = 0;
        loop {
            let count = fill_buffer(from, &mut buffer).map_err(|error| self.broken(error))?;
            if count == 0 {
                break;
            }
            let mut piece = &buffer[..count];
            let mut at = end;
            end += count as u64;
            while !piece.is_empty() && piece.iter().any(|&byte| byte != 0) {
                let to = WriteAt::Offset(FileOffset(at));
                let written = self.fs.write(&self.cred, node, to, UserBytes::from(piece));
                let written = written.map_err(fs_failure(place))?.len;
                tell(self.fs, node, Events::MODIFY);
                piece = &piece[written..];
                at += written as u64;
            }
        }
        self.fs
            .truncate(&self.cred, node, end)
            .map_err(fs_failure(place))
    }

    fn link(&self, target: &[u8], parent: InodeRef, name: &[u8], place: &TreePath) -> Result<()> {
        let target = Path::new(std::ffi::OsStr::from_bytes(target));
        let missing = || {
            Failure::Usage(format!(
                "{place}: a further name of {}, which is not there",
                harmless_name(target.as_os_str().as_bytes())
            ))
        };
        let names = names_of(target).ok_or_else(missing)?;
        let (last, above) = names.split_last().ok_or_else(missing)?;
        let folder = self.folder(above, place)?;
        let found = self
            .fs
            .lookup(&self.cred, folder, last)
            .map_err(|_| missing())?;
        let there = self.fs.lookup(&self.cred, parent, name);
        if there.is_ok_and(|there| there.node == found.node) {
            return Ok(());
        }
        self.remove_old(parent, name, place)?;
        self.fs
            .link(&self.cred, found.node, parent, name)
            .map_err(fs_failure(place))
    }

    fn remove_old(&self, parent: InodeRef, name: &[u8], place: &TreePath) -> Result<()> {
        match self.fs.unlink(&self.cred, parent, name) {
            Ok(()) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(fs_failure(place)(error)),
        }
    }

    fn attributes(&self, entry: &mut Entry<'_, impl Read>) -> Result<Attributes> {
        let header = entry.header();
        let id = |id: io::Result<u64>| id.map(|id| id as u32);
        let read = header.mode().and_then(|mode| {
            Ok((
                mode,
                id(header.uid())?,
                id(header.gid())?,
                header.mtime()? as i64,
            ))
        });
        let (mode, uid, gid, seconds) = read.map_err(|error| self.broken(error))?;
        let mut attributes = Attributes {
            mode: mode & 0o7777,
            uid,
            gid,
            modified: Timestamp::from_parts(seconds, 0),
            extended: Vec::new(),
        };
        let Some(extensions) = entry.pax_extensions().map_err(|error| self.broken(error))? else {
            return Ok(attributes);
        };
        for extension in extensions.flatten() {
            let (key, value) = (extension.key_bytes(), extension.value_bytes());
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                attributes.extended.push((name.to_vec(), value.to_vec()));
            } else if key == b"mtime" {
                let time = std::str::from_utf8(value).ok().and_then(time_of);
                attributes.modified = time.unwrap_or(attributes.modified);
            }
        }
        Ok(attributes)
    }

    fn attributes_later(
        &mut self,
        name: PathBuf,
        node: InodeRef,
        attributes: Attributes,
    ) -> Result<()> {
        self.folders.insert(name, (node, attributes));
        Ok(())
    }

    /// Gives folders their attributes, the lower ones first.
    fn finish(&self) -> Result<()> {
        let mut folders: Vec<_> = self.folders.iter().collect();
        folders.sort_by(|a, b| b.0.cmp(a.0));
        for (name, (node, attributes)) in folders {
            let place = self.place.join(name.as_os_str().as_bytes());
            self.give(*node, false, attributes, &place)?;
        }
        Ok(())
    }

    fn give(
        &self,
        node: InodeRef,
        link: bool,
        attributes: &Attributes,
        place: &TreePath,
    ) -> Result<()> {
        let Attributes {
            mode,
            uid,
            gid,
            modified,
            extended,
        } = attributes;
        let root = self.cred.uid == 0;
        let given = (|| {
            if root {
                self.fs.chown(&self.cred, node, Some(*uid), Some(*gid))?;
            }
            for (name, value) in extended {
                self.fs
                    .set_xattr(&self.cred, node, name, value, XattrFlags::empty())?;
            }
            if !link {
                self.fs.chmod(&self.cred, node, *mode)?;
            }
            let time = SetTime::At(*modified);
            self.fs.utimens(&self.cred, node, time, time)
        })();
        given.map_err(fs_failure(place))
    }

    fn broken(&self, error: io::Error) -> Failure {
        Failure::io("the archive is broken", error)
    }
}

/// The names of a path from an archive. `None` if it climbs; a slash at the start counts for
/// nothing.
fn names_of(path: &Path) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.as_bytes().to_vec()),
            Component::ParentDir => return None,
            _ => {}
        }
    }
    Some(names)
}

fn names_path(names: &[Vec<u8>]) -> PathBuf {
    names
        .iter()
        .map(|name| std::ffi::OsStr::from_bytes(name))
        .collect()
}

/// Seconds since 1970 with a fraction.
fn time_of(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Some(Timestamp::from_parts(
        seconds.parse().ok()?,
        digits.parse().ok()?,
    ))
}

/// Reads until the buffer is full or the file ends.
fn fill_buffer(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::{names_of, time_of};
    use nacre_types::Timestamp;
    use std::path::Path;

    #[test]
    fn names_of_archives() {
        let names = |path: &str| names_of(Path::new(path)).map(|names| names.len());
        assert_eq!(names("./a/b/"), Some(2));
        assert_eq!(names("/a"), Some(1));
        assert_eq!((names("a/../b"), names(".")), (None, Some(0)));
    }

    #[test]
    fn times_with_fractions() {
        assert_eq!(
            time_of("12.5"),
            Some(Timestamp::from_parts(12, 500_000_000))
        );
        assert_eq!(time_of("12"), Some(Timestamp::from_parts(12, 0)));
        assert_eq!(time_of("x.5"), None);
    }
}
