//! Making, removing, renaming and linking names.

use libc::{
    SYS_link, SYS_linkat, SYS_mkdir, SYS_mkdirat, SYS_mknod, SYS_mknodat, SYS_readlink,
    SYS_readlinkat, SYS_rename, SYS_renameat, SYS_renameat2, SYS_rmdir, SYS_symlink, SYS_symlinkat,
    SYS_unlink, SYS_unlinkat,
};
use nacre_vfs::{Reply, Vfs};

use crate::entry::call::{
    Call, HERE, PathAt, Verdict, name_at, name_in, path_at, sink, terminated,
};
use crate::entry::table::{ServedCall, entry};
use crate::entry::user::{BadString, StringBuffer};
use crate::program::exec;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_mkdir, "mkdir", |c| mkdir(c, name_in(0), 1)),
    entry(SYS_mkdirat, "mkdirat", |c| mkdir(c, name_at(0), 2)),
    entry(SYS_mknod, "mknod", |c| mknod(c, name_in(0), 1)),
    entry(SYS_mknodat, "mknodat", |c| mknod(c, name_at(0), 2)),
    entry(SYS_rmdir, "rmdir", |c| {
        unlink(c, name_in(0), libc::AT_REMOVEDIR)
    }),
    entry(SYS_unlink, "unlink", |c| unlink(c, name_in(0), 0)),
    entry(SYS_unlinkat, "unlinkat", |c| {
        unlink(c, name_at(0), c.int(2))
    }),
    entry(SYS_rename, "rename", |c| {
        rename(c, [name_in(0), name_in(1)], 0)
    }),
    entry(SYS_renameat, "renameat", |c| {
        rename(c, [name_at(0), name_at(2)], 0)
    }),
    entry(SYS_renameat2, "renameat2", |c| {
        rename(c, [name_at(0), name_at(2)], c.uint(4))
    }),
    entry(SYS_link, "link", |c| link(c, [name_in(0), name_in(1)], 0)),
    entry(SYS_linkat, "linkat", |c| {
        let follow = c.int(4) & libc::AT_SYMLINK_FOLLOW != 0;
        link(c, [path_at(0).followed_if(follow), name_at(2)], c.int(4))
    }),
    entry(SYS_symlink, "symlink", |c| symlink(c, name_in(1))),
    entry(SYS_symlinkat, "symlinkat", |c| symlink(c, name_at(1))),
    entry(SYS_readlink, "readlink", |c| readlink(c, name_in(0), 1)),
    entry(SYS_readlinkat, "readlinkat", |c| readlink(c, name_at(0), 2)),
];

fn mkdir(c: &mut Call<'_>, place: PathAt, mode: usize) -> Verdict {
    let mode = c.uint(mode);
    c.on_path(place, &|vfs, dir, path| vfs.mkdirat(dir, path, mode))
}

fn mknod(c: &mut Call<'_>, place: PathAt, mode: usize) -> Verdict {
    let (mode, device) = (c.uint(mode), u64::from(c.uint(mode + 1)));
    c.on_path(place, &|vfs, dir, path| {
        vfs.mknodat(dir, path, mode, device)
    })
}

fn unlink(c: &mut Call<'_>, place: PathAt, flags: i32) -> Verdict {
    c.on_path(place, &|vfs, dir, path| vfs.unlinkat(dir, path, flags))
}

fn symlink(c: &mut Call<'_>, place: PathAt) -> Verdict {
    let mut buffer = StringBuffer::new();
    let target = c.string(0, &mut buffer)?;
    c.on_path(place, &|vfs, dir, path| vfs.symlinkat(target, dir, path))
}

fn rename(c: &mut Call<'_>, places: [PathAt; 2], flags: u32) -> Verdict {
    on_two_paths(c, places, |vfs, [from, to]| {
        vfs.renameat2(from.0, from.1, to.0, to.1, flags)
    })
}

fn link(c: &mut Call<'_>, places: [PathAt; 2], flags: i32) -> Verdict {
    on_two_paths(c, places, |vfs, [from, to]| {
        vfs.linkat(from.0, from.1, to.0, to.1, flags)
    })
}

fn readlink(c: &mut Call<'_>, place: PathAt, buffer: usize) -> Verdict {
    let (start, len) = (c.arg(buffer), c.arg(buffer + 1));
    if let Some(verdict) = exec::readlink(c, place, buffer) {
        return verdict;
    }
    c.on_path(place, &|vfs, dir, path| match sink(start, len) {
        Ok(buffer) => vfs.readlinkat(dir, path, buffer),
        Err(_) => Ok(Reply::Kernel),
    })
}

/// A directory fd and a path relative to it.
type Located<'p> = (i32, &'p [u8]);

/// As `Call::on_path` with two paths.
fn on_two_paths(
    c: &mut Call<'_>,
    places: [PathAt; 2],
    serve: impl Fn(&Vfs, [Located<'_>; 2]) -> nacre_vfs::Answer,
) -> Verdict {
    let mut buffers = [const { StringBuffer::new() }; 2];
    let [first, second] = &mut buffers;
    let read = [
        first.read(c.arg(places[0].path)),
        second.read(c.arg(places[1].path)),
    ];
    if read.contains(&Err(BadString::Address)) {
        return Ok(-libc::EFAULT as isize);
    }
    let paths = [read[0]?, read[1]?];
    let dirs = places.map(|place| place.dir.map_or(HERE, |i| c.int(i)));
    let reply = serve(c.vfs(), [(dirs[0], paths[0]), (dirs[1], paths[1])])?;
    let result = match pass(c, places, reply) {
        (result, false) => return Ok(result),
        (result, true) => result,
    };
    if result != -libc::ENOENT as isize {
        return Ok(result);
    }
    let [a, b] = [0, 1].map(|i| {
        c.vfs()
            .retry_after_enoent(dirs[i], paths[i], places[i].follow)
    });
    if a.is_none() && b.is_none() {
        return Ok(result);
    }
    let first = a
        .as_deref()
        .map_or((dirs[0], paths[0]), |path| (HERE, path));
    let second = b
        .as_deref()
        .map_or((dirs[1], paths[1]), |path| (HERE, path));
    match serve(c.vfs(), [first, second])? {
        Reply::Kernel => Ok(result),
        reply => Ok(pass(c, places, reply).0),
    }
}

/// Does what a reply says. True: the kernel executed the call as it came.
fn pass(c: &mut Call<'_>, places: [PathAt; 2], reply: Reply) -> (isize, bool) {
    let (first, second) = match reply {
        Reply::Done(value) => return (value as isize, false),
        Reply::KernelPaths(first, second) => (first.map(terminated), second.map(terminated)),
        Reply::KernelPath(path) => (Some(terminated(path)), None),
        Reply::Kernel | Reply::KernelNode(_) => return (c.native(), true),
    };
    let mut replaced: Vec<(usize, &[u8])> = Vec::with_capacity(2);
    replaced.extend(first.as_deref().map(|path| (places[0].path, path)));
    replaced.extend(second.as_deref().map(|path| (places[1].path, path)));
    (c.native_with(&replaced), false)
}
