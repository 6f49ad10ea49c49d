//! The system-call table: which calls we serve, and who serves each.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32};

use crate::arch::x86_64::path_filter::PATH_FILTER;
use crate::arch::x86_64::symbols::LIBRARY;
use crate::calls;
use crate::entry::call::{Call, Verdict};
use crate::mapping::holes;

/// Call numbers below this can be served.
pub const CALLS: usize = 512;
/// Class of a call whose first argument is an fd and that is none of our business if that fd is
/// the kernel's. All other served calls have class 1, the rest 0.
pub const FD_CLASS: u8 = 2;
/// Class of a call that makes or looks at fd numbers and is otherwise the kernel's: none of our
/// business until this process has opened a file of a pool.
pub const NUMBER_CLASS: u8 = 3;
/// As `NUMBER_CLASS`; before that, as `FD_CLASS`.
pub const FD_NUMBER_CLASS: u8 = 4;
/// As `FD_CLASS` if the path behind the fd is empty, as the flags allow; else as class 1.
pub const FD_PATH_CLASS: u8 = 5;
/// Class of `openat`: none of our business if it opens a folder that is plainly the host's and is
/// found there, while numbers are not watched.
pub const OPEN_CLASS: u8 = 6;
/// In a mark: the fd is known to be the kernel's.
pub const KERNEL_MARK: u32 = 1;
/// Fds that can carry a mark.
pub const MARKS_LEN: usize = 4096;

/// Serves one call.
pub type Serve = fn(&mut Call<'_>) -> Verdict;

/// A served call.
#[derive(Clone, Copy)]
pub struct ServedCall {
    number: i64,
    name: &'static str,
    class: u8,
    serve: Serve,
}

/// An entry that looks at every call.
pub const fn entry(number: i64, name: &'static str, serve: Serve) -> ServedCall {
    ServedCall {
        number,
        name,
        class: 1,
        serve,
    }
}

/// An entry that is skipped when the first argument is an fd of the kernel.
pub const fn fd_entry(number: i64, name: &'static str, serve: Serve) -> ServedCall {
    ServedCall {
        number,
        name,
        class: FD_CLASS,
        serve,
    }
}

/// An entry that is skipped when it has no path behind its first argument, and that is an fd of the
/// kernel.
pub const fn fd_path_entry(number: i64, name: &'static str, serve: Serve) -> ServedCall {
    ServedCall {
        number,
        name,
        class: FD_PATH_CLASS,
        serve,
    }
}

/// The entry of `openat`.
pub const fn open_entry(serve: Serve) -> ServedCall {
    ServedCall {
        number: libc::SYS_openat,
        name: "openat",
        class: OPEN_CLASS,
        serve,
    }
}

/// An entry that is skipped until numbers are watched.
pub const fn number_entry(number: i64, name: &'static str, serve: Serve) -> ServedCall {
    ServedCall {
        number,
        name,
        class: NUMBER_CLASS,
        serve,
    }
}

/// An entry that is skipped when the first argument is an fd of the kernel and numbers are not
/// watched.
pub const fn fd_number_entry(number: i64, name: &'static str, serve: Serve) -> ServedCall {
    ServedCall {
        number,
        name,
        class: FD_NUMBER_CLASS,
        serve,
    }
}

const FAMILIES: [&[ServedCall]; 21] = [
    calls::data::ENTRIES,
    calls::open::ENTRIES,
    calls::control::ENTRIES,
    calls::names::ENTRIES,
    calls::numbers::ENTRIES,
    calls::attributes::ENTRIES,
    calls::xattr::ENTRIES,
    calls::directories::ENTRIES,
    calls::listings::ENTRIES,
    calls::transfer::ENTRIES,
    calls::watches::ENTRIES,
    calls::memory::ENTRIES,
    calls::process::ENTRIES,
    calls::handles::ENTRIES,
    calls::identity::ENTRIES,
    calls::limits::ENTRIES,
    calls::mounts::ENTRIES,
    calls::signals::ENTRIES,
    calls::sockets::ENTRIES,
    calls::rings::aio::ENTRIES,
    calls::rings::uring::ENTRIES,
];

/// For constants alone: what is left of it at run time is small, as the dynamic linker writes all
/// that holds addresses in each process that starts.
const fn table() -> [Option<ServedCall>; CALLS] {
    let mut table = [None; CALLS];
    let mut family = 0;
    while family < FAMILIES.len() {
        let mut i = 0;
        while i < FAMILIES[family].len() {
            let entry = FAMILIES[family][i];
            assert!(
                table[entry.number as usize].is_none(),
                "a call has two handlers"
            );
            table[entry.number as usize] = Some(entry);
            i += 1;
        }
        family += 1;
    }
    table
}

static HANDLERS: [Option<Serve>; CALLS] = handlers();

const fn handlers() -> [Option<Serve>; CALLS] {
    let (table, mut handlers) = (table(), [None; CALLS]);
    let mut i = 0;
    while i < CALLS {
        if let Some(entry) = &table[i] {
            handlers[i] = Some(entry.serve);
        }
        i += 1;
    }
    handlers
}

/// A call's name, with zeros behind it.
type Name = [u8; 24];

/// For the log.
static NAMES: [Name; CALLS] = names();

const fn names() -> [Name; CALLS] {
    let (table, mut names) = (table(), [[0; size_of::<Name>()]; CALLS]);
    let mut i = 0;
    while i < CALLS {
        if let Some(entry) = &table[i] {
            let name = entry.name.as_bytes();
            names[i].split_at_mut(name.len()).0.copy_from_slice(name);
        }
        i += 1;
    }
    names
}

/// Whoever exports a name of the C library is behind it in the table, too: calls are handed on.
const _: () = {
    let (table, mut i) = (table(), 0);
    while i < LIBRARY.len() {
        let number = LIBRARY[i].0 as usize;
        assert!(
            table[number].is_some(),
            "a symbol of a call without a handler"
        );
        i += 1;
    }
};

/// Class of each call, for the entry code and the stubs.
pub static CLASSES: [u8; CALLS] = classes();

const fn classes() -> [u8; CALLS] {
    let (table, mut classes) = (table(), [0; CALLS]);
    let mut i = 0;
    while i < CALLS {
        if let Some(entry) = &table[i] {
            classes[i] = entry.class;
        }
        i += 1;
    }
    classes
}

/// Class of a call, if its number is known.
pub fn class(number: i32) -> Option<u8> {
    let number = usize::try_from(number).ok()?;
    Some(CLASSES.get(number).copied().unwrap_or_default())
}

/// Whether a call is served.
pub fn served(number: usize) -> bool {
    CLASSES.get(number).is_some_and(|&class| class != 0)
}

/// The handler of a call.
#[inline]
pub fn find(number: usize) -> Option<Serve> {
    *HANDLERS.get(number)?
}

/// The name of a served call.
pub fn name(number: usize) -> &'static str {
    let name = NAMES.get(number).map_or(&[][..], |name| name);
    let len = name.iter().position(|&byte| byte == 0);
    str::from_utf8(&name[..len.unwrap_or(name.len())]).unwrap_or_default()
}

/// Marks of fds: odd, the fd is known to be the kernel's. Each time that nothing is known of it any
/// more the next even number comes, so that who has looked at an fd can tell whether it has become
/// another one meanwhile.
pub type Marks = [AtomicU32; MARKS_LEN];

/// Nothing is known of any fd.
pub const fn no_marks() -> Marks {
    [const { AtomicU32::new(0) }; MARKS_LEN]
}

/// Address of the marks, for the entry code.
pub static MARKS_AT: &Marks = &PATH_FILTER.marks;

/// Not 0 once numbers are watched.
pub static WATCHED: AtomicU8 = AtomicU8::new(0);

static NO_MARKS: Marks = no_marks();

/// Leads the stubs of calls of `FD_NUMBER_CLASS` to the marks until numbers are watched.
pub static NUMBER_MARKS_AT: AtomicPtr<Marks> =
    AtomicPtr::new((&raw const PATH_FILTER.marks).cast_mut());

/// From now on this process may have numbers that are free for the program and not for the kernel.
pub fn watch_numbers() {
    WATCHED.store(1, SeqCst);
    NUMBER_MARKS_AT.store((&raw const NO_MARKS).cast_mut(), Relaxed);
}

fn mark(fd: i32) -> Option<&'static AtomicU32> {
    PATH_FILTER.marks.get(usize::try_from(fd).ok()?)
}

/// Marks the fd as the kernel's, if `is_kernels` says so: calls on it no longer come here. It keeps
/// the mark when the kernel closes and reuses it; only an fd of ours that appears there takes the
/// mark away.
#[inline]
pub fn mark_kernel(fd: i32, is_kernels: impl FnOnce() -> bool) {
    let Some(mark) = mark(fd) else {
        return;
    };
    let seen = mark.load(Acquire);
    if seen & KERNEL_MARK == 0 && !UNMARKED.load(SeqCst) && !holes::exist() && is_kernels() {
        // Another thread may have opened a file of a pool there since: it has entered the file, and
        // then changed the number.
        let _ = mark.compare_exchange(seen, seen | KERNEL_MARK, SeqCst, Relaxed);
    }
}

/// No fd is marked as the kernel's from now on: it may be open on a node of a pool.
static UNMARKED: AtomicBool = AtomicBool::new(false);

/// From now on all calls on fds come here. For who opens fifos and device nodes of pools: the
/// kernel reads and writes them, but their attributes are in the pool.
pub fn mark_nothing() {
    UNMARKED.store(true, SeqCst);
    unmark_all();
}

/// Nothing is known about any fd any more: all calls come here.
pub fn unmark_all() {
    (0..MARKS_LEN as i32).for_each(unmark);
}

/// Nothing is known about the fd any more. For who has just entered a file of a pool there, and
/// nobody knows it yet.
pub fn unmark(fd: i32) {
    if let Some(mark) = mark(fd) {
        let next = (mark.load(Relaxed) | KERNEL_MARK).wrapping_add(1);
        mark.store(next, Release);
    }
}
