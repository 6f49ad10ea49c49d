//! The hottest calls as symbols of the C library's names, which programs bind to before the
//! library's own.
//!
//! They save the library's code, the stub and the registers that a function call need not keep.
//! Whatever is out of the ordinary goes to the C library's function, and so to the stub: programs
//! that cancel threads, fds that are not ours, threads without a stack of ours, errors of
//! arguments.

use core::arch::{asm, global_asm, naked_asm};
use core::ffi::CStr;
use core::mem::offset_of;

use super::entry::{Frame, LastSteps};
use super::path_filter::{self, PATH_FILTER, PathFilter};
use crate::entry::call::HERE;
use crate::entry::symbols;
use crate::entry::symbols::{MISSING, Named, OfHost};
use crate::entry::table;
use crate::runtime::kernel;
use crate::runtime::tls::{IN_NACRE, Thread};

unsafe extern "C" {
    fn nacre_symbol_leave();
    fn nacre_symbol_left();
    fn nacre_symbol_left_end();
}

/// The last steps of a call that came through a symbol.
pub fn last_steps() -> LastSteps {
    [nacre_symbol_leave, nacre_symbol_left, nacre_symbol_left_end]
}

/// Leads into Nacre, to whoever serves a call there, or to the C library's function, with the
/// arguments of the program's call: the body of a naked function.
macro_rules! lead {
    ($number:ident, $fast:ident, $way:literal) => {
        naked_asm!(
            "mov r10, rcx",
            "mov eax, {number}",
            "lea r11, [rip + {fast}]",
            concat!("jmp ", $way),
            number = const libc::$number,
            fast = sym symbols::$fast,
        )
    };
}

/// Exports the C library's functions of these names for calls that are served by number alone.
macro_rules! plain {
    ($($call:ident { number: $number:ident, symbols: [$($name:ident),*], way: $way:literal, fast: $fast:ident })*) => { $( $(
        /// The C library's function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        // SAFETY: called as the C library's function is; everything is handed on untouched.
        unsafe extern "C" fn $name() {
            lead!($number, $fast, $way)
        }
    )* )* };
}

/// Exports the C library's functions of these names for calls that `$outside` may serve without
/// entering Nacre.
macro_rules! outside {
    ($($call:ident { number: $number:ident, symbols: [$($name:ident),*], way: $way:literal, fast: $fast:ident, outside: $outside:ident })*) => { $(
        mod $call {
            use core::arch::naked_asm;

            use super::symbols;

            extern "C-unwind" fn anywhere(fd: i32, start: usize, len: usize, offset: i64) -> isize {
                match symbols::$outside(fd, start, len, offset) {
                    Some(done) => done as isize,
                    // SAFETY: the program's call, as it was made.
                    None => unsafe { inside(fd, start, len, offset) },
                }
            }

            // SAFETY: as the symbols.
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn inside(fd: i32, start: usize, len: usize, offset: i64) -> isize {
                lead!($number, $fast, $way)
            }

            $(
                /// The C library's function of this name.
                // SAFETY: called as that is, and everything is handed on untouched.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                unsafe extern "C-unwind" fn $name() {
                    naked_asm!("jmp {anywhere}", anywhere = sym anywhere)
                }
            )*
        }
    )* };
}

/// Exports the C library's functions of these names for calls on a path.
macro_rules! paths {
    ($($call:ident { number: $number:ident, symbols: [$($name:ident),*], way: $way:literal, fast: $fast:ident, named: $named:ident, whose: $whose:ident, of_host: $kind:ident, missing: $missing:ident })*) => { $(
        mod $call {
            use core::arch::naked_asm;

            use super::{kernel, led_on, path_filter, symbols};
            use crate::entry::symbols::OfHost;

            // SAFETY: called as the C library's functions are.
            #[inline(always)]
            pub(super) unsafe fn anywhere([a, b, c, d, e]: [usize; 5]) -> isize {
                let named = super::$named([a, b, c, d]);
                match super::$whose([a, b]) {
                    path_filter::HOST if symbols::$kind::is_served_directly(&named) => {}
                    // SAFETY: the program's call, as it was made.
                    path_filter::POOL => return unsafe { inside(a, b, c, d, e) },
                    // SAFETY: the arguments are the program's, untouched.
                    _ => return unsafe { otherwise(a, b, c, d, e) },
                }
                // SAFETY: the kernel checks what the program's arguments point to.
                let answer = unsafe { kernel::syscall(libc::$number as usize, [a, b, c, d, e, 0]) };
                if answer < 0 {
                    // SAFETY: the arguments are the program's; `answer` is the kernel's.
                    return unsafe { refused(a, b, c, d, e, answer) };
                }
                if symbols::$kind::may_be_shown(libc::$number, [a, b, c, d, e]) {
                    // SAFETY: the program's call, as it was made.
                    return unsafe { inside(a, b, c, d, e) };
                }
                symbols::$kind::is_done(answer);
                answer
            }

            // SAFETY: called with the arguments of the C library's function.
            #[inline(never)]
            unsafe extern "C-unwind" fn otherwise(a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
                let mut named = super::$named([a, b, c, d]);
                match symbols::$kind::ask(&mut named, libc::$number, [a, b, c, d, e]) {
                    Some(answer @ 0..) if !symbols::$kind::may_be_shown(libc::$number, [a, b, c, d, e]) => answer,
                    // SAFETY: the program's call, as it was made.
                    Some(0..) | None => unsafe { inside(a, b, c, d, e) },
                    // SAFETY: the arguments are the program's, untouched.
                    Some(error) if led_on::<symbols::$kind>(named, error) => unsafe { missing(a, b, c, d, e) },
                    Some(error) => kernel::to_c(error),
                }
            }

            // SAFETY: called with the program's arguments; `answer` is the kernel's.
            #[cold]
            unsafe extern "C-unwind" fn refused(a: usize, b: usize, c: usize, d: usize, e: usize, answer: isize) -> isize {
                if led_on::<symbols::$kind>(super::$named([a, b, c, d]), answer) {
                    // SAFETY: the program's call, as it was made.
                    return unsafe { missing(a, b, c, d, e) };
                }
                kernel::to_c(answer)
            }

            // SAFETY: called with the arguments of the C library's function.
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn inside(_: usize, _: usize, _: usize, _: usize, _: usize) -> isize {
                lead!($number, $fast, $way)
            }

            // SAFETY: as `inside`.
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn missing(_: usize, _: usize, _: usize, _: usize, _: usize) -> isize {
                lead!($number, $missing, "nacre_symbol")
            }

            $(
                /// The C library's function of this name.
                #[unsafe(no_mangle)]
                #[unsafe(link_section = ".text.nacre_host")]
                // SAFETY: called as that is.
                unsafe extern "C-unwind" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
                    // SAFETY: the program's call, as it was made.
                    unsafe { anywhere([a, b, c, d, e]) }
                }
            )*
        }
    )* };
}

/// Declares the calls that have symbols. Of each: its number, the names that are exported, the C
/// library's function that goes on with what is not served here, the way there in the assembly
/// below, and the fast path of `entry/symbols.rs` that serves it.
macro_rules! symbols {
    ($($form:ident { $($call:ident { number: $number:ident, symbols: $names:tt, library: $library:literal, $($field:ident: $value:tt),* $(,)? })* })*) => {
        $( $form! { $($call { number: $number, symbols: $names, $($field: $value),* })* } )*

        /// The C library's functions that calls are handed on to, by call number.
        pub const LIBRARY: &[(i64, &CStr)] = &[$( $((libc::$number, $library),)* )*];
    };
}

symbols! {
    // Calls whose first argument tells whose they are: an fd, or nothing.
    plain {
        read {
            number: SYS_read, symbols: [read], library: c"read", way: "nacre_symbol_of_fd",
            fast: read,
        }
        write {
            number: SYS_write, symbols: [write], library: c"write", way: "nacre_symbol_of_fd",
            fast: write,
        }
        pwrite {
            number: SYS_pwrite64, symbols: [pwrite, pwrite64], library: c"pwrite64",
            way: "nacre_symbol_of_fd", fast: pwrite,
        }
        close {
            number: SYS_close, symbols: [close], library: c"close",
            way: "nacre_symbol_of_number_fast", fast: close,
        }
        fstat {
            number: SYS_fstat, symbols: [fstat, fstat64], library: c"fstat",
            way: "nacre_symbol_of_fd_fast", fast: fstat,
        }
        // Served by nobody here: for ours, and what may wait, the C library's function is called.
        fcntl {
            number: SYS_fcntl, symbols: [fcntl, fcntl64], library: c"fcntl64",
            way: "nacre_symbol_of_command", fast: missing,
        }
        mkdir {
            number: SYS_mkdir, symbols: [mkdir], library: c"mkdir", way: "nacre_symbol",
            fast: mkdir,
        }
        mkdirat {
            number: SYS_mkdirat, symbols: [mkdirat], library: c"mkdirat", way: "nacre_symbol",
            fast: mkdirat,
        }
        unlink {
            number: SYS_unlink, symbols: [unlink], library: c"unlink", way: "nacre_symbol",
            fast: unlink,
        }
        unlinkat {
            number: SYS_unlinkat, symbols: [unlinkat], library: c"unlinkat",
            way: "nacre_symbol", fast: unlinkat,
        }
        rmdir {
            number: SYS_rmdir, symbols: [rmdir], library: c"rmdir", way: "nacre_symbol",
            fast: rmdir,
        }
        rename {
            number: SYS_rename, symbols: [rename], library: c"rename", way: "nacre_symbol",
            fast: rename,
        }
        renameat {
            number: SYS_renameat, symbols: [renameat], library: c"renameat",
            way: "nacre_symbol", fast: renameat,
        }
        renameat2 {
            number: SYS_renameat2, symbols: [renameat2], library: c"renameat2",
            way: "nacre_symbol", fast: renameat2,
        }
    }
    // Calls that are tried without entering Nacre first.
    outside {
        pread {
            number: SYS_pread64, symbols: [pread, pread64], library: c"pread64",
            way: "nacre_symbol_of_fd", fast: pread, outside: pread_outside,
        }
        fsync {
            number: SYS_fsync, symbols: [fsync], library: c"fsync", way: "nacre_symbol_of_fd",
            fast: fsync, outside: fsync_outside,
        }
        fdatasync {
            number: SYS_fdatasync, symbols: [fdatasync], library: c"fdatasync",
            way: "nacre_symbol_of_fd", fast: fsync, outside: fsync_outside,
        }
    }
    // Calls on a path, which `named` finds among the arguments. What is plainly the host's is asked
    // of the kernel at once, if `whose` tells so and `of_host` lets it. What then is missing is
    // looked for by `missing`.
    paths {
        open {
            number: SYS_open, symbols: [open, open64], library: c"open", way: "nacre_symbol",
            fast: open, named: opens, whose: whose, of_host: Opens, missing: missing,
        }
        openat {
            number: SYS_openat, symbols: [openat, openat64], library: c"openat",
            way: "nacre_symbol", fast: openat, named: opens_at, whose: whose_at, of_host: Opens,
            missing: missing_at,
        }
        stat {
            number: SYS_stat, symbols: [stat, stat64], library: c"stat", way: "nacre_symbol",
            fast: stat, named: follows, whose: whose, of_host: Stats, missing: missing,
        }
        lstat {
            number: SYS_lstat, symbols: [lstat, lstat64], library: c"lstat",
            way: "nacre_symbol", fast: lstat, named: stays, whose: whose, of_host: Asks,
            missing: missing,
        }
        fstatat {
            number: SYS_newfstatat, symbols: [fstatat, fstatat64], library: c"fstatat",
            way: "nacre_symbol", fast: fstatat, named: stats_at, whose: whose_at,
            of_host: Stats, missing: missing_at,
        }
        statx {
            number: SYS_statx, symbols: [statx], library: c"statx", way: "nacre_symbol",
            fast: statx, named: statx_at, whose: whose_at, of_host: Stats, missing: missing_at,
        }
        access {
            number: SYS_access, symbols: [access], library: c"access",
            way: "nacre_symbol_onward", fast: missing, named: follows, whose: whose,
            of_host: Asks, missing: missing,
        }
        readlink {
            number: SYS_readlink, symbols: [readlink], library: c"readlink",
            way: "nacre_symbol_onward", fast: missing, named: stays, whose: whose,
            of_host: Asks, missing: missing,
        }
        readlinkat {
            number: SYS_readlinkat, symbols: [readlinkat], library: c"readlinkat",
            way: "nacre_symbol_onward", fast: missing, named: stays_at, whose: whose_at,
            of_host: Asks, missing: missing_at,
        }
    }
}

/// Whether a link may lead into a pool what the kernel has refused.
fn led_on<K: OfHost>(named: Named, answer: isize) -> bool {
    if answer != MISSING {
        return false;
    }
    K::misses(&named);
    !symbols::is_merely_missing(named)
}

/// The arguments of a call on a path, or the first four of them.
type Args = [usize; 4];

/// The owner of the path of a call, by its first two arguments: of calls that begin with the path,
/// and of those that begin with the folder where it starts.
#[inline(always)]
fn whose([path, _]: [usize; 2]) -> u32 {
    path_filter::whose(path)
}

#[inline(always)]
fn whose_at([dir, path]: [usize; 2]) -> u32 {
    path_filter::whose_at(dir, path)
}

fn follows(args: Args) -> Named {
    Named {
        dir: HERE,
        path: args[0],
        follow: true,
    }
}

fn stays(args: Args) -> Named {
    Named {
        follow: false,
        ..follows(args)
    }
}

fn stays_at(args: Args) -> Named {
    Named {
        dir: args[0] as i32,
        path: args[1],
        follow: false,
    }
}

fn opens([path, flags, ..]: Args) -> Named {
    opens_at([HERE as usize, path, flags, 0])
}

fn opens_at(args: Args) -> Named {
    Named {
        follow: args[2] as i32 & libc::O_NOFOLLOW == 0,
        ..stays_at(args)
    }
}

fn stats_at(args: Args) -> Named {
    Named {
        follow: args[3] as i32 & libc::AT_SYMLINK_NOFOLLOW == 0,
        ..stays_at(args)
    }
}

fn statx_at([dir, path, flags, _]: Args) -> Named {
    stats_at([dir, path, 0, flags])
}

/// Tells copies of the library in one program apart.
#[repr(C)]
pub struct Copy {
    at: &'static u8,
}

static PLACE: u8 = 0;

/// Programs find that of the copy that was loaded first, as all its symbols.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static nacre_copy: Copy = Copy { at: &PLACE };

/// Whether this is the copy whose symbols are found.
pub fn are_found() -> bool {
    let found: *const Copy;
    // SAFETY: reads an entry of the global offset table.
    unsafe {
        asm!("mov {0}, qword ptr [rip + nacre_copy@GOTPCREL]", out(reg) found, options(pure, readonly, nostack));
    }
    // SAFETY: the `nacre_copy` of some copy of the library, which is never unloaded.
    std::ptr::eq(unsafe { (*found).at }, &raw const PLACE)
}

/// Exports the forms of an open that take no mode, for programs that were built to be checked.
macro_rules! checked_opens {
    ($($name:ident($($argument:ident)*): $call:ident $args:expr;)*) => { $(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        // SAFETY: called as that is.
        unsafe extern "C-unwind" fn $name($($argument: usize),*) -> isize {
            // SAFETY: the program's call; without a mode, as none is needed.
            unsafe { $call::anywhere($args) }
        }
    )* };
}

/// Flags of an open without a mode. One that would need a mode ends the program, as in the C
/// library.
fn without_mode(flags: usize) -> usize {
    let bits = flags as i32;
    if bits & libc::O_CREAT != 0 || bits & libc::O_TMPFILE == libc::O_TMPFILE {
        lacks_mode();
    }
    flags
}

#[cold]
fn lacks_mode() -> ! {
    kernel::write_all(
        2,
        b"nacre: open with O_CREAT or O_TMPFILE and without a mode\n",
    );
    // SAFETY: ends the program.
    unsafe { libc::abort() }
}

checked_opens! {
    __open_2(path flags): open [path, without_mode(flags), 0, 0, 0];
    __open64_2(path flags): open [path, without_mode(flags), 0, 0, 0];
    __openat_2(dir path flags): openat [dir, path, without_mode(flags), 0, 0];
    __openat64_2(dir path flags): openat [dir, path, without_mode(flags), 0, 0];
}

// In: rax number, r11 who serves it, up to five arguments as a C function gets them, r10 = rcx.
global_asm!(
    ".text",
    ".globl nacre_symbol, nacre_symbol_of_fd, nacre_symbol_onward",
    ".globl nacre_symbol_of_fd_fast, nacre_symbol_of_number_fast, nacre_symbol_of_command",
    ".hidden nacre_symbol, nacre_symbol_of_fd, nacre_symbol_onward, nacre_leave",
    ".hidden nacre_symbol_of_fd_fast, nacre_symbol_of_number_fast, nacre_symbol_of_command",
    // What cannot wait: on the kernel's fds the C library's function does nothing but this, and
    // sees that its thread is to be cancelled the next time that it is called.
    ".macro nacre_fast marks, otherwise",
    "cmp edi, {marks_len}",
    "jae 2f",
    // Of a child in its parent's memory the marks say nothing.
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx], 0",
    "jne 2f",
    "mov ecx, edi",
    "shl ecx, 2",
    "add rcx, qword ptr [rip + \\marks]",
    "test byte ptr [rcx], {kernel_mark}",
    "je \\otherwise",
    "syscall",
    "cmp rax, -4096",
    "ja 8f",
    "ret",
    ".endm",
    ".balign 64",
    ".cfi_startproc",
    // Of fcntl's commands those that look at flags and set them.
    "nacre_symbol_of_command:",
    "lea ecx, [rsi - {first_command}]",
    "cmp ecx, {last_command} - {first_command}",
    "ja 2f",
    "nacre_fast {number_marks}, 2f",
    "nacre_symbol_of_number_fast:",
    "cmp byte ptr [rip + {filter} + {refuses}], 0",
    "jne 2f",
    "nacre_fast {number_marks}, nacre_symbol",
    "nacre_symbol_of_fd_fast:",
    "nacre_fast {marks}, nacre_symbol",
    "nacre_symbol_of_fd:",
    "cmp edi, {marks_len}",
    "jae 2f",
    "mov ecx, edi",
    "shl ecx, 2",
    "add rcx, qword ptr [rip + {marks}]",
    "test byte ptr [rcx], {kernel_mark}",
    "jne 2f",
    "nacre_symbol:",
    "cmp byte ptr [rip + {filter} + {refuses}], 0",
    "jne 2f",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx], 0",
    "jne 2f",
    // Inside from here on: signals are deferred.
    "or byte ptr fs:[rcx], {in_nacre}",
    "mov r9, qword ptr fs:[rcx + {stack}]",
    "test r9, r9",
    "je 3f",
    "mov [r9 - {size} + {rsp}], rsp",
    "lea rsp, [r9 - {size}]",
    // What going on in the C library needs.
    "mov [rsp + {rax}], rax",
    "mov [rsp + {args}], rdi",
    "mov [rsp + {args} + 8], rsi",
    "mov [rsp + {args} + 16], rdx",
    "mov [rsp + {args} + 24], r10",
    "mov [rsp + {args} + 32], r8",
    "mov rcx, r10",
    "call r11",
    "test edx, edx",
    "jne 5f",
    // The last steps. A signal that arrives in the middle is deferred and sends the thread back to
    // the first one.
    ".globl nacre_symbol_leave, nacre_symbol_left, nacre_symbol_left_end",
    ".hidden nacre_symbol_leave",
    "nacre_symbol_leave:",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx + {deferred}], 0",
    "jne 4f",
    "mov rsp, [rsp + {rsp}]",
    ".hidden nacre_symbol_left",
    "nacre_symbol_left:",
    "and byte ptr fs:[rcx], {outside}",
    ".hidden nacre_symbol_left_end",
    "nacre_symbol_left_end:",
    "7:",
    "cmp rax, -4096",
    "ja 8f",
    "ret",
    // The C library's function, or the kernel as long as that is not known.
    "3:",
    "and byte ptr fs:[rcx], {outside}",
    "nacre_symbol_onward:",
    "2:",
    // Inside of Nacre it is Rust's library that calls. The C library's function would be a point of
    // cancellation, and no thread may end there.
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx], {in_nacre}",
    "je 6f",
    "mov rcx, r10",
    "lea r9, [rip + {functions}]",
    "mov r9, [r9 + rax * 8]",
    "test r9, r9",
    "je 6f",
    "jmp r9",
    "6:",
    "syscall",
    "jmp 7b",
    // Served, and something was deferred.
    "4:",
    "mov [rsp + {rax}], rax",
    "lea rcx, [rip + 7b]",
    "9:",
    "mov [rsp + {target}], rcx",
    "mov [rsp + {resume}], rcx",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "mov [rsp + {block}], rcx",
    "jmp nacre_leave",
    // Not served.
    "5:",
    "lea rcx, [rip + 2b]",
    "jmp 9b",
    "8:",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "call {errno}",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "neg ecx",
    "mov [rax], ecx",
    "mov rax, -1",
    "ret",
    ".cfi_endproc",
    in_nacre = const IN_NACRE,
    outside = const !IN_NACRE,
    size = const size_of::<Frame>(),
    rsp = const Frame::RSP_AT,
    resume = const Frame::RESUME_AT,
    target = const Frame::TARGET_AT,
    rax = const offset_of!(Frame, rax),
    args = const offset_of!(Frame, args),
    block = const offset_of!(Frame, block),
    deferred = const offset_of!(Thread, deferred),
    stack = const offset_of!(Thread, stack),
    filter = sym PATH_FILTER,
    refuses = const offset_of!(PathFilter, refuses),
    functions = sym symbols::FUNCTIONS,
    first_command = const libc::F_GETFD,
    last_command = const libc::F_SETFL,
    marks = sym table::MARKS_AT,
    number_marks = sym table::NUMBER_MARKS_AT,
    marks_len = const table::MARKS_LEN,
    kernel_mark = const table::KERNEL_MARK,
    errno = sym libc::__errno_location,
);
