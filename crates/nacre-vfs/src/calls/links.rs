//! readlink, and the names that /proc shows for open files.

use crate::abi::{AT_FDCWD, PATH_MAX};
use crate::error::{ErrorKind, VfsError};
use crate::path::mount::{join, push};
use crate::path::procfs::{self, Link};
use crate::reply::{Answer, done};
use crate::resolve::walk::Lookup;
use crate::state::{OpenFile, Vfs};
use nacre_fs::{Cred, FileType, FsError, InodeRef};
use nacre_media::UserBytesMut;
use nacre_session::MAX_OFD_NAME;

const DELETED: &[u8] = b" (deleted)";

impl Vfs {
    /// `readlinkat`; also `readlink`.
    pub fn readlinkat(&self, dirfd: i32, path: &[u8], mut buffer: UserBytesMut<'_>) -> Answer {
        if buffer.is_empty() {
            return Err(ErrorKind::Invalid.into());
        }
        if let Some(file) = self.linked_file(dirfd, path)? {
            return give(&mut buffer, &self.name_of(&file)?);
        }
        if path.is_empty() && dirfd != AT_FDCWD {
            return self.read_open_link(dirfd, &mut buffer);
        }
        self.at_target(dirfd, path, Lookup::STAY, |target| {
            let found = target.existing()?;
            if found.file_type != FileType::Symlink {
                return Err(ErrorKind::Invalid.into());
            }
            let mut link = vec![0; PATH_MAX];
            let len = target.mount.fs.readlink(found.node, &mut link)?;
            give(&mut buffer, &link[..len])
        })
    }

    /// A symbolic link opened with `O_PATH | O_NOFOLLOW`.
    fn read_open_link(&self, fd: i32, buffer: &mut UserBytesMut<'_>) -> Answer {
        let Some(file) = self.file(fd)? else {
            return Ok(crate::Reply::Kernel);
        };
        if file.format() != FileType::Symlink.mode_bits() {
            return Err(ErrorKind::NotFound.into());
        }
        let mut link = vec![0; PATH_MAX];
        let len = file.mount.fs.readlink(file.node(), &mut link)?;
        give(buffer, &link[..len])
    }

    /// The pool's file that a link below /proc stands for, if the path names such a link.
    fn linked_file(&self, dirfd: i32, path: &[u8]) -> Result<Option<OpenFile<'_>>, VfsError> {
        let own_pid = || self.kernel().pid();
        let link = if path.first() == Some(&b'/') {
            procfs::parse(path, own_pid)
        } else if !path.is_empty() && (path == b"cwd" || path.iter().all(u8::is_ascii_digit)) {
            // A number or `cwd` inside an open directory of the host: it may be one of /proc.
            let inside_pool = if dirfd == AT_FDCWD {
                self.cwd_file()?
            } else {
                self.file(dirfd)?
            };
            if inside_pool.is_some() {
                return Ok(None);
            }
            return match self.host_absolute(dirfd, path) {
                Some(full) => self.exact_link(procfs::parse(&full, own_pid)),
                None => Ok(None),
            };
        } else {
            None
        };
        self.exact_link(link)
    }

    fn exact_link(&self, link: Option<(Link, &[u8])>) -> Result<Option<OpenFile<'_>>, VfsError> {
        match link {
            Some((link, b"")) => self.link_file(link),
            _ => Ok(None),
        }
    }

    /// The path that /proc shows for an open file.
    pub(crate) fn name_of(&self, file: &OpenFile<'_>) -> Result<Vec<u8>, VfsError> {
        let inside = if file.is_directory() {
            file.mount.fs.path_of(file.ofd.ino())
        } else {
            self.name_as_opened(file)
        };
        match inside {
            Ok(inside) => Ok(file.mount.absolute(&inside)),
            Err(FsError::NotFound | FsError::Stale) => Ok(deleted_name(file)),
            Err(error) => Err(error.into()),
        }
    }

    /// A path that leads to the file: by its name at open time, or another one in the same
    /// directory.
    fn name_as_opened(&self, file: &OpenFile<'_>) -> Result<Vec<u8>, FsError> {
        let fs = &file.mount.fs;
        let mut space = [0; MAX_OFD_NAME];
        let len = file.ofd.name(&mut space);
        let opened_as = &space[..len];
        if opened_as.is_empty() || fs.getattr(file.node())?.nlink == 0 {
            return Err(FsError::NotFound);
        }
        let mut path = fs.path_of(file.ofd.parent())?;
        let parent = fs.inode(file.ofd.parent())?;
        let found = fs.lookup(&Cred::root(), parent, opened_as);
        if path == b"/" {
            path.clear();
        }
        if found.is_ok_and(|found| found.node == file.node()) {
            push(&mut path, opened_as);
        } else {
            push(
                &mut path,
                &other_name(file, parent)?.unwrap_or(opened_as.to_vec()),
            );
        }
        Ok(path)
    }
}

/// A name that a directory holds for an open file.
fn other_name(file: &OpenFile<'_>, dir: InodeRef) -> Result<Option<Vec<u8>>, FsError> {
    let mut name = None;
    file.mount.fs.readdir(dir, 0, &mut |group| {
        let same = group.iter().find(|entry| entry.ino == file.ofd.ino());
        name = same.map(|entry| entry.name.to_vec());
        name.is_none()
    })?;
    Ok(name)
}

/// By the name at open time, in the root of the mount if the folder is gone, too.
fn deleted_name(file: &OpenFile<'_>) -> Vec<u8> {
    let mut name = [0; MAX_OFD_NAME];
    let len = file.ofd.name(&mut name);
    let label = match len {
        0 => format!("#{}", file.ofd.ino()).into_bytes(),
        _ => name[..len].to_vec(),
    };
    let folder = file.mount.fs.path_of(file.ofd.parent());
    let folder = file.mount.absolute(&folder.unwrap_or_default());
    [join(&folder, &label), DELETED.to_vec()].concat()
}

/// Copies as much of a link's text as fits.
fn give(buffer: &mut UserBytesMut<'_>, text: &[u8]) -> Answer {
    let len = text.len().min(buffer.len());
    buffer.slice(0..len).copy_from_slice(&text[..len])?;
    done(len as i64)
}
