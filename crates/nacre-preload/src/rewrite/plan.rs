//! The patch plan of a library: where to patch and what the stubs hold. Position independent, so
//! that it can be kept in a file and applied by every process.

use std::borrow::Cow;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes that one window replaces.
pub const WINDOW_MAX: usize = 24;
/// Most bytes of moved instructions in front of the `syscall`.
pub const BEFORE_MAX: usize = 24;
/// Most bytes of moved instructions behind the `syscall`.
pub const AFTER_MAX: usize = 40;

/// A 32-bit displacement inside moved code that depends on where the stub lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fixup {
    /// Offset of the displacement in `before` or `after`.
    pub at: u8,
    /// Offset of the end of its instruction.
    pub end: u8,
    /// 0: in `before`; 1: in `after`; 2: unused entry.
    pub part: u8,
    pub(crate) padding: u8,
    /// What it points to, as vaddr.
    pub target: u32,
}

/// An unused entry of [`Site::fixups`].
pub const NO_FIXUP: Fixup = Fixup {
    at: 0,
    end: 0,
    part: 2,
    padding: 0,
    target: 0,
};

/// One `syscall` instruction and its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Site {
    /// vaddr of the window's first byte.
    pub window: u32,
    /// Call number, or -1 when it is not known before run time.
    pub number: i32,
    /// Length of the window in bytes, 5..=WINDOW_MAX.
    pub window_len: u8,
    /// Offset of the `syscall` in the window.
    pub syscall_at: u8,
    /// Used bytes of `before`.
    pub before_len: u8,
    /// Used bytes of `after`.
    pub after_len: u8,
    /// 1 where something may be kept in registers wider than those that the entry code keeps.
    pub wide: u8,
    pub(crate) padding: [u8; 3],
    /// The window's bytes as they must be found.
    pub original: [u8; WINDOW_MAX],
    /// Moved instructions in front of the `syscall`.
    pub before: [u8; BEFORE_MAX],
    /// Moved instructions behind it.
    pub after: [u8; AFTER_MAX],
    /// Position-dependent displacements of the moved instructions.
    pub fixups: [Fixup; 3],
}

const _: () = assert!(size_of::<Site>() == 128);

/// What is kept of a site: where it is. Everything else comes from the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hint {
    /// As [`Site::window`].
    pub window: u32,
    /// As [`Site::number`].
    pub number: i32,
    /// As [`Site::window_len`].
    pub window_len: u8,
    /// As [`Site::syscall_at`].
    pub syscall_at: u8,
    /// As [`Site::wide`].
    pub wide: u8,
    pub(crate) padding: u8,
}

impl Hint {
    /// Where a site is.
    pub fn of(site: &Site) -> Hint {
        Hint {
            window: site.window,
            number: site.number,
            window_len: site.window_len,
            syscall_at: site.syscall_at,
            wide: site.wide,
            padding: 0,
        }
    }

    /// vaddr of the `syscall`.
    pub fn syscall(&self) -> u64 {
        u64::from(self.window) + u64::from(self.syscall_at)
    }
}

/// Why a `syscall` instruction stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No five bytes around it can be moved.
    NoWindow,
    /// The flags may be read behind it.
    FlagsLive,
    /// The function jumps to places that the planner cannot list.
    UnknownJumps,
    /// Nothing shows that it is code.
    Unreached,
}

/// A `syscall` instruction that stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// vaddr of the instruction.
    pub at: u32,
    /// Call number if known.
    pub number: i32,
    /// Why.
    pub why: Refusal,
}

/// Everything to be done to one library.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PatchPlan {
    /// Sites to patch, ascending.
    pub sites: Cow<'static, [Site]>,
    /// Sites of served calls that are left alone.
    pub refused: Vec<Refused>,
}
