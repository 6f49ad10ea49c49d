//! Extended attributes.

use libc::{
    SYS_fgetxattr, SYS_flistxattr, SYS_fremovexattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr,
    SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lsetxattr, SYS_removexattr, SYS_setxattr,
};
use nacre_vfs::ErrorKind;

use crate::calls::attributes::names_open_file;
use crate::entry::abi::XattrArgs;
use crate::entry::call::{Call, PathAt, Verdict, path_at, path_in, sink, source};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, fd_entry};
use crate::entry::user::StringBuffer;

/// From Linux 6.13 on.
pub const SYS_SETXATTRAT: i64 = 463;
/// From Linux 6.13 on.
pub const SYS_GETXATTRAT: i64 = 464;
const SYS_LISTXATTRAT: i64 = 465;
const SYS_REMOVEXATTRAT: i64 = 466;

const NO_FOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_getxattr, "getxattr", |c| get(c, 0)),
    entry(SYS_lgetxattr, "lgetxattr", |c| get(c, NO_FOLLOW)),
    fd_entry(SYS_fgetxattr, "fgetxattr", |c| {
        fget(c, 1, (c.arg(2), c.arg(3)))
    }),
    entry(SYS_GETXATTRAT, "getxattrat", getxattrat),
    entry(SYS_setxattr, "setxattr", |c| set(c, 0)),
    entry(SYS_lsetxattr, "lsetxattr", |c| set(c, NO_FOLLOW)),
    fd_entry(SYS_fsetxattr, "fsetxattr", |c| {
        fset(c, 1, (c.arg(2), c.arg(3)), c.int(4))
    }),
    entry(SYS_SETXATTRAT, "setxattrat", setxattrat),
    entry(SYS_listxattr, "listxattr", |c| list(c, 0)),
    entry(SYS_llistxattr, "llistxattr", |c| list(c, NO_FOLLOW)),
    fd_entry(SYS_flistxattr, "flistxattr", |c| flist(c, 1)),
    entry(SYS_LISTXATTRAT, "listxattrat", listxattrat),
    entry(SYS_removexattr, "removexattr", |c| remove(c, 0)),
    entry(SYS_lremovexattr, "lremovexattr", |c| remove(c, NO_FOLLOW)),
    fd_entry(SYS_fremovexattr, "fremovexattr", |c| fremove(c, 1)),
    entry(SYS_REMOVEXATTRAT, "removexattrat", removexattrat),
];

/// Memory of the program: where it begins, and its length.
type Room = (usize, usize);

/// The file that a call names, and AT_* flags.
type Named = (PathAt, i32);

/// A path alone.
fn by_path(flags: i32) -> Named {
    (path_in(0).followed_if(flags & NO_FOLLOW == 0), flags)
}

/// A path behind a directory fd, with flags; `None`: the fd is of the file itself.
fn named(c: &Call<'_>) -> Result<Option<Named>, Stop> {
    let flags = c.int(2);
    if flags & !(NO_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Stop::Errno(libc::EINVAL));
    }
    let by_fd = names_open_file(c, flags)?;
    Ok((!by_fd).then(|| (path_at(0).followed_if(flags & NO_FOLLOW == 0), flags)))
}

fn get(c: &mut Call<'_>, flags: i32) -> Verdict {
    get_at(c, by_path(flags), 1, (c.arg(2), c.arg(3)))
}

fn getxattrat(c: &mut Call<'_>) -> Verdict {
    let args: XattrArgs = c.read_growing(4)?;
    if args.flags != 0 {
        return Err(Stop::Errno(libc::EINVAL));
    }
    match named(c)? {
        Some(file) => get_at(c, file, 3, args.room()),
        None => fget(c, 3, args.room()),
    }
}

fn get_at(c: &mut Call<'_>, (place, flags): Named, name: usize, out: Room) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    c.on_path(place, &|vfs, dir, path| {
        let out = sink(out.0, out.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.getxattr(dir, path, flags, name, out)
    })
}

fn fget(c: &mut Call<'_>, name: usize, out: Room) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    c.on_fd(c.vfs().fgetxattr(c.int(0), name, sink(out.0, out.1)?))
}

fn set(c: &mut Call<'_>, flags: i32) -> Verdict {
    set_at(c, by_path(flags), 1, (c.arg(2), c.arg(3)), c.int(4))
}

fn setxattrat(c: &mut Call<'_>) -> Verdict {
    let args: XattrArgs = c.read_growing(4)?;
    let how = args.flags as i32;
    match named(c)? {
        Some(file) => set_at(c, file, 3, args.room(), how),
        None => fset(c, 3, args.room(), how),
    }
}

fn set_at(c: &mut Call<'_>, (place, flags): Named, name: usize, value: Room, how: i32) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    c.on_path(place, &|vfs, dir, path| {
        let value = source(value.0, value.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.setxattr(dir, path, flags, (name, value, how))
    })
}

fn fset(c: &mut Call<'_>, name: usize, value: Room, how: i32) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    let value = source(value.0, value.1)?;
    c.on_fd(c.vfs().fsetxattr(c.int(0), name, value, how))
}

fn list(c: &mut Call<'_>, flags: i32) -> Verdict {
    list_at(c, by_path(flags), (c.arg(1), c.arg(2)))
}

fn listxattrat(c: &mut Call<'_>) -> Verdict {
    match named(c)? {
        Some(file) => list_at(c, file, (c.arg(3), c.arg(4))),
        None => flist(c, 3),
    }
}

fn list_at(c: &mut Call<'_>, (place, flags): Named, out: Room) -> Verdict {
    c.on_path(place, &|vfs, dir, path| {
        let out = sink(out.0, out.1).map_err(|_| ErrorKind::UserFault)?;
        vfs.listxattr(dir, path, flags, out)
    })
}

fn flist(c: &mut Call<'_>, out: usize) -> Verdict {
    c.on_fd(c.vfs().flistxattr(c.int(0), c.sink(out)?))
}

fn remove(c: &mut Call<'_>, flags: i32) -> Verdict {
    remove_at(c, by_path(flags), 1)
}

fn removexattrat(c: &mut Call<'_>) -> Verdict {
    match named(c)? {
        Some(file) => remove_at(c, file, 3),
        None => fremove(c, 3),
    }
}

fn remove_at(c: &mut Call<'_>, (place, flags): Named, name: usize) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    c.on_path(place, &|vfs, dir, path| {
        vfs.removexattr(dir, path, flags, name)
    })
}

fn fremove(c: &mut Call<'_>, name: usize) -> Verdict {
    let mut buffer = StringBuffer::new();
    let name = c.string(name, &mut buffer)?;
    c.on_fd(c.vfs().fremovexattr(c.int(0), name))
}
