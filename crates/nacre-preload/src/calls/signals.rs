//! Signal actions and masks.

use libc::{SYS_rt_sigaction, SYS_rt_sigprocmask};

use crate::entry::table::{ServedCall, entry};
use crate::runtime::signals;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_rt_sigaction, "rt_sigaction", |c| {
        Ok(signals::action(c.int(0), c.arg(1), c.arg(2), c.arg(3)))
    }),
    entry(SYS_rt_sigprocmask, "rt_sigprocmask", signals::mask),
];
