//! Applies a plan: stubs into fresh memory near the library, jumps into its text.
//!
//! Runs before anybody else can execute the library: at start, or while it is being loaded. No page
//! is writable and executable at the same time, so between the two mprotect calls nothing of the
//! library may run: no call into libc, not even memcpy.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::borrow::Cow;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::entry::{SYSCALL_LEN, nacre_entry};
use super::relocate::JUMP_LEN;
use super::stub::{SLOT, Stub, StubSite};
use crate::entry::table::{self, CALLS, CLASSES};
use crate::rewrite::elf::Module;
use crate::rewrite::plan::{PatchPlan, Site};
use crate::runtime::tls::root;

const PAGE: usize = 4096;
/// Offset of the pointer to the entry code in the area, behind the table of served calls.
const ENTRY_AT: usize = CALLS;
const WORD: usize = size_of::<usize>();
/// Offset of the first stub.
const STUBS_AT: usize = (ENTRY_AT + WORD).next_multiple_of(SLOT);
const REACH: usize = (1 << 31) - (1 << 20);
/// Distance of the places that are tried.
const STEP: usize = 8 << 20;
/// Most libraries that are patched.
const AREAS: usize = 256;

/// Where the displaced instructions of one library went.
struct Area {
    base: usize,
    sites: Cow<'static, [Site]>,
    first: usize,
    slots: Vec<Slot>,
}

/// What a stub stands for.
struct Slot {
    native: u8,
    window: usize,
    syscall: usize,
}

static AREA: [AtomicPtr<Area>; AREAS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; AREAS];
static AREA_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Why a library could not be patched.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The library's bytes are not those that were planned for.
    #[error("the plan does not fit the library")]
    WrongPlan,
    /// No memory within 2 GiB of the library.
    #[error("no free address range within reach of the library")]
    OutOfReach,
    /// Nothing was found to be patched where there must be something.
    #[error("none of its calls can be moved")]
    NoCalls,
    /// More libraries than areas.
    #[error("more than {AREAS} libraries make calls of their own")]
    TooMany,
    /// The kernel refused.
    #[error("the kernel refuses to change page protection: {0}")]
    Kernel(#[from] rustix::io::Errno),
}

/// Patches every site of the plan.
pub fn apply(module: &Module, plan: &PatchPlan) -> Result<(), PatchError> {
    if !plan.sites.iter().all(|site| fits(module, site)) {
        return Err(PatchError::WrongPlan);
    }
    if plan.sites.is_empty() {
        return Ok(());
    }
    // A library that is loaded again is mapped to the same place, if that is free.
    let same = |area: &&Area| area.base == module.base && area.sites == plan.sites;
    if let Some(area) = areas().find(same) {
        return write_jumps(module, plan, area.first);
    }
    if AREA_COUNT.load(Ordering::Relaxed) >= AREAS {
        return Err(PatchError::TooMany);
    }
    let len = (STUBS_AT + plan.sites.len() * SLOT).next_multiple_of(PAGE);
    let area = reserve(module, len)?;
    let made = fill(module, plan, area).and_then(|slots| {
        // SAFETY: the area was mapped by `reserve` and is used by nobody else.
        unsafe {
            mprotect(
                area as *mut c_void,
                len,
                MprotectFlags::READ | MprotectFlags::EXEC,
            )?
        };
        publish(Area {
            base: module.base,
            sites: plan.sites.clone(),
            first: area + STUBS_AT,
            slots,
        })
    });
    if made.is_err() {
        // SAFETY: nothing leads there.
        let _ = unsafe { munmap(area as *mut c_void, len) };
    }
    made?;
    write_jumps(module, plan, area + STUBS_AT)
}

fn areas() -> impl Iterator<Item = &'static Area> {
    let all = AREA.iter().take(AREA_COUNT.load(Ordering::Acquire));
    // SAFETY: null, or an area that is never freed.
    all.filter_map(|area| unsafe { area.load(Ordering::Acquire).as_ref() })
}

/// Whether the library holds exactly the planned bytes, and the site is sane.
fn fits(module: &Module, site: &Site) -> bool {
    let len = usize::from(site.window_len);
    let at = usize::from(site.syscall_at);
    let window = site.window as usize;
    let (text, size) = module.text;
    (JUMP_LEN..=site.original.len()).contains(&len)
        && window >= text
        && window + len <= text + size
        && site.original.get(at..at + SYSCALL_LEN) == Some(&[0x0f, 0x05])
        && at + SYSCALL_LEN <= len
        && module.bytes(window, len) == site.original.get(..len)
}

/// Maps `len` bytes near the module: where the kernel likes, or else anywhere in reach.
fn reserve(module: &Module, len: usize) -> Result<usize, PatchError> {
    let text = module.base + module.text.0;
    // Below, and else as far above as can be, where the program's heap ends last.
    let steps = || (1..REACH / STEP).map(|i| i * STEP);
    let below = steps().map_while(|step| text.checked_sub(step));
    let above = steps().rev().map(|step| text + step);
    for hint in core::iter::once(0).chain(below).chain(above) {
        let hint = hint & !(PAGE - 1);
        // SAFETY: without MAP_FIXED the kernel picks free addresses.
        let at = unsafe {
            mmap_anonymous(
                hint as *mut c_void,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        } as usize;
        if at.abs_diff(text) < REACH && (at + len).abs_diff(text + module.text.1) < REACH {
            return Ok(at);
        }
        // SAFETY: mapped a moment ago and used by nobody.
        unsafe { munmap(at as *mut c_void, len)? };
    }
    Err(PatchError::OutOfReach)
}

fn fill(module: &Module, plan: &PatchPlan, area: usize) -> Result<Vec<Slot>, PatchError> {
    let len = STUBS_AT + plan.sites.len() * SLOT;
    // SAFETY: `reserve` mapped these bytes readable and writable; nobody else knows them.
    let bytes = unsafe { core::slice::from_raw_parts_mut(area as *mut u8, len) };
    bytes[..CALLS].copy_from_slice(&CLASSES);
    let entry = nacre_entry as *const () as usize;
    bytes[ENTRY_AT..ENTRY_AT + WORD].copy_from_slice(&entry.to_le_bytes());
    let flags = i32::try_from(root().offset() as isize).map_err(|_| PatchError::OutOfReach)?;
    let mut slots = Vec::with_capacity(plan.sites.len());
    for (i, site) in plan.sites.iter().enumerate() {
        let at = STUBS_AT + i * SLOT;
        let place = StubSite {
            at: area + at,
            base: module.base,
            served: area,
            entry: area + ENTRY_AT,
            marks: table::MARKS_AT.as_ptr() as usize,
            number_marks_at: &raw const table::NUMBER_MARKS_AT as usize,
            flags,
        };
        let stub = Stub::build(site, &place).ok_or(PatchError::OutOfReach)?;
        bytes[at..at + SLOT].copy_from_slice(stub.bytes());
        let window = module.base + site.window as usize;
        let syscall = window + usize::from(site.syscall_at);
        slots.push(Slot {
            native: stub.native as u8,
            window,
            syscall,
        });
    }
    Ok(slots)
}

fn publish(area: Area) -> Result<(), PatchError> {
    let i = AREA_COUNT.fetch_add(1, Ordering::Relaxed);
    let free = AREA.get(i).ok_or(PatchError::TooMany)?;
    free.store(Box::into_raw(Box::new(area)), Ordering::Release);
    Ok(())
}

fn write_jumps(module: &Module, plan: &PatchPlan, first_stub: usize) -> Result<(), PatchError> {
    let begin = (module.base + module.text.0) & !(PAGE - 1);
    let end = (module.base + module.text.0 + module.text.1).next_multiple_of(PAGE);
    let text = begin as *mut c_void;
    // SAFETY: the range is the library's text; nobody else runs it yet (at start there is one
    // thread, and what is being loaded is known to nobody), and until the second mprotect this
    // thread runs only code of this crate that calls nothing in it.
    unsafe {
        mprotect(
            text,
            end - begin,
            MprotectFlags::READ | MprotectFlags::WRITE,
        )?
    };
    for (i, site) in plan.sites.iter().enumerate() {
        let at = module.base + site.window as usize;
        // SAFETY: `fits` checked that the window lies in the text, which is writable now.
        unsafe { write_jump(at, first_stub + i * SLOT, usize::from(site.window_len)) };
    }
    // SAFETY: the same pages get back the rights that they had; the windows in them are whole.
    unsafe { mprotect(text, end - begin, MprotectFlags::READ | MprotectFlags::EXEC)? };
    Ok(())
}

/// Writes `jmp to` at `at` and traps into the rest of the window.
///
/// # Safety
/// `len` >= 5 bytes at `at` are writable and executed by nobody; `to` is within reach.
unsafe fn write_jump(at: usize, to: usize, len: usize) {
    let distance = to.wrapping_sub(at + JUMP_LEN) as u32;
    for i in 0..len {
        let byte = match i {
            0 => 0xe9,
            1..=4 => (distance >> (8 * (i - 1))) as u8,
            _ => 0xcc,
        };
        // SAFETY: i < len. Volatile, so that no call to memcpy or memset of libc is made of it.
        unsafe { ((at + i) as *mut u8).write_volatile(byte) };
    }
}

/// The address in the library's own text that an address in a stub stands for.
pub fn origin(address: usize) -> Option<usize> {
    for area in areas() {
        let Some(offset) = address.checked_sub(area.first) else {
            continue;
        };
        if let Some(slot) = area.slots.get(offset / SLOT) {
            return Some(slot.origin(offset % SLOT));
        }
    }
    None
}

impl Slot {
    fn origin(&self, offset: usize) -> usize {
        match offset.checked_sub(usize::from(self.native)) {
            None => self.window,
            Some(0) => self.syscall,
            Some(_) => self.syscall + SYSCALL_LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PatchError, apply, origin};
    use crate::arch::x86_64::relocate::plan;
    use crate::rewrite::elf::Module;

    fn run(module: &Module) -> i64 {
        // SAFETY: the code below is a function without arguments, executable after `apply`.
        let function: extern "C" fn() -> i64 = unsafe { core::mem::transmute(module.base) };
        function()
    }

    #[test]
    fn a_patched_call_does_what_it_did() {
        // mov eax, 39 (getpid); syscall; neg rax; ret
        let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let module = Module::of_code(&code);
        let plan = plan(&module, |_| true);
        assert_eq!(plan.sites.len(), 1);
        apply(&module, &plan).unwrap();
        assert_eq!(
            module.bytes(5, 1),
            Some(&[0xe9][..]),
            "the call is a jump now"
        );
        assert_eq!(run(&module), -i64::from(std::process::id()));
    }

    #[test]
    fn a_number_that_is_not_served_passes_the_check_in_the_stub() {
        // push 39; pop rax; syscall; neg rax; ret: the planner does not follow the stack
        let code = [0x6a, 39, 0x58, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let module = Module::of_code(&code);
        let plan = plan(&module, |_| true);
        assert_eq!(plan.sites[0].number, -1);
        apply(&module, &plan).unwrap();
        assert_eq!(run(&module), -i64::from(std::process::id()));
    }

    #[test]
    fn a_plan_for_other_bytes_is_not_applied() {
        let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let plan = plan(&Module::of_code(&code), |_| true);
        let mut other = code;
        other[9] = 0xd3;
        let module = Module::of_code(&other);
        assert!(matches!(apply(&module, &plan), Err(PatchError::WrongPlan)));
        assert_eq!(module.bytes(0, other.len()), Some(&other[..]));
    }

    #[test]
    fn an_address_in_a_stub_stands_for_one_in_the_library() {
        let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let module = Module::of_code(&code);
        apply(&module, &plan(&module, |_| true)).unwrap();
        let jump = module.i32_at(6).unwrap();
        let stub = (module.base + 10).wrapping_add_signed(jump as isize);
        assert_eq!(origin(stub), Some(module.base + 5));
        assert_eq!(origin(module.base), None);
    }
}
