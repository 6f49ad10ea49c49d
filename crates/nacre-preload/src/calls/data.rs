//! Reading, writing, positions, sizes and durability.

use libc::{
    SYS_fadvise64, SYS_fallocate, SYS_fdatasync, SYS_fsync, SYS_ftruncate, SYS_lseek, SYS_pread64,
    SYS_preadv, SYS_preadv2, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead,
    SYS_readv, SYS_sync, SYS_sync_file_range, SYS_syncfs, SYS_truncate, SYS_write, SYS_writev,
};

use nacre_vfs::{Answer, Vfs};

use crate::calls::watches;
use crate::entry::call::{Call, Vector, Verdict, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, fd_entry};
use crate::program::instances;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    fd_entry(SYS_read, "read", |c| {
        let read = given(c, c.sink(1), |vfs, sink| vfs.read(c.int(0), sink));
        or_events(c, read, &|c| {
            let (start, len) = (c.arg(1), c.arg(2));
            Ok(vec![Vector { start, len }])
        })
    }),
    fd_entry(SYS_write, "write", |c| {
        given(c, c.source(1), |vfs, source| vfs.write(c.int(0), source))
    }),
    fd_entry(SYS_pread64, "pread64", |c| {
        given(c, c.sink(1), |vfs, sink| {
            vfs.pread(c.int(0), sink, c.long(3))
        })
    }),
    fd_entry(SYS_pwrite64, "pwrite64", |c| {
        given(c, c.source(1), |vfs, source| {
            vfs.pwrite(c.int(0), source, c.long(3))
        })
    }),
    fd_entry(SYS_readv, "readv", |c| {
        let read = owned(c).and_then(|c| c.on_fd(c.vfs().readv(c.int(0), &mut c.sinks(1)?)));
        or_events(c, read, &|c| c.vectors(1))
    }),
    fd_entry(SYS_writev, "writev", |c| {
        owned(c)?.on_fd(c.vfs().writev(c.int(0), &c.sources(1)?))
    }),
    fd_entry(SYS_preadv, "preadv", |c| {
        owned(c)?.on_fd(c.vfs().preadv(c.int(0), &mut c.sinks(1)?, c.long(3)))
    }),
    fd_entry(SYS_pwritev, "pwritev", |c| {
        owned(c)?.on_fd(c.vfs().pwritev(c.int(0), &c.sources(1)?, c.long(3)))
    }),
    fd_entry(SYS_preadv2, "preadv2", |c| {
        owned(c)?.on_fd(
            c.vfs()
                .preadv2(c.int(0), &mut c.sinks(1)?, c.long(3), c.uint(5)),
        )
    }),
    fd_entry(SYS_pwritev2, "pwritev2", |c| {
        owned(c)?.on_fd(
            c.vfs()
                .pwritev2(c.int(0), &c.sources(1)?, c.long(3), c.uint(5)),
        )
    }),
    fd_entry(SYS_lseek, "lseek", |c| {
        c.on_fd(c.vfs().lseek(c.int(0), c.long(1), c.int(2)))
    }),
    fd_entry(SYS_ftruncate, "ftruncate", |c| {
        c.on_fd(c.vfs().ftruncate(c.int(0), c.long(1)))
    }),
    entry(SYS_truncate, "truncate", truncate),
    fd_entry(SYS_fallocate, "fallocate", |c| {
        c.on_fd(c.vfs().fallocate(c.int(0), c.int(1), c.long(2), c.long(3)))
    }),
    fd_entry(SYS_fadvise64, "fadvise64", |c| {
        c.on_fd(c.vfs().fadvise(c.int(0), c.long(1), c.long(2), c.int(3)))
    }),
    fd_entry(SYS_readahead, "readahead", |c| {
        c.on_fd(c.vfs().readahead(c.int(0), c.long(1), c.arg(2)))
    }),
    fd_entry(SYS_fsync, "fsync", |c| c.on_fd(c.vfs().fsync(c.int(0)))),
    fd_entry(SYS_fdatasync, "fdatasync", |c| {
        c.on_fd(c.vfs().fdatasync(c.int(0)))
    }),
    fd_entry(SYS_syncfs, "syncfs", |c| c.on_fd(c.vfs().syncfs(c.int(0)))),
    fd_entry(SYS_sync_file_range, "sync_file_range", |c| {
        c.on_fd(
            c.vfs()
                .sync_file_range(c.int(0), c.long(1), c.long(2), c.uint(3)),
        )
    }),
    entry(SYS_sync, "sync", sync),
];

/// Does a call on the program's buffer. Only calls on our own fds may judge it: the kernel judges
/// the others.
#[inline]
fn given<B>(
    call: &Call<'_>,
    buffer: Result<B, Stop>,
    serve: impl FnOnce(&Vfs, B) -> Answer,
) -> Verdict {
    match buffer {
        Ok(buffer) => call.on_fd(serve(call.vfs(), buffer)),
        Err(stop) => owned(call).and(Err(stop)),
    }
}

/// What the kernel is to read may be what an inotify instance is told.
#[inline]
fn or_events(
    call: &mut Call<'_>,
    read: Verdict,
    buffers: &dyn Fn(&Call<'_>) -> Result<Vec<Vector>, Stop>,
) -> Verdict {
    match read {
        Err(Stop::Native) if instances::exist() => watches::read(call, buffers),
        other => other,
    }
}

/// The call, if its fd is ours.
fn owned<'c, 'f>(call: &'c Call<'f>) -> Result<&'c Call<'f>, Stop> {
    let fd = call.int(0);
    if call.vfs().ours(fd) {
        return Ok(call);
    }
    call.note_kernel(fd);
    Err(Stop::Native)
}

fn truncate(c: &mut Call<'_>) -> Verdict {
    let len = c.long(1);
    c.on_path(path_in(0), &|vfs, _, path| vfs.truncate(path, len))
}

fn sync(c: &mut Call<'_>) -> Verdict {
    c.vfs().sync()?;
    Err(Stop::Native)
}
