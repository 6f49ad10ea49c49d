//! Signals that arrive inside Nacre wait until the operation ends.
//!
//! The kernel knows only our handler; the program's own ones are kept here and reported back.
//! A signal that finds its thread inside Nacre is remembered, every other signal is blocked in the
//! interrupted context, and the entry code queues it again and restores the mask at the end.
//! SIGSEGV and SIGBUS are always handled by us: they end failed copies and fill grown mappings.
//! A call that a filter of the program traps (seccomp) is for its handler to do, where it stands,
//! also if Nacre makes it.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use nacre_media::fault::{Resolution, resolve};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::arch::x86_64::entry::{self, End, SYSCALL_LEN, Shown};
use crate::arch::x86_64::patch;
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::symbols;
use crate::entry::user;
use crate::mapping::{self, holes::Access};
use crate::program::sharing;
use crate::runtime::alternate_stack;
use crate::runtime::kernel::{self, call};
use crate::runtime::mask::{FAULTS, bit, block, set_mask};
use crate::runtime::stack::{self, Interrupted};
use crate::runtime::tls::{ALTERNATE, IN_NACRE, SIGNAL, Thread, shares_memory, thread};

const SIGNALS: usize = 65;
const SA_RESTORER: u64 = 0x0400_0000;
/// The signal with which the C library cancels threads.
const CANCEL: i32 = 32;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
/// Signals that must stay deliverable, whatever the program blocks.
const OURS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

/// `struct kernel_sigaction`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The program's action for one signal. A handler reads single words.
struct Kept {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static KEPT: [Kept; SIGNALS] = [const {
    Kept {
        handler: AtomicUsize::new(SIG_DFL),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

impl Kept {
    fn load(&self) -> Action {
        Action {
            handler: self.handler.load(Acquire),
            flags: self.flags.load(Relaxed),
            restorer: self.restorer.load(Relaxed),
            mask: self.mask.load(Relaxed),
        }
    }

    fn store(&self, action: &Action) {
        self.flags.store(action.flags, Relaxed);
        self.restorer.store(action.restorer, Relaxed);
        self.mask.store(action.mask, Relaxed);
        self.handler.store(action.handler, Release);
    }
}

core::arch::global_asm!(
    ".globl nacre_restore_rt",
    ".hidden nacre_restore_rt",
    // Unwinders know a signal frame by exactly these bytes.
    ".balign 16",
    "nop",
    "nacre_restore_rt:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05",
    "hlt",
);

unsafe extern "C" {
    fn nacre_restore_rt();
}

fn our_handler() -> usize {
    nacre_signal as *const () as usize
}

/// Whether the C library has got ready to cancel a thread, which it does before the first one is.
pub fn may_cancel() -> bool {
    let mut action = Action::default();
    kernel_action(CANCEL, None, Some(&mut action));
    is_handler(action.handler)
}

fn is_handler(handler: usize) -> bool {
    handler != SIG_DFL && handler != SIG_IGN
}

/// What the kernel is told for an action of the program.
fn for_kernel(signal: i32, action: &Action) -> Action {
    let ours = OURS & bit(signal) != 0;
    if !ours && !is_handler(action.handler) {
        return *action;
    }
    let mut told = *action;
    told.handler = our_handler();
    // One-shot actions are reset by us: a deferred signal arrives twice.
    told.flags = (action.flags | libc::SA_SIGINFO as u64) & !(libc::SA_RESETHAND as u32 as u64);
    if ours {
        told.mask = action.mask & !OURS;
        told.flags |= libc::SA_NODEFER as u64;
        if alternate_stack::avoided() {
            told.flags &= !(libc::SA_ONSTACK as u64);
        }
    } else {
        // Two signals at once must not both be the deferred one: the handler's own mask comes
        // later.
        told.mask = !FAULTS;
    }
    if told.flags & SA_RESTORER == 0 {
        told.flags |= SA_RESTORER;
        told.restorer = nacre_restore_rt as *const () as usize;
    }
    told
}

fn kernel_action(signal: i32, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = new.map_or(0, |a| core::ptr::from_ref(a) as usize);
    let old = old.map_or(0, |a| core::ptr::from_mut(a) as usize);
    call(libc::SYS_rt_sigaction, &[signal as usize, new, old, 8])
}

/// Takes SIGSEGV and SIGBUS over; keeps what was set for them.
pub fn start() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let mut before = Action::default();
        kernel_action(signal, None, Some(&mut before));
        KEPT[signal as usize].store(&before);
        kernel_action(signal, Some(&for_kernel(signal, &before)), None);
    }
}

/// Before memory of the program becomes writable, or not: an alternate stack may lie in it.
pub fn memory_changes(start: usize, len: usize, writable: bool) {
    let ours = [libc::SIGSEGV, libc::SIGBUS];
    let on_stack =
        |&signal: &i32| KEPT[signal as usize].flags.load(Relaxed) & libc::SA_ONSTACK as u64 != 0;
    let concerned = writable == alternate_stack::avoided() && ours.iter().any(on_stack);
    if concerned && alternate_stack::protected(start, len, writable) {
        for signal in ours {
            let told = for_kernel(signal, &KEPT[signal as usize].load());
            kernel_action(signal, Some(&told), None);
        }
    }
}

/// Ignored signals stay ignored in a new program: the kernel must know it for those we hold. The
/// new program gets the mask of the handler on whose alternate stack we are, if we are: what to
/// tell [`after_failed_exec`].
pub fn before_exec() -> bool {
    let thread = thread();
    let alternate = thread.deferred.fetch_and(!ALTERNATE, Relaxed) & ALTERNATE != 0;
    if alternate {
        set_mask(thread.mask.load(Relaxed));
    }
    for_ignored(|signal| {
        let ignore = Action {
            handler: SIG_IGN,
            ..Action::default()
        };
        kernel_action(signal, Some(&ignore), None);
    });
    alternate
}

/// Undoes [`before_exec`] when the program could not be executed.
pub fn after_failed_exec(alternate: bool) {
    if alternate {
        block(thread());
        thread().deferred.fetch_or(ALTERNATE, Relaxed);
    }
    for_ignored(|signal| {
        kernel_action(
            signal,
            Some(&for_kernel(signal, &KEPT[signal as usize].load())),
            None,
        );
    });
}

fn for_ignored(f: impl Fn(i32)) {
    let ours = [libc::SIGSEGV, libc::SIGBUS];
    ours.into_iter()
        .filter(|&s| KEPT[s as usize].load().handler == SIG_IGN)
        .for_each(f);
}

/// rt_sigaction as the program sees it. Result or negative errno.
pub fn action(signal: i32, new: usize, old: usize, set_size: usize) -> isize {
    let known = usize::try_from(signal)
        .ok()
        .filter(|s| (1..SIGNALS).contains(s));
    let (Some(index), 8) = (known, set_size) else {
        return -libc::EINVAL as isize;
    };
    let wanted: Option<Action> = match (new != 0).then(|| user::read(new)).transpose() {
        Ok(wanted) => wanted,
        Err(_) => return -libc::EFAULT as isize,
    };
    if signal == CANCEL {
        symbols::leave_to_the_library();
    }
    let before = KEPT[index].load();
    let told = wanted.as_ref().map(|wanted| for_kernel(signal, wanted));
    // A vfork child has kernel actions of its own, but shares this table with its parent.
    let shared = shares_memory();
    if let Some(wanted) = wanted.as_ref().filter(|_| !shared) {
        KEPT[index].store(wanted);
    }
    let mut was = Action::default();
    let result = kernel_action(signal, told.as_ref(), Some(&mut was));
    if result < 0 {
        if !shared {
            KEPT[index].store(&before);
        }
        return result;
    }
    let reported = if was.handler == our_handler() {
        before
    } else {
        was
    };
    if old != 0 && user::write(old, &reported).is_err() {
        return -libc::EFAULT as isize;
    }
    0
}

/// rt_sigprocmask as the program sees it: SIGSEGV and SIGBUS only seem to be blocked.
pub fn mask(c: &mut Call<'_>) -> Verdict {
    let thread = thread();
    let seeming = thread.blocked.load(Relaxed);
    let wanted: Option<u64> = c.read_optional(1)?;
    if seeming == 0 && wanted.is_none_or(|wanted| wanted & OURS == 0) {
        return Err(Stop::Native);
    }
    let told = wanted.map(|wanted| wanted & !OURS);
    let mut was = 0u64;
    let told_at = told
        .as_ref()
        .map_or(0, |told| core::ptr::from_ref(told) as usize);
    let args = [c.arg(0), told_at, &raw mut was as usize, c.arg(3), 0, 0];
    let result = c.interruptible(libc::SYS_rt_sigprocmask as usize, args);
    if result < 0 {
        return Ok(result);
    }
    if let Some(wanted) = wanted {
        let now = match c.int(0) {
            libc::SIG_BLOCK => seeming | wanted & OURS,
            libc::SIG_UNBLOCK => seeming & !wanted,
            _ => wanted & OURS,
        };
        thread.blocked.store(now, Relaxed);
    }
    if c.arg(2) != 0 {
        c.write(2, &(was | seeming))?;
    }
    Ok(0)
}

/// The handler of every signal. Takes little stack: it may run on a small alternate one.
// SAFETY: only the kernel calls it, as a SA_SIGINFO handler, with a valid siginfo and context.
unsafe extern "C-unwind" fn nacre_signal(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    sharing::forget_caller();
    let thread = thread();
    if OURS & bit(signal) != 0 {
        // SAFETY: the kernel passes valid pointers.
        unsafe { fault(thread, signal, info, context) };
    } else if signal == libc::SIGSYS
        // SAFETY: `info` is the kernel's, valid while the handler runs.
        && unsafe { is_trapped(info) }
    {
        // SAFETY: siginfo and context are the kernel's, valid while the handler runs.
        unsafe { do_trapped(thread, info, context) };
    } else if thread.is_inside()
        // SAFETY: `context` is the kernel's, valid while the handler runs.
        && !unsafe { has_left(thread, context) }
    {
        // SAFETY: siginfo and context are the kernel's, valid while the handler runs.
        unsafe { defer(thread, signal, info, context) };
    } else {
        // SAFETY: siginfo and context are the kernel's, valid while the handler runs.
        unsafe { run_handler(thread, signal, info, context) };
    }
}

/// `SYS_SECCOMP`: a filter has refused a call, and the handler may do it in its stead.
const BY_FILTER: i32 = 1;

/// # Safety
/// `info` comes from the kernel, for SIGSYS.
unsafe fn is_trapped(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*info).si_code == BY_FILTER }
}

/// Has the program's handler do a call that its filter refused. It is shown the registers of that
/// call, which it compares with the siginfo and puts the result into. Inside Nacre its own calls
/// are left to the kernel.
///
/// # Safety
/// `info` and `context` come from the kernel.
unsafe fn do_trapped(thread: &Thread, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    if !thread.is_inside() {
        // SAFETY: the caller's promise.
        return unsafe { run_handler(thread, libc::SIGSYS, info, context) };
    }
    let action = KEPT[libc::SIGSYS as usize].load();
    if !is_handler(action.handler) {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let interrupted = interrupted_mask(context);
        set_mask(mask_in_handler(libc::SIGSYS, &action, interrupted));
        handler_of(&action)(libc::SIGSYS, info, context);
    }
}

/// # Safety
/// `context` comes from the kernel.
unsafe fn interrupted_mask(context: *const libc::ucontext_t) -> u64 {
    // SAFETY: the kernel's signal set is the first 8 bytes of uc_sigmask.
    unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() }
}

fn handler_of(action: &Action) -> Handler {
    // SAFETY: an address that the program registered as a handler, which the caller has seen.
    unsafe { core::mem::transmute(action.handler) }
}

/// Whether the interrupted code is behind the end of a call already; then the thread is no longer
/// inside. Code that is about to get there begins its last steps again, as the signal is one more
/// thing to do first.
///
/// # Safety
/// `context` comes from the kernel.
unsafe fn has_left(thread: &Thread, context: *mut libc::ucontext_t) -> bool {
    // SAFETY: the caller's promise.
    let rip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    match entry::end_of_call(*rip as usize) {
        End::Not => false,
        End::Leaving(again) => {
            *rip = again as i64;
            false
        }
        End::Left => {
            let flags = thread.flags.load(Relaxed);
            thread.flags.store(flags & !IN_NACRE, Relaxed);
            true
        }
    }
}

/// Remembers the signal; nothing else arrives before the operation ends.
///
/// # Safety
/// `info` and `context` come from the kernel.
unsafe fn defer(
    thread: &Thread,
    signal: i32,
    info: *const libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    for (i, word) in thread.info.iter().enumerate() {
        // SAFETY: a siginfo has 128 bytes.
        word.store(
            unsafe { info.cast::<u64>().add(i).read_unaligned() },
            Relaxed,
        );
    }
    let deferred = thread.deferred.load(Relaxed);
    // SAFETY: the kernel's signal set is the first 8 bytes of uc_sigmask.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        thread.mask.store(mask.read(), Relaxed);
        mask.write(!FAULTS);
    }
    let flags = KEPT[signal as usize].flags.load(Relaxed);
    thread
        .restart
        .store(u8::from(flags & libc::SA_RESTART as u64 != 0), Relaxed);
    thread.deferred.store(deferred | SIGNAL, Release);
}

/// Does what is left to do at the end of a call. All signals are blocked still; the entry code
/// restores the mask next.
// SAFETY: only the entry code calls it, on a thread that has deferred something, on a stack of ours
// or the program's plain one.
pub unsafe extern "C" fn nacre_before_leaving() {
    let thread = thread();
    let deferred = thread.deferred.load(Acquire);
    if deferred & SIGNAL != 0 {
        requeue();
    }
    if deferred & ALTERNATE != 0 {
        thread.alternate.enable();
    }
}

/// Queues the deferred signal again, as it was.
fn requeue() {
    let info = &raw const thread().info;
    // SAFETY: si_signo is the first member of the kept siginfo.
    let signal = unsafe { info.cast::<i32>().read() };
    let (pid, tid) = (kernel::getpid() as usize, kernel::gettid() as usize);
    call(
        libc::SYS_rt_tgsigqueueinfo,
        &[pid, tid, signal as usize, info as usize],
    );
}

/// Delivers a signal that was deferred, on the program's stack. The thread has left Nacre.
// SAFETY: only `deliver_now` and the assembly of the entry call it.
pub unsafe extern "C" fn nacre_deliver() {
    let thread = thread();
    requeue();
    let mask = thread.mask.load(Relaxed);
    thread.deferred.store(0, Relaxed);
    set_mask(mask);
}

/// As [`nacre_deliver`], if one is deferred.
pub fn deliver_now() {
    if thread().deferred.load(Acquire) != 0 {
        // SAFETY: a signal is deferred, so `info` and `mask` are set.
        unsafe { nacre_deliver() };
    }
}

/// The mask that a handler runs with, as the kernel makes it.
fn mask_in_handler(signal: i32, action: &Action, interrupted: u64) -> u64 {
    let itself = match action.flags & libc::SA_NODEFER as u64 {
        0 => bit(signal),
        _ => 0,
    };
    interrupted | (action.mask | itself) & !OURS
}

type Handler = unsafe extern "C-unwind" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

/// Calls the program's handler with the context that an unpatched library would have shown.
///
/// # Safety
/// `info` and `context` come from the kernel.
unsafe fn run_handler(
    thread: &Thread,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let action = KEPT[signal as usize].load();
    if !is_handler(action.handler) {
        return;
    }
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        KEPT[signal as usize].store(&Action::default());
        kernel_action(signal, Some(&for_kernel(signal, &Action::default())), None);
    }
    if OURS & bit(signal) == 0 {
        // SAFETY: the caller's promise.
        let interrupted = unsafe { interrupted_mask(context) };
        set_mask(mask_in_handler(signal, &action, interrupted));
    }
    let handler = handler_of(&action);
    let call = thread.shown.swap(core::ptr::null_mut(), Relaxed);
    let mut interrupted = Interrupted::new();
    interrupted.mark(thread, call as usize);
    // SAFETY: the context is the kernel's; the shown registers, if any, live until the interrupted
    // call goes on.
    unsafe {
        let stack = (*context).uc_stack;
        let stack = [
            stack.ss_sp as usize,
            stack.ss_flags as u32 as usize,
            stack.ss_size,
        ];
        let before = stack::handler_begins(thread, context as usize, stack);
        let real = Registers::of(context);
        let shown = match signal == libc::SIGSYS && is_trapped(info) {
            true => real,
            false => real.as_program_sees_it(call),
        };
        shown.put(context);
        handler(signal, info, context);
        if Registers::of(context) == shown {
            real.put(context);
        }
        stack::handler_ends(thread, before);
    }
    interrupted.end();
    thread.shown.store(call, Relaxed);
}

/// The registers that unwinding needs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Registers {
    rip: usize,
    rsp: usize,
    r11: usize,
    saved: [usize; 6],
}

const SAVED: [i32; 6] = [
    libc::REG_RBX,
    libc::REG_RBP,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl Registers {
    /// # Safety
    /// `context` is valid.
    unsafe fn of(context: *const libc::ucontext_t) -> Self {
        // SAFETY: the caller's promise.
        let all = unsafe { &(*context).uc_mcontext.gregs };
        Registers {
            rip: all[libc::REG_RIP as usize] as usize,
            rsp: all[libc::REG_RSP as usize] as usize,
            r11: all[libc::REG_R11 as usize] as usize,
            saved: SAVED.map(|register| all[register as usize] as usize),
        }
    }

    /// # Safety
    /// `context` is valid.
    unsafe fn put(&self, context: *mut libc::ucontext_t) {
        // SAFETY: the caller's promise.
        let all = unsafe { &mut (*context).uc_mcontext.gregs };
        all[libc::REG_RIP as usize] = self.rip as i64;
        all[libc::REG_RSP as usize] = self.rsp as i64;
        for (register, value) in SAVED.into_iter().zip(self.saved) {
            all[register as usize] = value as i64;
        }
    }

    /// # Safety
    /// `call` is null or what is shown of the interrupted call.
    unsafe fn as_program_sees_it(&self, call: *const Shown) -> Self {
        // SAFETY: the caller's promise.
        if let Some(call) = unsafe { call.as_ref() } {
            // The C library cancels a thread only if this says that the call is not done.
            let behind = usize::from(call.is_over(self.rip)) * SYSCALL_LEN;
            let rip = patch::origin(call.resume).map_or(call.resume, |at| at + behind);
            return Registers {
                rip,
                rsp: call.rsp,
                saved: call.saved,
                ..*self
            };
        }
        let rip = entry::continues_at(self.rip, self.r11);
        Registers {
            rip: patch::origin(rip).unwrap_or(rip),
            ..*self
        }
    }
}

/// SIGSEGV and SIGBUS: ours if a copy routine or a grown mapping faulted, else the program's.
///
/// # Safety
/// `info` and `context` come from the kernel.
unsafe fn fault(
    thread: &Thread,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    // SAFETY: the kernel fills both.
    let (rip, address, code) = unsafe {
        let rip = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
        (rip, (*info).si_addr() as usize, (*info).si_code)
    };
    let sent = code <= 0;
    let inside = thread.is_inside();
    let by_key = signal == libc::SIGSEGV && code == FORBIDDEN_BY_KEY && !inside;
    if !sent && !by_key {
        // SAFETY: `context` is the kernel's, and nobody else uses it in this handler.
        match unsafe { repair(rip, address, inside, context) } {
            Repair::Done => {
                if !inside {
                    // One that came while we looked.
                    deliver_now();
                }
                return;
            }
            Repair::BeyondEnd => {
                // SAFETY: the kernel wrote `info` on this stack; the handler may change it.
                unsafe { (*info).si_signo = libc::SIGBUS };
                // SAFETY: siginfo and context are the kernel's, valid while the handler runs.
                return unsafe { pass_fault(thread, libc::SIGBUS, true, info, context) };
            }
            Repair::NotOurs => {}
        }
    }
    // SAFETY: siginfo and context are the kernel's, valid while the handler runs.
    unsafe { pass_fault(thread, signal, sent, info, context) };
}

/// Bits of the processor's error code: the access was a store, or fetched an instruction.
const STORED: i64 = 2;
const FETCHED: i64 = 16;
/// `SEGV_PKUERR`: the page's key forbids the access.
const FORBIDDEN_BY_KEY: i32 = 4;

/// The kernel could not begin a handler, or says no more of the fault than that there is one: the
/// interrupted instruction may not fault again.
const SI_KERNEL: i32 = 0x80;

/// What we can do about a fault.
enum Repair {
    Done,
    BeyondEnd,
    NotOurs,
}

/// # Safety
/// `context` comes from the kernel.
unsafe fn repair(
    rip: usize,
    address: usize,
    inside: bool,
    context: *mut libc::ucontext_t,
) -> Repair {
    let landing = match resolve(rip, address) {
        Resolution::Retry => return Repair::Done,
        Resolution::ResumeAt(landing) => Some(landing),
        Resolution::NotOurs => user::fault_landing(rip),
    };
    // SAFETY: the caller's promise.
    let error = unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] };
    let access = Access {
        write: error & STORED != 0,
        execute: error & FETCHED != 0,
    };
    // A mapping of the program that only lacks pages; also when one of its buffers lies there.
    match mapping::fault(address, access, inside) {
        mapping::Fault::Mapped => return Repair::Done,
        mapping::Fault::BeyondEnd if landing.is_none() => return Repair::BeyondEnd,
        _ => {}
    }
    let Some(landing) = landing else {
        return Repair::NotOurs;
    };
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = landing as i64 };
    Repair::Done
}

/// The program's action for a fault, or the kernel's.
///
/// # Safety
/// `info` and `context` come from the kernel.
unsafe fn pass_fault(
    thread: &Thread,
    signal: i32,
    sent: bool,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let action = KEPT[signal as usize].load();
    let blocked = thread.blocked.load(Relaxed);
    let inside = thread.is_inside();
    if inside || !is_handler(action.handler) || blocked & bit(signal) != 0 {
        // SAFETY: the caller's promise.
        let by_kernel = unsafe { (*info).si_code } == SI_KERNEL;
        let ignored = sent && action.handler == SIG_IGN;
        return default_action(signal, ignored, sent || by_kernel);
    }
    if action.flags & libc::SA_ONSTACK as u64 != 0 && alternate_stack::is_unusable() {
        return default_action(signal, false, true);
    }
    let nested = if action.flags & libc::SA_NODEFER as u64 == 0 {
        bit(signal)
    } else {
        0
    };
    thread
        .blocked
        .store(blocked | nested | action.mask & OURS, Relaxed);
    // SAFETY: the caller's promise.
    unsafe { run_handler(thread, signal, info, context) };
    thread.blocked.store(blocked, Relaxed);
}

/// The kernel's own action: the faulting instruction runs again, a sent signal is sent again.
fn default_action(signal: i32, ignored: bool, sent: bool) {
    if ignored {
        return;
    }
    kernel_action(signal, Some(&Action::default()), None);
    if sent {
        let (pid, tid) = (kernel::getpid() as usize, kernel::gettid() as usize);
        call(libc::SYS_tgkill, &[pid, tid, signal as usize]);
    }
}

/// A child does not get the signals of its parent, only its mask.
pub fn after_fork_child() {
    let thread = thread();
    let deferred = thread.deferred.fetch_and(!SIGNAL, Relaxed);
    if deferred == SIGNAL {
        set_mask(thread.mask.load(Relaxed));
    }
}
