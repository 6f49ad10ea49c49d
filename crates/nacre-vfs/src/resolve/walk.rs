//! Path resolution inside pools.

use crate::abi::{AT_FDCWD, LINKS_MAX, PATH_MAX};
use crate::error::{ErrorKind, VfsError};
use crate::path::mount::{Mount, join};
use crate::path::path_cache::{STEPS, Way};
use crate::reply::{Answer, Reply};
use crate::resolve::origin::Origin;
use crate::state::{OpenFile, Vfs};
use nacre_fs::{FileType, Found, FsError, InodeRef, NameFact, NameIn};
use nacre_types::{last_position_of, position_of};
use smallvec::SmallVec;
use std::borrow::Cow;

/// How to treat the last component and symbolic links.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lookup {
    /// Follow a symbolic link in the last component.
    pub(crate) follow: bool,
    /// The last component is a name to make or remove: never followed, slash or not.
    pub(crate) entry: bool,
    /// The caller makes the name and notices if it is taken: one that nobody remembers counts as
    /// vacant.
    pub(crate) vacant: bool,
    /// Refuse all symbolic links.
    pub(crate) no_links: bool,
    /// Refuse to leave the starting directory.
    pub(crate) beneath: bool,
    /// Treat the starting directory as the root.
    pub(crate) in_root: bool,
}

impl Lookup {
    pub(crate) const STAY: Lookup = Lookup {
        follow: false,
        entry: false,
        vacant: false,
        no_links: false,
        beneath: false,
        in_root: false,
    };
    pub(crate) const FOLLOW: Lookup = Lookup {
        follow: true,
        ..Lookup::STAY
    };
    pub(crate) const ENTRY: Lookup = Lookup {
        entry: true,
        ..Lookup::STAY
    };
    pub(crate) const NEW: Lookup = Lookup {
        vacant: true,
        ..Lookup::ENTRY
    };

    /// Whether a symbolic link at the end is followed.
    #[inline]
    fn goes_on(self) -> bool {
        self.follow && !self.entry
    }

    /// Whether where the walk may go is restricted.
    #[inline]
    fn is_restricted(self) -> bool {
        self.no_links | self.beneath | self.in_root
    }

    #[inline]
    pub(crate) fn following(follow: bool) -> Lookup {
        if follow { Lookup::FOLLOW } else { Lookup::STAY }
    }
}

/// Where a path leads.
pub(crate) enum WalkEnd<'v, 'p> {
    /// Into a pool.
    Pool(Target<'v, 'p>),
    /// To the host, by the path as given.
    Kernel,
    /// To the host, by this absolute path.
    Host(Vec<u8>),
}

impl WalkEnd<'_, '_> {
    /// The answer of a place outside of pools.
    pub(crate) fn pass_on<T>(self) -> Reply<T> {
        match self {
            WalkEnd::Host(path) => Reply::KernelPath(path),
            _ => Reply::Kernel,
        }
    }
}

/// What the last component of a path is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Last<'p> {
    /// A name that a directory may hold.
    Name(Cow<'p, [u8]>),
    /// Nothing: the mount point itself.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// An open file, named through /proc.
    Open,
}

/// A place in a pool, which may be vacant.
pub(crate) struct Target<'v, 'p> {
    pub(crate) mount: &'v Mount,
    /// The directory that holds the last component.
    pub(crate) dir: InodeRef,
    pub(crate) last: Last<'p>,
    pub(crate) found: Option<Found>,
    /// A slash follows the last component.
    pub(crate) slash: bool,
    /// Keeps the starting directory, or the open file, alive.
    _start: Option<OpenFile<'v>>,
}

impl<'v> Target<'v, '_> {
    /// A file that no path led to.
    pub(crate) fn of_number(mount: &'v Mount, found: Found) -> Self {
        Target {
            mount,
            dir: found.node,
            last: Last::Open,
            found: Some(found),
            slash: false,
            _start: None,
        }
    }

    /// The existing file.
    pub(crate) fn existing(&self) -> Result<Found, VfsError> {
        self.found.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// The name for something new; `.`, `..` and open files exist already.
    pub(crate) fn new_name(&self, directory: bool) -> Result<&[u8], VfsError> {
        match &self.last {
            Last::Name(_) if self.found.is_some() => Err(ErrorKind::Exists.into()),
            Last::Name(_) if self.slash && !directory => Err(ErrorKind::NotFound.into()),
            Last::Name(name) => {
                self.mount.check_writable()?;
                Ok(name)
            }
            _ => Err(ErrorKind::Exists.into()),
        }
    }

    pub(crate) fn is_type(&self, file_type: FileType) -> bool {
        self.found.is_some_and(|found| found.file_type == file_type)
    }

    /// The name and the directory it is in, if it is a name.
    pub(crate) fn place(&self) -> Option<NameIn<'_>> {
        match &self.last {
            Last::Name(name) => Some((self.dir.ino, name)),
            _ => None,
        }
    }

    /// Whether the kernel opens it.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        let types = [FileType::Fifo, FileType::CharDevice, FileType::BlockDevice];
        types.into_iter().any(|of_kernel| self.is_type(of_kernel))
    }
}

/// Where a plain walk ends.
pub(crate) struct Spot<'v, 'p> {
    pub(crate) mount: &'v Mount,
    dir: InodeRef,
    name: &'p [u8],
    pub(crate) found: Option<Found>,
}

impl<'v, 'p> Spot<'v, 'p> {
    #[inline]
    pub(crate) fn place(&self) -> NameIn<'p> {
        (self.dir.ino, self.name)
    }

    #[inline]
    pub(crate) fn target(self, start: Option<OpenFile<'v>>) -> Target<'v, 'p> {
        Target {
            mount: self.mount,
            dir: self.dir,
            last: Last::Name(Cow::Borrowed(self.name)),
            found: self.found,
            slash: false,
            _start: start,
        }
    }
}

/// The text that is still to be walked.
struct Text<'p> {
    bytes: Cow<'p, [u8]>,
    at: usize,
}

/// A component: its range in the text, whether it is the last, and whether slashes follow it.
struct Component {
    start: usize,
    end: usize,
    last: bool,
    slash: bool,
}

impl<'p> Text<'p> {
    fn next(&mut self) -> Option<Component> {
        let skip = |from: usize, slash: bool| {
            let rest = &self.bytes[from..];
            from + rest
                .iter()
                .position(|&byte| (byte == b'/') != slash)
                .unwrap_or(rest.len())
        };
        let start = skip(self.at, true);
        let end = skip(start, false);
        let next = skip(end, true);
        self.at = next;
        let component = Component {
            start,
            end,
            last: next == self.bytes.len(),
            slash: next > end,
        };
        (end > start).then_some(component)
    }

    fn name(&self, component: &Component) -> &[u8] {
        &self.bytes[component.start..component.end]
    }

    fn cow(&self, component: &Component) -> Cow<'p, [u8]> {
        match &self.bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[component.start..component.end]),
            Cow::Owned(bytes) => Cow::Owned(bytes[component.start..component.end].to_vec()),
        }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

/// What one component did to a walk.
enum WalkStep<'v, 'p> {
    Walked,
    Arrived(Target<'v, 'p>),
    Left(Vec<u8>),
}

struct Walk<'v, 'p> {
    vfs: &'v Vfs,
    mount: &'v Mount,
    dir: InodeRef,
    text: Text<'p>,
    links: u32,
    how: Lookup,
    top: InodeRef,
    start: Option<OpenFile<'v>>,
}

impl Vfs {
    /// Does `call` at the place in a pool where a path leads.
    pub(crate) fn at_target<T>(
        &self,
        dirfd: i32,
        path: &[u8],
        how: Lookup,
        mut call: impl FnMut(&Target<'_, '_>) -> Answer<T>,
    ) -> Answer<T> {
        self.fresh(|| match self.resolve(dirfd, path, how)? {
            WalkEnd::Pool(target) => call(&target),
            elsewhere => Ok(elsewhere.pass_on()),
        })
    }

    /// Resolves a path relative to `dirfd`. When the answer is a stale inode, the call is to be
    /// made again (`fresh`).
    pub(crate) fn resolve<'v, 'p>(
        &'v self,
        dirfd: i32,
        path: &'p [u8],
        how: Lookup,
    ) -> Result<WalkEnd<'v, 'p>, VfsError> {
        let (mount, dir, text, start) = match self.origin(dirfd, path, how.follow)? {
            Origin::Kernel => return Ok(WalkEnd::Kernel),
            Origin::Open(file) => return Ok(WalkEnd::Pool(open_target(file)?)),
            Origin::Mount(mount, rest) => (mount, mount.fs.root(), rest, None),
            Origin::File(file, rest) => (file.mount, file.node(), rest, Some(file)),
        };
        if path.len() >= PATH_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        if start.as_ref().is_some_and(|file| !file.is_directory()) {
            return Err(ErrorKind::NotDirectory.into());
        }
        if how.beneath && path.first() == Some(&b'/') {
            return Err(ErrorKind::CrossDevice.into());
        }
        if let Cow::Borrowed(bytes) = &text
            && !how.is_restricted()
            && let Some(spot) = self.plain_walk(mount, dir, bytes, how)
        {
            return Ok(WalkEnd::Pool(spot.target(start)));
        }
        let text = Text { bytes: text, at: 0 };
        Walk {
            vfs: self,
            mount,
            dir,
            text,
            links: 0,
            how,
            top: dir,
            start,
        }
        .run()
    }
}

impl Vfs {
    /// Where a path leads that goes straight down by plain names, from a mount point or from an
    /// open directory; `None` for any other path and for all failures.
    #[inline(always)]
    pub(crate) fn plain_spot<'v, 'p>(
        &'v self,
        dirfd: i32,
        path: &'p [u8],
        how: Lookup,
    ) -> Option<Spot<'v, 'p>> {
        if path.len() >= PATH_MAX || how.is_restricted() {
            return None;
        }
        if *path.first()? == b'/' {
            let (mount, rest) = self.mount_of(path)?;
            return self.plain_walk(mount, mount.fs.get()?.root(), rest, how);
        }
        let file = match dirfd {
            AT_FDCWD => self.known_cwd()?,
            _ => self.known_file(dirfd)?,
        };
        if !file.is_directory() {
            return None;
        }
        self.plain_walk(file.mount, file.node(), path, how)
    }

    /// Walks a path of directories and a last name, without `.`, `..`, symbolic links to follow, or
    /// a slash at the end. `None` for any other path and for all failures: the general walk finds
    /// out.
    #[inline(always)]
    fn plain_walk<'v, 'p>(
        &'v self,
        mount: &'v Mount,
        start: InodeRef,
        text: &'p [u8],
        how: Lookup,
    ) -> Option<Spot<'v, 'p>> {
        let cred = self.cred();
        let (way, name) = text.split_at(last_position_of(text, b'/').map_or(0, |slash| slash + 1));
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let dir = match way.len() {
            0 | 1 => start,
            _ => self.plain_way(mount, start, way)?,
        };
        let looked = match how.vacant && mount.check_writable().is_ok() {
            true => mount.fs.recall(cred, dir, name),
            false => mount.fs.find(cred, dir, name),
        };
        let found = looked.ok()?;
        if found.is_some_and(|found| found.file_type == FileType::Symlink) && how.goes_on() {
            return None;
        }
        Some(Spot {
            mount,
            dir,
            name,
            found,
        })
    }

    /// The directory at the end of a path of directories.
    #[inline]
    fn plain_way(&self, mount: &Mount, start: InodeRef, text: &[u8]) -> Option<InodeRef> {
        let way = Way {
            mount: mount.index,
            start,
            cred: self.cred(),
            text,
        };
        match self.path_cache.find(&mount.fs, &way) {
            Ok(end) => Some(end),
            Err(again) => self.walk_way(mount, way, again),
        }
    }

    /// Walks such a path, and has it remembered if `again`.
    #[inline(never)]
    fn walk_way(&self, mount: &Mount, way: Way<'_>, again: bool) -> Option<InodeRef> {
        let mut facts: Option<SmallVec<[NameFact; STEPS]>> = again.then(SmallVec::new);
        let (mut dir, mut rest) = (way.start, way.text);
        loop {
            while let [b'/', after @ ..] = rest {
                rest = after;
            }
            if rest.is_empty() {
                break;
            }
            let (name, after) = rest.split_at(position_of(rest, *b"/").unwrap_or(rest.len()));
            if matches!(name, b"." | b"..") {
                return None;
            }
            let known = facts
                .as_mut()
                .filter(|facts| facts.len() < STEPS)
                .and_then(|facts| {
                    let (found, fact) = mount.fs.known(way.cred, dir, name)?;
                    facts.push(fact);
                    Some(found)
                });
            let found = match known {
                Some(found) => found,
                None => {
                    facts = None;
                    mount.fs.lookup(way.cred, dir, name).ok()?
                }
            };
            if found.file_type != FileType::Directory {
                return None;
            }
            (dir, rest) = (found.node, after);
        }
        if let Some(facts) = facts {
            self.path_cache.remember(&way, dir, &facts);
        }
        Some(dir)
    }
}

fn open_target<'v, 'p>(file: OpenFile<'v>) -> Result<Target<'v, 'p>, VfsError> {
    let stat = file.mount.fs.getattr(file.node())?;
    let file_type = stat.file_type().ok_or(ErrorKind::Io)?;
    Ok(Target {
        mount: file.mount,
        dir: file.node(),
        last: Last::Open,
        found: Some(Found {
            node: file.node(),
            file_type,
        }),
        slash: false,
        _start: Some(file),
    })
}

impl<'v, 'p> Walk<'v, 'p> {
    fn run(mut self) -> Result<WalkEnd<'v, 'p>, VfsError> {
        loop {
            let Some(component) = self.text.next() else {
                let found = Found {
                    node: self.dir,
                    file_type: FileType::Directory,
                };
                return Ok(WalkEnd::Pool(self.arrive(Last::Root, Some(found), false)));
            };
            let step = match self.text.name(&component) {
                b"." => self.step_dot(&component)?,
                b".." => self.step_up(&component)?,
                _ => self.step_name(&component)?,
            };
            match step {
                WalkStep::Walked => {}
                WalkStep::Arrived(target) => return Ok(WalkEnd::Pool(target)),
                WalkStep::Left(path) => {
                    if let Some(place) = self.enter_again(path)? {
                        return Ok(place);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, last: Last<'p>, found: Option<Found>, slash: bool) -> Target<'v, 'p> {
        Target {
            mount: self.mount,
            dir: self.dir,
            last,
            found,
            slash,
            _start: self.start.take(),
        }
    }

    fn step_dot(&mut self, component: &Component) -> Result<WalkStep<'v, 'p>, VfsError> {
        let found = self.mount.fs.lookup(self.vfs.cred(), self.dir, b".")?;
        if !component.last {
            return Ok(WalkStep::Walked);
        }
        Ok(WalkStep::Arrived(self.arrive(
            Last::Dot,
            Some(found),
            component.slash,
        )))
    }

    fn step_up(&mut self, component: &Component) -> Result<WalkStep<'v, 'p>, VfsError> {
        if self.dir == self.top && self.how.beneath {
            return Err(ErrorKind::CrossDevice.into());
        }
        let stay = self.dir == self.top && self.how.in_root;
        if !stay && self.dir == self.mount.fs.root() {
            return Ok(WalkStep::Left(join(self.mount.parent(), self.text.rest())));
        }
        let name: &[u8] = if stay { b"." } else { b".." };
        let found = self.mount.fs.lookup(self.vfs.cred(), self.dir, name)?;
        if component.last {
            return Ok(WalkStep::Arrived(self.arrive(
                Last::DotDot,
                Some(found),
                component.slash,
            )));
        }
        self.dir = found.node;
        Ok(WalkStep::Walked)
    }

    fn step_name(&mut self, component: &Component) -> Result<WalkStep<'v, 'p>, VfsError> {
        let looked = self
            .mount
            .fs
            .lookup(self.vfs.cred(), self.dir, self.text.name(component));
        let found = match looked {
            Ok(found) => found,
            Err(FsError::NotFound) if component.last => {
                let name = Last::Name(self.text.cow(component));
                return Ok(WalkStep::Arrived(self.arrive(name, None, component.slash)));
            }
            Err(error) => return Err(error.into()),
        };
        let stay = component.last && (self.how.entry || (!self.how.follow && !component.slash));
        if found.file_type == FileType::Symlink && !stay {
            return self.step_link(found, component);
        }
        if component.last {
            if component.slash && !self.how.entry && found.file_type != FileType::Directory {
                return Err(ErrorKind::NotDirectory.into());
            }
            let name = Last::Name(self.text.cow(component));
            return Ok(WalkStep::Arrived(self.arrive(
                name,
                Some(found),
                component.slash,
            )));
        }
        if found.file_type != FileType::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        self.dir = found.node;
        Ok(WalkStep::Walked)
    }

    fn step_link(
        &mut self,
        found: Found,
        component: &Component,
    ) -> Result<WalkStep<'v, 'p>, VfsError> {
        self.links += 1;
        if self.how.no_links || self.links > LINKS_MAX {
            return Err(ErrorKind::Loop.into());
        }
        if component.last {
            self.vfs.check_follow(self.mount, self.dir, found.node)?;
        }
        let mut target = vec![0; PATH_MAX];
        let len = self.mount.fs.readlink(found.node, &mut target)?;
        let mut text = target[..len].to_vec();
        if text.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        if component.slash {
            text.push(b'/');
        }
        text.extend_from_slice(self.text.rest());
        if text[0] != b'/' {
            self.text = Text {
                bytes: Cow::Owned(text),
                at: 0,
            };
            return Ok(WalkStep::Walked);
        }
        if self.how.beneath {
            return Err(ErrorKind::CrossDevice.into());
        }
        if self.how.in_root {
            self.dir = self.top;
            self.text = Text {
                bytes: Cow::Owned(text),
                at: 0,
            };
            return Ok(WalkStep::Walked);
        }
        Ok(WalkStep::Left(text))
    }

    /// Goes on with an absolute path; a place if the walk ends there.
    fn enter_again(&mut self, path: Vec<u8>) -> Result<Option<WalkEnd<'v, 'p>>, VfsError> {
        let (mount, dir, rest, start) = match self.vfs.absolute_origin(&path, self.how.follow)? {
            Origin::Kernel => return Ok(Some(WalkEnd::Host(path))),
            Origin::Open(file) => return Ok(Some(WalkEnd::Pool(open_target(file)?))),
            Origin::Mount(mount, rest) => (mount, mount.fs.root(), rest.into_owned(), None),
            Origin::File(file, rest) => (file.mount, file.node(), rest.into_owned(), Some(file)),
        };
        self.mount = mount;
        self.dir = dir;
        self.start = start;
        self.text = Text {
            bytes: Cow::Owned(rest),
            at: 0,
        };
        Ok(None)
    }
}
