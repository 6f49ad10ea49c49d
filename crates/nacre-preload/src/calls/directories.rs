//! The working directory, and marks of fanotify.

use std::os::fd::{AsRawFd, OwnedFd};

use libc::{SYS_chdir, SYS_chroot, SYS_fanotify_mark, SYS_fchdir, SYS_getcwd, SYS_umask};
use nacre_media::lifted;
use nacre_vfs::Reply;
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::entry::call::{Call, Verdict, path_at, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::program::{by_kernel, descriptors};
use crate::runtime::environment;
use crate::runtime::log;
use crate::runtime::tls::thread;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_chdir, "chdir", chdir),
    entry(SYS_fchdir, "fchdir", fchdir),
    entry(SYS_chroot, "chroot", chroot),
    entry(SYS_getcwd, "getcwd", getcwd),
    entry(SYS_umask, "umask", umask),
    entry(SYS_fanotify_mark, "fanotify_mark", fanotify_mark),
];

fn chdir(c: &mut Call<'_>) -> Verdict {
    let ours = core::cell::Cell::new(false);
    let result = c.on_path(path_in(0), &|vfs, _, path| {
        // Who makes a sandbox looks whether the folder in which it was is there (bwrap).
        if path.starts_with(b"/") && by_kernel::are_left_out() {
            return Ok(Reply::Kernel);
        }
        let reply = vfs.chdir(path)?;
        ours.set(matches!(reply, Reply::Done(_)));
        Ok(reply)
    })?;
    if result == 0 && !ours.get() {
        c.vfs().host_chdir_done();
    }
    Ok(result)
}

fn fchdir(c: &mut Call<'_>) -> Verdict {
    match c.vfs().fchdir(c.int(0))? {
        Reply::Done(value) => Ok(value as isize),
        _ => host_change(c),
    }
}

fn chroot(c: &mut Call<'_>) -> Verdict {
    // Later they may be out of reach.
    c.vfs().open_all();
    by_kernel::keep_roots(c.vfs());
    keep_proc();
    let changed = c.on_path(path_in(0), &|vfs, _, path| vfs.chroot(path));
    let in_a_pool = matches!(changed, Err(Stop::Errno(libc::EOPNOTSUPP)));
    let result = if in_a_pool {
        chroot_by_kernel(c)?
    } else {
        changed?
    };
    if result == 0 {
        c.vfs().host_chdir_done();
        environment::root_changed(in_a_pool);
    }
    Ok(result)
}

/// For what is forked below the new root directory.
fn keep_proc() {
    // A child in its parent's memory has descriptors of its own.
    if thread().origin.view().is_some() {
        return;
    }
    nacre_session::keep_proc(|| {
        let proc = lifted(open_proc().ok()?);
        descriptors::keep_internal(proc.as_raw_fd()).then_some(proc)
    });
}

/// By a mount of its own, if the process may make one: from there no `..` leads out of the new root
/// directory.
fn open_proc() -> Result<OwnedFd, Errno> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_tree(CWD, c"/proc", clone).or_else(|_| open(c"/proc", flags, Mode::empty()))
}

/// Into a folder of a pool, if the kernel can show it.
fn chroot_by_kernel(c: &mut Call<'_>) -> Verdict {
    let hidden = by_kernel::hidden(None);
    if let Some((mount, user)) = by_kernel::closed_to_us() {
        let mount = String::from_utf8_lossy(&mount);
        log::tell(&format!(
            "chroot: the kernel shows {mount} to user {user} alone, with the group who had it \
             mounted. For others use `nacre run --allow-other`"
        ));
        return Err(Stop::Errno(libc::EACCES));
    }
    if !hidden.is_empty() {
        return Err(Stop::Errno(libc::EOPNOTSUPP));
    }
    let moved = by_kernel::go_where_the_program_is(c);
    let result = c.native();
    if result != 0 && moved {
        // Where it cannot, the kernel shows the same folder.
        let _harmless = c.vfs().go_back_out();
    }
    Ok(result)
}

/// The kernel changes where paths start.
fn host_change(c: &mut Call<'_>) -> Verdict {
    let result = c.native();
    if result == 0 {
        c.vfs().host_chdir_done();
    }
    Ok(result)
}

fn getcwd(c: &mut Call<'_>) -> Verdict {
    match c.vfs().getcwd(c.sink(0)?)? {
        Reply::Done(value) => Ok(value as isize),
        _ => Err(Stop::Native),
    }
}

fn umask(c: &mut Call<'_>) -> Verdict {
    match c.vfs().umask(c.uint(0))? {
        Reply::Done(value) => Ok(value as isize),
        _ => Err(Stop::Native),
    }
}

/// The kernel would watch a placeholder, or the host's folder below the mount point.
fn fanotify_mark(c: &mut Call<'_>) -> Verdict {
    const FLUSH: u32 = libc::FAN_MARK_FLUSH;
    let (flags, dir) = (c.uint(1), c.int(3));
    if flags & FLUSH != 0 {
        return Err(Stop::Native);
    }
    if c.vfs().ours(dir) {
        return Err(Stop::Errno(libc::EOPNOTSUPP));
    }
    if c.arg(4) == 0 {
        return Err(Stop::Native);
    }
    let place = path_at(3).followed_if(flags & libc::FAN_MARK_DONT_FOLLOW == 0);
    c.on_path(place, &|vfs, dir, path| vfs.mark(dir, path))
}
