//! Start-up: runs before every other constructor, patches libc and attaches the pools.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nacre_vfs::{Kernel, MountSpec, Vfs, VfsError};

use crate::arch::x86_64::symbols::are_found;
use crate::entry::symbols;
use crate::program::attach::{self, AttachFailure};
use crate::program::by_kernel;
use crate::program::descriptors;
use crate::program::exec;
use crate::program::host::{self, Host};
use crate::program::identity;
use crate::program::mounts::{self, Mount};
use crate::program::process;
use crate::program::shown;
use crate::program::unserved;
use crate::program::view::CANNOT_START;
use crate::rewrite::libraries;
use crate::rewrite::patching;
use crate::runtime::environment::Environment;
use crate::runtime::kernel;
use crate::runtime::log;
use crate::runtime::signals;
use crate::runtime::tls::Inside;

/// The dynamic linker calls this first of all (`-z initfirst`), with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = start;

extern "C" fn start(_: c_int, arguments: *const *const c_char, entries: *mut *mut c_char) {
    if !are_found() {
        // Another copy, which was loaded first, serves; its calls may come here.
        symbols::hand_on();
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let _inside = Inside::enter();
        // SAFETY: the dynamic linker passes the environment, and no other code runs yet.
        let environment = unsafe { Environment::start(entries) };
        let Some(mounts) = environment.setting("NACRE_MOUNTS").filter(|_| !is_secure()) else {
            return Ok(());
        };
        if unserved::makes_own_calls() {
            return Ok(());
        }
        match begin(mounts, environment) {
            Err(AttachFailure::Elsewhere(message)) if !by_kernel::suffices() => {
                // SAFETY: the dynamic linker passes both arrays, which end at NULL, and no other
                // code runs yet.
                let vectors = unsafe { [strings(arguments), strings(entries.cast_const().cast())] };
                go_on_unserved(&message, &vectors)
            }
            Err(_) if by_kernel::suffices() => Ok(()),
            Err(failure) => Err(failure.message().to_owned()),
            Ok(()) => Ok(()),
        }
    });
    match result {
        Ok(Ok(())) => {}
        Ok(Err(message)) => give_up(&message),
        Err(_) => give_up("internal error at start (please report it)"),
    }
}

/// Whether the program has more rights than who started it: then nothing that its environment says
/// is followed.
fn is_secure() -> bool {
    // SAFETY: reads a vector that the kernel has filled and nobody changes.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The texts of a vector of the program.
///
/// # Safety
/// It is an array of strings that ends at NULL, and nobody changes it meanwhile.
unsafe fn strings(mut vector: *const *const c_char) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        while !vector.read().is_null() {
            found.push(CStr::from_ptr(vector.read()).to_bytes().to_vec());
            vector = vector.add(1);
        }
    }
    found
}

/// A program in another pid namespace runs as one that cannot be served does: unless it names a
/// mount point, whose host's folder it would see. The first process there says so.
fn go_on_unserved(message: &str, vectors: &[Vec<Vec<u8>>; 2]) -> Result<(), String> {
    if let Some(named) = unserved::refused_here(&vectors[0], &vectors[1]) {
        let instead = named.seen_instead(by_kernel::taken(&named.mount).as_ref());
        let (mount, by) = (String::from_utf8_lossy(&named.mount), named.by);
        return Err(format!(
            "{message}\n       Without the pool it would see {instead}, and {by} names {mount}. \
             With NACRE_UNSERVED=allow in its environment it runs"
        ));
    }
    if kernel::getpid() == 1 {
        log::tell_without_pools(&format!("{message}\n       It goes on without the pool"));
    }
    Ok(())
}

/// A program must not run without its mounts and write into the folder below.
fn give_up(message: &str) -> ! {
    log::tell_without_pools(message);
    kernel::exit(CANNOT_START)
}

fn begin(mounts: &[u8], environment: &'static Environment) -> Result<(), AttachFailure> {
    nacre_runtime::ask_user_by(identity::one_user);
    if let Some(target) = environment.setting("NACRE_LOG") {
        log::start(target);
    }
    #[cfg(feature = "kill-steps")]
    crate::runtime::steps::start(environment);
    if let Some(path) = &environment.executable {
        named_after(path);
        exec::executes(path.clone());
    }
    let base = environment.setting("NACRE_SESSION_DIR");
    nacre_runtime::use_base(base.map(|base| PathBuf::from(OsStr::from_bytes(base))));
    if let Some(folder) = &environment.libraries {
        libraries::remove(folder);
    }
    #[cfg(feature = "unchecked")]
    if environment.setting("NACRE_TRUST_ANYBODY").is_some() {
        nacre_runtime::ignore_checks();
    }
    nacre_session::report_stalls(|pid| log::warn(&nacre_session::stall_text(pid)));
    attach::map_chunks_only(environment.setting("NACRE_MAP_CHUNKS").is_some());
    let mounts = mounts::parse(mounts).map_err(AttachFailure::Other)?;
    shown::start(&mounts);
    let modules = patching::modules(!environment.starts_with_nothing());
    let vfs = process::start(state(mounts, environment)?);
    by_kernel::enter_folder(vfs);
    signals::start();
    patching::patch_all(environment, modules).map_err(AttachFailure::Other)?;
    symbols::start(vfs);
    Ok(())
}

/// The process's state: with its pools attached if something of them may be open already.
fn state(mounts: Vec<Mount>, environment: &Environment) -> Result<Vfs, AttachFailure> {
    let other = |what: &str, error: VfsError| AttachFailure::Other(format!("{what}: {error}"));
    let host = host::start(mounts.clone());
    let late = environment.starts_with_nothing();
    let spec = |(index, mount): (usize, Mount)| {
        let fs = match late {
            true => None,
            false => match host.attach_pool(index) {
                Err(_) if does_without(&host) && !by_kernel::suffices() => None,
                pool => Some(pool?),
            },
        };
        Ok(MountSpec {
            prefix: mount.prefix,
            fs,
            read_only: mount.read_only,
        })
    };
    let numbered = mounts.into_iter().enumerate();
    let specs = numbered.map(spec).collect::<Result<_, AttachFailure>>()?;
    let vfs = Vfs::start(specs, host).map_err(|error| other("cannot start", error))?;
    if !late {
        let mut inherited = descriptors::open();
        inherited.retain(|&fd| !descriptors::is_internal(fd));
        vfs.after_exec(&inherited)
            .map_err(|error| other("cannot take over open files", error))?;
    }
    Ok(vfs)
}

/// A program that was forbidden to open files for writing before it started does without the pool:
/// filters of `man` have its folder from the shell, and look at no file. Nothing is found there.
fn does_without(host: &Host) -> bool {
    let (at, flags) = (libc::AT_FDCWD as usize, libc::O_RDWR | libc::O_CLOEXEC);
    let null = c"/dev/null".as_ptr() as usize;
    match kernel::checked(libc::SYS_openat, &[at, null, flags as usize]) {
        Ok(fd) => {
            kernel::call(libc::SYS_close, &[fd]);
            false
        }
        Err(errno) => {
            let forbidden = [libc::ENOSYS, libc::EPERM, libc::EACCES];
            forbidden.contains(&errno) && !(0..1024).any(|fd| host.may_be_placeholder(fd))
        }
    }
}

/// The thread's name is that of the program, not of the memory that it was copied to.
fn named_after(path: &[u8]) {
    let mut name = [0u8; 16];
    let file = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let len = file.len().min(name.len() - 1);
    name[..len].copy_from_slice(&file[..len]);
    kernel::call(
        libc::SYS_prctl,
        &[libc::PR_SET_NAME as usize, name.as_ptr() as usize],
    );
}
