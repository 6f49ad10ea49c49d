//! Calls that change who the process is, or what it may do or sees: the kernel executes them, then
//! we look again. Pools are attached before, while the process still can.

use libc::{
    EBADF, EBADFD, SYS_capset, SYS_landlock_add_rule, SYS_landlock_restrict_self, SYS_pivot_root,
    SYS_prctl, SYS_seccomp, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setns,
    SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_setuid, SYS_unshare,
};

use crate::calls::mounts;
use crate::calls::rings::workers;
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::program::descriptors;
use crate::program::host;
use crate::program::identity;
use crate::runtime::environment;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_setuid, "setuid", change),
    entry(SYS_setgid, "setgid", change),
    entry(SYS_setreuid, "setreuid", change),
    entry(SYS_setregid, "setregid", change),
    entry(SYS_setresuid, "setresuid", change),
    entry(SYS_setresgid, "setresgid", change),
    entry(SYS_setfsuid, "setfsuid", change),
    entry(SYS_setfsgid, "setfsgid", change),
    entry(SYS_setgroups, "setgroups", change),
    entry(SYS_capset, "capset", change),
    entry(SYS_unshare, "unshare", unshare),
    entry(SYS_setns, "setns", move_away),
    entry(SYS_pivot_root, "pivot_root", change_root),
    entry(SYS_seccomp, "seccomp", confine),
    entry(SYS_landlock_add_rule, "landlock_add_rule", allow),
    entry(
        SYS_landlock_restrict_self,
        "landlock_restrict_self",
        restrict,
    ),
    entry(SYS_prctl, "prctl", prctl),
];

/// Once the call is done, a pool may be out of reach.
fn restrict(c: &mut Call<'_>) -> Verdict {
    c.vfs().open_all();
    Err(Stop::Native)
}

/// Where paths start from then on the library may be missing.
fn change_root(c: &mut Call<'_>) -> Verdict {
    c.vfs().open_all();
    let result = c.native();
    if result == 0 {
        environment::root_changed(environment::root_is_in_a_pool());
        environment::root_exchanged();
    }
    Ok(result)
}

/// Nothing in a pool is forbidden by rules of the kernel, so all is allowed there. The kernel looks
/// at all else before it refuses the fd behind a pool's file.
fn allow(c: &mut Call<'_>) -> Verdict {
    const PATH_BENEATH: i32 = 1;
    const FD_AT: usize = size_of::<u64>();
    let result = c.native();
    if c.int(1) != PATH_BENEATH || result != -EBADFD as isize {
        return Ok(result);
    }
    let mut rule: [u8; FD_AT + size_of::<i32>()] = c.read(2)?;
    let fd = i32::from_ne_bytes(rule[FD_AT..].try_into().unwrap_or_default());
    if !c.vfs().ours(fd) {
        return Ok(result);
    }
    rule[FD_AT..].copy_from_slice(&(-1i32).to_ne_bytes());
    match c.native_with(&[(2, &rule)]) {
        result if result == -EBADF as isize => Ok(0),
        result => Ok(result),
    }
}

/// Nor may we ask any more whose an open file is, who we are, or for further placeholders.
fn confine(c: &mut Call<'_>) -> Verdict {
    for fd in descriptors::open() {
        c.vfs().ours(fd);
    }
    c.vfs().open_all();
    host::here().stock_up();
    workers::end();
    identity::remember();
    let is_first = nacre_media::confine();
    let result = c.native();
    if is_first && result < 0 {
        nacre_media::confined_in_vain();
    }
    Ok(result)
}

fn change(c: &mut Call<'_>) -> Verdict {
    c.vfs().open_all();
    identity::forget();
    let result = c.native();
    c.vfs().credentials_changed();
    Ok(result)
}

fn move_away(c: &mut Call<'_>) -> Verdict {
    nacre_session::namespaces_may_differ();
    mounts::in_new_namespace(u64::MAX);
    change(c)
}

/// All threads of a process have one folder and one table of descriptors here: the one thread that
/// asks for its own would change those of all, or take a number for another file. Who asks while
/// there are no threads yet looks whether they could.
fn unshare(c: &mut Call<'_>) -> Verdict {
    let mut flags = c.int(0);
    if flags & libc::CLONE_FS != 0 {
        return Err(Stop::Errno(libc::EPERM));
    }
    if flags & libc::CLONE_FILES != 0 {
        // The kernel refuses it where there are other threads.
        flags |= libc::CLONE_THREAD;
    }
    nacre_session::namespaces_may_differ();
    c.vfs().open_all();
    mounts::in_new_namespace(flags as u64);
    let result = c.native_with_number(0, flags as usize);
    c.vfs().credentials_changed();
    Ok(result)
}

fn prctl(c: &mut Call<'_>) -> Verdict {
    match c.int(0) {
        libc::PR_SET_SECCOMP => confine(c),
        libc::PR_SET_SECUREBITS | libc::PR_CAP_AMBIENT | libc::PR_CAPBSET_DROP => change(c),
        _ => Err(Stop::Native),
    }
}
