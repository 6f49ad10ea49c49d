//! Calls with two paths: rename and link.

use crate::abi::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, EINVAL};
use crate::error::{ErrorKind, VfsError};
use crate::kernel::KernelError;
use crate::path::mount::Mount;
use crate::reply::{Answer, Reply, success, unless_stale};
use crate::resolve::walk::{Last, Lookup, Target, WalkEnd};
use crate::state::Vfs;
use nacre_fs::{Caps, FileType, InodeRef, NamePlace, RenameFlags};

/// Both ends of a call, if both lie in pools; otherwise the answer.
type Ends<'v, 'p> = Result<(Target<'v, 'p>, Target<'v, 'p>), Reply>;

fn ends<'v, 'p>(
    from: WalkEnd<'v, 'p>,
    to: WalkEnd<'v, 'p>,
    on_host: impl Fn(Side, Option<Vec<u8>>) -> Result<(), VfsError>,
) -> Result<Ends<'v, 'p>, VfsError> {
    match (from, to) {
        (WalkEnd::Pool(from), WalkEnd::Pool(to)) => Ok(Ok((from, to))),
        (WalkEnd::Kernel, WalkEnd::Kernel) => Ok(Err(Reply::Kernel)),
        (
            from @ (WalkEnd::Kernel | WalkEnd::Host(_)),
            to @ (WalkEnd::Kernel | WalkEnd::Host(_)),
        ) => Ok(Err(Reply::KernelPaths(host_path(from), host_path(to)))),
        (WalkEnd::Pool(from), to) => {
            from.existing()?;
            on_host(Side::To, host_path(to))?;
            Err(ErrorKind::CrossDevice.into())
        }
        (from, WalkEnd::Pool(_)) => {
            on_host(Side::From, host_path(from))?;
            Err(ErrorKind::CrossDevice.into())
        }
    }
}

/// Which of the two paths lies on the host alone.
#[derive(Clone, Copy)]
enum Side {
    From,
    To,
}

fn host_path(place: WalkEnd<'_, '_>) -> Option<Vec<u8>> {
    match place {
        WalkEnd::Host(path) => Some(path),
        _ => None,
    }
}

impl Vfs {
    /// What the kernel says of a path of the host before it compares devices: of the old name, or
    /// of the folder of the new one.
    fn check_on_host(&self, dirfd: i32, path: &[u8], side: Side) -> Result<(), VfsError> {
        if path.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        let folder = |path: &[u8]| {
            let end = path.iter().rposition(|&byte| byte == b'/');
            [&path[..end.map_or(0, |end| end + 1)], b"."].concat()
        };
        let asked = match side {
            Side::From => path.to_vec(),
            Side::To => folder(path),
        };
        match self.kernel().readlink(dirfd, &asked, &mut [0]) {
            // It is there, and no link.
            Ok(_) | Err(KernelError(EINVAL)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// `renameat2`; also `rename` and `renameat`.
    pub fn renameat2(
        &self,
        from_fd: i32,
        from: &[u8],
        to_fd: i32,
        to: &[u8],
        flags: u32,
    ) -> Answer {
        self.fresh(|| {
            let source = self.resolve(from_fd, from, Lookup::ENTRY)?;
            let place = self.resolve(to_fd, to, lookup_to(flags))?;
            let on_host = |side, led_to: Option<Vec<u8>>| match (side, led_to) {
                (_, Some(path)) => self.check_on_host(AT_FDCWD, &path, side),
                (Side::From, None) => self.check_on_host(from_fd, from, side),
                (Side::To, None) => self.check_on_host(to_fd, to, side),
            };
            match ends(source, place, on_host)? {
                Ok((from, to)) => {
                    self.rename_targets(&from, &to, rename_flags(flags)?)?;
                    success()
                }
                Err(reply) => Ok(reply),
            }
        })
    }

    /// As `renameat2`, if that is done at once. Returns `None` if the fast path does not apply.
    pub fn try_rename_fast(
        &self,
        from_fd: i32,
        from: &[u8],
        to_fd: i32,
        to: &[u8],
        flags: u32,
    ) -> Option<Result<(), VfsError>> {
        let known = rename_flags(flags).ok()?;
        let from = self.plain_spot(from_fd, from, Lookup::ENTRY)?.target(None);
        let to = self.plain_spot(to_fd, to, lookup_to(flags))?.target(None);
        unless_stale(self.rename_targets(&from, &to, known))
    }

    fn rename_targets(
        &self,
        from: &Target<'_, '_>,
        to: &Target<'_, '_>,
        flags: RenameFlags,
    ) -> Result<(), VfsError> {
        if from.mount.index != to.mount.index {
            return Err(ErrorKind::CrossDevice.into());
        }
        let Last::Name(old) = &from.last else {
            return Err(ErrorKind::Busy.into());
        };
        let Last::Name(new) = &to.last else {
            let exists = flags.contains(RenameFlags::NOREPLACE);
            return Err(if exists {
                ErrorKind::Exists
            } else {
                ErrorKind::Busy
            }
            .into());
        };
        from.existing()?;
        if flags.contains(RenameFlags::NOREPLACE) && to.found.is_some() {
            return Err(ErrorKind::Exists.into());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && to.slash && !to.is_type(FileType::Directory) {
            return Err(ErrorKind::NotDirectory.into());
        }
        if !from.is_type(FileType::Directory) && (from.slash || (!exchange && to.slash)) {
            return Err(ErrorKind::NotDirectory.into());
        }
        from.mount.check_writable()?;
        let place = |target: &Target<'_, '_>, name| NamePlace {
            dir: target.dir,
            name,
            found: target.found,
        };
        let fs = &from.mount.fs;
        fs.rename_found(self.cred(), place(from, old), place(to, new), flags)?;
        Ok(())
    }

    /// `linkat`; also `link`.
    pub fn linkat(&self, from_fd: i32, from: &[u8], to_fd: i32, to: &[u8], flags: i32) -> Answer {
        if from.is_empty() && flags & AT_EMPTY_PATH != 0 && from_fd != AT_FDCWD {
            return self.fresh(|| self.link_open_file(from_fd, to_fd, to));
        }
        let follow = Lookup::following(flags & AT_SYMLINK_FOLLOW != 0);
        self.fresh(|| {
            let source = self.resolve(from_fd, from, follow)?;
            // Before anything that is wrong with the new name.
            if let WalkEnd::Pool(from) = &source {
                from.existing()?;
            }
            let place = self.resolve(to_fd, to, Lookup::NEW)?;
            let on_host = |side, led_to: Option<Vec<u8>>| match (side, led_to) {
                (_, Some(path)) => self.check_on_host(AT_FDCWD, &path, side),
                (Side::From, None) => self.check_on_host(from_fd, from, side),
                (Side::To, None) => self.check_on_host(to_fd, to, side),
            };
            match ends(source, place, on_host)? {
                Ok(_) if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 => {
                    Err(ErrorKind::Invalid.into())
                }
                Ok((from, to)) => self.link_node(from.mount, from.existing()?.node, &to),
                Err(reply) => Ok(reply),
            }
        })
    }

    fn link_open_file(&self, fd: i32, to_fd: i32, to: &[u8]) -> Answer {
        let source = self.file(fd)?;
        let place = self.resolve(to_fd, to, Lookup::NEW)?;
        match (source, place) {
            (Some(_), _) if !self.cred().has(Caps::DAC_READ_SEARCH) => {
                Err(ErrorKind::NotFound.into())
            }
            (Some(file), WalkEnd::Pool(to)) => self.link_node(file.mount, file.node(), &to),
            (None, WalkEnd::Kernel) => Ok(Reply::Kernel),
            (None, WalkEnd::Host(path)) => Ok(Reply::KernelPaths(None, Some(path))),
            _ => Err(ErrorKind::CrossDevice.into()),
        }
    }

    fn link_node(&self, mount: &Mount, node: InodeRef, to: &Target<'_, '_>) -> Answer {
        let name = to.new_name(false)?;
        if mount.index != to.mount.index {
            return Err(ErrorKind::CrossDevice.into());
        }
        self.check_link(mount, node)?;
        mount.fs.link(self.cred(), node, to.dir, name)?;
        success()
    }
}

/// How the new name is looked up: one that is exchanged must be there.
fn lookup_to(flags: u32) -> Lookup {
    match flags & RenameFlags::EXCHANGE.bits() {
        0 => Lookup::NEW,
        _ => Lookup::ENTRY,
    }
}

fn rename_flags(flags: u32) -> Result<RenameFlags, VfsError> {
    Ok(RenameFlags::of_call(flags).ok_or(ErrorKind::Invalid)?)
}
