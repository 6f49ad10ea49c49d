//! Stubs: where the moved instructions and the displaced `syscall` live.
//!
//! ```text
//!   moved instructions before
//!   (number unknown: cmp rax, CALLS; jae native; lea rcx, [served]; cmp byte [rcx+rax], 0; je native)
//!   (a call on an fd: cmp byte fs:[flags], 0; jne enter; cmp edi, MARKS_LEN; jae enter; mov ecx, edi;
//!    mov r11, [marks]; add rcx, [r11]; cmp byte [rcx], KERNEL_MARK; je native)
//! enter:
//!   lea r11, [native]
//!   jmp [entry]
//! native:
//!   syscall
//!   moved instructions behind
//!   jmp window end
//! ```

use super::entry::SYSCALL_LEN;
use crate::plan::{Fixup, Site};
use crate::table::{self, CALLS, FD_CLASS, FD_NUMBER_CLASS, KERNEL_MARK, MARKS_LEN};

/// Room of one stub in bytes.
pub const SLOT: usize = 128;

/// Where a stub and what it refers to lie.
pub struct Place {
    /// Address of the stub.
    pub at: usize,
    /// Load address of the library.
    pub base: usize,
    /// Address of the table of served calls, CALLS bytes, within reach of the stub.
    pub served: usize,
    /// Address of the pointer to the entry code, within reach of the stub.
    pub entry: usize,
    /// Addresses of the pointers to the marks' addresses, within reach of the stub: for calls on fds, and for those that are to be
    /// seen once numbers are watched.
    pub marks: [usize; 2],
    /// Where a thread's flags are, from the thread pointer.
    pub flags: i32,
}

/// A stub ready to be copied to its place.
pub struct Stub {
    code: [u8; SLOT],
    len: usize,
    /// Offset of its `syscall`.
    pub native: usize,
}

impl Stub {
    /// Assembles the stub of a site. None if it does not fit or something is out of reach.
    pub fn build(site: &Site, place: &Place) -> Option<Stub> {
        let mut stub = Stub {
            code: [0xcc; SLOT],
            len: 0,
            native: 0,
        };
        stub.moved(site, 0, place)?;
        let mut to_native = Vec::with_capacity(2);
        match table::class(site.number) {
            None => to_native.extend(stub.check_number(place)?),
            Some(FD_CLASS) => to_native.push(stub.check_mark(place.marks[0], place)?),
            Some(FD_NUMBER_CLASS) => to_native.push(stub.check_mark(place.marks[1], place)?),
            Some(_) => {}
        }
        let lea = stub.push(&[0x4c, 0x8d, 0x1d, 0, 0, 0, 0])?;
        stub.push(&[0xff, 0x25])?;
        stub.push_relative(place.entry, place)?;
        stub.native = stub.len;
        stub.set_relative(lea + 3, lea + 7, place.at + stub.native, place)?;
        for from in to_native {
            stub.code[from] = u8::try_from(stub.native - (from + 1)).ok()?;
        }
        stub.push(&[0x0f, 0x05])?;
        debug_assert_eq!(stub.len - stub.native, SYSCALL_LEN);
        stub.moved(site, 1, place)?;
        stub.push(&[0xe9])?;
        let end = place.base + site.window as usize + usize::from(site.window_len);
        stub.push_relative(end, place)?;
        Some(stub)
    }

    /// All bytes of the slot.
    pub fn bytes(&self) -> &[u8; SLOT] {
        &self.code
    }

    fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        let at = self.len;
        self.code
            .get_mut(at..at + bytes.len())?
            .copy_from_slice(bytes);
        self.len += bytes.len();
        Some(at)
    }

    fn push_relative(&mut self, target: usize, place: &Place) -> Option<()> {
        let at = self.push(&[0; 4])?;
        self.set_relative(at, at + 4, target, place)
    }

    /// Sets the displacement at offset `at` of an instruction that ends at offset `end`.
    fn set_relative(&mut self, at: usize, end: usize, target: usize, place: &Place) -> Option<()> {
        let distance = (target as i64).wrapping_sub((place.at + end) as i64);
        let distance = i32::try_from(distance).ok()?;
        self.code
            .get_mut(at..at + 4)?
            .copy_from_slice(&distance.to_le_bytes());
        Some(())
    }

    fn moved(&mut self, site: &Site, part: u8, place: &Place) -> Option<()> {
        let (bytes, len): (&[u8], u8) = if part == 0 {
            (&site.before, site.before_len)
        } else {
            (&site.after, site.after_len)
        };
        let start = self.push(bytes.get(..usize::from(len))?)?;
        let mine = |fixup: &&Fixup| fixup.part == part;
        for fixup in site.fixups.iter().filter(mine) {
            let (at, end) = (
                start + usize::from(fixup.at),
                start + usize::from(fixup.end),
            );
            self.set_relative(at, end, place.base + fixup.target as usize, place)?;
        }
        Some(())
    }

    /// Passes what an fd of the kernel's concerns, in a thread of no special state. Offset of the displacement that leads to native.
    fn check_mark(&mut self, marks: usize, place: &Place) -> Option<usize> {
        let [flags, len] = [place.flags, MARKS_LEN as i32].map(i32::to_le_bytes);
        self.push(&[0x64, 0x80, 0x3c, 0x25])?;
        self.push(&flags)?;
        self.push(&[0x00])?;
        let special = self.push(&[0x75, 0])? + 1;
        self.push(&[0x81, 0xff])?;
        self.push(&len)?;
        let high = self.push(&[0x73, 0])? + 1;
        self.push(&[0x89, 0xf9])?;
        self.push(&[0x4c, 0x8b, 0x1d])?;
        self.push_relative(marks, place)?;
        self.push(&[0x49, 0x03, 0x0b])?;
        self.push(&[0x80, 0x39, KERNEL_MARK])?;
        let marked = self.push(&[0x74, 0])? + 1;
        for from in [special, high] {
            self.code[from] = u8::try_from(self.len - (from + 1)).ok()?;
        }
        Some(marked)
    }

    /// Rejects calls that are not served. Offsets of two displacements that lead to native.
    fn check_number(&mut self, place: &Place) -> Option<[usize; 2]> {
        let calls = (CALLS as u32).to_le_bytes();
        self.push(&[0x48, 0x3d, calls[0], calls[1], calls[2], calls[3]])?;
        let above = self.push(&[0x73, 0])? + 1;
        self.push(&[0x48, 0x8d, 0x0d])?;
        self.push_relative(place.served, place)?;
        self.push(&[0x80, 0x3c, 0x01, 0x00])?;
        let unserved = self.push(&[0x74, 0])? + 1;
        Some([above, unserved])
    }
}
