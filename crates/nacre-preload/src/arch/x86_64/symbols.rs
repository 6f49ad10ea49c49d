//! The hottest calls as symbols of the C library's names, which programs bind to before the
//! library's own.
//!
//! They save the library's code, the stub and the registers that a function call need not keep.
//! Whatever is out of the ordinary goes to the C library's function, and so to the stub: programs
//! that cancel threads, fds that are not ours, threads without a stack of ours, errors of
//! arguments.

use core::arch::{global_asm, naked_asm};
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

/// Exports names of the C library for one call: `$number` is its number, `$quick` serves it, `$way`
/// leads there.
macro_rules! symbols {
    ($way:literal: $($name:ident: $number:expr, $quick:path;)*) => { $(
        /// The C library's function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        // SAFETY: called as the C library's function is; everything is handed on untouched.
        unsafe extern "C" fn $name() {
            naked_asm!(
                "mov r10, rcx",
                "mov eax, {number}",
                "lea r11, [rip + {quick}]",
                concat!("jmp ", $way),
                number = const $number,
                quick = sym $quick,
            )
        }
    )* };
}

symbols! { "nacre_symbol_of_fd":
    read: libc::SYS_read, symbols::read;
    write: libc::SYS_write, symbols::write;
    pwrite: libc::SYS_pwrite64, symbols::pwrite;
    pwrite64: libc::SYS_pwrite64, symbols::pwrite;
}

symbols! { "nacre_symbol_of_number_fast":
    close: libc::SYS_close, symbols::close;
}

symbols! { "nacre_symbol_of_fd_fast":
    fstat: libc::SYS_fstat, symbols::fstat;
    fstat64: libc::SYS_fstat, symbols::fstat;
}

// Served by nobody here: of ours, and for what may wait, the C library's function is called.
symbols! { "nacre_symbol_of_command":
    fcntl: libc::SYS_fcntl, symbols::missing;
    fcntl64: libc::SYS_fcntl, symbols::missing;
}

symbols! { "nacre_symbol":
    mkdir: libc::SYS_mkdir, symbols::mkdir;
    mkdirat: libc::SYS_mkdirat, symbols::mkdirat;
    unlink: libc::SYS_unlink, symbols::unlink;
    unlinkat: libc::SYS_unlinkat, symbols::unlinkat;
    rmdir: libc::SYS_rmdir, symbols::rmdir;
    rename: libc::SYS_rename, symbols::rename;
    renameat: libc::SYS_renameat, symbols::renameat;
    renameat2: libc::SYS_renameat2, symbols::renameat2;
}

/// The C library's function of this name.
// SAFETY: called as that is, and everything is handed on untouched.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread() {
    naked_asm!("jmp {anywhere}", anywhere = sym pread_anywhere)
}

/// The C library's function of this name.
// SAFETY: as `pread`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread64() {
    naked_asm!("jmp {anywhere}", anywhere = sym pread_anywhere)
}

extern "C-unwind" fn pread_anywhere(fd: i32, start: usize, len: usize, offset: i64) -> isize {
    match symbols::pread_outside(fd, start, len, offset) {
        Some(len) => len as isize,
        // SAFETY: the program's call, as it was made.
        None => unsafe { pread_inside(fd, start, len, offset) },
    }
}

// SAFETY: as the symbols above.
#[unsafe(naked)]
unsafe extern "C-unwind" fn pread_inside(fd: i32, start: usize, len: usize, offset: i64) -> isize {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {number}",
        "lea r11, [rip + {quick}]",
        "jmp nacre_symbol_of_fd",
        number = const libc::SYS_pread64,
        quick = sym symbols::pread,
    )
}

/// Leads from a Rust function into Nacre or to the C library's function, with the program's
/// arguments.
macro_rules! onward {
    ($($name:ident: $number:expr, $quick:path, $way:literal;)*) => { $(
        // SAFETY: as the symbols above.
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name(_: usize, _: usize, _: usize, _: usize, _: usize) -> isize {
            naked_asm!(
                "mov r10, rcx",
                "mov eax, {number}",
                "lea r11, [rip + {quick}]",
                concat!("jmp ", $way),
                number = const $number,
                quick = sym $quick,
            )
        }
    )* };
}

/// Exports names of the C library for one call on a path, which `$named` finds among its arguments.
/// What is plainly the host's is asked of the kernel at once, if `$whose` tells so and `$kind` lets
/// it; `$otherwise` decides the rest. What then is missing is looked for by `$missing`, and what is
/// not the host's is served by `$inside`.
macro_rules! paths {
    ($($named:ident, $kind:path, $whose:ident, $otherwise:ident $refused:ident, $inside:ident, $missing:ident, $number:expr, $quick:path, $way:literal: $anywhere:ident $($name:ident)*;)*) => {
        $(
            // SAFETY: called as the C library's functions are.
            #[inline(always)]
            unsafe fn $anywhere([a, b, c, d, e]: [usize; 5]) -> isize {
                let named = $named([a, b, c, d]);
                match $whose([a, b]) {
                    path_filter::HOST if <$kind>::is_served_directly(&named) => {}
                    // SAFETY: the program's call, as it was made.
                    path_filter::POOL => return unsafe { $inside(a, b, c, d, e) },
                    // SAFETY: the arguments are the program's, untouched.
                    _ => return unsafe { $otherwise(a, b, c, d, e) },
                }
                // SAFETY: the kernel checks what the program's arguments point to.
                let answer = unsafe { kernel::syscall($number as usize, [a, b, c, d, e, 0]) };
                if answer < 0 {
                    // SAFETY: the arguments are the program's; `answer` is the kernel's.
                    return unsafe { $refused(a, b, c, d, e, answer) };
                }
                <$kind>::is_done(answer);
                answer
            }

            // SAFETY: called with the arguments of the C library's function.
            #[inline(never)]
            unsafe extern "C-unwind" fn $otherwise(a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
                let mut named = $named([a, b, c, d]);
                match <$kind>::ask(&mut named, $number, [a, b, c, d, e]) {
                    Some(answer @ 0..) => answer,
                    // SAFETY: the program's call, as it was made.
                    None => unsafe { $inside(a, b, c, d, e) },
                    // SAFETY: the arguments are the program's, untouched.
                    Some(error) if led_on::<$kind>(named, error) => unsafe { $missing(a, b, c, d, e) },
                    Some(error) => kernel::to_c(error),
                }
            }

            // SAFETY: called with the program's arguments; `answer` is the kernel's.
            #[cold]
            unsafe extern "C-unwind" fn $refused(a: usize, b: usize, c: usize, d: usize, e: usize, answer: isize) -> isize {
                if led_on::<$kind>($named([a, b, c, d]), answer) {
                    // SAFETY: the program's call, as it was made.
                    return unsafe { $missing(a, b, c, d, e) };
                }
                kernel::to_c(answer)
            }

            $(
                /// The C library's function of this name.
                #[unsafe(no_mangle)]
                #[unsafe(link_section = ".text.nacre_host")]
                // SAFETY: called as that is.
                unsafe extern "C-unwind" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
                    // SAFETY: the program's call, as it was made.
                    unsafe { $anywhere([a, b, c, d, e]) }
                }
            )*
        )*
        onward! { $($inside: $number, $quick, $way;)* }
    };
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

/// Whose the path of a call is, by its first two arguments: of those that begin with the path, and
/// of those that begin with where that starts.
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

paths! {
    opens, symbols::Opens, whose, open_otherwise open_refused, open_inside, open_missing, libc::SYS_open, symbols::open, "nacre_symbol": open_anywhere open open64;
    opens_at, symbols::Opens, whose_at, openat_otherwise openat_refused, openat_inside, openat_missing, libc::SYS_openat, symbols::openat, "nacre_symbol": openat_anywhere openat openat64;
    follows, symbols::Stats, whose, stat_otherwise stat_refused, stat_inside, stat_missing, libc::SYS_stat, symbols::stat, "nacre_symbol": stat_anywhere stat stat64;
    stays, symbols::Asks, whose, lstat_otherwise lstat_refused, lstat_inside, lstat_missing, libc::SYS_lstat, symbols::lstat, "nacre_symbol": lstat_anywhere lstat lstat64;
    stats_at, symbols::Stats, whose_at, fstatat_otherwise fstatat_refused, fstatat_inside, fstatat_missing, libc::SYS_newfstatat, symbols::fstatat, "nacre_symbol": fstatat_anywhere fstatat fstatat64;
    statx_at, symbols::Stats, whose_at, statx_otherwise statx_refused, statx_inside, statx_missing, libc::SYS_statx, symbols::statx, "nacre_symbol": statx_anywhere statx;
    follows, symbols::Asks, whose, access_otherwise access_refused, access_inside, access_missing, libc::SYS_access, symbols::missing, "nacre_symbol_onward": access_anywhere access;
    stays, symbols::Asks, whose, readlink_otherwise readlink_refused, readlink_inside, readlink_missing, libc::SYS_readlink, symbols::missing, "nacre_symbol_onward": readlink_anywhere readlink;
    stays_at, symbols::Asks, whose_at, readlinkat_otherwise readlinkat_refused, readlinkat_inside, readlinkat_missing, libc::SYS_readlinkat, symbols::missing, "nacre_symbol_onward": readlinkat_anywhere readlinkat;
}

/// Exports the forms of an open that take no mode, for programs that were built to be checked.
macro_rules! checked_opens {
    ($($name:ident($($argument:ident)*): $anywhere:ident $args:expr;)*) => { $(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        // SAFETY: called as that is.
        unsafe extern "C-unwind" fn $name($($argument: usize),*) -> isize {
            // SAFETY: the program's call; without a mode, as none is needed.
            unsafe { $anywhere($args) }
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
    __open_2(path flags): open_anywhere [path, without_mode(flags), 0, 0, 0];
    __open64_2(path flags): open_anywhere [path, without_mode(flags), 0, 0, 0];
    __openat_2(dir path flags): openat_anywhere [dir, path, without_mode(flags), 0, 0];
    __openat64_2(dir path flags): openat_anywhere [dir, path, without_mode(flags), 0, 0];
}

onward! {
    open_missing: libc::SYS_open, symbols::missing, "nacre_symbol";
    openat_missing: libc::SYS_openat, symbols::missing_at, "nacre_symbol";
    stat_missing: libc::SYS_stat, symbols::missing, "nacre_symbol";
    lstat_missing: libc::SYS_lstat, symbols::missing, "nacre_symbol";
    fstatat_missing: libc::SYS_newfstatat, symbols::missing_at, "nacre_symbol";
    statx_missing: libc::SYS_statx, symbols::missing_at, "nacre_symbol";
    access_missing: libc::SYS_access, symbols::missing, "nacre_symbol";
    readlink_missing: libc::SYS_readlink, symbols::missing, "nacre_symbol";
    readlinkat_missing: libc::SYS_readlinkat, symbols::missing_at, "nacre_symbol";
}

/// Exports names of the C library for calls that make a file durable: `$number` each.
macro_rules! syncs {
    ($($name:ident, $inside:ident: $number:expr;)*) => { $(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        // SAFETY: called as that is.
        unsafe extern "C-unwind" fn $name(fd: i32) -> i32 {
            if symbols::fsync_outside(fd) {
                return 0;
            }
            // SAFETY: the program's call, as it was made.
            unsafe { $inside(fd) }
        }

        // SAFETY: as the symbols above.
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $inside(fd: i32) -> i32 {
            naked_asm!(
                "mov eax, {number}",
                "lea r11, [rip + {quick}]",
                "jmp nacre_symbol_of_fd",
                number = const $number,
                quick = sym symbols::fsync,
            )
        }
    )* };
}

syncs! {
    fsync, fsync_inside: libc::SYS_fsync;
    fdatasync, fdatasync_inside: libc::SYS_fdatasync;
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
