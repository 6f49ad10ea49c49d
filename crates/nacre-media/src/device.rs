//! Devices: opening, making and sizing them. Mapping is in `media`.

use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::num::ParseIntError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use nacre_types::PAGE_SIZE;
use rustix::fs::{
    Access as Right, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat,
    accessat, fallocate, fstat, fstatfs, ftruncate, ioctl_blksszget, major, minor, open, readlink,
    seek, stat, unlink,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use crate::error::MediaError;
use crate::granularity::Policy;
use crate::kind::Access;
use crate::sysfs;

/// Kernel fds of our own live among this many numbers above the program's limit, or below it (at
/// most 1024).
const HIGH_FDS: u64 = 64;
/// Fds that a program may have unless its limit was raised.
const USUAL_FDS: u64 = 1024;
/// How often, and after which pauses, a device that seems claimed is looked at.
const CLAIM_ROUNDS: u32 = 5;
const CLAIM_PAUSE: Duration = Duration::from_millis(10);
const HUGE_PAGE: u64 = 2 << 20;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const HUGETLBFS: u64 = 0x9584_58f6;

/// What stands behind a device's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    DevDax,
    Memory,
    HugePages,
    /// On a file system that may or may not support DAX; mapping it tells.
    File,
    Block,
}

/// In the identity of a block device.
const BLOCK: u64 = u64::MAX - 1;

/// What tells one device from another within a running system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceIdentity(u64, u64);

impl DeviceIdentity {
    /// What [`DeviceIdentity::numbers`] gave.
    pub const fn of_numbers((first, second): (u64, u64)) -> Self {
        Self(first, second)
    }

    /// What a path leads to.
    ///
    /// # Errors
    /// The error of the system.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(identity_of(&stat(path)?))
    }

    pub(crate) const fn of_block(number: u64) -> Self {
        Self(BLOCK, number)
    }

    /// The number of a block device.
    pub(crate) const fn block_number(self) -> Option<u64> {
        match self.0 {
            BLOCK => Some(self.1),
            _ => None,
        }
    }

    /// Device and inode of a file; of a device file, all ones (less one for a block device) and its
    /// device number.
    pub const fn numbers(self) -> (u64, u64) {
        (self.0, self.1)
    }
}

/// User, group and permission bits of a device's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permission bits, at most 0o777.
    pub mode: u32,
}

/// `UID:GID:MODE`, the mode in octal.
impl Display for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:o}", self.uid, self.gid, self.mode)
    }
}

impl FromStr for Owner {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_default();
        Ok(Self {
            uid: part().parse()?,
            gid: part().parse()?,
            mode: u32::from_str_radix(part(), 8)? & 0o777,
        })
    }
}

/// What was found at a path that nobody named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its owner.
    pub owner: Owner,
    /// Whether it is a device node, which only root makes.
    pub is_node: bool,
}

/// An opened device, not yet mapped.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    path: PathBuf,
    access: Access,
    backing: Backing,
    identity: DeviceIdentity,
    owner: Owner,
    len: u64,
    granule: u64,
    sys_folder: PathBuf,
    /// The file of a loop device.
    beneath: Option<OwnedFd>,
}

impl Device {
    /// Opens an existing regular file, device-DAX device or block device. A block device that is
    /// mounted is not opened for writing.
    pub fn open(path: &Path, access: Access) -> Result<Self, MediaError> {
        // Links are few: who uses none pays nothing for being asked about them.
        let fd = match open(path, open_flags(access) | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::LOOP) => open_by_link(path, access),
            other => other.map_err(|errno| refused(path, "open it", errno)),
        };
        Self::opened(fd?, path, access)
    }

    fn opened(fd: OwnedFd, path: &Path, access: Access) -> Result<Self, MediaError> {
        let device = Self::from_fd(fd, path, access)?;
        match device.backing == Backing::Block && access == Access::ReadWrite {
            // The kernel opens it for writing, and refuses to map it.
            true if sysfs::is_read_only(&device.sys_folder) => {
                Err(MediaError::PermissionDenied(device.path))
            }
            true => device.unless_mounted(),
            false => Ok(device),
        }
    }

    /// Refuses what the kernel, or somebody else, uses as a whole: for who takes possession of it.
    pub fn refuse_claimed(&self) -> Result<(), MediaError> {
        for round in 0..CLAIM_ROUNDS {
            match self.backing == Backing::Block && self.is_claimed()? {
                false => return Ok(()),
                // Others of us look for a moment, too.
                true if round + 1 < CLAIM_ROUNDS => std::thread::sleep(CLAIM_PAUSE),
                true => {}
            }
        }
        Err(MediaError::Claimed(self.path.clone()))
    }

    fn unless_mounted(self) -> Result<Self, MediaError> {
        match self.is_claimed()? && sysfs::is_mounted(self.identity.1) {
            true => Err(MediaError::Claimed(self.path)),
            false => Ok(self),
        }
    }

    /// Whether a block device is mounted, or claimed in another way.
    fn is_claimed(&self) -> Result<bool, MediaError> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match open(self.kernel_link(), flags, Mode::empty()) {
            Ok(_) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(errno) => Err(refused(&self.path, "open it alone", errno)),
        }
    }

    /// As [`Device::open`], of a path that the user did not name. It is looked at before it is
    /// opened, which may be an act in itself: `None` if `accept` does not like whose it is, or if
    /// it is of a kind that no device is of.
    pub fn open_found(
        path: &Path,
        access: Access,
        accept: impl Fn(Found) -> bool,
    ) -> Result<Option<Self>, MediaError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let place =
            open(path, flags, Mode::empty()).map_err(|errno| refused(path, "open it", errno))?;
        let stat = fstat(&place).map_err(|errno| refused(path, "examine it", errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_device = match kind {
            FileType::RegularFile | FileType::BlockDevice => true,
            FileType::CharacterDevice => {
                sysfs::dax_size(&sys_folder("char", stat.st_rdev)).is_some()
            }
            _ => false,
        };
        let found = Found {
            owner: owner_of(&stat),
            is_node: kind != FileType::RegularFile,
        };
        if !is_device || !accept(found) {
            return Ok(None);
        }
        let link = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = open_flags(access);
        let fd =
            open(link, flags, Mode::empty()).map_err(|errno| refused(path, "open it", errno))?;
        Self::opened(fd, path, access).map(Some)
    }

    /// Makes a file of `size` bytes, all allocated, for its owner only. Removes it again if there
    /// is no room.
    pub fn create(path: &Path, size: u64) -> Result<Self, MediaError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd =
            open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| not_made(path, errno))?;
        let made = Self::from_fd(fd, path, Access::ReadWrite).and_then(|mut device| {
            device.allocate(size)?;
            Ok(device)
        });
        if made.is_err() {
            // The error that is on its way says more than a failure to clean up would.
            let _ = unlink(path);
        }
        made
    }

    fn from_fd(fd: OwnedFd, path: &Path, access: Access) -> Result<Self, MediaError> {
        let failed = |action, errno| refused(path, action, errno);
        let fd = lifted(fd);
        let stat = fstat(&fd).map_err(|errno| failed("examine it", errno))?;
        let (kind, number) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => ("block", stat.st_dev),
            FileType::CharacterDevice => ("char", stat.st_rdev),
            FileType::BlockDevice => ("block", stat.st_rdev),
            FileType::Directory => return Err(MediaError::IsDirectory(path.to_owned())),
            _ => return Err(MediaError::UnsupportedType(path.to_owned())),
        };
        let sys_folder = sys_folder(kind, number);
        let (backing, granule, len) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => {
                let len = sysfs::dax_size(&sys_folder)
                    .ok_or_else(|| MediaError::UnsupportedType(path.to_owned()))?;
                let granule = sysfs::dax_alignment(&sys_folder).unwrap_or(HUGE_PAGE);
                (Backing::DevDax, granule, len)
            }
            FileType::BlockDevice => (Backing::Block, PAGE_SIZE, block_size(&fd, path)?),
            _ => {
                let system =
                    fstatfs(&fd).map_err(|errno| failed("examine its file system", errno))?;
                let (backing, granule) = backing_of(system.f_type as u64, system.f_bsize as u64);
                (backing, granule, stat.st_size as u64)
            }
        };
        let identity = identity_of(&stat);
        let beneath = match backing {
            Backing::Block => file_beneath(&sys_folder, access),
            _ => None,
        };
        let owner = owner_of(&stat);
        Ok(Self {
            fd,
            path: path.to_owned(),
            access,
            backing,
            identity,
            owner,
            len,
            granule,
            sys_folder,
            beneath,
        })
    }

    /// Gives a file that is still empty `size` bytes, all allocated.
    pub fn allocate(&mut self, size: u64) -> Result<(), MediaError> {
        if size == 0 || !size.is_multiple_of(self.granule) {
            return Err(MediaError::BadSize {
                path: self.path.clone(),
                size,
                granule: self.granule,
            });
        }
        let done = loop {
            match fallocate(&self.fd, FallocateFlags::empty(), 0, size) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => break ftruncate(&self.fd, size),
                other => break other,
            }
        };
        match done {
            Ok(()) => self.len = size,
            Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT | Errno::NOMEM) => {
                return Err(MediaError::NoRoom {
                    path: self.path.clone(),
                    size,
                });
            }
            Err(errno) => return Err(refused(&self.path, "allocate its space", errno)),
        }
        Ok(())
    }

    /// Gives a file another size, all allocated. What it held stays, as far as there is room for
    /// it.
    pub fn resize(&mut self, size: u64) -> Result<(), MediaError> {
        let before = self.len;
        if size < before {
            ftruncate(&self.fd, size)
                .map_err(|errno| refused(&self.path, "change its size", errno))?;
        }
        if let Err(error) = self.allocate(size) {
            // Space that was taken in vain; the error that is on its way says more than a failure
            // here would.
            let _ = ftruncate(&self.fd, before);
            return Err(error);
        }
        Ok(())
    }

    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Windows of the device that are mapped must start and end at multiples of this (a power of
    /// two).
    pub const fn granule(&self) -> u64 {
        self.granule
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The absolute path without symbolic links; where the kernel does not tell it, the path that
    /// it was opened by.
    pub fn real_path(&self) -> PathBuf {
        match readlink(self.kernel_link(), Vec::new()) {
            Ok(target) if target.as_bytes().starts_with(b"/") => {
                PathBuf::from(OsString::from_vec(target.into_bytes()))
            }
            _ => self.path.clone(),
        }
    }

    /// A descriptor of the same file that shares nothing with this one, for reading. For file
    /// locks.
    pub fn reopen(&self) -> Result<OwnedFd, MediaError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        open(self.kernel_link(), flags, Mode::empty())
            .map_err(|errno| refused(&self.path, "open it again", errno))
    }

    fn kernel_link(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// What tells it from other devices: two paths to one device have the same identity.
    pub const fn identity(&self) -> DeviceIdentity {
        self.identity
    }

    /// Owner and permissions of its file.
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// How it was opened.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Whether it is a regular file, which can be made and removed.
    pub fn is_file(&self) -> bool {
        !matches!(self.backing, Backing::DevDax | Backing::Block)
    }

    /// Whether its file was made shorter since it was opened. Who writes behind the cut leaves a
    /// hole, which is read as zeros.
    pub fn is_cut(&self) -> bool {
        let len = || fstat(&self.fd).map(|stat| stat.st_size.cast_unsigned());
        self.is_file() && len().is_ok_and(|len| len < self.len)
    }

    /// Behind a read or a write: fails if it was cut.
    pub fn check_len(&self) -> io::Result<()> {
        match self.is_cut() {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(()),
        }
    }

    /// Its kernel fd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) const fn beneath(&self) -> Option<&OwnedFd> {
        self.beneath.as_ref()
    }

    pub(crate) const fn backing(&self) -> Backing {
        self.backing
    }

    /// How the device is best cut, as far as the system tells what it is.
    pub fn own_policy(&self) -> Policy {
        sysfs::optane_modules(&self.sys_folder)
            .map_or(Policy::None, |modules| Policy::Optane { modules })
    }

    pub(crate) fn caches_persist(&self) -> bool {
        sysfs::caches_persist(&self.sys_folder)
    }
}

/// What to do about an error by which too many files are open; `None` for any other.
pub fn remedy_for_few_fds(error: &str) -> Option<String> {
    let text = Errno::MFILE.to_string();
    let words = text.split(" (").next().unwrap_or(&text);
    let limit = getrlimit(Resource::Nofile).current?;
    error.contains(words).then(|| {
        format!(
            "at most {limit} files may be open here (`ulimit -n`), and nacre opens about a dozen of its own for each \
             pool; raise the limit"
        )
    })
}

/// The fd among numbers that the program does not get: above its limit where that may be raised for
/// a moment, else high up below it.
pub fn lifted(fd: OwnedFd) -> OwnedFd {
    static TURN: Mutex<()> = Mutex::new(());
    // Whoever finds another at it, or forked away from one, takes the other way.
    let turn = TURN.try_lock().ok();
    let limit = getrlimit(Resource::Nofile);
    let raised = turn.as_ref().and_then(|_| RaisedLimit::raise(limit));
    let lowest = raised
        .as_ref()
        .map_or_else(|| high_fd_below(limit), |it| it.lowest);
    fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd)
}

/// While it lives this process may have more fds than it was given.
struct RaisedLimit {
    before: Rlimit,
    now: Rlimit,
    /// The first number that the program cannot have.
    lowest: i32,
}

impl RaisedLimit {
    fn raise(before: Rlimit) -> Option<RaisedLimit> {
        let soft = before.current.filter(|&soft| soft <= USUAL_FDS)?;
        let now = Rlimit {
            current: Some(soft + HIGH_FDS),
            maximum: before.maximum,
        };
        let lowest = i32::try_from(soft).ok()?;
        setrlimit(Resource::Nofile, now).ok()?;
        Some(RaisedLimit {
            before,
            now,
            lowest,
        })
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        // Another thread's own change stands. One that stays raised does no harm.
        if getrlimit(Resource::Nofile) == self.now {
            let _harmless = setrlimit(Resource::Nofile, self.before);
        }
    }
}

/// The lowest number for kernel fds of our own below the limit: programs seldom have so many.
pub fn high_fd() -> i32 {
    high_fd_below(getrlimit(Resource::Nofile))
}

fn high_fd_below(limit: Rlimit) -> i32 {
    let limit = limit.current.unwrap_or(USUAL_FDS).min(USUAL_FDS);
    limit.saturating_sub(HIGH_FDS).max(3) as i32
}

fn backing_of(file_system: u64, block: u64) -> (Backing, u64) {
    match file_system {
        TMPFS | RAMFS => (Backing::Memory, PAGE_SIZE),
        HUGETLBFS => (Backing::HugePages, block),
        _ => (Backing::File, PAGE_SIZE),
    }
}

/// Bytes of a block device, whose sectors are no larger than what is written at once.
fn block_size(fd: &OwnedFd, path: &Path) -> Result<u64, MediaError> {
    let failed = |errno| refused(path, "ask for its size", errno);
    let sector = ioctl_blksszget(fd).map_err(failed)?;
    if u64::from(sector) > PAGE_SIZE {
        return Err(MediaError::GranuleTooLarge {
            path: path.to_owned(),
            granule: sector.into(),
            most: PAGE_SIZE,
        });
    }
    // What BLKGETSIZE64 answers.
    seek(fd, SeekFrom::End(0)).map_err(failed)
}

/// A link that somebody else made leads elsewhere the next moment.
fn open_by_link(path: &Path, access: Access) -> Result<OwnedFd, MediaError> {
    let failed = |errno| refused(path, "open it", errno);
    if nacre_runtime::may_be_of_others(path).map_err(failed)? {
        return Err(MediaError::ForeignLink(path.to_owned()));
    }
    open(path, open_flags(access), Mode::empty()).map_err(failed)
}

fn open_flags(access: Access) -> OFlags {
    let mode = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    mode | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
}

/// The file whose bytes are those of a loop device, from the first one on: a pool may be used by
/// either. `None` as well where this process may not open it.
fn file_beneath(device: &Path, access: Access) -> Option<OwnedFd> {
    let (file, start) = sysfs::file_of_loop(device)?;
    let opened = (start == 0).then(|| open(file, open_flags(access), Mode::empty()));
    opened?.ok().map(lifted)
}

/// Where the system tells about a device.
fn sys_folder(kind: &str, number: u64) -> PathBuf {
    let (major, minor) = (major(number), minor(number));
    PathBuf::from(format!("/sys/dev/{kind}/{major}:{minor}"))
}

fn owner_of(stat: &Stat) -> Owner {
    Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o777,
    }
}

fn identity_of(stat: &Stat) -> DeviceIdentity {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => DeviceIdentity(u64::MAX, stat.st_rdev),
        FileType::BlockDevice => DeviceIdentity::of_block(stat.st_rdev),
        _ => DeviceIdentity(stat.st_dev, stat.st_ino),
    }
}

/// Why a file cannot be made: what is not there yet has no permissions, its folder has.
fn not_made(path: &Path, errno: Errno) -> MediaError {
    match refused(path, "make it", errno) {
        MediaError::PermissionDenied(path) => folder_denied(path, "written"),
        other => other,
    }
}

fn folder_denied(path: PathBuf, how: &'static str) -> MediaError {
    let folder = folder_of(&path);
    let user = geteuid().as_raw();
    MediaError::FolderDenied {
        path,
        folder,
        how,
        user,
    }
}

/// As people know it, also if the path is a mere name.
fn folder_of(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_default();
    whole.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Whether nothing in the folder of `path` can be named.
fn is_shut(path: &Path) -> bool {
    let asked = accessat(CWD, folder_of(path), Right::EXEC_OK, AtFlags::EACCESS);
    asked == Err(Errno::ACCESS)
}

/// The error for a system call on `path` that failed.
pub(crate) fn refused(path: &Path, action: &'static str, errno: Errno) -> MediaError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NOTDIR => MediaError::NotFound(path),
        Errno::EXIST => MediaError::Exists(path),
        Errno::ISDIR => MediaError::IsDirectory(path),
        Errno::ACCESS if is_shut(&path) => folder_denied(path, "entered"),
        Errno::ACCESS | Errno::PERM => MediaError::PermissionDenied(path),
        Errno::ROFS => MediaError::MountedReadOnly(path),
        Errno::NXIO | Errno::NODEV => MediaError::UnsupportedType(path),
        errno => MediaError::System {
            path,
            action,
            errno,
        },
    }
}
