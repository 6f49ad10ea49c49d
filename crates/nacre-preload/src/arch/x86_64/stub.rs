//! Stubs: where the moved instructions and the displaced `syscall` live.
//!
//! ```text
//!   moved instructions before
//!   (number unknown: cmp rax, CALLS; jae native; lea rcx, [served]; cmp byte [rcx+rax], 0;
//!    jne enter)
//!   (a call on an fd: mov r11, [flags]; cmp byte fs:[r11], 0; jne enter; cmp edi, MARKS_LEN;
//!    jae enter; mov ecx, edi; mov r11, [marks]; (seen once numbers are watched: mov r11, [r11];)
//!    test byte [r11+rcx*4], KERNEL_MARK; je enter)
//!   (served in any case: jmp enter)
//! native:
//!   syscall
//!   moved instructions behind
//!   jmp window end
//! enter:
//!   lea r11, [native]
//!   jmp [entry]
//! ```
//!
//! What differs between processes is read from [`Data`], so that all can use the same stubs if
//! these lie at the same distance from the library.
//!
//! What is the kernel's goes straight down: after a return from the kernel branches are foretold
//! badly, and little is in the caches.

use core::mem::offset_of;

use super::entry::SYSCALL_LEN;
use crate::entry::table::{self, CALLS, FD_CLASS, FD_NUMBER_CLASS, KERNEL_MARK, MARKS_LEN};
use crate::rewrite::plan::{Fixup, Site};

/// Room of one stub in bytes.
pub const SLOT: usize = 128;

/// Where a stub and what it refers to lie.
pub struct StubSite {
    /// Address of the stub.
    pub at: usize,
    /// Load address of the library.
    pub base: usize,
    /// Address of the table of served calls, CALLS bytes, within reach of the stub.
    pub served: usize,
    /// Address of [`Data`], within reach of the stub.
    pub data: usize,
}

/// What the stubs of a process need to know of it.
#[repr(C)]
pub struct Data {
    /// Address of the entry code.
    pub entry: usize,
    /// The same, for functions that may keep something in wide registers.
    pub wide_entry: usize,
    /// Address of the marks.
    pub marks: usize,
    /// Address of what leads to the marks, for calls that are to be seen once numbers are watched.
    pub number_marks_at: usize,
    /// Where a thread's flags are, from the thread pointer.
    pub flags: isize,
}

/// Where a stub finds the marks.
enum Marks {
    Given,
    /// By a pointer.
    LedTo,
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
    pub fn build(site: &Site, place: &StubSite) -> Option<Stub> {
        let mut stub = Stub {
            code: [0xcc; SLOT],
            len: 0,
            native: 0,
        };
        stub.moved(site, 0, place)?;
        let mut to_native = None;
        let to_enter = match table::class(site.number) {
            None => {
                let [above, served] = stub.check_number(place)?;
                to_native = Some(above);
                vec![served]
            }
            Some(FD_CLASS) => stub.check_mark(Marks::Given, place)?,
            Some(FD_NUMBER_CLASS) => stub.check_mark(Marks::LedTo, place)?,
            Some(_) => vec![stub.push(&[0xeb, 0])? + 1],
        };
        stub.native = stub.push(&[0x0f, 0x05])?;
        debug_assert_eq!(stub.len - stub.native, SYSCALL_LEN);
        stub.moved(site, 1, place)?;
        stub.push(&[0xe9])?;
        let end = place.base + site.window as usize + usize::from(site.window_len);
        stub.push_relative(end, place)?;
        stub.lead_here(&to_enter)?;
        stub.push(&[0x4c, 0x8d, 0x1d])?;
        stub.push_relative(place.at + stub.native, place)?;
        stub.push(&[0xff, 0x25])?;
        let entry = match site.wide {
            0 => offset_of!(Data, entry),
            _ => offset_of!(Data, wide_entry),
        };
        stub.push_relative(place.data + entry, place)?;
        if let Some(from) = to_native {
            stub.code[from] = u8::try_from(stub.native - (from + 1)).ok()?;
        }
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

    fn push_relative(&mut self, target: usize, place: &StubSite) -> Option<()> {
        let at = self.push(&[0; 4])?;
        self.set_relative(at, at + 4, target, place)
    }

    /// Sets the displacement at offset `at` of an instruction that ends at offset `end`.
    fn set_relative(
        &mut self,
        at: usize,
        end: usize,
        target: usize,
        place: &StubSite,
    ) -> Option<()> {
        let distance = (target as i64).wrapping_sub((place.at + end) as i64);
        let distance = i32::try_from(distance).ok()?;
        self.code
            .get_mut(at..at + 4)?
            .copy_from_slice(&distance.to_le_bytes());
        Some(())
    }

    fn moved(&mut self, site: &Site, part: u8, place: &StubSite) -> Option<()> {
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

    /// Short jumps, whose displacements are at these offsets, lead to the next instruction.
    fn lead_here(&mut self, jumps: &[usize]) -> Option<()> {
        for &from in jumps {
            self.code[from] = i8::try_from(self.len - (from + 1)).ok()? as u8;
        }
        Some(())
    }

    /// Passes what an fd of the kernel's concerns, in a thread of no special state. Offsets of
    /// displacements that lead to enter.
    fn check_mark(&mut self, marks: Marks, place: &StubSite) -> Option<Vec<usize>> {
        self.load_r11(offset_of!(Data, flags), place)?;
        self.push(&[0x64, 0x41, 0x80, 0x3b, 0x00])?;
        let special = self.push(&[0x75, 0])? + 1;
        self.push(&[0x81, 0xff])?;
        self.push(&(MARKS_LEN as i32).to_le_bytes())?;
        let high = self.push(&[0x73, 0])? + 1;
        self.push(&[0x89, 0xf9])?;
        match marks {
            Marks::Given => self.load_r11(offset_of!(Data, marks), place)?,
            Marks::LedTo => {
                self.load_r11(offset_of!(Data, number_marks_at), place)?;
                self.push(&[0x4d, 0x8b, 0x1b])?;
            }
        }
        self.push(&[0x41, 0xf6, 0x04, 0x8b, KERNEL_MARK as u8])?;
        let unmarked = self.push(&[0x74, 0])? + 1;
        Some(vec![special, high, unmarked])
    }

    /// Loads a word of the data into r11.
    fn load_r11(&mut self, word: usize, place: &StubSite) -> Option<()> {
        self.push(&[0x4c, 0x8b, 0x1d])?;
        self.push_relative(place.data + word, place)
    }

    /// Rejects calls that are not served. Offsets of the displacements that lead to native and to
    /// enter.
    fn check_number(&mut self, place: &StubSite) -> Option<[usize; 2]> {
        let calls = (CALLS as u32).to_le_bytes();
        self.push(&[0x48, 0x3d, calls[0], calls[1], calls[2], calls[3]])?;
        let above = self.push(&[0x73, 0])? + 1;
        self.push(&[0x48, 0x8d, 0x0d])?;
        self.push_relative(place.served, place)?;
        self.push(&[0x80, 0x3c, 0x01, 0x00])?;
        let served = self.push(&[0x75, 0])? + 1;
        Some([above, served])
    }
}
