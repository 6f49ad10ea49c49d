//! Shared libraries of pools for programs that need them at start.
//!
//! The dynamic linker opens them before any code of ours runs in the new program. So whoever
//! executes the program copies them to memory that the program inherits, and makes a folder of
//! links to these copies that goes in front of `LD_LIBRARY_PATH`. The new program takes the folder
//! out of its environment, removes it and closes the copies. A folder of files would not do: a file
//! system of shared memory may be small, or have no programs (`noexec`), as containers' is.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nacre_runtime::Folder;
use nacre_vfs::{Reply, Vfs};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd, write};

use crate::entry::call::{HERE, sink, terminated};
use crate::rewrite::dynamic::Dynamic;
use crate::runtime::environment;
use crate::runtime::kernel::{self, call, checked};

/// What names of folders with copies begin with, in the user's own folder.
const NAME: &str = "libraries-";
/// Where links of such a folder lead: this, and the number of a descriptor.
const COPY: &str = "/proc/self/fd/";
/// Most libraries copied for one program.
const LIBRARIES_MAX: usize = 256;

/// The libraries of pools that a program needs.
#[derive(Default)]
pub struct Libraries {
    /// File name and contents of each.
    found: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where a program is and what its environment says, for the search.
pub struct Search<'a> {
    /// The process's file system state.
    pub vfs: &'a Vfs,
    /// `LD_LIBRARY_PATH` of the new program.
    pub path: &'a [u8],
}

impl Libraries {
    /// Finds what the program (or library) at `place` needs from pools, and what that needs in
    /// turn. Names with a slash are made names without: they are found in the folder then. Whether
    /// any were.
    pub fn collect(&mut self, search: &Search<'_>, image: &mut [u8], place: &[u8]) -> bool {
        let Some(dynamic) = Dynamic::parse(image) else {
            return false;
        };
        let origin = folder_of(place);
        let expand = |list: Option<&[u8]>| folders(list.unwrap_or_default(), origin);
        let (before, after) = match dynamic.runpath(image) {
            None => (expand(dynamic.rpath(image)), Vec::new()),
            runpath => (Vec::new(), expand(runpath)),
        };
        let given = folders(search.path, origin);
        let all: Vec<Vec<u8>> = [before, given, after].concat();
        let (mut next, mut changed) = (Vec::new(), false);
        for needed in &dynamic.needed {
            let name = needed.name(image).to_vec();
            if let Some(path) = search.find(&name, &all) {
                needed.strip_folder(image);
                changed |= name.contains(&b'/');
                next.push(path);
            }
        }
        next.iter().for_each(|path| self.add(search, path));
        changed
    }

    /// Finds what a list of libraries to preload has from pools. The list as the dynamic linker is
    /// to see it, if there is any: with names that it finds in the folder.
    pub fn preload(&mut self, search: &Search<'_>, list: &[u8]) -> Option<Vec<u8>> {
        let given = folders(search.path, b"");
        let mut any = false;
        let entries = environment::libraries(list).map(|entry| {
            let Some(path) = search.find(entry, &given) else {
                return entry;
            };
            any = true;
            self.add(search, &path);
            file_of(entry)
        });
        let entries = entries.collect::<Vec<&[u8]>>().join(&b':');
        any.then_some(entries)
    }

    fn add(&mut self, search: &Search<'_>, path: &[u8]) {
        let name = file_of(path);
        let known = self.found.iter().any(|(known, _)| known == name);
        if known || self.found.len() == LIBRARIES_MAX {
            return;
        }
        let Some(mut image) = search.read(path) else {
            return;
        };
        let i = self.found.len();
        self.found.push((name.to_vec(), Vec::new()));
        self.collect(search, &mut image, path);
        self.found[i].1 = image;
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Makes a new folder of the host that leads to copies of them, for who is executed next.
    pub fn write(&self) -> Result<Vec<u8>, i32> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (kernel::getpid(), COUNT.fetch_add(1, Relaxed));
        let own = Folder::make_of_user().map_err(|_| libc::EACCES)?;
        let name = format!("{NAME}{pid}-{number}");
        let folder = own.fresh_folder(&name).map_err(|_| libc::EACCES)?;
        let path = folder.path().as_os_str().as_bytes().to_vec();
        let mut files = self.found.iter();
        if let Err(errno) = files.try_for_each(|(name, image)| show(&folder, name, image)) {
            remove(&path);
            return Err(errno);
        }
        Ok(path)
    }
}

impl Search<'_> {
    /// Whether the library path has a folder of a pool.
    pub fn leads_into_pool(&self) -> bool {
        folders(self.path, b"")
            .iter()
            .any(|folder| self.is_pooled(folder))
    }

    /// The path of a library if it comes from a pool.
    fn find(&self, name: &[u8], folders: &[Vec<u8>]) -> Option<Vec<u8>> {
        if name.contains(&b'/') {
            return self.is_pooled(name).then(|| name.to_vec());
        }
        for folder in folders {
            let path = [folder, b"/".as_slice(), name].concat();
            if self.is_pooled(&path) {
                return Some(path);
            }
            let path = terminated(path);
            let args = [HERE as usize, path.as_ptr() as usize, 0];
            if checked(libc::SYS_faccessat, &args).is_ok() {
                return None;
            }
        }
        None
    }

    fn is_pooled(&self, path: &[u8]) -> bool {
        matches!(
            self.vfs.faccessat(HERE, path, libc::R_OK, 0),
            Ok(Reply::Done(_))
        )
    }

    fn read(&self, path: &[u8]) -> Option<Vec<u8>> {
        let Ok(Reply::Done(fd)) = self
            .vfs
            .openat(HERE, path, libc::O_RDONLY | libc::O_CLOEXEC, 0)
        else {
            return None;
        };
        let fd = fd as i32;
        let size = match self.vfs.fstat(fd) {
            Ok(Reply::Done(stat)) => stat.size as usize,
            _ => 0,
        };
        let mut image = vec![0; size];
        let mut done = 0;
        while done < size {
            let rest = sink(image.as_mut_ptr() as usize + done, size - done).ok()?;
            match self.vfs.pread(fd, rest, done as i64) {
                Ok(Reply::Done(n @ 1..)) => done += n as usize,
                _ => break,
            }
        }
        let _ = self.vfs.close(fd);
        (done == size).then_some(image)
    }
}

fn file_of(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

fn folder_of(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    &path[..slash]
}

/// The folders of a search path, with `$ORIGIN` replaced. An empty one is the current folder.
fn folders(list: &[u8], origin: &[u8]) -> Vec<Vec<u8>> {
    if list.is_empty() {
        return Vec::new();
    }
    let expand = |folder: &[u8]| {
        for token in [b"$ORIGIN".as_slice(), b"${ORIGIN}"] {
            if let Some(rest) = folder.strip_prefix(token) {
                return [origin, rest].concat();
            }
        }
        if folder.is_empty() {
            b".".to_vec()
        } else {
            folder.to_vec()
        }
    };
    list.split(|&b| b == b':' || b == b';')
        .map(expand)
        .collect()
}

/// Makes a link to a copy that the next program inherits.
fn show(folder: &Folder, name: &[u8], image: &[u8]) -> Result<(), i32> {
    let name = str::from_utf8(name).map_err(|_| libc::EILSEQ)?;
    let copy = copied(name, image).map_err(Errno::raw_os_error)?;
    let place = format!("{COPY}{}", copy.as_raw_fd());
    folder.make_link(name, &place).map_err(|_| libc::EIO)?;
    fcntl_setfd(&copy, FdFlags::empty()).map_err(Errno::raw_os_error)?;
    let _until_removed = copy.into_raw_fd();
    Ok(())
}

fn copied(name: &str, mut image: &[u8]) -> Result<OwnedFd, Errno> {
    let copy = memfd_create(name.get(..200).unwrap_or(name), MemfdFlags::CLOEXEC)?;
    while !image.is_empty() {
        match write(&copy, image) {
            Ok(written) => image = &image[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(copy)
}

/// Removes a folder that [`Libraries::write`] made, and no other, and closes the copies: when its
/// program has started, or could not be executed.
pub fn remove(folder: &[u8]) {
    let path = Path::new(OsStr::from_bytes(folder));
    let name = path.file_name().and_then(OsStr::to_str);
    let Some(name) = name.filter(|name| name.starts_with(NAME)) else {
        return;
    };
    if let Ok(Some(own)) = Folder::of_user()
        && path.parent() == Some(own.path())
    {
        close_copies(&own, name);
        own.remove_folder(name);
    }
}

fn close_copies(own: &Folder, name: &str) {
    let Ok(Some(folder)) = own.folder(name, false) else {
        return;
    };
    let links = folder.names().into_iter();
    let links = links.filter_map(|name| folder.link(&name));
    let copies = links.filter_map(|link| link.strip_prefix(COPY)?.parse::<usize>().ok());
    for fd in copies {
        call(libc::SYS_close, &[fd]);
    }
}

#[cfg(test)]
mod tests {
    use super::folders;

    #[test]
    fn search_paths_are_expanded() {
        let found = folders(b"/a:$ORIGIN/../lib:${ORIGIN}:", b"/nacre/bin");
        let expected: [&[u8]; 4] = [b"/a", b"/nacre/bin/../lib", b"/nacre/bin", b"."];
        assert_eq!(found, expected);
        assert!(folders(b"", b"/x").is_empty());
    }
}
