//! Attaching a pool: at start if something of it may be open already, else when the program first
//! uses it.
//!
//! Then it happens in the middle of a call, maybe in a handler of a signal or among threads.
//! Signals wait, as in every call of ours; it has a stack of its own; and what fails is the call.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::error::Error;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_media::{MediaError, remedy_for_few_fds};
use nacre_session::{SessionError, SlotError};
use nacre_store::{AttachOptions, SessionChoice, Store, StoreError};
use nacre_volume::{Volume, VolumeError};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::program::mounts::Mount;
use crate::runtime::kernel;
use crate::runtime::log;
use crate::runtime::stack;
use crate::runtime::tls::thread;

/// Whether files are mapped in whole granules of 2 MiB only, for tests.
static MAP_CHUNKS: AtomicBool = AtomicBool::new(false);

/// Files are mapped as on devices with pages of 2 MiB, if `only`.
pub fn map_chunks_only(only: bool) {
    MAP_CHUNKS.store(only, Relaxed);
}

/// Why a pool cannot be attached, and what to do about it.
#[derive(Debug)]
pub enum AttachFailure {
    /// The program is where those who use its pools cannot be told dead or alive.
    Elsewhere(String),
    /// The user has no rights to the pool.
    Rights(String),
    /// The pool does not fit into what the program may map.
    Addresses(String),
    Other(String),
}

impl AttachFailure {
    /// What the user is told.
    pub fn message(&self) -> &str {
        match self {
            AttachFailure::Elsewhere(message)
            | AttachFailure::Rights(message)
            | AttachFailure::Addresses(message)
            | AttachFailure::Other(message) => message,
        }
    }

    fn errno(&self) -> i32 {
        match self {
            AttachFailure::Rights(_) => libc::EACCES,
            AttachFailure::Addresses(_) => libc::ENOMEM,
            AttachFailure::Elsewhere(_) | AttachFailure::Other(_) => libc::EIO,
        }
    }
}

/// Attaches in the middle of a call. The first failure is told on standard error.
pub fn on_first_use<T: Send>(attach: impl FnOnce() -> Result<T, AttachFailure>) -> Result<T, i32> {
    // A child in its parent's memory has descriptors of its own: what it attached would be
    // neither's. Its parent has tried before.
    if thread().origin.view().is_some() {
        return Err(libc::EIO);
    }
    let errno = errno();
    let done = stack::on_large_stack(attach).ok_or(libc::ENOMEM)?;
    set_errno(errno);
    done.map_err(|failure| {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Relaxed) {
            log::tell_without_pools(failure.message());
        }
        failure.errno()
    })
}

fn errno() -> i32 {
    // SAFETY: leads to the calling thread's own number.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: i32) {
    // SAFETY: leads to the calling thread's own number, which any value suits.
    unsafe { *libc::__errno_location() = errno };
}

/// Attaches the pool of a mount; with it come the descriptors that are kept for it.
pub fn attach(mount: &Mount) -> Result<(Fs, Vec<i32>), AttachFailure> {
    let _once = nacre_session::look_once();
    let fs = open(mount).map_err(|error| failure(mount, &*error))?;
    let store = fs.store();
    let mut own: Vec<i32> = store
        .volume()
        .fds()
        .iter()
        .map(|fd| fd.as_raw_fd())
        .collect();
    let place = store.session().place();
    own.extend(place.map(|place| place.folder().fd().as_raw_fd()));
    Ok((fs, own))
}

/// What to tell, and what to do about it.
pub fn failure(mount: &Mount, error: &(dyn Error + 'static)) -> AttachFailure {
    let pool = mount.pool.display();
    let cause = error.downcast_ref();
    if let Some(StoreError::Session(why)) = cause
        && let SessionError::Namespace(_) = **why
    {
        return AttachFailure::Elsewhere(format!(
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
        return AttachFailure::Rights(format!(
            "user {user} has no rights to the pool {pool}, which this program is to use: {error}\n       \
             Give the user rights to the pool's devices and their folders (chmod, chgrp), or start the program outside of `nacre run`"
        ));
    }
    if let Some(StoreError::Volume(why)) = cause
        && let VolumeError::Media(MediaError::NoAddresses { needed }) = **why
    {
        return AttachFailure::Addresses(no_addresses(mount, needed));
    }
    if error.is::<Another>() {
        return AttachFailure::Other(format!("{pool}: {error}"));
    }
    let text = error.to_string();
    let remedy = remedy_for_few_fds(&text);
    let remedy = remedy.unwrap_or_else(|| format!("`nacre check {pool}` says more"));
    AttachFailure::Other(format!(
        "cannot attach the pool {pool}: {text}\n       {remedy}"
    ))
}

/// A pool of at least `len` bytes does not fit into what the program may map.
fn no_addresses(mount: &Mount, len: u64) -> String {
    let pool = mount.pool.display();
    let file = fs::metadata(&mount.pool).map_or(0, |found| found.len());
    let needed = nacre_store::address_space(len.max(file)).div_ceil(1 << 20);
    let limit = match kernel::limit(libc::RLIMIT_AS as usize) {
        u64::MAX => String::from("the system gives it no more"),
        limit => format!("it may use {} MiB in all", limit >> 20),
    };
    format!(
        "cannot attach the pool {pool}: a program maps it whole, with its session, which takes {needed} MiB of addresses \
         (no memory) beside the program's own, and {limit}\n       \
         Raise the limit by as much (`ulimit -v`, RLIMIT_AS), remove it (`ulimit -v unlimited`), or limit memory by a control group instead"
    )
}

/// Who began with one pool and went on with another would have files of both open.
#[derive(Debug, thiserror::Error)]
#[error(
    "another pool is there than when `nacre run` began; end it, and start it again to use this one"
)]
struct Another;

fn is_another(mount: &Mount, volume: &Volume) -> bool {
    // One with copies may be opened by any of its devices.
    let known = mount.file.as_ref().filter(|_| mount.owner.is_none());
    let differs = known.is_some_and(|file| Some(file) != volume.identity_text().as_ref());
    differs || mount.uuid.is_some_and(|uuid| uuid != volume.uuid())
}

fn open(mount: &Mount) -> Result<Fs, Box<dyn Error>> {
    let access = if mount.read_only {
        nacre_volume::Access::ReadOnly
    } else {
        nacre_volume::Access::ReadWrite
    };
    let volume = Volume::open_or_copy(&mount.pool, &mount.copies, mount.owner, access)
        .map_err(StoreError::from)?;
    if is_another(mount, &volume) {
        return Err(Another.into());
    }
    let len = volume.len();
    // Looked for once: who attaches sees that it still stands.
    let folder = nacre_store::runtime::lifted_folder(&volume)?;
    if let Some(folder) = &folder {
        nacre_store::runtime::join_emulation_in(&volume, Arc::clone(folder))?;
    }
    let options = AttachOptions {
        session: SessionChoice::Shared,
        mode: mount.mode,
        granularity: mount.granularity,
        resume: true,
        ..AttachOptions::default()
    };
    let store =
        Store::attach_in(volume, &options, folder.as_ref()).map_err(|error| match error {
            StoreError::Session(why) if matches!(*why, SessionError::NoAddresses { .. }) => {
                VolumeError::from(MediaError::NoAddresses { needed: len }).into()
            }
            error => error,
        })?;
    #[cfg(feature = "kill-steps")]
    crate::runtime::steps::watch(&store);
    let mode = store.mode();
    let mut fs = Fs::with_mode(store, mode);
    if MAP_CHUNKS.load(Relaxed) {
        fs.map_chunks_only();
    }
    Ok(fs)
}
