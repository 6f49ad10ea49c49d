//! Making, opening and ending a session.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nacre_media::Traffic;
use nacre_runtime::Folder;
use nacre_types::Uuid;
use rustix::fs::{FallocateFlags, OFlags, Stat, fallocate, fstat, fstatfs, ftruncate};
use rustix::io::{Errno, pread};

use crate::advisory::{Bucket, LockEntry};
use crate::error::SessionError;
use crate::liveness::lock::OwnedLock;
use crate::liveness::process;
use crate::liveness::slot::Slot;
use crate::mapping::ByteRange;
use crate::mapping::{Mapping, Region};
use crate::memory::geometry::Geometry;
use crate::memory::header::{Header, IDENTITY_LEN, Identity, MAGIC, Shared, VERSION};
use crate::memory::plan::SessionPlan;
use crate::slot_ref::SlotRef;
use crate::step;
use crate::tables::dentry::{CacheSlot, NameBucket};
use crate::tables::icore::ICore;
use crate::tables::lane::LaneState;
use crate::tables::ofd::{MoreHolders, Ofd};
use crate::watch::WatchEntry;

/// Name of the folder of fifos and sockets, behind that of the session.
pub const NODES: &str = "nodes";

/// Name of the file of zeros, behind that of the session.
pub(crate) const ZEROS: &str = "zeros";

/// How far a session's life has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its maker fills it; found without the maker, it is worthless.
    Building,
    /// In use.
    Ready,
    /// The last process saves what the pool wants back; found without that process, it is
    /// worthless.
    Closing,
}

/// Where a session's file is, and for which devices.
#[derive(Debug, Clone)]
pub struct SessionPlace {
    folder: Arc<Folder>,
    name: String,
    /// `None`: any.
    devices: Option<u64>,
}

impl SessionPlace {
    /// The file `name` in a folder, for devices with these identities, as one number.
    pub fn new(folder: Arc<Folder>, name: impl Into<String>, devices: u64) -> SessionPlace {
        SessionPlace {
            folder,
            name: name.into(),
            devices: Some(devices),
        }
    }

    /// As [`SessionPlace::new`], whatever the devices are: for who asks whether a session is used.
    pub fn of_any_devices(folder: Arc<Folder>, name: impl Into<String>) -> SessionPlace {
        SessionPlace {
            devices: None,
            ..SessionPlace::new(folder, name, 0)
        }
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The name of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of what belongs to the session.
    pub fn beside(&self, what: &str) -> String {
        format!("{}.{what}", self.name)
    }

    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }
}

/// The regions and the mapping that they are views of.
pub(crate) struct Memory {
    header: Region<Header>,
    pub(crate) slots: Region<Slot>,
    pub(crate) lanes: Region<LaneState>,
    pub(crate) buckets: Region<Bucket>,
    pub(crate) entries: Region<LockEntry>,
    pub(crate) ofds: Region<Ofd>,
    pub(crate) more_holders: Region<MoreHolders>,
    pub(crate) icores: Region<ICore>,
    pub(crate) name_buckets: Region<NameBucket>,
    pub(crate) dentries: Region<CacheSlot>,
    unit_bits: Region<AtomicU64>,
    verified_bits: Region<AtomicU64>,
    object_bits: Region<AtomicU64>,
    share_counts: Region<AtomicU64>,
    traffic: ByteRange,
    metadata_blocks: Region<AtomicU64>,
    pub(crate) watches: Region<WatchEntry>,
    pub(crate) mapping: Arc<Mapping>,
}

impl Memory {
    fn new(mapping: Mapping, plan: &SessionPlan) -> Memory {
        Memory {
            header: mapping.region(plan.header),
            slots: mapping.region(plan.slots),
            lanes: mapping.region(plan.lanes),
            buckets: mapping.region(plan.buckets),
            entries: mapping.region(plan.entries),
            ofds: mapping.region(plan.ofds),
            more_holders: mapping.region(plan.more_holders),
            icores: mapping.region(plan.icores),
            name_buckets: mapping.region(plan.name_buckets),
            dentries: mapping.region(plan.dentries),
            unit_bits: mapping.region(plan.unit_bits),
            verified_bits: mapping.region(plan.verified_bits),
            object_bits: mapping.region(plan.object_bits),
            share_counts: mapping.region(plan.share_counts),
            traffic: plan.traffic,
            metadata_blocks: mapping.region(plan.metadata_blocks),
            watches: mapping.region(plan.watches),
            mapping: Arc::new(mapping),
        }
    }

    /// A view of the traffic of each device. It must not outlive the mapping.
    pub(crate) fn traffic(&self) -> Region<Traffic> {
        self.mapping.region(self.traffic)
    }

    /// A view that must not outlive the mapping.
    pub(crate) fn view_slots(&self) -> Region<Slot> {
        self.slots.again()
    }

    /// A view that must not outlive the mapping.
    pub(crate) fn view_header(&self) -> Region<Header> {
        self.header.again()
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        &self.header.all()[0]
    }
}

/// The memory that all processes attached to a pool share.
pub struct Session {
    pub(crate) memory: Memory,
    pub(crate) namespaces: (u64, u64),
    geometry: Geometry,
    stamp: u64,
    mark: [u64; 2],
    file: Option<SessionFile>,
    /// The place for the process's next new name in the cache of names.
    pub(crate) dentry_next: AtomicU64,
    /// A descriptor of the folder of nodes, if the process has one; else -1.
    pub(crate) nodes: Arc<AtomicI32>,
}

struct SessionFile {
    place: SessionPlace,
    path: PathBuf,
    id: (u64, u64),
}

impl Session {
    /// Makes a session in state `Building`, all of it zero. The caller holds the volume's exclusive
    /// lock; a file that is there already is replaced.
    pub fn create(
        place: &SessionPlace,
        geometry: Geometry,
        stamp: u64,
    ) -> Result<Session, SessionError> {
        let plan = geometry.plan().map_err(SessionError::Geometry)?;
        let identity = new_identity(geometry, stamp, place.devices.unwrap_or(0))?;
        let fresh = place.beside("new");
        place.folder.remove(&fresh)?;
        place.folder.remove(&place.beside(ZEROS))?;
        let fd = place.folder.make_file(&fresh)?;
        let made = fill(&fd, place, &plan, &identity);
        step::point();
        made.and_then(|session| {
            place.folder.rename(&fresh, &place.name)?;
            Ok(session)
        })
        .inspect_err(|_| {
            // Of no use to anybody, and the next one would replace it.
            let _ = place.folder.remove(&fresh);
        })
    }

    /// Joins a session that another process has made. The caller compares the stamp and looks at
    /// the state.
    pub fn open(place: &SessionPlace) -> Result<Session, SessionError> {
        let path = &place.path();
        let opened = place.folder.open_and_look(&place.name, OFlags::RDWR)?;
        let (fd, found) = opened.ok_or_else(|| SessionError::Missing(path.clone()))?;
        let len = found.st_size as u64;
        let identity = read_identity(&fd, path, len)?;
        if place
            .devices
            .is_some_and(|devices| devices != identity.devices)
        {
            return Err(SessionError::OtherDevices(path.clone()));
        }
        let plan = identity
            .geometry
            .plan()
            .map_err(|why| SessionError::Foreign {
                path: path.into(),
                why,
            })?;
        if len != plan.len {
            return Err(SessionError::Truncated {
                path: path.into(),
                found: len,
                needed: plan.len,
            });
        }
        let session = map_file(&fd, &found, place, &plan, &identity)?;
        match session.counts_processes_as_we_do() {
            true => Ok(session),
            false => Err(SessionError::Namespace(path.clone())),
        }
    }

    /// Whether this process and those of the session can tell whether the other lives.
    fn counts_processes_as_we_do(&self) -> bool {
        match process::namespaces() == Some(self.namespaces) {
            true => !process::is_far(),
            false => self.find_slot_from_afar().is_some(),
        }
    }

    /// A session without a file, shared with the children that the process forks.
    pub fn memory(geometry: Geometry) -> Result<Session, SessionError> {
        let plan = geometry.plan().map_err(SessionError::Geometry)?;
        let identity = new_identity(geometry, 0, 0)?;
        let mapping =
            Mapping::anonymous(plan.len as usize).map_err(no_map(&plan, Path::new("(memory)")))?;
        let session = Session::over(mapping, &plan, &identity, None);
        session.memory.header().write_identity(&identity);
        Ok(session)
    }

    fn over(
        mapping: Mapping,
        plan: &SessionPlan,
        identity: &Identity,
        file: Option<SessionFile>,
    ) -> Session {
        let Identity {
            geometry,
            stamp,
            mark,
            namespaces,
            ..
        } = *identity;
        Session {
            memory: Memory::new(mapping, plan),
            namespaces,
            geometry,
            stamp,
            mark,
            file,
            dentry_next: AtomicU64::new(0),
            nodes: Arc::new(AtomicI32::new(-1)),
        }
    }

    /// Removes the session's file, if its name still leads to it, and its folder, if nothing else
    /// is in it. The caller holds the volume's exclusive lock.
    pub fn unlink(&self) -> Result<(), SessionError> {
        let Some(SessionFile { place, id, .. }) = &self.file else {
            return Ok(());
        };
        let folder = &place.folder;
        let found = folder.look(&place.name)?;
        if found.is_some_and(|found| (found.st_dev, found.st_ino) == *id) {
            folder.remove(&place.name)?;
            folder.remove(&place.beside(ZEROS))?;
            folder.remove_folder(&place.beside(NODES));
            folder.leave_if_unused();
        }
        Ok(())
    }

    /// Two random words that only who may use the session knows.
    pub fn mark(&self) -> [u64; 2] {
        self.mark
    }

    /// Where its file is; `None` for a session in memory.
    pub fn place(&self) -> Option<&SessionPlace> {
        self.file.as_ref().map(|file| &file.place)
    }

    /// The number that ties the session to one attachment of the pool.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The sizes it was made for.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How far its life has got.
    pub fn state(&self) -> State {
        match self.memory.header().state.load(Ordering::SeqCst) {
            1 => State::Ready,
            2 => State::Closing,
            _ => State::Building,
        }
    }

    /// `Building -> Ready`: everything is filled in.
    pub fn set_ready(&self) {
        self.change_state(State::Building, State::Ready);
    }

    /// `Ready -> Closing` if nobody but `me` has a slot. The caller holds the volume's exclusive
    /// lock, so nobody can join meanwhile.
    pub fn begin_closing(&self, me: SlotRef) -> bool {
        self.current_slots().all(|slot| slot == me)
            && self.change_state(State::Ready, State::Closing)
    }

    fn change_state(&self, from: State, to: State) -> bool {
        step::point();
        self.memory
            .header()
            .state
            .compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether a process died while attached, so that the bitmaps may mark more than is used.
    pub fn is_tainted(&self) -> bool {
        self.memory.header().tainted.load(Ordering::SeqCst) != 0
    }

    /// Says that the bitmaps may mark more than is used.
    pub fn set_tainted(&self) {
        self.memory.header().tainted.store(1, Ordering::SeqCst);
    }

    /// The session file; `None` for a session in memory.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Device and inode of the session file, by which a descriptor of it is recognised.
    pub fn file_id(&self) -> Option<(u64, u64)> {
        self.file.as_ref().map(|file| file.id)
    }

    /// The addresses of the mapping, by which a fault in it is recognised.
    pub fn address_range(&self) -> Range<usize> {
        self.memory.mapping.address_range()
    }

    /// In-core state of an object; `index` must be below the geometry's `max_objects`.
    #[inline]
    pub fn icore(&self, index: u64) -> &ICore {
        &self.memory.icores.all()[index as usize]
    }

    /// As [`Session::icore`], for any number.
    #[inline(always)]
    pub fn icore_if_any(&self, index: u64) -> Option<&ICore> {
        self.memory.icores.get(index as usize)
    }

    /// The lock of part number `part` of an object; other parts may have the same.
    #[inline]
    pub fn range_lock(&self, object: u64, part: u64) -> &OwnedLock {
        let range_locks = &self.shared().range_locks;
        let hash = object.wrapping_mul(37).wrapping_add(part);
        &range_locks[hash as usize % range_locks.len()].0
    }

    /// The locks of all parts of all objects.
    pub fn range_locks(&self) -> impl Iterator<Item = &OwnedLock> {
        self.shared()
            .range_locks
            .iter()
            .map(|range_lock| &range_lock.0)
    }

    /// Counters, hints and locks of the whole pool.
    #[inline]
    pub fn shared(&self) -> &Shared {
        &self.memory.header().shared
    }

    /// One bit per unit: set while the unit is in use. Set before the unit is used, cleared after
    /// nothing refers to it.
    #[inline]
    pub fn unit_bits(&self) -> &[AtomicU64] {
        self.memory.unit_bits.all()
    }

    /// One bit per unit: set once the metadata in it has been verified. Cleared before the unit is
    /// reused.
    #[inline]
    pub fn verified_bits(&self) -> &[AtomicU64] {
        self.memory.verified_bits.all()
    }

    /// One bit per object number: set while it is in use.
    #[inline]
    pub fn object_bits(&self) -> &[AtomicU64] {
        self.memory.object_bits.all()
    }

    /// First unit of each metadata block, 0 until somebody has asked the pool's list. It changes
    /// while all objects of the block are locked, before their versions do.
    #[inline]
    pub fn metadata_blocks(&self) -> &[AtomicU64] {
        self.memory.metadata_blocks.all()
    }

    /// References to each unit beyond the first, 16 bits each, those of [`COUNTS_OF_WORD`] units in
    /// a word, the first one lowest. Raised before a reference is made, lowered after it is gone.
    #[inline]
    pub fn share_counts(&self) -> &[AtomicU64] {
        self.memory.share_counts.all()
    }
}

/// Gives a new file its size and its identity.
fn fill(
    fd: &OwnedFd,
    place: &SessionPlace,
    plan: &SessionPlan,
    identity: &Identity,
) -> Result<Session, SessionError> {
    let path = &place.path();
    ftruncate(fd, plan.len).map_err(io_error("size", path))?;
    reserve(fd, plan, path)?;
    let found = fstat(fd).map_err(io_error("look at", path))?;
    let session = map_file(fd, &found, place, plan, identity)?;
    session.memory.header().write_identity(identity);
    Ok(session)
}

/// Takes the memory that every session touches, so that making one fails here if there is none. The
/// rest, which grows with what is open and known, is taken when it is touched.
fn reserve(fd: &OwnedFd, plan: &SessionPlan, path: &Path) -> Result<(), SessionError> {
    let first = 0..plan.first_end();
    let bits = plan.unit_bits.offset..plan.share_counts.offset;
    let parts = [first, bits];
    let base = || path.ancestors().nth(2).unwrap_or(path).to_owned();
    let need: u64 = parts.iter().map(|part| part.end - part.start).sum();
    for part in parts {
        let len = part.end - part.start;
        match fallocate(fd, FallocateFlags::empty(), part.start, len) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => {
                return Err(SessionError::NoRoom {
                    folder: base(),
                    need: need.div_ceil(1 << 10),
                    most: plan.len_for_first_slots().div_ceil(1 << 20),
                });
            }
            Err(errno) => return Err(io_error("find room for", path)(errno)),
        }
    }
    Ok(())
}

fn io_error(op: &'static str, path: &Path) -> impl FnOnce(Errno) -> SessionError {
    move |errno| SessionError::Io {
        op,
        path: path.into(),
        errno,
    }
}

fn no_map(plan: &SessionPlan, path: &Path) -> impl FnOnce(Errno) -> SessionError {
    move |errno| match errno {
        Errno::NOMEM => SessionError::NoAddresses { needed: plan.len },
        errno => io_error("map", path)(errno),
    }
}

/// Whether a file is in memory, and so of this run of the system.
fn dies_with_the_system(fd: &OwnedFd) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    fstatfs(fd).is_ok_and(|found| found.f_type == TMPFS)
}

/// The run of the system.
fn boot() -> Result<[u64; 2], SessionError> {
    process::boot_id().map_err(|errno| SessionError::NoProc(process::BOOT_ID, errno))
}

fn new_identity(geometry: Geometry, stamp: u64, devices: u64) -> Result<Identity, SessionError> {
    let namespaces =
        process::namespaces().ok_or(SessionError::NoProc("/proc/self/ns/pid", Errno::NOENT))?;
    Ok(Identity {
        magic: MAGIC,
        version: VERSION,
        geometry,
        stamp,
        devices,
        mark: Uuid::random().words(),
        namespaces,
        boot: boot()?,
    })
}

fn read_identity(fd: &OwnedFd, path: &Path, len: u64) -> Result<Identity, SessionError> {
    let mut bytes = [0; IDENTITY_LEN];
    let read = pread(fd, &mut bytes[..], 0).map_err(io_error("read", path))?;
    if read < IDENTITY_LEN {
        return Err(SessionError::Truncated {
            path: path.into(),
            found: len,
            needed: IDENTITY_LEN as u64,
        });
    }
    let identity = Identity::decode(&bytes);
    if identity.magic != MAGIC {
        return Err(SessionError::Foreign {
            path: path.into(),
            why: "its first bytes are not a session's",
        });
    }
    if identity.version != VERSION {
        return Err(SessionError::Version {
            path: path.into(),
            found: identity.version,
        });
    }
    if !dies_with_the_system(fd) && identity.boot != boot()? {
        return Err(SessionError::Stale(path.into()));
    }
    Ok(identity)
}

fn map_file(
    fd: &OwnedFd,
    found: &Stat,
    place: &SessionPlace,
    plan: &SessionPlan,
    identity: &Identity,
) -> Result<Session, SessionError> {
    let path = place.path();
    let mapping = map_whole(fd.as_fd(), plan).map_err(no_map(plan, &path))?;
    let file = SessionFile {
        place: place.clone(),
        path,
        id: (found.st_dev, found.st_ino),
    };
    Ok(Session::over(mapping, plan, identity, Some(file)))
}

fn map_whole(fd: BorrowedFd<'_>, plan: &SessionPlan) -> Result<Mapping, Errno> {
    Mapping::of_file(fd, usize::try_from(plan.len).map_err(|_| Errno::NOMEM)?)
}
