//! Calls that change who the process is: the kernel executes them, then we look again.

use libc::{
    SYS_capset, SYS_prctl, SYS_prlimit64, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups,
    SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_setrlimit, SYS_setuid,
    SYS_unshare,
};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};

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
    entry(SYS_unshare, "unshare", change),
    entry(SYS_prctl, "prctl", prctl),
    entry(SYS_setrlimit, "setrlimit", limit),
    entry(SYS_prlimit64, "prlimit64", prlimit),
];

fn change(c: &mut Call<'_>) -> Verdict {
    let result = c.native();
    c.vfs().credentials_changed();
    Ok(result)
}

fn prctl(c: &mut Call<'_>) -> Verdict {
    match c.int(0) {
        libc::PR_SET_SECUREBITS | libc::PR_CAP_AMBIENT | libc::PR_CAPBSET_DROP => change(c),
        _ => Err(Stop::Native),
    }
}

fn limit(c: &mut Call<'_>) -> Verdict {
    let result = c.native();
    c.vfs().limits_changed();
    Ok(result)
}

fn prlimit(c: &mut Call<'_>) -> Verdict {
    if c.arg(2) == 0 {
        Err(Stop::Native)
    } else {
        limit(c)
    }
}
