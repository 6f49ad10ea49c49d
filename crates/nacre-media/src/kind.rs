//! What devices there are and what each survives.

use std::fmt;

/// How a device is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads only; a store is a bug of the caller and panics.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// What a device is, found out when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// A device-DAX character device (`/dev/daxX.Y`).
    DevDax,
    /// A file on a DAX file system, mapped with `MAP_SYNC`.
    DaxFile,
    /// A file in memory: tmpfs, ramfs, memfd.
    MemoryFile,
    /// A file on hugetlbfs.
    HugePageFile,
    /// A file on any other file system, mapped through its page cache.
    CachedFile,
    /// A disk behind an image in memory, which receives consistent versions of it.
    Disk,
    /// Anonymous shared memory, for tests.
    Anonymous,
}

/// How stored lines are made durable, chosen once when the device is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushMethod {
    /// Nothing to do: the device's memory, or the processor's caches too, are as durable as the
    /// device gets.
    None,
    /// `clwb` by line.
    Clwb,
    /// `clflushopt` by line.
    ClflushOpt,
    /// `clflush` by line.
    Clflush,
    /// `msync`, at the fence.
    Msync,
    /// Nothing by line: what is stored is noted, and a commit gives it to the disk.
    Commit,
}

/// Which failures fenced stores survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Survives {
    /// The death of the processes that use the device.
    pub process_death: bool,
    /// A crash or restart of the operating system.
    pub kernel_crash: bool,
    /// Loss of power.
    pub power_loss: bool,
}

impl Survives {
    /// What both survive.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            process_death: self.process_death && other.process_death,
            kernel_crash: self.kernel_crash && other.kernel_crash,
            power_loss: self.power_loss && other.power_loss,
        }
    }
}

impl DeviceKind {
    /// Which failures fenced stores to a device of this kind survive.
    pub const fn survives(self) -> Survives {
        let (process_death, others) = match self {
            Self::DevDax | Self::DaxFile | Self::CachedFile | Self::Disk => (true, true),
            Self::MemoryFile | Self::HugePageFile => (true, false),
            Self::Anonymous => (false, false),
        };
        Survives {
            process_death,
            kernel_crash: others,
            power_loss: others,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DevDax => "device DAX",
            Self::DaxFile => "file on a DAX file system",
            Self::MemoryFile => "file in memory",
            Self::HugePageFile => "file in huge pages",
            Self::CachedFile => "file through the page cache",
            Self::Disk => "disk behind a cache in memory",
            Self::Anonymous => "anonymous memory",
        })
    }
}

impl fmt::Display for FlushMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::Msync => "msync",
            Self::Commit => "commit",
        })
    }
}
