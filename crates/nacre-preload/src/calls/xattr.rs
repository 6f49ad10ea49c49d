//! Extended attributes.

use libc::{
    SYS_fgetxattr, SYS_flistxattr, SYS_fremovexattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr,
    SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lsetxattr, SYS_removexattr, SYS_setxattr,
};
use nacre_vfs::ErrorKind;

use crate::entry::call::{Call, PathAt, Verdict, name_in, path_in, sink, source};
use crate::entry::table::{ServedCall, entry, fd_entry};
use crate::entry::user::StringBuffer;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_getxattr, "getxattr", |c| get(c, path_in(0))),
    entry(SYS_lgetxattr, "lgetxattr", |c| get(c, name_in(0))),
    fd_entry(SYS_fgetxattr, "fgetxattr", fget),
    entry(SYS_setxattr, "setxattr", |c| set(c, path_in(0))),
    entry(SYS_lsetxattr, "lsetxattr", |c| set(c, name_in(0))),
    fd_entry(SYS_fsetxattr, "fsetxattr", fset),
    entry(SYS_listxattr, "listxattr", |c| list(c, path_in(0))),
    entry(SYS_llistxattr, "llistxattr", |c| list(c, name_in(0))),
    fd_entry(SYS_flistxattr, "flistxattr", |c| {
        c.on_fd(c.vfs().flistxattr(c.int(0), c.sink(1)?))
    }),
    entry(SYS_removexattr, "removexattr", |c| remove(c, path_in(0))),
    entry(SYS_lremovexattr, "lremovexattr", |c| remove(c, name_in(0))),
    fd_entry(SYS_fremovexattr, "fremovexattr", fremove),
];

fn get(c: &mut Call<'_>, place: PathAt) -> Verdict {
    let mut buffer = StringBuffer::new();
    let (name, out) = (c.string(1, &mut buffer)?, (c.arg(2), c.arg(3)));
    c.on_path(place, &|vfs, _, path| {
        let out = sink(out.0, out.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.getxattr(path, name, out, place.follow)
    })
}

fn fget(c: &mut Call<'_>) -> Verdict {
    let mut buffer = StringBuffer::new();
    c.on_fd(
        c.vfs()
            .fgetxattr(c.int(0), c.string(1, &mut buffer)?, c.sink(2)?),
    )
}

fn set(c: &mut Call<'_>, place: PathAt) -> Verdict {
    let mut buffer = StringBuffer::new();
    let (name, value, flags) = (c.string(1, &mut buffer)?, (c.arg(2), c.arg(3)), c.int(4));
    c.on_path(place, &|vfs, _, path| {
        let value = source(value.0, value.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.setxattr(path, name, value, flags, place.follow)
    })
}

fn fset(c: &mut Call<'_>) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(1, &mut buffer)?;
    c.on_fd(c.vfs().fsetxattr(c.int(0), name, c.source(2)?, c.int(4)))
}

fn list(c: &mut Call<'_>, place: PathAt) -> Verdict {
    let out = (c.arg(1), c.arg(2));
    c.on_path(place, &|vfs, _, path| {
        let out = sink(out.0, out.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.listxattr(path, out, place.follow)
    })
}

fn remove(c: &mut Call<'_>, place: PathAt) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(1, &mut buffer)?;
    c.on_path(place, &|vfs, _, path| {
        vfs.removexattr(path, name, place.follow)
    })
}

fn fremove(c: &mut Call<'_>) -> Verdict {
    let mut buffer = StringBuffer::new();
    c.on_fd(c.vfs().fremovexattr(c.int(0), c.string(1, &mut buffer)?))
}
