//! Applies a plan: stubs into fresh memory near the library, jumps into its text.
//!
//! Runs before anybody else can execute the library: at start, or while it is being loaded. No page
//! is writable and executable at the same time, so between the two mprotect calls nothing of the
//! library may run: no call into libc, not even memcpy.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::borrow::Cow;

use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use super::entry::{SYSCALL_LEN, nacre_entry};
use super::relocate::JUMP_LEN;
use super::stub::{Data, SLOT, Stub, StubSite};
use super::wide::{self, nacre_entry_wide};
use crate::entry::table::{self, CALLS, CLASSES};
use crate::rewrite::elf::Module;
use crate::rewrite::plan::{PatchPlan, Site};
use crate::runtime::PAGE;
use crate::runtime::tls::root;

/// Bytes of a page.
/// Offset of the first stub in the code, behind the table of served calls.
const STUBS_AT: usize = CALLS.next_multiple_of(SLOT);
const REACH: usize = (1 << 31) - (1 << 20);
/// Distance of the places that are tried.
const STEP: usize = 8 << 20;
/// How far below an essential library the code is, if that is free: then its text and the code are
/// the same bytes in all processes. Only of programs with many libraries others lie there.
const DISTANCE: usize = 256 << 20;
/// Most libraries that are patched.
const AREAS: usize = 256;

/// Where the displaced instructions of one library went.
struct Area {
    base: usize,
    sites: Cow<'static, [Site]>,
    /// Address of the code: the table of served calls and the stubs. The page below it holds
    /// [`Data`].
    code: usize,
    /// Where each stub has its `syscall`.
    natives: Cow<'static, [u8]>,
}

/// The text and the code of a library as they are in every process where the code is at
/// [`DISTANCE`].
pub struct Image {
    /// Where each stub has its `syscall`.
    pub natives: &'static [u8],
    /// Whole pages of code.
    pub code: &'static [u8],
    /// Whole pages of text.
    pub text: &'static [u8],
}

/// An image in a file that nobody can change.
pub struct ImageFile<'f, F> {
    /// The file.
    pub file: &'f F,
    /// Where the code begins, of as many stubs as there are sites. The text follows.
    pub at: u64,
    /// Where each stub has its `syscall`.
    pub natives: &'static [u8],
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
    Kernel(#[from] Errno),
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
        return write_jumps(module, plan, area.code + STUBS_AT);
    }
    if AREA_COUNT.load(Ordering::Relaxed) >= AREAS {
        return Err(PatchError::TooMany);
    }
    if plan.sites.iter().any(|site| site.wide != 0) {
        wide::prepare();
    }
    let len = PAGE + code_len(plan);
    let data = reserve(module, len)?;
    let made = fill(module, plan, data + PAGE).and_then(|natives| {
        // SAFETY: the area was mapped by `reserve` and is used by nobody else.
        unsafe {
            mprotect(
                data as *mut c_void,
                len,
                MprotectFlags::READ | MprotectFlags::EXEC,
            )?
        };
        publish(Area {
            base: module.base,
            sites: plan.sites.clone(),
            code: data + PAGE,
            natives: natives.into(),
        })
    });
    if made.is_err() {
        // SAFETY: nothing leads there.
        let _ = unsafe { munmap(data as *mut c_void, len) };
    }
    made?;
    write_jumps(module, plan, data + PAGE + STUBS_AT)
}

/// A place below a library that is kept free.
pub struct KeptRoom(usize);

/// Most bytes that are kept free below a library.
const PLACE: usize = 256 << 10;

/// Keeps the place free where the code of an essential library is in other processes, too.
pub fn hold(module: &Module) -> Option<KeptRoom> {
    let at = module.base.checked_sub(DISTANCE + PAGE)?;
    let held = reserve_at(at, PLACE, ProtFlags::empty()).ok()?;
    held.map(KeptRoom)
}

impl Drop for KeptRoom {
    fn drop(&mut self) {
        // SAFETY: mapped by `hold`, and used by nobody.
        let _ = unsafe { munmap(self.0 as *mut c_void, PLACE) };
    }
}

/// Bytes of the code of a plan, whole pages.
fn code_len(plan: &PatchPlan) -> usize {
    (STUBS_AT + plan.sites.len() * SLOT).next_multiple_of(PAGE)
}

/// The pages of a library's text: address and length.
fn text_pages(module: &Module) -> (usize, usize) {
    let begin = (module.base + module.text.0) & !(PAGE - 1);
    let end = (module.base + module.text.0 + module.text.1).next_multiple_of(PAGE);
    (begin, end - begin)
}

/// Patches as [`apply`] does, by pages that were patched before. `None`: nothing is done, as the
/// image does not fit here.
pub fn apply_image<F: AsFd>(
    module: &Module,
    plan: &PatchPlan,
    image: &ImageFile<'_, F>,
) -> Option<()> {
    let free = AREA_COUNT.load(Ordering::Relaxed) < AREAS;
    (free && image.natives.len() == plan.sites.len()).then_some(())?;
    let code = module.base.checked_sub(DISTANCE)?;
    let len = code_len(plan);
    map_data(code - PAGE)?;
    let code_flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    if map_code(image, image.at, (code, len), code_flags).is_none() {
        // SAFETY: mapped a moment ago and used by nobody.
        let _ = unsafe { munmap((code - PAGE) as *mut c_void, PAGE) };
        return None;
    }
    let area = Area {
        base: module.base,
        sites: plan.sites.clone(),
        code,
        natives: image.natives.into(),
    };
    publish(area).ok()?;
    let text_flags = MapFlags::PRIVATE | MapFlags::FIXED;
    map_code(image, image.at + len as u64, text_pages(module), text_flags)
}

/// Replaces what [`apply`] has changed by the same bytes of an image: nothing of it has to be
/// copied when the process forks.
pub fn adopt_image<F: AsFd>(module: &Module, plan: &PatchPlan, file: &F, at: u64) {
    let image = ImageFile {
        file,
        at,
        natives: &[],
    };
    let len = code_len(plan);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    let code = (module.base - DISTANCE, len);
    if map_code(&image, at, code, flags).is_some() {
        let _ = map_code(&image, at + len as u64, text_pages(module), flags);
    }
}

/// Maps the page of data, filled.
fn map_data(at: usize) -> Option<()> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without MAP_FIXED nothing is replaced; an old kernel may choose another place, which
    // is given back. The page is this function's alone until it returns.
    unsafe {
        let data = mmap_anonymous(at as *mut c_void, PAGE, rights, flags).ok()?;
        if data as usize != at {
            let _ = munmap(data, PAGE);
            return None;
        }
        data.cast::<Data>().write(Data::here());
        mprotect(data, PAGE, MprotectFlags::READ).ok()
    }
}

/// Maps pages of an image, to be executed.
fn map_code<F: AsFd>(
    image: &ImageFile<'_, F>,
    offset: u64,
    (at, len): (usize, usize),
    flags: MapFlags,
) -> Option<()> {
    let rights = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: either nothing is replaced, or the text of a library by the same text with jumps into
    // the code that is mapped before. Nobody else runs yet, and this thread runs only code of this
    // crate.
    let found = unsafe { mmap(at as *mut c_void, len, rights, flags, image.file, offset) };
    let found = found.ok()? as usize;
    if found != at {
        // SAFETY: mapped a moment ago, as an old kernel takes the place as a hint.
        let _ = unsafe { munmap(found as *mut c_void, len) };
    }
    (found == at).then_some(())
}

/// What other processes can map of a library that this one has patched; `None` if they cannot, as
/// the code is not where it would be in them.
pub fn image_of(module: &Module, plan: &PatchPlan) -> Option<Image> {
    let area = areas().find(|area| area.base == module.base)?;
    let there = area.code + DISTANCE == module.base && area.natives.len() == plan.sites.len();
    there.then_some(())?;
    // SAFETY: both are mapped and readable for good, and nobody changes them any more.
    let pages =
        |(at, len): (usize, usize)| unsafe { core::slice::from_raw_parts(at as *const u8, len) };
    let natives = match &area.natives {
        Cow::Borrowed(natives) => natives,
        Cow::Owned(natives) => natives.as_slice(),
    };
    Some(Image {
        natives,
        code: pages((area.code, code_len(plan))),
        text: pages(text_pages(module)),
    })
}

/// Bytes of an image in a file.
pub fn image_len(module: &Module, plan: &PatchPlan) -> usize {
    code_len(plan) + text_pages(module).1
}

/// Whether all of a library's text is still that of its file: no debugger has put anything there.
pub fn is_unchanged(module: &Module) -> bool {
    const FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;
    const WORD: usize = size_of::<u64>();
    let (at, len) = text_pages(module);
    let mut words = vec![0u8; len / PAGE * WORD];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/self/pagemap", flags, Mode::empty());
    let read = file.and_then(|file| pread(file, &mut words, (at / PAGE * WORD) as u64));
    let is_of_file = |word: &[u8]| {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        word & SWAPPED == 0 && (word & PRESENT == 0 || word & FILE != 0)
    };
    read == Ok(words.len()) && words.chunks_exact(WORD).all(is_of_file)
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
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    if module.essential
        && let Some(at) = reserve_at(module.base.wrapping_sub(DISTANCE + PAGE), len, rights)?
    {
        return Ok(at);
    }
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

/// Maps `len` bytes at a place that other processes would use, too, if it is free.
fn reserve_at(at: usize, len: usize, rights: ProtFlags) -> Result<Option<usize>, PatchError> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: nothing is replaced.
    let found = match unsafe { mmap_anonymous(at as *mut c_void, len, rights, flags) } {
        Err(Errno::EXIST) => return Ok(None),
        found => found? as usize,
    };
    if found != at {
        // SAFETY: mapped a moment ago, as an old kernel takes the place as a hint.
        unsafe { munmap(found as *mut c_void, len)? };
    }
    Ok((found == at).then_some(at))
}

impl Data {
    /// Of this process.
    fn here() -> Data {
        Data {
            entry: nacre_entry as *const () as usize,
            wide_entry: nacre_entry_wide as *const () as usize,
            marks: table::MARKS_AT.as_ptr() as usize,
            number_marks_at: &raw const table::NUMBER_MARKS_AT as usize,
            flags: root().offset() as isize,
        }
    }
}

/// Fills the page of data below `code` and the code. Where each stub has its `syscall`.
fn fill(module: &Module, plan: &PatchPlan, code: usize) -> Result<Vec<u8>, PatchError> {
    let data = code - PAGE;
    let len = STUBS_AT + plan.sites.len() * SLOT;
    // SAFETY: `reserve` mapped these bytes readable and writable; nobody else knows them.
    let bytes = unsafe {
        (data as *mut Data).write(Data::here());
        core::slice::from_raw_parts_mut(code as *mut u8, len)
    };
    bytes[..CALLS].copy_from_slice(&CLASSES);
    let mut natives = Vec::with_capacity(plan.sites.len());
    for (i, site) in plan.sites.iter().enumerate() {
        let at = STUBS_AT + i * SLOT;
        let place = StubSite {
            at: code + at,
            base: module.base,
            served: code,
            data,
        };
        let stub = Stub::build(site, &place).ok_or(PatchError::OutOfReach)?;
        bytes[at..at + SLOT].copy_from_slice(stub.bytes());
        natives.push(stub.native as u8);
    }
    Ok(natives)
}

fn publish(area: Area) -> Result<(), PatchError> {
    let i = AREA_COUNT.fetch_add(1, Ordering::Relaxed);
    let free = AREA.get(i).ok_or(PatchError::TooMany)?;
    free.store(Box::into_raw(Box::new(area)), Ordering::Release);
    Ok(())
}

fn write_jumps(module: &Module, plan: &PatchPlan, first_stub: usize) -> Result<(), PatchError> {
    let (begin, len) = text_pages(module);
    let text = begin as *mut c_void;
    // SAFETY: the range is the library's text; nobody else runs it yet (at start there is one
    // thread, and what is being loaded is known to nobody), and until the second mprotect this
    // thread runs only code of this crate that calls nothing in it.
    unsafe { mprotect(text, len, MprotectFlags::READ | MprotectFlags::WRITE)? };
    for (i, site) in plan.sites.iter().enumerate() {
        let at = module.base + site.window as usize;
        // SAFETY: `fits` checked that the window lies in the text, which is writable now.
        unsafe { write_jump(at, first_stub + i * SLOT, usize::from(site.window_len)) };
    }
    // SAFETY: the same pages get back the rights that they had; the windows in them are whole.
    unsafe { mprotect(text, len, MprotectFlags::READ | MprotectFlags::EXEC)? };
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
        let Some(offset) = address.checked_sub(area.code + STUBS_AT) else {
            continue;
        };
        if let Some(site) = area.sites.get(offset / SLOT) {
            return Some(area.origin(site, offset));
        }
    }
    None
}

impl Area {
    /// Of an offset from the first stub, which is in the stub of a site.
    fn origin(&self, site: &Site, offset: usize) -> usize {
        let window = self.base + site.window as usize;
        let syscall = window + usize::from(site.syscall_at);
        let native = self
            .natives
            .get(offset / SLOT)
            .map_or(0, |&at| usize::from(at));
        match (offset % SLOT).checked_sub(native) {
            None => window,
            Some(0) => syscall,
            Some(_) => syscall + SYSCALL_LEN,
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
    fn wide_registers_are_as_they_were_behind_a_call() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        // vpcmpeqd xmm0, xmm0, xmm0; vinsertf128 ymm7, ymm0, xmm0, 1; mov eax, 39 (getpid);
        // syscall; vextractf128 xmm0, ymm7, 1; vmovq rcx, xmm0; add rax, rcx; vzeroupper; ret
        let code = [
            &[0xc5, 0xf9, 0x76, 0xc0][..],
            &[0xc4, 0xe3, 0x7d, 0x18, 0xf8, 1],
            &[0xb8, 39, 0, 0, 0, 0x0f, 0x05],
            &[0xc4, 0xe3, 0x7d, 0x19, 0xf8, 1],
            &[
                0xc4, 0xe1, 0xf9, 0x7e, 0xc1, 0x48, 0x01, 0xc8, 0xc5, 0xf8, 0x77, 0xc3,
            ],
        ];
        let module = Module::of_code(&code.concat());
        let plan = plan(&module, |_| true);
        assert_eq!(plan.sites[0].wide, 1);
        apply(&module, &plan).unwrap();
        assert_eq!(run(&module), i64::from(std::process::id()) - 1);
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
