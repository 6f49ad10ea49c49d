//! Credentials and the POSIX permission rules.

use crate::error::FsError;
use crate::inode::FileType;
use bitflags::bitflags;
use nacre_store::Attrs;
use nacre_store::layout::{FLAG_ACL, FLAG_FROZEN};

/// Set-user-ID bit of a mode.
pub const SET_UID: u32 = 0o4000;
/// Set-group-ID bit of a mode.
pub const SET_GID: u32 = 0o2000;
/// Sticky (restricted deletion) bit of a mode.
pub const STICKY: u32 = 0o1000;
const GROUP_EXEC: u32 = 0o010;
const GROUP_BITS: u32 = 0o070;
const ANY_EXEC: u32 = 0o111;

bitflags! {
    /// The capabilities that file systems look at.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Caps: u64 {
        /// Give files away.
        const CHOWN = 1 << 0;
        /// Bypass read, write and (if any x bit is set) execute checks.
        const DAC_OVERRIDE = 1 << 1;
        /// Bypass read checks and directory search checks.
        const DAC_READ_SEARCH = 1 << 2;
        /// Act as the owner of any file.
        const FOWNER = 1 << 3;
        /// Keep set-user-ID and set-group-ID bits.
        const FSETID = 1 << 4;
        /// Administration: trusted and security attributes.
        const SYS_ADMIN = 1 << 21;
        /// Make device nodes.
        const MKNOD = 1 << 27;
        /// Set `security.capability`.
        const SETFCAP = 1 << 31;
    }
}

impl Caps {
    /// From the kernel's 64-bit effective set (`CapEff`); others are dropped.
    pub fn from_kernel(effective: u64) -> Caps {
        Caps::from_bits_truncate(effective)
    }
}

bitflags! {
    /// What an access check asks for; the bits of `R_OK`, `W_OK`, `X_OK`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        /// Execute a file, search a directory.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

/// The identity on whose behalf an operation runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cred {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities.
    pub caps: Caps,
}

impl Cred {
    /// uid 0 with every capability.
    pub fn root() -> Cred {
        Cred::user(0, 0, Vec::new())
    }

    /// An ordinary user; uid 0 gets every capability.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Cred {
        let caps = if uid == 0 { Caps::all() } else { Caps::empty() };
        Cred {
            uid,
            gid,
            groups,
            caps,
        }
    }

    /// Whether `gid` is the primary or a supplementary group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller has the capability.
    pub fn has(&self, cap: Caps) -> bool {
        self.caps.contains(cap)
    }

    /// Owner of the inode, or as powerful as one.
    pub(crate) fn owns(&self, attrs: &Attrs) -> bool {
        self.uid == attrs.uid || self.has(Caps::FOWNER)
    }
}

/// What decides who may access an inode.
#[derive(Clone, Copy)]
pub(crate) struct Guarded {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `FLAG_*` bits.
    pub(crate) flags: u32,
}

impl Guarded {
    /// Whether a list decides about who does not own it. An empty mask leaves it to the mode, as in
    /// Linux.
    #[inline]
    fn has_list(&self) -> bool {
        self.flags & FLAG_ACL != 0 && self.mode & GROUP_BITS != 0
    }
}

impl From<&Attrs> for Guarded {
    #[inline]
    fn from(attrs: &Attrs) -> Guarded {
        Guarded {
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            flags: attrs.flags,
        }
    }
}

/// Checks owner, list or group and other bits, then the overriding capabilities. Nobody may write
/// to what belongs to a snapshot. `listed` asks the access control list of an inode that has one.
#[inline]
pub(crate) fn check_access(
    cred: &Cred,
    inode: impl Into<Guarded>,
    want: Access,
    listed: impl FnOnce(&Guarded) -> Result<Option<bool>, FsError>,
) -> Result<(), FsError> {
    let inode = inode.into();
    if want.contains(Access::WRITE) && inode.flags & FLAG_FROZEN != 0 {
        return Err(FsError::ReadOnly);
    }
    let granted = if cred.uid == inode.uid {
        inode.mode >> 6
    } else if inode.has_list()
        && let Some(granted) = listed(&inode)?
    {
        if granted { want.bits() } else { 0 }
    } else if inode.mode >> 3 & 7 != inode.mode & 7 && cred.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if want.bits() & !granted & 7 == 0 || overridden(cred, inode.mode, want) {
        return Ok(());
    }
    Err(FsError::PermissionDenied)
}

fn overridden(cred: &Cred, mode: u32, want: Access) -> bool {
    let directory = FileType::from_mode(mode) == Some(FileType::Directory);
    if cred.has(Caps::DAC_OVERRIDE) {
        let runnable = directory || mode & ANY_EXEC != 0;
        return !want.contains(Access::EXEC) || runnable;
    }
    let searchable = if directory {
        Access::READ | Access::EXEC
    } else {
        Access::READ
    };
    cred.has(Caps::DAC_READ_SEARCH) && searchable.contains(want)
}

/// What belongs to a snapshot does not change.
pub(crate) fn check_thawed(attrs: &Attrs) -> Result<(), FsError> {
    match attrs.flags & FLAG_FROZEN {
        0 => Ok(()),
        _ => Err(FsError::ReadOnly),
    }
}

/// The restricted-deletion rule of sticky directories.
pub(crate) fn check_sticky(cred: &Cred, dir: &Attrs, victim: &Attrs) -> Result<(), FsError> {
    let free = dir.mode & STICKY == 0 || cred.uid == victim.uid || cred.uid == dir.uid;
    if free || cred.has(Caps::FOWNER) {
        return Ok(());
    }
    Err(FsError::NotPermitted)
}

/// The set-id bits that a write, truncation or change of owner takes away.
pub(crate) fn set_id_bits_to_drop(cred: &Cred, attrs: &Attrs) -> u32 {
    let mut drop = attrs.mode & SET_UID;
    let outsider = !cred.in_group(attrs.gid) && !cred.has(Caps::FSETID);
    if attrs.mode & SET_GID != 0 && (attrs.mode & GROUP_EXEC != 0 || outsider) {
        drop |= SET_GID;
    }
    drop
}

/// Same for the data of a regular file: `CAP_FSETID` keeps the bits.
pub(crate) fn set_id_bits_dropped_by_write(cred: &Cred, attrs: &Attrs) -> u32 {
    if attrs.mode & (SET_UID | SET_GID) == 0 || cred.has(Caps::FSETID) {
        return 0;
    }
    set_id_bits_to_drop(cred, attrs)
}

/// Group and mode of a new inode below `dir`: set-group-ID directories hand on their group.
pub(crate) fn inherit(cred: &Cred, dir: &Attrs, mode: u32, directory: bool) -> (u32, u32) {
    if dir.mode & SET_GID == 0 {
        return (cred.gid, mode);
    }
    if directory {
        return (dir.gid, mode | SET_GID);
    }
    let runs_as_group = mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
    let trusted = cred.in_group(dir.gid) || cred.has(Caps::FSETID);
    let mode = if runs_as_group && !trusted {
        mode & !SET_GID
    } else {
        mode
    };
    (dir.gid, mode)
}
