//! Start-up: runs before every other constructor, patches libc and attaches the pools.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_emulator::{Emulation, FILE_NAME};
use nacre_fs::Fs;
use nacre_media::MediaError;
use nacre_session::{SessionError, SlotError};
use nacre_store::{AttachOptions, SessionChoice, Store, StoreError};
use nacre_vfs::{Kernel, MountSpec, Vfs};
use nacre_volume::{Observer, Volume, VolumeError};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::entry::symbols;
use crate::program::by_kernel;
use crate::program::descriptors;
use crate::program::exec;
use crate::program::host::{self, Pool};
use crate::program::mounts::{self, Mount};
use crate::program::process;
use crate::program::unserved;
use crate::rewrite::libraries;
use crate::rewrite::patching;
use crate::runtime::environment::Environment;
use crate::runtime::kernel;
use crate::runtime::log;
use crate::runtime::signals;
use crate::runtime::tls::Inside;

/// Status of a program that could not be started with its mounts.
pub const CANNOT_START: i32 = 126;

/// The dynamic linker calls this first of all (`-z initfirst`), with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = start;

extern "C" fn start(_: c_int, arguments: *const *const c_char, entries: *mut *mut c_char) {
    let result = std::panic::catch_unwind(|| {
        let _inside = Inside::enter();
        // SAFETY: the dynamic linker passes the environment, and no other code runs yet.
        let environment = unsafe { Environment::start(entries) };
        let Some(mounts) = environment.setting("NACRE_MOUNTS").filter(|_| !is_secure()) else {
            return Ok(());
        };
        match begin(mounts, environment) {
            Err(Failure::Elsewhere(message)) => {
                // SAFETY: the dynamic linker passes both arrays, which end at NULL, and no other
                // code runs yet.
                let vectors = unsafe { [strings(arguments), strings(entries.cast_const().cast())] };
                go_on_unserved(&message, &vectors)
            }
            Err(Failure::Other(message)) => Err(message),
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

/// Why a program cannot be served.
enum Failure {
    /// It is where those who use its pools cannot be told dead or alive.
    Elsewhere(String),
    Other(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Other(message)
    }
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
        let (mount, by) = (named.mount, named.by);
        return Err(format!(
            "{message}\n       Without the pool it would see the host's files at {mount}, and {by} names {mount}. \
             With NACRE_UNSERVED=allow in its environment it runs"
        ));
    }
    if kernel::getpid() == 1 {
        let text = format!("nacre: {message}\n       It goes on without the pool\n");
        kernel::write_all(2, text.as_bytes());
    }
    Ok(())
}

/// A program must not run without its mounts and write into the folder below.
fn give_up(message: &str) -> ! {
    kernel::write_all(2, format!("nacre: {message}\n").as_bytes());
    kernel::exit(CANNOT_START)
}

fn begin(mounts: &[u8], environment: &'static Environment) -> Result<(), Failure> {
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
    let mounts = mounts::parse(mounts)?;
    let chunks = environment.setting("NACRE_MAP_CHUNKS").is_some();
    let (specs, pools) = attach_all(&mounts, chunks)?;
    let host = host::start(pools);
    let vfs = Vfs::start(specs, host.clone()).map_err(|error| format!("cannot start: {error}"))?;
    // None that came with the program is closed by exec: those that are, were made since.
    let is_own = |&fd: &i32| host.is_cloexec(fd) == Ok(true);
    let (own, before): (Vec<i32>, Vec<i32>) = descriptors::open().into_iter().partition(is_own);
    vfs.after_exec(&before)
        .map_err(|error| format!("cannot take over open files: {error}"))?;
    own.into_iter().for_each(descriptors::keep_internal);
    by_kernel::enter_folder(&vfs);
    signals::start();
    let vfs = process::start(vfs);
    patching::patch_all(environment)?;
    symbols::start(vfs);
    Ok(())
}

fn attach_all(mounts: &[Mount], chunks: bool) -> Result<(Vec<MountSpec>, Vec<Pool>), Failure> {
    let (mut specs, mut pools) = (Vec::new(), Vec::new());
    for mount in mounts {
        let (fs, pool) = attach(mount, chunks).map_err(|error| failure(mount, &*error))?;
        specs.push(MountSpec {
            prefix: mount.prefix.clone(),
            fs,
            read_only: mount.read_only,
        });
        pools.push(pool);
    }
    Ok((specs, pools))
}

/// What to tell, and what to do about it.
fn failure(mount: &Mount, error: &(dyn Error + 'static)) -> Failure {
    let pool = mount.pool.display();
    if let Some(StoreError::Session(SessionError::Namespace(_))) = error.downcast_ref() {
        return Failure::Elsewhere(format!(
            "this program cannot use the pool {pool}: {}",
            SlotError::Namespace
        ));
    }
    let wanted = match mount.read_only {
        true => Access::READ_OK,
        false => Access::READ_OK | Access::WRITE_OK,
    };
    let (path, flags) = (&mount.pool, AtFlags::EACCESS);
    if accessat(CWD, path, wanted, flags) == Err(Errno::ACCESS) {
        let user = geteuid().as_raw();
        return Failure::Other(format!(
            "user {user} has no rights to the pool {pool}, which this program is to use: {error}\n       \
             Give the user rights to the pool's devices and their folders (chmod, chgrp), or start the program outside of `nacre run`"
        ));
    }
    if let Some(StoreError::Volume(VolumeError::Media(MediaError::NoAddresses { needed }))) =
        error.downcast_ref()
    {
        return Failure::Other(no_addresses(mount, *needed));
    }
    Failure::Other(format!(
        "cannot attach the pool {pool}: {error}\n       `nacre check {pool}` says more"
    ))
}

/// A pool of at least `len` bytes does not fit into what the program may map.
fn no_addresses(mount: &Mount, len: u64) -> String {
    let pool = mount.pool.display();
    let file = fs::metadata(&mount.pool).map_or(0, |found| found.len());
    let needed = nacre_store::address_space(len.max(file)).div_ceil(1 << 20);
    let limit = match host::limit(libc::RLIMIT_AS as usize) {
        u64::MAX => String::from("the system gives it no more"),
        limit => format!("it may use {} MiB in all", limit >> 20),
    };
    format!(
        "cannot attach the pool {pool}: a program maps it whole, with its session, which takes {needed} MiB of addresses \
         (no memory) beside the program's own, and {limit}\n       \
         Raise the limit by as much (`ulimit -v`, RLIMIT_AS), remove it (`ulimit -v unlimited`), or limit memory by a control group instead"
    )
}

fn attach(mount: &Mount, chunks: bool) -> Result<(Fs, Pool), Box<dyn Error>> {
    let access = if mount.read_only {
        nacre_volume::Access::ReadOnly
    } else {
        nacre_volume::Access::ReadWrite
    };
    let volume = Volume::open(&mount.pool, access).map_err(StoreError::from)?;
    let len = volume.len();
    emulate(&volume)?;
    let options = AttachOptions {
        session: SessionChoice::Shared,
        mode: mount.mode,
        granularity: mount.granularity,
        resume: true,
        parallel: false,
    };
    let store = Store::attach(volume, &options).map_err(|error| match error {
        StoreError::Session(SessionError::NoAddresses { .. }) => {
            VolumeError::from(MediaError::NoAddresses { needed: len }).into()
        }
        error => error,
    })?;
    #[cfg(feature = "kill-steps")]
    crate::runtime::steps::watch(&store);
    let pool = Pool::new(store.session())?;
    let mode = store.mode();
    let mut fs = Fs::with_mode(store, mode);
    if chunks {
        fs.map_chunks_only();
    }
    Ok((fs, pool))
}

/// Makes the volume's stores known to the pool's emulation, if it is on.
fn emulate(volume: &Volume) -> Result<(), Box<dyn Error>> {
    let Some(folder) = nacre_store::runtime::folder(volume)? else {
        return Ok(());
    };
    let path = folder.path().join(FILE_NAME);
    if let Some(emulation) = Emulation::join(&path, volume.uuid())? {
        let observer: Arc<dyn Observer> = Arc::new(emulation);
        volume.set_observer(&observer);
    }
    Ok(())
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
