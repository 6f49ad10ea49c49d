//! The identity of the process.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nacre_media::is_confined;
use nacre_vfs::Credentials;

use crate::runtime::kernel::{call, checked};

/// The one user when the process confined itself, if nothing has changed since; else [`NOBODY`]. A
/// filter of calls may kill who asks then.
static REMEMBERED: AtomicU64 = AtomicU64::new(NOBODY);
const NOBODY: u64 = u64::MAX;

/// Before the process confines itself.
pub fn remember() {
    if !is_confined() {
        REMEMBERED.store(asked_user().map_or(NOBODY, u64::from), Relaxed);
    }
}

/// Before a thread of it becomes somebody else.
pub fn forget() {
    REMEMBERED.store(NOBODY, Relaxed);
}

/// Asks the kernel.
pub fn read() -> Credentials {
    let [mut ruid, mut euid, mut suid, mut rgid, mut egid, mut sgid] = [0u32; 6];
    let three = |number, ids: [&mut u32; 3]| {
        call(number, &ids.map(|id| core::ptr::from_mut(id) as usize));
    };
    three(libc::SYS_getresuid, [&mut ruid, &mut euid, &mut suid]);
    three(libc::SYS_getresgid, [&mut rgid, &mut egid, &mut sgid]);
    // Setting an invalid id changes nothing and tells the present one.
    let fsuid = call(libc::SYS_setfsuid, &[u32::MAX as usize]) as u32;
    let fsgid = call(libc::SYS_setfsgid, &[u32::MAX as usize]) as u32;
    Credentials {
        ruid,
        rgid,
        euid: fsuid,
        egid: fsgid,
        groups: groups(),
        cap_effective: effective_capabilities(),
    }
}

/// The user that all ids of the calling thread name, for [`nacre_runtime::one_user`].
pub fn one_user() -> Option<u32> {
    match is_confined() {
        true => u32::try_from(REMEMBERED.load(Relaxed)).ok(),
        false => asked_user(),
    }
}

fn asked_user() -> Option<u32> {
    let mut ids = [0u32; 3];
    let places = ids.each_mut().map(|id| core::ptr::from_mut(id) as usize);
    checked(libc::SYS_getresuid, &places).ok()?;
    // Setting an invalid id changes nothing and tells the present one.
    let file_system = call(libc::SYS_setfsuid, &[u32::MAX as usize]) as u32;
    let one = ids.iter().all(|&id| id == file_system);
    one.then_some(file_system)
}

fn groups() -> Vec<u32> {
    let count = checked(libc::SYS_getgroups, &[0, 0]).unwrap_or(0);
    let mut groups = vec![0u32; count];
    let found = checked(libc::SYS_getgroups, &[count, groups.as_mut_ptr() as usize]);
    groups.truncate(found.unwrap_or(0));
    groups
}

fn effective_capabilities() -> u64 {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable; low words, then high words.
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize];
    match checked(libc::SYS_capget, &args) {
        Ok(_) => u64::from(sets[0]) | u64::from(sets[3]) << 32,
        Err(_) => 0,
    }
}
