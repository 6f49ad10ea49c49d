//! Calls that change who the process is, or what it may do or sees: the kernel executes them, then
//! we look again. Pools are attached before, while the process still can.

use libc::{
    SYS_capset, SYS_landlock_restrict_self, SYS_pivot_root, SYS_prctl, SYS_prlimit64, SYS_seccomp,
    SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setns, SYS_setregid, SYS_setresgid,
    SYS_setresuid, SYS_setreuid, SYS_setrlimit, SYS_setuid, SYS_unshare,
};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::program::descriptors;

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
    entry(SYS_unshare, "unshare", move_away),
    entry(SYS_setns, "setns", move_away),
    entry(SYS_pivot_root, "pivot_root", restrict),
    entry(SYS_seccomp, "seccomp", confine),
    entry(
        SYS_landlock_restrict_self,
        "landlock_restrict_self",
        restrict,
    ),
    entry(SYS_prctl, "prctl", prctl),
    entry(SYS_setrlimit, "setrlimit", |c| limit(c, 0)),
    entry(SYS_prlimit64, "prlimit64", prlimit),
];

/// Once the call is done, a pool may be out of reach.
fn restrict(c: &mut Call<'_>) -> Verdict {
    c.vfs().open_all();
    Err(Stop::Native)
}

/// Nor may we ask any more whose an open file is.
fn confine(c: &mut Call<'_>) -> Verdict {
    nacre_media::no_asynchronous_calls();
    for fd in descriptors::open() {
        c.vfs().ours(fd);
    }
    restrict(c)
}

fn change(c: &mut Call<'_>) -> Verdict {
    c.vfs().open_all();
    let result = c.native();
    c.vfs().credentials_changed();
    Ok(result)
}

fn move_away(c: &mut Call<'_>) -> Verdict {
    nacre_session::namespaces_may_differ();
    change(c)
}

fn prctl(c: &mut Call<'_>) -> Verdict {
    match c.int(0) {
        libc::PR_SET_SECCOMP => confine(c),
        libc::PR_SET_SECUREBITS | libc::PR_CAP_AMBIENT | libc::PR_CAPBSET_DROP => change(c),
        _ => Err(Stop::Native),
    }
}

fn limit(c: &mut Call<'_>, resource: usize) -> Verdict {
    const NEEDED: [u32; 2] = [libc::RLIMIT_AS, libc::RLIMIT_NOFILE];
    if NEEDED.contains(&c.uint(resource)) {
        c.vfs().open_all();
    }
    let result = c.native();
    c.vfs().limits_changed();
    Ok(result)
}

fn prlimit(c: &mut Call<'_>) -> Verdict {
    if c.arg(2) == 0 {
        Err(Stop::Native)
    } else {
        limit(c, 1)
    }
}
