//! Programs that this library cannot serve: what of them the decision in [`reach`] needs, read from
//! the kernel.

use nacre_types::reach::{self, Named, Policy, Rights, Start, Unserved};
use rustix::fs::{Stat, StatVfsMountFlags, fgetxattr, fstatvfs};
use rustix::io::pread;
use rustix::process::{getegid, geteuid, getgid, getuid};
use std::os::fd::BorrowedFd;

use crate::entry::call::Call;
use crate::entry::user;
use crate::program::by_kernel;
use crate::runtime::PAGE;
use crate::runtime::environment;
use crate::runtime::kernel::checked;

/// Longest argument that the kernel takes.
const STRING_MAX: usize = 128 << 10;

/// Code that can be looked at.
const READ_AND_RUN: u32 = libc::PF_R | libc::PF_X;

/// Why a program of the host cannot be served. `head`: its first bytes.
pub fn of_host(path: &[u8], head: &[u8], meta: &Stat, file: BorrowedFd<'_>) -> Option<Unserved> {
    let read = |offset, room: &mut [u8]| pread(file, room, offset as u64).unwrap_or(0);
    let why = reach::unserved_at(path, head, read);
    why.or_else(|| gains_rights(meta, file).then_some(Unserved::Privileged))
}

/// Whether this process is of a program that makes its own system calls, though the dynamic linker
/// has loaded this library into it. It has the pools by the kernel, as a static program has.
pub fn makes_own_calls() -> bool {
    let (base, headers) = own_headers();
    // SAFETY: these segments are mapped, for reading, and nobody changes them yet.
    let bytes = |h: &libc::Elf64_Phdr| unsafe {
        let at = base.wrapping_add(h.p_vaddr as usize);
        std::slice::from_raw_parts(at as *const u8, h.p_filesz as usize)
    };
    let of = |kind| headers.iter().filter(move |header| header.p_type == kind);
    let code = |h: &&libc::Elf64_Phdr| h.p_flags & READ_AND_RUN == READ_AND_RUN;
    of(libc::PT_NOTE).map(bytes).any(reach::names_go)
        || of(libc::PT_GNU_EH_FRAME).next().is_none()
            && of(libc::PT_LOAD)
                .filter(code)
                .map(bytes)
                .any(reach::has_call)
}

/// Where the program was loaded, and its program headers; none without the kernel's word for them.
fn own_headers() -> (usize, &'static [libc::Elf64_Phdr]) {
    // SAFETY: reads a vector that the kernel has filled and nobody changes.
    let [at, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|kind| unsafe { libc::getauxval(kind) });
    if at == 0 {
        return (0, &[]);
    }
    // SAFETY: the kernel says that so many headers are there, and they stay mapped.
    let headers: &[libc::Elf64_Phdr] =
        unsafe { std::slice::from_raw_parts(at as *const _, count as usize) };
    let own = headers.iter().find(|h| h.p_type == libc::PT_PHDR);
    let base = own.map_or(0, |own| at.wrapping_sub(own.p_vaddr));
    (base as usize, headers)
}

/// Whether the dynamic linker would leave preloaded libraries away: the program gets rights, or the
/// process has two users or groups already.
fn gains_rights(meta: &Stat, file: BorrowedFd<'_>) -> bool {
    let (user, group) = (geteuid(), getegid());
    let rights = Rights {
        mode: meta.st_mode,
        owner: (meta.st_uid, meta.st_gid),
        caller: (user.as_raw(), group.as_raw()),
    };
    let capable = || fgetxattr(file, c"security.capability", &mut [0u8; 64][..]).is_ok();
    let has_two = user != getuid() || group != getgid();
    has_two || (rights.gained() || !user.is_root() && capable()) && bits_count(file)
}

/// Whether the kernel heeds set-id bits and capabilities of the file.
fn bits_count(file: BorrowedFd<'_>) -> bool {
    let no_new = checked(
        libc::SYS_prctl,
        &[libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0],
    );
    let nosuid = fstatvfs(file).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID));
    no_new != Ok(1) && !nosuid
}

/// What a program that cannot be served would miss, if it names a mount point at which it does not
/// find the pool by the kernel, and nobody allowed that. The vectors are the program's; the first
/// argument is its own name. Below a root in a pool, and in a sandbox's without one, it finds no
/// files of the host that it could take for the pool's.
pub fn refused(
    c: &Call<'_>,
    why: &Unserved,
    arguments: &[usize],
    environment: &[usize],
) -> Option<Named> {
    if environment::root_is_in_a_pool() || by_kernel::are_left_out() {
        return None;
    }
    let policy = environment::get().setting(reach::VARIABLE);
    let (arguments, environment) = (strings(arguments), strings(environment));
    named(policy, Some(why), &folder(c), &arguments, &environment)
}

/// Whether what a program is told names a mount point, also where the kernel shows the pool. The
/// vectors are as in [`refused`].
pub fn names_a_pool(c: &Call<'_>, arguments: &[usize], environment: &[usize]) -> bool {
    let (arguments, environment) = (strings(arguments), strings(environment));
    let mounts = by_kernel::prefixes();
    start(&mounts, &folder(c), &arguments, &environment).is_some()
}

/// As [`refused`], of the calling program, which nothing serves. It may have been started in a
/// folder of a pool, where it is not.
pub fn refused_here(arguments: &[Vec<u8>], variables: &[Vec<u8>]) -> Option<Named> {
    let folder = variables.iter().find_map(|text| text.strip_prefix(b"PWD="));
    let policy = environment::get().setting(reach::VARIABLE);
    let folder = folder.unwrap_or(&[]);
    named(policy, None, folder, arguments, variables)
}

fn named(
    policy: Option<&[u8]>,
    why: Option<&Unserved>,
    folder: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Option<Named> {
    // The new program's environment may say otherwise than ours.
    let own = environment.iter().find_map(|text| {
        let value = text.strip_prefix(reach::VARIABLE.as_bytes())?;
        value.strip_prefix(b"=")
    });
    if Policy::of(own.or(policy)) == Policy::Allow {
        return None;
    }
    let hidden = by_kernel::hidden(why);
    if runs_another(environment) {
        return None;
    }
    start(&hidden, folder, arguments, environment)
}

/// What of a program's start names one of these mount points.
fn start(
    mounts: &[Vec<u8>],
    folder: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Option<Named> {
    let mounts: Vec<&[u8]> = mounts.iter().map(Vec::as_slice).collect();
    let start = Start {
        mounts: &mounts,
        folder,
        arguments: arguments.get(1..).unwrap_or(&[]),
        environment,
    };
    start.named()
}

/// Whether Valgrind's launcher starts one of its tools: a static program that runs another one,
/// which loads this library. The tool reads that program's file by the kernel.
fn runs_another(environment: &[Vec<u8>]) -> bool {
    let mut settings = environment.iter();
    settings.any(|text| text.starts_with(b"VALGRIND_LAUNCHER="))
}

/// The current directory, of a pool or of the host.
fn folder(c: &Call<'_>) -> Vec<u8> {
    by_kernel::pool_folder(c).unwrap_or_else(|| {
        let mut room = vec![0u8; user::PATH_MAX];
        let args = [room.as_mut_ptr() as usize, room.len()];
        let len = checked(libc::SYS_getcwd, &args).unwrap_or(0);
        room.truncate(len.saturating_sub(1));
        room
    })
}

/// The strings of a vector of the program that can be read.
fn strings(vector: &[usize]) -> Vec<Vec<u8>> {
    vector.iter().filter_map(|&at| string(at)).collect()
}

/// A string of the program, however long. None if it cannot be read: then the kernel refuses it,
/// too.
fn string(address: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < STRING_MAX {
        let at = address.checked_add(text.len())?;
        let len = PAGE - at % PAGE;
        let start = text.len();
        text.resize(start + len, 0);
        user::read_bytes(at, &mut text[start..]).ok()?;
        if let Some(end) = text[start..].iter().position(|&byte| byte == 0) {
            text.truncate(start + end);
            return Some(text);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::string;

    #[test]
    fn strings_of_any_length_are_read() {
        for len in [0, 1, 4095, 4096, 4097, 20_000] {
            let mut text = vec![b'x'; len];
            text.push(0);
            assert_eq!(
                string(text.as_ptr() as usize).map(|text| text.len()),
                Some(len)
            );
        }
        assert_eq!(string(usize::MAX - 3), None);
    }
}
