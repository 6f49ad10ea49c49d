//! An opened pool.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Instant;

use nacre_store::keyed::layout::{Kind, Link};
use nacre_store::{
    AttachOptions, FormatOptions, MIN_POOL_BYTES, NewObject, SessionChoice, Store, StoreError,
    WriteMode, runtime,
};
use nacre_types::{Clock, ObjectId, Timestamp, UNIT_SIZE};
use nacre_volume::{Access, Caching, Checksums, CreateOptions, DeviceSpec, Volume};
use rustix::process::{getegid, geteuid};

use crate::error::{Error, Result};
use crate::transaction::at;

/// A pool that holds objects, perhaps beside files. Threads may share it; other processes may open
/// it, too.
///
/// A process that forks opens the pool again in the child.
pub struct Pool {
    pub(crate) store: Store,
    pub(crate) registry: OnceLock<Link>,
    /// Collections that were found. They have one name as long as they exist: who follows such a
    /// link and finds its generation needs no look at the registry.
    known: RwLock<HashMap<Box<[u8]>, Link>>,
    /// The process that opened it, whose slot it has.
    process: u32,
    opened: Instant,
    /// When its copies are looked at next, in milliseconds since then.
    next_look: AtomicU64,
}

/// How often copies are looked at, in milliseconds.
const LOOK_EVERY: u64 = 1000;

/// The program opens a pool on purpose, so the scan after a crash may use its processors: the
/// threads have ended when [`Pool::open`] returns.
const OPENING: AttachOptions = AttachOptions {
    parallel: true,
    session: SessionChoice::Shared,
    mode: None,
    resume: false,
    granularity: None,
    clock: Clock::Real,
    looks: false,
};

/// As `nacre create` makes pools: those on a disk have an image in memory and a journal.
const MAKING: CreateOptions = CreateOptions {
    force: false,
    least: MIN_POOL_BYTES,
    caching: Caching::Disks,
    granularity: None,
    stripe: None,
    copies: 0,
    common: None,
    checksums: Checksums::Never,
    behind: 0,
};

fn format_of(volume: &Volume) -> FormatOptions {
    FormatOptions {
        mode: match volume.is_cached() {
            true => WriteMode::Cached,
            false => WriteMode::Direct,
        },
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        ..FormatOptions::default()
    }
}

/// Most collections that a process remembers.
const MOST_KNOWN: usize = 4096;

/// How to open a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Change nothing.
    pub read_only: bool,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Attributes.
    pub attributes: u64,
    /// Whether its omap holds anything.
    pub has_omap: bool,
}

/// How full a pool is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub total: u64,
    /// What may still be used.
    pub free: u64,
}

impl Pool {
    /// Makes a pool of `size` bytes, at least 19 MiB, in a file that does not exist or is empty,
    /// and opens it.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Pool> {
        nacre_volume::install_handler();
        let path = path.as_ref();
        let was_missing = !path.exists();
        let device = DeviceSpec {
            path: path.to_path_buf(),
            size: Some(size),
        };
        let volume = Volume::create(&[device], MAKING)?;
        let formatted = Store::format(&volume, &format_of(&volume));
        if formatted.is_err() && was_missing {
            // The failure that is on its way says more than this one would. The volume keeps others
            // out until then.
            let _ = std::fs::remove_file(path);
        }
        drop(volume);
        formatted?;
        Pool::open(path, OpenOptions::default())
    }

    /// Opens a pool, by the path of any of its devices.
    ///
    /// The first pool that a process opens or creates here sets handlers of SIGBUS and SIGSEGV, so
    /// that a device which fails gives an error. Faults of other memory go to the handlers before.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Pool> {
        let access = match options.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        Pool::attach(path.as_ref(), access, &OPENING)
    }

    fn attach(path: &Path, access: Access, options: &AttachOptions) -> Result<Pool> {
        nacre_volume::install_handler();
        let volume = Volume::open(path, access)?;
        runtime::join_emulation(&volume)?;
        let pool = Pool::of(Store::attach(volume, options)?);
        pool.reap()?;
        Ok(pool)
    }

    /// Looks at everything in a pool that nobody uses; what is wrong, a line for each problem.
    /// Nobody can open it meanwhile. Whatever a crash left unfinished is recovered first.
    /// [`Error::InUse`] if somebody uses it.
    pub fn check(path: impl AsRef<Path>) -> Result<Vec<String>> {
        let alone = AttachOptions {
            session: SessionChoice::Memory,
            ..OPENING
        };
        let pool = Pool::attach(path.as_ref(), Access::ReadWrite, &alone);
        let pool = pool.map_err(|error| match error {
            Error::Store(StoreError::InUse) => Error::InUse,
            error => error,
        })?;
        let report = nacre_store::check::check(&pool.store, &mut |_| ());
        pool.close()?;
        let mut lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        if report.more_problems > 0 {
            lines.push(format!("{} problems more", report.more_problems));
        }
        Ok(lines)
    }

    /// The objects of a pool that is attached already.
    pub fn of(store: Store) -> Pool {
        Pool {
            store,
            registry: OnceLock::new(),
            known: RwLock::default(),
            process: std::process::id(),
            opened: Instant::now(),
            next_look: AtomicU64::new(0),
        }
    }

    /// Leaves the pool; the last process to do so makes the next opening quick. A pool that is
    /// dropped instead stays in use until the process ends.
    ///
    /// In a process that was forked from the one that opened it, it leaves that one's alone.
    pub fn close(self) -> Result<()> {
        if self.refuse_to_forked().is_err() {
            let _unmapped = self.store.abandon();
            return Ok(());
        }
        Ok(self.store.detach()?)
    }

    /// Two processes in one slot would take each other's locks and lane for their own.
    pub(crate) fn refuse_to_forked(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// The pool itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Gives the pool back.
    pub fn into_store(self) -> Store {
        self.store
    }

    /// How full the pool is.
    pub fn usage(&self) -> Usage {
        let found = self.store.statfs();
        Usage {
            total: found.units * UNIT_SIZE,
            free: found.free_units * UNIT_SIZE,
        }
    }

    /// What is not whole on a device that has failed is no damage: it is not given.
    pub(crate) fn blamed(&self, error: Error) -> Error {
        let seems = matches!(
            error.cause(),
            Error::Damaged(_) | Error::Store(StoreError::Corrupt(_))
        );
        if !seems {
            return error;
        }
        match (error, self.store.unless_failed()) {
            (error, Ok(())) => error,
            (Error::Operation { number, .. }, Err(failed)) => at(number, failed.into()),
            (_, Err(failed)) => failed.into(),
        }
    }

    /// Repairs what is damaged on the copy that is read. Answers whether to look once more: if
    /// something is right now, and once for each object in any case, as somebody else may have been
    /// quicker. `met` is the object that was damaged last.
    #[cold]
    pub(crate) fn repairs(&self, error: &Error, met: &mut Option<ObjectId>) -> bool {
        let damaged = match error.cause() {
            Error::Damaged(id) => Some(*id),
            Error::Store(StoreError::Corrupt(found)) => found.object,
            _ => None,
        };
        let Some(id) = damaged.filter(|_| self.store.volume().has_copies()) else {
            return false;
        };
        self.store.repair_object_copies(id) | (met.replace(id) != damaged)
    }

    /// Gives back the places of processes that died, unless some may have had files open: that is
    /// nacre-fs's to do.
    fn reap(&self) -> Result<()> {
        if self.store.is_writable() && self.store.session().ofds().next().is_none() {
            self.store.reap(&mut |_| Ok(()))?;
        }
        Ok(())
    }

    /// Gives up copies over which something else was written, now and then: a program with the
    /// library has no supervisor that does.
    pub(crate) fn look_at_copies(&self) {
        if !self.store.volume().has_copies() {
            return;
        }
        let now = self.opened.elapsed().as_millis() as u64;
        let next = self.next_look.load(Relaxed);
        let order = |seen| (seen == next && now >= next).then_some(now + LOOK_EVERY);
        if self.next_look.fetch_update(Relaxed, Relaxed, order).is_ok() {
            // Whoever makes something durable next hears of a failure.
            let _told = self.store.volume().check_copies();
        }
    }

    /// A collection that was found before; it may be gone.
    pub(crate) fn known_collection(&self, name: &[u8]) -> Option<Link> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(name).copied()
    }

    pub(crate) fn remember_collection(&self, name: &[u8], link: Link) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(name.into(), link);
    }

    /// Something that was found is gone, perhaps a collection.
    pub(crate) fn forget_collections(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.clear();
    }

    /// What names the collections; `None`: there are none yet.
    pub(crate) fn registry(&self) -> Result<Option<Link>> {
        if let Some(known) = self.registry.get() {
            return Ok(Some(*known));
        }
        let mut bytes = [0; nacre_store::INLINE_MAX];
        let len = self.store.inline(ObjectId::ROOT, &mut bytes)?;
        let found = Link::decode_registry(&bytes[..len]);
        Ok(found.inspect(|&link| {
            let _same = self.registry.set(link);
        }))
    }

    /// What names the collections, made if there is nothing.
    pub(crate) fn make_registry(&self) -> Result<Link> {
        if let Some(known) = self.registry()? {
            return Ok(known);
        }
        let guard = self.store.lock(ObjectId::ROOT)?;
        if let Some(known) = self.registry()? {
            return Ok(known);
        }
        let mut tx = self.store.begin()?;
        let object = tx.create(&new_object(Kind::Registry))?;
        let link = Link {
            object,
            generation: tx.generation(object)?,
            kind: Kind::Registry,
        };
        tx.set_inline(guard.id(), &link.encode_registry())?;
        tx.commit()?;
        drop(guard);
        Ok(link)
    }
}

/// A new onode of this kind, with one link: what names it.
pub(crate) fn new_object(kind: Kind) -> NewObject {
    NewObject {
        mode: kind.mode(),
        nlink: 1,
        time: Timestamp::now().0,
        ..NewObject::default()
    }
}
