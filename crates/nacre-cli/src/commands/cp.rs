//! `nacre cp`: between the host and a pool.

use crate::attached::Attached;
use crate::commands::verified::Reader;
use crate::failure::{Failure, Result, fs_failure};
use crate::output;
use crate::tree_path::{Location, TreePath, caller, entries, read_link, tell};
use clap::Args;
use indicatif::ProgressBar;
use nacre_fs::{
    Cred, Events, FileType, Found, Fs, FsError, InodeRef, SetTime, WriteAt, XattrFlags,
};
use nacre_types::{FileOffset, Timestamp};
use nacre_volume::{Access, UserBytes};
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, utimensat};
use rustix::fs::{lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre cp notes.txt my.pool:/                 into the root folder
  nacre cp -r src my.pool:/projects            a whole tree
  nacre cp -rp my.pool:/projects backup        out again, with owners and times
  nacre cp -r --verify my.pool:/projects backup   with copies: what the last scrub sealed is compared first

Folders, files and symbolic links are copied; fifos, sockets and devices are left out. Set-id bits come out of a pool only
with -p by root. Links below the destination are not followed.";

const PIECE: usize = 1 << 20;
/// Longest value, and longest list of names, of extended attributes.
const ATTRIBUTES_MAX: usize = 64 << 10;

/// Copy files between the host and a pool
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What to copy: POOL:/PATH or a host path; one or more
    #[arg(required = true, value_name = "FROM")]
    from: Vec<OsString>,
    /// Where to: POOL:/PATH or a host path; a folder if it exists
    #[arg(value_name = "TO")]
    to: OsString,
    /// Folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Keep owners, times and extended attributes (POSIX ACLs among them), too
    #[arg(short, long)]
    preserve: bool,
    /// Out of a pool: compare contents with their checksums first, and repair copies that differ
    #[arg(long)]
    verify: bool,
}

/// What all copies of one command share.
struct Copy<'a> {
    fs: &'a Fs,
    cred: Cred,
    recursive: bool,
    preserve: bool,
    reader: Reader<'a>,
    bar: ProgressBar,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let to = Location::parse(&arguments.to);
    for from in &arguments.from {
        match (Location::parse(from), &to) {
            (Location::Host(from), Location::Tree(to)) => {
                if arguments.verify {
                    let why = "--verify is for what comes out of a pool";
                    return Err(Failure::Usage(why.to_string()));
                }
                with_pool(arguments, &to.pool, Access::ReadWrite, |copy| {
                    copy.enter(&from, to)
                })?;
            }
            (Location::Tree(from), Location::Host(to)) => {
                with_pool(arguments, &from.pool, Access::ReadOnly, |copy| {
                    copy.leave(&from, to)?;
                    copy.reader.tell_unsealed(&from);
                    Ok(())
                })?;
            }
            _ => {
                let why = "one side must be POOL:/PATH and the other a host path; inside `nacre run`, use plain cp";
                return Err(Failure::Usage(why.to_string()));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn with_pool(
    arguments: &Arguments,
    pool: &Path,
    access: Access,
    work: impl FnOnce(&Copy<'_>) -> Result<()>,
) -> Result<()> {
    Attached::with(pool, access, |fs| {
        let reader = Reader::new(fs, pool, arguments.verify)?;
        let bar = output::bar(0, "copying", output::Counted::Bytes);
        let done = work(&Copy {
            fs,
            cred: caller(),
            recursive: arguments.recursive,
            preserve: arguments.preserve,
            reader,
            bar: bar.clone(),
        });
        bar.finish_and_clear();
        done
    })
}

fn folder_needs_recursive(object: impl ToString) -> Failure {
    fs_failure(object)(FsError::IsDirectory)
}

/// Host to pool.
impl Copy<'_> {
    fn enter(&self, from: &Path, to: &TreePath) -> Result<()> {
        let into_folder = match to.find_link(self.fs)? {
            Some(_) => to.find(self.fs)?.file_type == FileType::Directory,
            None => false,
        };
        let to = match from.file_name() {
            Some(name) if into_folder => to.join(name.as_bytes()),
            _ => to.clone(),
        };
        let Some((parent, name)) = to.split() else {
            return self.enter_contents(from, self.fs.root(), &to);
        };
        let parent = parent.find(self.fs)?.node;
        self.enter_one(from, parent, &name, &to)
    }

    fn enter_one(&self, from: &Path, parent: InodeRef, name: &[u8], to: &TreePath) -> Result<()> {
        let host = |error| Failure::io(from.display(), error);
        let meta = fs::symlink_metadata(from).map_err(host)?;
        if meta.is_dir() {
            if !self.recursive {
                return Err(folder_needs_recursive(from.display()));
            }
            let folder = self.make_folder(parent, name, &meta, to)?;
            self.enter_contents(from, folder, to)?;
            return self.keep_attributes(from, folder, &meta, to);
        }
        if meta.is_symlink() {
            let target = fs::read_link(from).map_err(host)?;
            self.remove_old(parent, name, to)?;
            let target = target.as_os_str().as_bytes();
            let made = self.fs.symlink(&self.cred, parent, name, target);
            return self.keep_attributes(from, made.map_err(fs_failure(to))?, &meta, to);
        }
        if !meta.is_file() {
            eprintln!(
                "nacre: {}: left out: neither file, folder nor link",
                from.display()
            );
            return Ok(());
        }
        self.enter_file(from, &meta, parent, name, to)
    }

    fn enter_contents(&self, from: &Path, folder: InodeRef, to: &TreePath) -> Result<()> {
        let host = |error| Failure::io(from.display(), error);
        let mut names = Vec::new();
        for entry in fs::read_dir(from).map_err(host)? {
            names.push(entry.map_err(host)?.file_name());
        }
        names.sort();
        for name in names {
            let name_bytes = name.as_bytes();
            self.enter_one(&from.join(&name), folder, name_bytes, &to.join(name_bytes))?;
        }
        Ok(())
    }

    fn make_folder(
        &self,
        parent: InodeRef,
        name: &[u8],
        meta: &Metadata,
        to: &TreePath,
    ) -> Result<InodeRef> {
        match self
            .fs
            .mkdir(&self.cred, parent, name, meta.mode() & 0o7777)
        {
            Err(FsError::Exists) => {
                let found = self.fs.lookup(&self.cred, parent, name);
                match found.map_err(fs_failure(to))? {
                    Found {
                        node,
                        file_type: FileType::Directory,
                    } => Ok(node),
                    _ => Err(fs_failure(to)(FsError::NotDirectory)),
                }
            }
            made => made.map_err(fs_failure(to)),
        }
    }

    fn remove_old(&self, parent: InodeRef, name: &[u8], to: &TreePath) -> Result<()> {
        match self.fs.unlink(&self.cred, parent, name) {
            Ok(()) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(fs_failure(to)(error)),
        }
    }

    fn enter_file(
        &self,
        from: &Path,
        meta: &Metadata,
        parent: InodeRef,
        name: &[u8],
        to: &TreePath,
    ) -> Result<()> {
        let host = |error| Failure::io(from.display(), error);
        let mut file = File::open(from).map_err(host)?;
        self.remove_old(parent, name, to)?;
        let node = self
            .fs
            .create(&self.cred, parent, name, meta.mode() & 0o7777)
            .map_err(fs_failure(to))?;
        self.bar.inc_length(meta.len());
        tell(self.fs, node, Events::OPEN);
        let written = self.fill(&mut file, node, from, to);
        tell(self.fs, node, Events::CLOSE_WRITE);
        let unpinned = self.fs.unpin(node.ino).map_err(fs_failure(to));
        written.and(unpinned)?;
        self.keep_attributes(from, node, meta, to)
    }

    /// Writes a file's contents; runs of zeros become holes.
    fn fill(&self, file: &mut File, node: InodeRef, from: &Path, to: &TreePath) -> Result<()> {
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        loop {
            let count = file
                .read(&mut buffer)
                .map_err(|error| Failure::io(from.display(), error))?;
            if count == 0 {
                break;
            }
            if buffer[..count].iter().any(|&byte| byte != 0) {
                self.write_all(node, at, &buffer[..count], to)?;
            }
            at += count as u64;
            self.bar.inc(count as u64);
        }
        self.fs
            .truncate(&self.cred, node, at)
            .map_err(fs_failure(to))
    }

    fn write_all(
        &self,
        node: InodeRef,
        mut at: u64,
        mut bytes: &[u8],
        to: &TreePath,
    ) -> Result<()> {
        while !bytes.is_empty() {
            let place = WriteAt::Offset(FileOffset(at));
            let written = self
                .fs
                .write(&self.cred, node, place, UserBytes::from(bytes))
                .map_err(fs_failure(to))?;
            tell(self.fs, node, Events::MODIFY);
            bytes = &bytes[written.len..];
            at += written.len as u64;
        }
        Ok(())
    }

    fn keep_attributes(
        &self,
        from: &Path,
        node: InodeRef,
        meta: &Metadata,
        to: &TreePath,
    ) -> Result<()> {
        if !self.preserve {
            return Ok(());
        }
        for (name, value) in attributes_of(from)? {
            let kept = self
                .fs
                .set_xattr(&self.cred, node, &name, &value, XattrFlags::empty());
            kept.map_err(fs_failure(to))?;
        }
        let time = |seconds: i64, ns: i64| SetTime::At(Timestamp::from_parts(seconds, ns as u32));
        if self.cred.uid == 0 {
            let owned = self
                .fs
                .chown(&self.cred, node, Some(meta.uid()), Some(meta.gid()))
                .and_then(|()| match meta.is_symlink() {
                    true => Ok(()),
                    false => self.fs.chmod(&self.cred, node, meta.mode() & 0o7777),
                });
            owned.map_err(fs_failure(to))?;
        }
        self.fs
            .utimens(
                &self.cred,
                node,
                time(meta.atime(), meta.atime_nsec()),
                time(meta.mtime(), meta.mtime_nsec()),
            )
            .map_err(fs_failure(to))
    }
}

/// Pool to host.
impl Copy<'_> {
    fn leave(&self, from: &TreePath, to: &Path) -> Result<()> {
        let found = from.find_link(self.fs)?;
        let found = found.ok_or_else(|| fs_failure(from)(FsError::NotFound))?;
        let name = from.split().map(|(_, name)| name);
        if !fs::symlink_metadata(to).is_ok_and(|meta| meta.is_dir()) {
            output::refuse_of_others(to)?;
        }
        // Only a link that the caller names is followed: one in a folder may have come out of the
        // pool the last time.
        let to = match name {
            Some(name) if to.is_dir() => to.join(OsStr::from_bytes(&name)),
            _ => fs::canonicalize(to).unwrap_or_else(|_| to.to_path_buf()),
        };
        self.leave_one(found.node, found.file_type, from, &to)
    }

    fn leave_one(
        &self,
        node: InodeRef,
        file_type: FileType,
        from: &TreePath,
        to: &Path,
    ) -> Result<()> {
        let host = |error| Failure::io(to.display(), error);
        match file_type {
            FileType::Directory if !self.recursive => return Err(folder_needs_recursive(from)),
            FileType::Directory => {
                match fs::symlink_metadata(to).is_ok_and(|meta| meta.is_dir()) {
                    true => output::refuse_of_others(to)?,
                    false => fs::create_dir(to).map_err(host)?,
                }
                for entry in entries(self.fs, node, from)? {
                    let name: PathBuf = to.join(OsStr::from_bytes(&entry.name));
                    self.leave_one(entry.node, entry.file_type, &from.join(&entry.name), &name)?;
                }
            }
            FileType::Symlink => {
                let target = read_link(self.fs, node).map_err(fs_failure(from))?;
                let _absent_or_replaced = fs::remove_file(to);
                symlink(OsStr::from_bytes(&target), to).map_err(host)?;
            }
            FileType::Regular => self.leave_file(node, from, to)?,
            _ => {
                eprintln!("nacre: {from}: left out: neither file, folder nor link");
                return Ok(());
            }
        }
        self.leave_attributes(node, from, to)
    }

    fn leave_file(&self, node: InodeRef, from: &TreePath, to: &Path) -> Result<()> {
        let host = |error| Failure::io(to.display(), error);
        let mut file = create_unfollowed(to)?;
        self.bar
            .inc_length(self.fs.size(node).map_err(fs_failure(from))?);
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        loop {
            let len = self.reader.read(node, at, &mut buffer, from)?;
            if len == 0 {
                break;
            }
            if buffer[..len].iter().any(|&byte| byte != 0) {
                file.seek(SeekFrom::Start(at)).map_err(host)?;
                file.write_all(&buffer[..len]).map_err(host)?;
            }
            at += len as u64;
            self.bar.inc(len as u64);
        }
        file.set_len(at).map_err(host)
    }

    fn leave_extended(&self, node: InodeRef, from: &TreePath, to: &Path) -> Result<()> {
        let mut room = vec![0; ATTRIBUTES_MAX];
        let (fs, cred) = (self.fs, &self.cred);
        let len = fs.list_xattr(cred, node, &mut room);
        for name in names_in(&room[..len.map_err(fs_failure(from))?]) {
            let mut value = vec![0; ATTRIBUTES_MAX];
            let len = fs.get_xattr(cred, node, name, &mut value);
            let value = &value[..len.map_err(fs_failure(from))?];
            lsetxattr(to, name, value, rustix::fs::XattrFlags::empty())
                .map_err(|error| Failure::io(to.display(), error))?;
        }
        Ok(())
    }

    fn leave_attributes(&self, node: InodeRef, from: &TreePath, to: &Path) -> Result<()> {
        let host = |error| Failure::io(to.display(), error);
        let stat = self.fs.getattr(node).map_err(fs_failure(from))?;
        if self.preserve && self.cred.uid == 0 {
            lchown(to, Some(stat.uid), Some(stat.gid)).map_err(host)?;
        }
        if stat.file_type() != Some(FileType::Symlink) {
            // Set-id bits speak of an owner: they come with theirs only.
            let kept = match self.preserve && self.cred.uid == 0 {
                true => 0o7777,
                false => 0o777,
            };
            let permissions = Permissions::from_mode(stat.mode & kept);
            fs::set_permissions(to, permissions).map_err(host)?;
        }
        if self.preserve {
            self.leave_extended(node, from, to)?;
            let times = Timestamps {
                last_access: timespec(stat.atime),
                last_modification: timespec(stat.mtime),
            };
            utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| Failure::io(to.display(), error))?;
        }
        Ok(())
    }
}

/// A file for its user alone until it has its mode. It replaces a link.
fn create_unfollowed(path: &Path) -> Result<File> {
    let host = |error| Failure::io(path.display(), error);
    output::refuse_of_others(path)?;
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) {
        fs::remove_file(path).map_err(host)?;
    }
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(true).mode(0o600);
    let flags = OFlags::NOFOLLOW.bits() as i32;
    how.custom_flags(flags).open(path).map_err(host)
}

/// Extended attributes are kept as far as both sides know them: `user.` and lists.
fn is_kept(name: &[u8]) -> bool {
    let lists: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    name.starts_with(b"user.") || lists.contains(&name)
}

/// Names in a list of them, each with a NUL behind it.
fn names_in(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == 0).filter(|name| is_kept(name))
}

/// Those of a file of the host. A file system that has none is no failure.
fn attributes_of(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |error| Failure::io(path.display(), error);
    let mut room = vec![0; ATTRIBUTES_MAX];
    let len = match llistxattr(path, &mut room) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        len => len.map_err(failed)?,
    };
    let mut found = Vec::new();
    for name in names_in(&room[..len]) {
        let mut value = vec![0; ATTRIBUTES_MAX];
        let len = lgetxattr(path, name, &mut value[..]).map_err(failed)?;
        value.truncate(len);
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds(),
        tv_nsec: i64::from(time.nanoseconds()),
    }
}

#[cfg(test)]
mod tests {
    use super::timespec;
    use nacre_types::Timestamp;

    #[test]
    fn times_before_the_epoch() {
        let before = timespec(Timestamp(-1));
        assert_eq!((before.tv_sec, before.tv_nsec), (-1, 999_999_999));
    }
}
