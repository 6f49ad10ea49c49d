//! Mounting what lies in a pool: the kernel does it where it shows the pool.

use libc::{
    MS_BIND, MS_PRIVATE, MS_REMOUNT, MS_SHARED, MS_SLAVE, MS_UNBINDABLE, O_CLOEXEC, O_PATH,
    SYS_fsopen, SYS_mount, SYS_move_mount, SYS_open_tree,
};
use nacre_vfs::Reply;

use crate::entry::call::{Call, HERE, Verdict, path_at, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::entry::user::StringBuffer;
use crate::program::by_kernel;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_mount, "mount", mount),
    entry(SYS_open_tree, "open_tree", |c| {
        before_fd(c);
        c.on_path_to_fd(path_at(0), &by_kernel::shown_path)
    }),
    entry(SYS_move_mount, "move_mount", |c| {
        refuse_in_a_pool(c, c.int(2), 3)?;
        Err(Stop::Native)
    }),
    // Folders of pools are named later, as options of an overlay.
    entry(SYS_fsopen, "fsopen", |c| {
        before_fd(c);
        Err(Stop::Native)
    }),
];

/// Before a namespace is made. Who makes one of mounts, as a copy of this one, may mount there what
/// lies in a pool, under a name that is no longer ours. In one of the network nobody hears who asks
/// for a mount.
pub fn in_new_namespace(flags: u64) {
    const TOO_LATE_THERE: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    if flags & TOO_LATE_THERE as u64 != 0 {
        by_kernel::show();
    }
}

/// Before the kernel makes a descriptor of a mount.
fn before_fd(c: &Call<'_>) {
    by_kernel::show();
    c.vfs().make_room();
}

fn mount(c: &mut Call<'_>) -> Verdict {
    const SPREADS: u64 = MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE;
    let flags = c.arg(3) as u64;
    if flags & SPREADS != 0 {
        return Err(Stop::Native);
    }
    by_kernel::show();
    refuse_in_a_pool(c, HERE, 1)?;
    match flags & (MS_BIND | MS_REMOUNT) {
        MS_BIND => c.on_path(path_in(0), &by_kernel::shown_path),
        _ => Err(Stop::Native),
    }
}

/// What is mounted onto a folder of a pool would be hidden from programs that are served.
fn refuse_in_a_pool(c: &Call<'_>, dir: i32, path: usize) -> Result<(), Stop> {
    let mut buffer = StringBuffer::new();
    let path = c.string(path, &mut buffer)?;
    match c.vfs().openat(dir, path, O_PATH | O_CLOEXEC, 0)? {
        Reply::Done(fd) => {
            c.vfs().close(fd as i32)?;
            Err(Stop::Errno(libc::EOPNOTSUPP))
        }
        _ => Ok(()),
    }
}
