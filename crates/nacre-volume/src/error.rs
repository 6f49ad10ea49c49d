//! What can be wrong with the devices of a pool, and what to do about it.

use std::path::PathBuf;

use nacre_media::MediaError;
use nacre_types::Uuid;

use crate::layout::{MAX_DEVICES, VERSION};

/// Why the devices of a pool with copies of a part of it stay as they are (D80).
pub(crate) const HOLDS_A_PART: &str = "each device holds a part that no other has: one comes or goes when nobody uses the pool (`nacre device add`, `remove`, `replace`), and none grows";

/// Why a volume cannot be created, opened, grown or deleted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VolumeError {
    /// A name that no label has room for.
    #[error(
        "{0:?}: a label keeps names of up to 64 bytes without control characters; use a shorter path"
    )]
    LongName(String),
    /// The device itself cannot be used.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// No device was named.
    #[error("no device was named; name a file or a device-DAX device (/dev/daxX.Y)")]
    NoDevices,
    /// The pool would have too many devices.
    #[error("a pool has at most {MAX_DEVICES} devices, {0} are too many; use larger ones")]
    TooManyDevices(usize),
    /// The file does not exist or is empty, and nothing says how large it is to be.
    #[error("{}: does not exist yet or is empty; give the size that it is to have", .0.display())]
    SizeNeeded(PathBuf),
    /// The file has another size than the wanted one.
    #[error("{}: has {actual} bytes, not {wanted}; leave the size out to use it as it is, or remove the file", path.display())]
    SizeDiffers {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        actual: u64,
        /// The bytes wanted.
        wanted: u64,
    },
    /// A device was to become larger, and is no file, or is larger already.
    #[error("{}: has {actual} bytes, not {wanted}; only files become larger, and no pool becomes smaller", path.display())]
    NotLarger {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        actual: u64,
        /// The bytes wanted.
        wanted: u64,
    },
    /// The device has no room for a pool.
    #[error("{}: {size} bytes are too small for a pool; {least} bytes are enough", path.display())]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// Bytes that suffice, whole MiB.
        least: u64,
    },
    /// The device has no room for more of its pool.
    #[error("{}: has {size} bytes, and its pool can become no larger with less than {least}", path.display())]
    NoRoomToGrow {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// Bytes that suffice, whole MiB.
        least: u64,
    },
    /// All devices together have no room for a pool.
    #[error("{}: {size} bytes in {devices} devices are too small for a pool; {least} bytes in each are enough", first.display())]
    PoolTooSmall {
        /// The pool's first device.
        first: PathBuf,
        /// How many devices it was to have.
        devices: usize,
        /// Bytes of all of them.
        size: u64,
        /// Bytes of each that suffice, whole MiB.
        least: u64,
    },
    /// The device is to come to a pool that has it.
    #[error("{}: belongs to the pool already", .0.display())]
    InPool(PathBuf),
    /// The device belongs to a pool already.
    #[error("{}: belongs to a pool already; delete that pool, or force it to be overwritten", .0.display())]
    AlreadyPool(PathBuf),
    /// The device holds something else.
    #[error("{}: holds data that is no pool; choose another file, or force it to be overwritten", .0.display())]
    HoldsData(PathBuf),
    /// Somebody else has made the file.
    #[error("{}: is a file of user {owner}, who could go on to use it; remove it, choose another name, or force it to be used", path.display())]
    ForeignFile {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Somebody else may have led the name to another file of the caller's.
    #[error("{}: is a file with other names, so others may have put it there; remove it, or choose another name", .0.display())]
    OtherNames(PathBuf),
    /// What stands where a device should be was made by somebody else.
    #[error("{}: stands where a device of the pool should be, but does not belong to those who may write the pool; if it is the right one, name it too", .0.display())]
    ForeignDevice(PathBuf),
    /// The default pool, or a folder above it, was made by somebody else.
    #[error(transparent)]
    Runtime(#[from] nacre_runtime::RuntimeError),
    /// Two paths lead to one device.
    #[error("{} and {} are the same device; name each device once", .0.display(), .1.display())]
    SameDevice(PathBuf, PathBuf),
    /// Two devices claim to be the same one.
    #[error("{} is a copy of {}: both say they are device {device} of the pool; take one of them away", second.display(), first.display())]
    Copied {
        /// The first found.
        first: PathBuf,
        /// The second found.
        second: PathBuf,
        /// Their common identity.
        device: Uuid,
    },
    /// A device cannot be taken out of its pool.
    #[error("{}: {why}", path.display())]
    CannotLeave {
        /// A device of the pool.
        path: PathBuf,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// A pool cannot become larger like this.
    #[error("{}: {why}", path.display())]
    CannotGrow {
        /// The pool, or a device of it.
        path: PathBuf,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// Somebody uses the device.
    #[error("{}: is in use by running programs; end them first", .0.display())]
    InUse(PathBuf),
    /// The device has no label.
    #[error("{}: is no device of a Nacre pool: it {}; check the path", path.display(), if *is_blank { "is empty" } else { "holds something else" })]
    NotAPool {
        /// The device.
        path: PathBuf,
        /// Nothing is lost if a pool is made of it.
        is_blank: bool,
    },
    /// The device gives an error where its label is.
    #[error("{}: its label cannot be read: the device gives an I/O error; check the device (`dmesg`)", .0.display())]
    Unreadable(PathBuf),
    /// Neither label copy is intact.
    #[error("{}: both copies of its label are damaged; restore the device from a backup, or make a new pool of it with force (its contents are lost then)", .0.display())]
    LabelsDamaged(PathBuf),
    /// Something else was written over the start of a device, and nothing tells over how much.
    #[error("{}: something else was written over its start, and no other device has what it holds; restore it from a backup, or, if no more than its first 2 MiB was written over, put its label back: dd if={} of={} bs=4096 count=1 skip={} conv=notrunc", path.display(), path.display(), path.display(), label_at / 4096)]
    WrittenOver {
        /// The device.
        path: PathBuf,
        /// Where the second copy of its label is.
        label_at: u64,
    },
    /// The pool was made or changed by a newer version.
    #[error("{}: has pool format {found}, this program knows up to {VERSION}; use a newer Nacre", path.display())]
    NewerVersion {
        /// The device.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// The pool uses a feature that this version does not know.
    #[error("{}: the pool uses features {features:#x}, which this program does not know; use a newer Nacre", path.display())]
    UnknownFeatures {
        /// The device.
        path: PathBuf,
        /// The unknown feature bits.
        features: u64,
    },
    /// The device is shorter than it was.
    #[error("{}: was truncated: it has {actual} bytes, its label says {recorded}; restore it from a backup", path.display())]
    Truncated {
        /// The device.
        path: PathBuf,
        /// Bytes that are there.
        actual: u64,
        /// Bytes that were there.
        recorded: u64,
    },
    /// A device of the pool is not there.
    #[error("{}: device {index} of its pool {pool} ({device}) is missing; put it back at {}, or name its new path too", asked.display(), path.display())]
    Missing {
        /// The device that was opened first.
        asked: PathBuf,
        /// Where it was last seen.
        path: PathBuf,
        /// Its place in the pool.
        index: usize,
        /// Its identity.
        device: Uuid,
        /// The pool.
        pool: Uuid,
    },
    /// Another device of the same pool is where this one should be.
    #[error("{}: holds device {found} of the pool, but device {wanted} (number {index}) belongs there; devices were swapped or replaced: put the right one back, or name its new path too", path.display())]
    Swapped {
        /// Where it was last seen.
        path: PathBuf,
        /// Its place in the pool.
        index: usize,
        /// The device that should be there.
        wanted: Uuid,
        /// The device that is there.
        found: Uuid,
    },
    /// The device is not in the pool's table.
    #[error("{}: carries the label of pool {pool}, but is not among its devices (any more); leave it out", path.display())]
    NotAMember {
        /// The device.
        path: PathBuf,
        /// The pool.
        pool: Uuid,
    },
    /// The device belongs to another pool.
    #[error("{}: belongs to pool {found}, not to {wanted}; open each pool by its own devices, or put the right device back", path.display())]
    Foreign {
        /// The device.
        path: PathBuf,
        /// Its pool.
        found: Uuid,
        /// The pool that is being opened.
        wanted: Uuid,
    },
    /// The device failed while its label was written.
    #[error("{}: failed while its label was written; check the device", .0.display())]
    WriteFailed(PathBuf),
    /// The bitmap of copies has no room for more.
    #[error("a pool with copies has at most {} TiB; use smaller devices", .0 >> 40)]
    TooLargeForCopies(u64),
    /// There are not as many devices as copies.
    #[error(
        "{copies} copies need as many devices, from 2 to {}; the number of those named is {devices}",
        nacre_media::MOST_LEGS
    )]
    NotAsManyDevices {
        /// Copies.
        copies: usize,
        /// Devices.
        devices: usize,
    },
    /// Of a pool with copies no device is there that has everything.
    #[error("{}: no device of its pool that is here has everything; put the others back", .0.display())]
    NoCopyLeft(PathBuf),
    /// Two copies were each used without the other.
    #[error("{} and {} were each used while the other was away, and hold different things now; take the one away that you can do without (it can become a new copy: `nacre device replace`)", .0.display(), .1.display())]
    Diverged(PathBuf, PathBuf),
    /// Devices that each hold a part are not of one moment.
    #[error("{}: is an older copy than the other devices of the pool, and all must be of one moment: put all of them back from one backup (`nacre check --repair` takes them as they are, and repairs what it can)", .0.display())]
    OlderDevice(PathBuf),
    /// What is asked for is for pools with copies, or for those without.
    #[error("{}: {why}", path.display())]
    Copies {
        /// The pool.
        path: PathBuf,
        /// What does not fit.
        why: &'static str,
    },
    /// What is asked for does not go with a disk behind a pool.
    #[error("{}: {why}", path.display())]
    Behind {
        /// The pool, or a device of it.
        path: PathBuf,
        /// What does not fit.
        why: &'static str,
    },
    /// The device cannot be added to a pool behind an image in memory.
    #[error("{}: cannot be added: a pool behind an image in memory (mode cached) takes only files and block devices of the kind of its others; make a larger pool and copy (`nacre cp -r`)", .0.display())]
    Journaled(PathBuf),
    /// The disk or its journal failed.
    #[error("{}: {why}", path.display())]
    Journal {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        why: nacre_cache::JournalError,
    },
    /// The image of the disk cannot be made or used.
    #[error("{}: its image in shared memory cannot be used: {why}", path.display())]
    Image {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The kernel refused something else.
    #[error("{}: cannot {action}: {errno}", path.display())]
    System {
        /// The device.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        errno: rustix::io::Errno,
    },
}
