//! Where a path starts: the decision "a pool's or the kernel's", and the crossings between them.

use crate::abi::{AT_FDCWD, ENOENT, LINKS_MAX, PATH_MAX};
use crate::error::VfsError;
use crate::fd::table::FdEntry;
use crate::kernel::KernelError;
use crate::path::mount::{
    Mount, climbs, first_component, is_not_normalized, join, normalize, pop, push,
};
use crate::path::owner::{LINKED, PathOwner};
use crate::path::procfs::{self, Link};
use crate::state::{OpenFile, Vfs};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// The directory (or open file) at which a path starts, and what is left of the path.
pub(crate) enum Origin<'v, 'p> {
    /// On the host.
    Kernel,
    /// An open file itself, named through /proc.
    Open(OpenFile<'v>),
    /// The root of a pool.
    Mount(&'v Mount, Cow<'p, [u8]>),
    /// An open directory or the current directory.
    File(OpenFile<'v>, Cow<'p, [u8]>),
}

impl Vfs {
    /// Decides where a path starts. `follow` tells whether its last component is followed if it is
    /// a link in /proc.
    #[inline]
    pub(crate) fn origin<'v, 'p>(
        &'v self,
        dirfd: i32,
        path: &'p [u8],
        follow: bool,
    ) -> Result<Origin<'v, 'p>, VfsError> {
        match path.first() {
            None => Ok(Origin::Kernel),
            Some(b'/') => self.absolute_origin(path, follow),
            Some(_) if dirfd == AT_FDCWD => match self.cwd_file()? {
                Some(file) => Ok(Origin::File(file, Cow::Borrowed(path))),
                None => self.host_relative(dirfd, path, follow),
            },
            Some(_) => match self.file(dirfd)? {
                Some(file) => Ok(Origin::File(file, Cow::Borrowed(path))),
                None => self.host_relative(dirfd, path, follow),
            },
        }
    }

    /// As `origin`, for a path that begins with a slash.
    pub(crate) fn absolute_origin<'v, 'p>(
        &'v self,
        path: &'p [u8],
        follow: bool,
    ) -> Result<Origin<'v, 'p>, VfsError> {
        if let Some((mount, rest)) = self.mount_of(path) {
            return Ok(Origin::Mount(self.ready(mount)?, Cow::Borrowed(rest)));
        }
        if let Some((link, rest)) = procfs::parse(path, || self.kernel().pid()) {
            return self.link_origin(link, rest, follow);
        }
        if !is_not_normalized(path) || self.mount_of(&normalize(path)).is_none() {
            return Ok(Origin::Kernel);
        }
        self.crossing(path, follow)
    }

    /// Whether a path is the kernel's as far as its start and its text tell; symbolic links of the
    /// host may still lead it into a pool.
    pub fn is_plainly_hosts(&self, dirfd: i32, path: &[u8]) -> bool {
        !path.is_empty() && matches!(self.origin(dirfd, path, true), Ok(Origin::Kernel))
    }

    /// The owner of a path that begins with these two bytes, as far as they tell.
    #[inline(always)]
    pub fn owner_of(&self, dirfd: i32, first: [u8; 2]) -> PathOwner {
        match first {
            [b'/', next] => self.owner_by(next, true),
            [first, _] if self.is_hosts_folder(dirfd) => self.owner_by(first, false),
            _ => PathOwner::Unknown,
        }
    }

    /// As [`Vfs::owner_of`]: of an absolute path whose second byte this is, or of a relative one
    /// with this first byte, in a folder of the host.
    #[inline(always)]
    pub fn owner_by(&self, byte: u8, absolute: bool) -> PathOwner {
        self.owners.by(byte, absolute)
    }

    /// Whether relative paths start on the host; false says nothing.
    #[inline(always)]
    fn is_hosts_folder(&self, dirfd: i32) -> bool {
        if dirfd == AT_FDCWD {
            let cwd = FdEntry::unpack(self.cwd.load(Ordering::Acquire));
            return !matches!(cwd, FdEntry::Pool(_));
        }
        self.table.get(dirfd) == Some(FdEntry::Host)
    }

    /// As [`Vfs::is_plainly_hosts`] of a path whose side is not unknown, by its text alone; false
    /// says nothing.
    pub fn reads_as_hosts(&self, path: &[u8]) -> bool {
        let reserved = match path.first() {
            Some(b'/') => LINKED.iter().any(|one| path.starts_with(one)),
            _ => {
                let climbs = path.starts_with(b"./") || climbs(path);
                climbs || self.mounts().iter().any(|mount| mount.begins(path))
            }
        };
        !reserved && !is_not_normalized(path)
    }

    #[inline]
    pub(crate) fn mount_of<'p>(&self, path: &'p [u8]) -> Option<(&Mount, &'p [u8])> {
        self.mounts()
            .iter()
            .find_map(|mount| Some((mount, mount.inside(path)?)))
    }

    /// As `cwd_file`, for the frequent case: Returns `None` if the fast path does not apply.
    #[inline]
    pub(crate) fn known_cwd(&self) -> Option<OpenFile<'_>> {
        let FdEntry::Pool(id) = FdEntry::unpack(self.cwd.load(Ordering::Acquire)) else {
            return None;
        };
        if !self.alone() {
            return None;
        }
        self.open_file(id, false).ok()
    }

    /// The open file of the current directory, if that lies in a pool.
    #[inline]
    pub(crate) fn cwd_file(&self) -> Result<Option<OpenFile<'_>>, VfsError> {
        loop {
            let word = self.cwd.load(Ordering::Acquire);
            let FdEntry::Pool(id) = FdEntry::unpack(word) else {
                return Ok(None);
            };
            if self.alone() {
                return self.open_file(id, false).map(Some);
            }
            if self.uses.add_if_used(id) {
                let file = self.open_file(id, true)?;
                if self.cwd.load(Ordering::Acquire) == word {
                    return Ok(Some(file));
                }
            }
        }
    }

    fn link_origin<'v, 'p>(
        &'v self,
        link: Link,
        rest: &'p [u8],
        follow: bool,
    ) -> Result<Origin<'v, 'p>, VfsError> {
        let Some(file) = self.link_file(link)? else {
            return Ok(Origin::Kernel);
        };
        if !rest.is_empty() {
            return Ok(Origin::File(file, Cow::Borrowed(rest)));
        }
        Ok(if follow {
            Origin::Open(file)
        } else {
            Origin::Kernel
        })
    }

    /// The pool's file behind a link in /proc.
    pub(crate) fn link_file(&self, link: Link) -> Result<Option<OpenFile<'_>>, VfsError> {
        match link {
            Link::Fd(fd) => self.file(fd),
            Link::Cwd => self.cwd_file(),
        }
    }

    /// A relative path that starts on the host can reach a pool by `..` or through an ancestor of a
    /// mount point; everything else is the kernel's at once.
    fn host_relative<'v, 'p>(
        &'v self,
        dirfd: i32,
        path: &'p [u8],
        follow: bool,
    ) -> Result<Origin<'v, 'p>, VfsError> {
        let first = first_component(path);
        if !climbs(path) && !self.mounts().iter().any(|mount| mount.has_component(first)) {
            return Ok(Origin::Kernel);
        }
        match self.host_absolute(dirfd, path) {
            Some(full) if self.mount_of(&normalize(&full)).is_some() => {
                self.crossing(&full, follow)
            }
            _ => Ok(Origin::Kernel),
        }
    }

    /// Exact answer for a path that seems to cross into a pool.
    fn crossing<'v, 'p>(&'v self, path: &[u8], follow: bool) -> Result<Origin<'v, 'p>, VfsError> {
        let Some(inside) = self.walk_host(path, follow) else {
            return Ok(Origin::Kernel);
        };
        Ok(match self.mount_of(&inside) {
            Some((mount, rest)) => Origin::Mount(self.ready(mount)?, Cow::Owned(rest.to_vec())),
            None => Origin::Kernel,
        })
    }

    /// The absolute form of a path on the host.
    pub(crate) fn host_absolute(&self, dirfd: i32, path: &[u8]) -> Option<Vec<u8>> {
        if path.first() == Some(&b'/') {
            return Some(path.to_vec());
        }
        let mut base = vec![0; PATH_MAX];
        let len = if dirfd == AT_FDCWD {
            self.kernel().getcwd(&mut base).ok()?
        } else {
            let link = format!("/proc/self/fd/{dirfd}");
            self.kernel()
                .readlink(AT_FDCWD, link.as_bytes(), &mut base)
                .ok()?
        };
        (base[0] == b'/').then(|| join(&base[..len], path))
    }

    /// After the kernel answered ENOENT to a path: the path inside a pool that it leads to through
    /// symbolic links of the host, if it does. The call is then to be made again with that path.
    pub fn retry_after_enoent(
        &self,
        dirfd: i32,
        path: &[u8],
        follow_last: bool,
    ) -> Option<Vec<u8>> {
        if path.is_empty() || self.mounts().is_empty() {
            return None;
        }
        if self.is_merely_missing(dirfd, path, follow_last) {
            return None;
        }
        self.leads_into(dirfd, path, follow_last)
    }

    /// The path inside a pool that a path leads to through symbolic links of the host.
    pub fn leads_into(&self, dirfd: i32, path: &[u8], follow_last: bool) -> Option<Vec<u8>> {
        self.walk_host(&self.host_absolute(dirfd, path)?, follow_last)
    }

    /// Whether what exists of a path that the kernel does not find ends in a plain folder, and the
    /// path is no symbolic link that would be followed: then no link leads it into a pool.
    pub fn is_merely_missing(&self, dirfd: i32, path: &[u8], follow_last: bool) -> bool {
        let missing = |path: &[u8]| {
            let found = self.kernel().readlink(dirfd, path, &mut [0]);
            found.err().map(|KernelError(errno)| errno == ENOENT)
        };
        // In a folder that is missing there is no link: the path itself is asked for last.
        let mut is_below_missing = false;
        let mut rest = path;
        while let Some(slash @ 1..) = rest.iter().rposition(|&byte| byte == b'/') {
            rest = &path[..slash];
            match missing(rest) {
                Some(true) => is_below_missing = true,
                Some(false) => break,
                None => return false,
            }
        }
        !follow_last || is_below_missing || missing(path) == Some(true)
    }

    /// Follows a path on the host, link by link, until it enters a pool.
    fn walk_host(&self, path: &[u8], follow_last: bool) -> Option<Vec<u8>> {
        let mut here = Vec::new();
        let mut rest = path.to_vec();
        let mut links = 0;
        while !rest.is_empty() {
            let (name, after) = split_first_name(&rest);
            let name = name.to_vec();
            rest = after.to_vec();
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    pop(&mut here);
                    continue;
                }
                _ => push(&mut here, &name),
            }
            if self.mount_of(&here).is_some() {
                return Some(if rest.is_empty() {
                    here
                } else {
                    join(&here, &rest)
                });
            }
            if rest.is_empty() && !follow_last {
                return None;
            }
            let mut target = vec![0; PATH_MAX];
            let Ok(len) = self.kernel().readlink(AT_FDCWD, &here, &mut target) else {
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            rest = [&target[..len], rest.as_slice()].concat();
            if target[0] == b'/' {
                here.clear()
            } else {
                pop(&mut here)
            }
        }
        None
    }
}

/// The first name of a path without the slashes in front of it, and what is behind it.
fn split_first_name(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.iter().position(|&byte| byte != b'/');
    let path = &path[start.unwrap_or(path.len())..];
    let end = path.iter().position(|&byte| byte == b'/');
    path.split_at(end.unwrap_or(path.len()))
}
