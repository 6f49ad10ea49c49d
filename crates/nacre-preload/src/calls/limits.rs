//! Limits of resources. Pools are attached before they are lowered. A limit of addresses is of what
//! the program maps by itself: the kernel gets it with what our own mappings take on top.

use libc::{RLIM_INFINITY, RLIMIT_AS, RLIMIT_NOFILE, SYS_prlimit64, SYS_setrlimit};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::runtime::kernel;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_setrlimit, "setrlimit", |c| set(c, 0, 1)),
    entry(SYS_prlimit64, "prlimit64", prlimit),
];

/// Addresses that the library itself takes, its allocator, and what each thread has.
const LIBRARY: u64 = 64 << 20;

fn prlimit(c: &mut Call<'_>) -> Verdict {
    let of_another = c.int(0) != 0 && c.int(0) != kernel::getpid();
    match c.arg(2) == 0 || of_another {
        true => Err(Stop::Native),
        false => set(c, 1, 2),
    }
}

/// Of a call whose arguments are a resource and the address of its new limits.
fn set(c: &mut Call<'_>, resource: usize, limits: usize) -> Verdict {
    let resource = c.uint(resource);
    if [RLIMIT_AS, RLIMIT_NOFILE].contains(&resource) {
        c.vfs().open_all();
    }
    let result = match resource {
        RLIMIT_AS => set_addresses(c, limits)?,
        _ => c.native(),
    };
    c.vfs().limits_changed();
    Ok(result)
}

fn set_addresses(c: &mut Call<'_>, limits: usize) -> Result<isize, Stop> {
    let [soft, hard]: [u64; 2] = c.read(limits)?;
    if soft > hard {
        return Ok(c.native());
    }
    let ours = c.vfs().addresses() + LIBRARY;
    let [_, most] = kernel::limits(RLIMIT_AS as usize);
    // Who leaves the hard limit as it is, or lowers it, may not be allowed to raise it.
    let highest = if hard > most { RLIM_INFINITY } else { most };
    let hard = with(hard, ours).min(highest);
    let both = [with(soft, ours).min(hard), hard];
    Ok(c.native_with(&[(limits, both.map(u64::to_ne_bytes).as_flattened())]))
}

fn with(limit: u64, ours: u64) -> u64 {
    match limit {
        RLIM_INFINITY => limit,
        _ => limit.saturating_add(ours).min(RLIM_INFINITY - 1),
    }
}
