//! Which calls on paths are plainly the host's. After a walk of the kernel over folders of the host
//! the caches and the translation buffers hold little of ours: each cache line and each page that
//! is looked at here costs more than a dozen instructions. So all that decides lies on two lines,
//! with the marks of the lowest fds, and the code in one section.

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use nacre_vfs::PathOwner;

use crate::entry::call::HERE;
use crate::entry::table::{self, Marks};
use crate::runtime::tls::root;

/// A bit for each byte without its highest bit.
type FirstBytes = [AtomicU64; 2];

const fn none() -> FirstBytes {
    [const { AtomicU64::new(0) }; 2]
}

/// What decides.
#[repr(C, align(512))]
pub struct PathFilter {
    slashes: [u8; 16],
    /// With which relative paths begin that are the host's in each folder of the host. None while
    /// nothing is served.
    relative: FirstBytes,
    /// Which follow the slash in absolute paths of the host.
    absolute: FirstBytes,
    /// Which follow the slash in absolute paths that may be a pool's.
    pools: FirstBytes,
    /// Where a thread's state is, from the thread pointer.
    block: AtomicUsize,
    /// True while calls must go through the C library: we are not ready, or threads may be
    /// cancelled, as its functions are where they then end.
    pub refuses: AtomicBool,
    /// The last following `stat` of a path of the host's found no name, and none has found a link
    /// since.
    pub links_are_rare: AtomicBool,
    /// Of fds; those of the lowest lie on the same page.
    pub marks: Marks,
}

const _: () = assert!(offset_of!(PathFilter, marks) <= 128);

pub static PATH_FILTER: PathFilter = PathFilter {
    slashes: [b'/'; 16],
    relative: none(),
    absolute: none(),
    pools: none(),
    block: AtomicUsize::new(0),
    refuses: AtomicBool::new(true),
    links_are_rare: AtomicBool::new(false),
    marks: table::no_marks(),
};

/// Calls are served from now on. `side` tells whose a path is that starts with a byte, in a folder
/// or, if `true`, behind a slash.
pub fn serve(side: impl Fn(u8, bool) -> PathOwner) {
    let state: *const _ = root();
    let block = (state as usize).wrapping_sub(thread_pointer());
    PATH_FILTER.block.store(block, Relaxed);
    for byte in 0..128 {
        let either = |absolute| [side(byte, absolute), side(byte | 128, absolute)];
        let mark = |bytes: &FirstBytes| {
            bytes[usize::from(byte / 64)].fetch_or(1 << (byte % 64), Relaxed);
        };
        if either(false) == [PathOwner::Host; 2] {
            mark(&PATH_FILTER.relative);
        }
        if either(true) == [PathOwner::Host; 2] {
            mark(&PATH_FILTER.absolute);
        }
        if either(true).contains(&PathOwner::Unknown) {
            mark(&PATH_FILTER.pools);
        }
    }
    PATH_FILTER.refuses.store(false, Relaxed);
}

/// Calls must go through the C library from now on.
pub fn stop_serving() {
    PATH_FILTER.refuses.store(true, Relaxed);
    let all = [&PATH_FILTER.relative, &PATH_FILTER.absolute];
    all.into_iter()
        .flatten()
        .for_each(|bits| bits.store(0, Relaxed));
}

fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word there is its own address; no memory is written.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(pure, readonly, nostack)) };
    pointer
}

/// Whether what is looked up without entering Nacre may be asked of this process' state here: calls
/// are served, and neither is this thread inside Nacre nor a child in its parent's memory, whose
/// table is not the parent's.
#[inline(always)]
pub fn serves_here() -> bool {
    let reasons: u32;
    // SAFETY: `block` leads to the flags of this thread, or, as long as calls are refused, to the
    // thread pointer; no memory is written.
    unsafe {
        asm!(
            "mov {reasons:r}, qword ptr [rip + {filter} + {block}]",
            "movzx {reasons:e}, byte ptr fs:[{reasons:r}]",
            "or {reasons:l}, byte ptr [rip + {filter} + {refuses}]",
            reasons = out(reg) reasons,
            filter = sym PATH_FILTER,
            block = const offset_of!(PathFilter, block),
            refuses = const offset_of!(PathFilter, refuses),
            options(readonly, nostack),
        );
    }
    reasons == 0
}

/// What is told of a path.
pub const HOST: u32 = 0;
pub const POOL: u32 = 2;

unsafe extern "C" {
    /// In rdi: a path's address. Out in eax: `HOST` if it is absolute, plainly the host's, and may
    /// be asked for here; `POOL` if it begins like a pool's, if anything; else another number.
    /// Changes r9 to r11, and xmm0 to xmm3.
    fn nacre_filter_path();
    /// As `nacre_filter_path`, of the path in rsi, which starts at the fd in edi: an absolute one
    /// at the current directory, or a relative one in an open folder.
    fn nacre_filter_at();
    /// In rdi: a string's address. Out in eax: `HOST` if it has no slash before a slash or dot.
    /// Changes as `nacre_filter_path`.
    fn nacre_filter_text();
    fn nacre_filter_end();
    fn nacre_filter_no();
}

global_asm!(
    ".pushsection .text.nacre_host, \"ax\", @progbits",
    ".globl nacre_filter_path, nacre_filter_at, nacre_filter_text, nacre_filter_no, nacre_filter_end",
    ".hidden nacre_filter_path, nacre_filter_at, nacre_filter_text, nacre_filter_no, nacre_filter_end",
    ".balign 64",
    "nacre_filter_text:",
    "mov r10, rdi",
    "jmp 7f",
    "8:",
    "cmp edi, {here}",
    "jne nacre_filter_no",
    "mov r10, rsi",
    "jmp 1f",
    "nacre_filter_path:",
    "mov r10, rdi",
    "1:",
    "cmp byte ptr [r10], 0x2f",
    "jne nacre_filter_no",
    "movzx r9d, byte ptr [r10 + 1]",
    "mov eax, r9d",
    "shr eax, 6",
    "and eax, 1",
    "lea r11, [rip + {filter}]",
    "mov r11, qword ptr [r11 + rax * 8 + {pools}]",
    "bt r11, r9",
    "jc 9f",
    "lea r11, [rip + {filter} + {absolute}]",
    "jmp 2f",
    "9:",
    "mov eax, {pool}",
    "ret",
    "nacre_filter_at:",
    "cmp edi, {marks_len}",
    "jae 8b",
    "mov r10d, edi",
    "lea r11, [rip + {filter}]",
    "test byte ptr [r11 + r10 * 4 + {marks}], {kernel_mark}",
    "je nacre_filter_no",
    "movzx r9d, byte ptr [rsi]",
    "mov r10, rsi",
    "mov eax, r9d",
    "shr eax, 6",
    "and eax, 1",
    "lea r11, [rip + {filter} + {relative}]",
    "2:",
    "mov rax, qword ptr [r11 + rax * 8]",
    "bt rax, r9",
    "jnc nacre_filter_no",
    "mov r11, qword ptr [rip + {filter} + {block}]",
    "cmp byte ptr fs:[r11], 0",
    "jne nacre_filter_no",
    "7:",
    "movdqa xmm3, xmmword ptr [rip + {filter} + {slashes}]",
    // Where are NULs and slashes in 32 bytes? The lengths of names differ: the fewer ends, the
    // fewer branches that nobody foresees. The byte behind them is looked at, too.
    "3:",
    "mov r9d, r10d",
    "and r9d, 4095",
    "cmp r9d, 4096 - 33",
    "ja nacre_filter_no",
    "movdqu xmm0, xmmword ptr [r10]",
    "movdqu xmm1, xmmword ptr [r10 + 16]",
    "pxor xmm2, xmm2",
    "pcmpeqb xmm2, xmm0",
    "pmovmskb r11d, xmm2",
    "pxor xmm2, xmm2",
    "pcmpeqb xmm2, xmm1",
    "pmovmskb r9d, xmm2",
    "shl r9d, 16",
    "or r11d, r9d",
    "pcmpeqb xmm0, xmm3",
    "pmovmskb eax, xmm0",
    "pcmpeqb xmm1, xmm3",
    "pmovmskb r9d, xmm1",
    "shl r9d, 16",
    "or eax, r9d",
    // What lies behind the first NUL does not count; without one all of this is ones.
    "lea r9d, [r11 - 1]",
    "xor r9d, r11d",
    "and eax, r9d",
    "jne 5f",
    "6:",
    "test r11d, r11d",
    "jne nacre_filter_end",
    "add r10, 32",
    "jmp 3b",
    // What follows the slashes? The codes of dot and slash differ in the lowest bit.
    "5:",
    "mov r9d, 0x01010101",
    "movd xmm2, r9d",
    "pshufd xmm2, xmm2, 0",
    "movdqu xmm0, xmmword ptr [r10 + 1]",
    "movdqu xmm1, xmmword ptr [r10 + 17]",
    "por xmm0, xmm2",
    "por xmm1, xmm2",
    "pcmpeqb xmm0, xmm3",
    "pcmpeqb xmm1, xmm3",
    "pmovmskb r9d, xmm0",
    "and r9d, eax",
    "jne nacre_filter_no",
    "shr eax, 16",
    "pmovmskb r9d, xmm1",
    "and eax, r9d",
    "je 6b",
    "nacre_filter_no:",
    "mov eax, 1",
    "nacre_filter_end:",
    "ret",
    ".popsection",
    filter = sym PATH_FILTER,
    slashes = const offset_of!(PathFilter, slashes),
    relative = const offset_of!(PathFilter, relative),
    absolute = const offset_of!(PathFilter, absolute),
    pools = const offset_of!(PathFilter, pools),
    pool = const POOL,
    block = const offset_of!(PathFilter, block),
    here = const HERE,
    marks = const offset_of!(PathFilter, marks),
    marks_len = const table::MARKS_LEN,
    kernel_mark = const table::KERNEL_MARK,
);

/// Where to continue if an instruction here at `rip` faults: at "no".
pub fn fault_landing(rip: usize) -> Option<usize> {
    let [start, end, no] = [nacre_filter_text, nacre_filter_end, nacre_filter_no]
        .map(|label| label as *const () as usize);
    (start..end).contains(&rip).then_some(no)
}

macro_rules! filters {
    ($($(#[$about:meta])* $name:ident($($argument:ident in $register:tt),*): $routine:ident;)*) => { $(
        $(#[$about])*
        #[inline(always)]
        pub fn $name($($argument: usize),*) -> u32 {
            let whose: u32;
            // SAFETY: a fault ends with 1. Called like this it leaves the caller's registers alone.
            unsafe {
                asm!(
                    "call {routine}",
                    routine = sym $routine,
                    $(in($register) $argument,)*
                    out("eax") whose,
                    out("r9") _,
                    out("r10") _,
                    out("r11") _,
                    out("xmm0") _,
                    out("xmm1") _,
                    out("xmm2") _,
                    out("xmm3") _,
                );
            }
            whose
        }
    )* };
}

filters! {
    /// `HOST` if the path at an address is absolute, plainly the host's, and may be asked for here;
    /// `POOL` if who serves the path of a pool should look at it; other numbers say nothing.
    whose(path in "rdi"): nacre_filter_path;
    /// As [`whose`], for the arguments of a call that takes an fd where the path starts, or
    /// `AT_FDCWD`.
    whose_at(dir in "rdi", path in "rsi"): nacre_filter_at;
    /// `HOST` if the string at an address has, as a path, no empty component and none that begins
    /// with a dot, except at its start; other numbers say nothing.
    whose_text(path in "rdi"): nacre_filter_text;
}

#[cfg(test)]
mod tests {
    use super::{HOST, whose_text};

    #[repr(align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn tangles_are_seen_wherever_they_are() {
        let mut page = Box::new(Page([b'/'; 4096]));
        for (start, len) in (0..18).flat_map(|start| (2..60).map(move |len| (start, len))) {
            for at in 0..len - 1 {
                for (pair, plain) in [(b"//", false), (b"/.", false), (b"./", true), (b"/a", true)]
                {
                    let text = &mut page.0[start..];
                    text[..len].fill(b'a');
                    text[at..at + 2].copy_from_slice(pair);
                    text[len] = 0;
                    assert_eq!(
                        whose_text(text.as_ptr() as usize) == HOST,
                        plain,
                        "{at} of {len}"
                    );
                    text[len] = b'/';
                }
            }
        }
        page.0.fill(b'a');
        page.0[4095] = 0;
        let is_plain = |at| whose_text(page.0.as_ptr() as usize + at) == HOST;
        assert!(!is_plain(0), "reaches the page's end");
        assert!(!is_plain(4090), "close to the end");
    }
}
